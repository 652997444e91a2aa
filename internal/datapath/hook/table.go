// Package hook attaches Weft's programs: a table says which hooks there are, where and in which
// modes, and links that outlive the agent are made, replaced and removed by it.
package hook

import (
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Kind is how a program is attached. The pins of links are named by it.
type Kind string

// The kinds.
const (
	XDP        Kind = "xdp"
	XDPGeneric Kind = "xdpgeneric"
	TCIngress  Kind = "tcingress"
	TCEgress   Kind = "tcegress"
	Netfilter4 Kind = "netfilter4"
	Netfilter6 Kind = "netfilter6"
)

// Place is where a hook is attached.
type Place string

// The places.
const (
	Pod          Place = "host side of a pod's interface"
	Second       Place = "host side of a pod's second interface"
	PodOwn       Place = "the pod's own interface"
	Uplink       Place = "uplink"
	Segmentation Place = "`weft_net`"
	Sealer       Place = "`weft_sealer`"
	Node         Place = "netfilter, both families"
)

// Way is how packets are taken at a place: the node's mode and the endpoint's datapath decide.
type Way int

// The ways. ByGenericXDP is ByXDP in the kernel's generic, slower form, which any device can do.
const (
	ByTC Way = iota
	ByXDP
	ByGenericXDP
)

// Hook is a row of the table: the program of bpf/NAME.bpf.c, whose function is weft_NAME.
type Hook struct {
	Name string
	At   []Place
	// TC and XDP are how it is attached where packets are taken that way, "" where it is not.
	TC, XDP Kind
	// Does says what for, as ARCHITECTURE.md has it.
	Does string

	// perTarget: the interface that it sends to is a constant in it, so it is loaded for each
	// (PodOut).
	perTarget bool
	// onDemand: it is loaded when it is asked for, since few nodes need it.
	onDemand bool
	// netfilter is set for those at Node. They are attached where packets are sealed, and those
	// that ask policies where endpoints have some: before Linux 6.4 there are no such hooks.
	netfilter *netfilterHook
}

// netfilterHook is where in netfilter a program is attached.
type netfilterHook struct {
	hook  link.NetfilterInetHook
	first int32 // the first of its priorities, see replace
	asks  bool  // endpoints' policies
}

// Table lists every hook. Those of one place are attached in this order and detached in the reverse
// one.
var Table = []Hook{
	// Before the XDP hook: without it, the pod's own tags would be believed.
	{Name: "tag_in", At: []Place{Pod, Uplink}, XDP: TCIngress,
		Does: "behind a hook in XDP: takes the packet's [provenance](#provenance) over to the socket buffer"},
	{Name: "from_pod", At: []Place{Pod, Second}, TC: TCIngress, XDP: XDP,
		Does: "anti-spoofing, answers ARP and ND for the gateway, flow, route; redirects or passes to the stack. " +
			"Fails closed"},
	{Name: "from_wire", At: []Place{Uplink}, TC: TCIngress, XDP: XDP,
		Does: "opens ESP; packets for this node's endpoints: forged sources, flow, route; refuses what should have " +
			"been sealed; everything else is the host's and passes untouched"},
	{Name: "to_pod", At: []Place{Pod}, TC: TCEgress, XDP: TCEgress,
		Does: "what the host's stack sends to the pod: refuses cleartext in a cluster address's name by whatever " +
			"interface it came, and what its policy does; notes its flow. Fails closed"},
	{Name: "to_wire", At: []Place{Uplink}, TC: TCEgress, XDP: TCEgress,
		Does: "what the host's stack sends to the wire: refuses what did not come from where its source says, sends " +
			"what must be sealed into the segmentation veth under its sender's identity; refuses what that one's " +
			"policy does; notes flows of pods"},
	{Name: "from_segment", At: []Place{Segmentation}, TC: TCIngress,
		Does: "seals every packet that comes out of the segmentation veth and sends it to the wire; ESP that came " +
			"merged and was cut there goes back to `from_wire`"},
	// Before from_sealer is there nothing comes back, so nothing may go in.
	{Name: "from_sealer", At: []Place{Sealer}, TC: TCIngress, onDemand: true,
		Does: "what the [sealer](docs/encryption.md#the-sealer) gives back: ESP gets its outer addresses and leaves " +
			"by the uplink; what was opened passes the replay window and goes on as in `from_wire`; with engine user only"},
	{Name: "to_sealer", At: []Place{Sealer}, TC: TCEgress, onDemand: true,
		Does: "lets nothing reach the sealer but what a hook sends there"},
	{Name: "pod_out", At: []Place{PodOwn}, XDP: TCEgress, perTarget: true,
		Does: "on [the XDP datapath](docs/modes.md#the-xdp-datapath) only: sends what the pod's stack sends out of the pod's " +
			"second interface"},
	// Behind everything else on the way out, source translation included.
	{Name: "post_routing", At: []Place{Node},
		netfilter: &netfilterHook{link.NetfilterInetPostRouting, 1000, true},
		Does: "the last hook, all interfaces: refuses what must be sealed, or is for this node's own pods, and would " +
			"leave by an interface without hooks, and what a pod's policy refuses there, or elsewhere before connection " +
			"tracking takes note of it; with encryption or policies only"},
	// Before everything else on the way in, reassembly (-400) included.
	{Name: "pre_routing", At: []Place{Node},
		netfilter: &netfilterHook{link.NetfilterInetPreRouting, -1000, false},
		Does: "the first hook, interfaces without hooks: refuses what comes in a cluster address's name, before " +
			"reassembly and translation; with encryption only"},
	// Behind the filters, which may reject, and before connection tracking confirms (2^31-1).
	{Name: "local_in", At: []Place{Node},
		netfilter: &netfilterHook{link.NetfilterInetLocalIn, 1000, true},
		Does: "what the stack delivers to this host itself: refuses what the policy of the pod that sent it does, " +
			"whatever address has led it there; with encryption or policies only"},
}

// families are the kinds of a netfilter hook, one for each address family.
var families = []struct {
	kind   Kind
	family link.NetfilterProtocolFamily
}{
	{Netfilter4, link.NetfilterProtoIPv4},
	{Netfilter6, link.NetfilterProtoIPv6},
}

// OnlyAt tells whether the hook of a name is attached at this place and at no other.
func OnlyAt(name string, place Place) bool {
	return slices.ContainsFunc(Table,
		func(h Hook) bool { return h.Name == name && slices.Equal(h.At, []Place{place}) })
}

// kind is how the hook is attached where packets are taken by way, "" if it is not.
func (h Hook) kind(way Way) Kind {
	switch {
	case way == ByTC:
		return h.TC
	case way == ByGenericXDP && h.XDP == XDP:
		return XDPGeneric
	}
	return h.XDP
}

// kinds are all that a hook may be attached as.
func (h Hook) kinds() []Kind {
	var list []Kind
	for _, way := range []Way{ByTC, ByXDP, ByGenericXDP} {
		if k := h.kind(way); k != "" && !slices.Contains(list, k) {
			list = append(list, k)
		}
	}
	if h.netfilter != nil {
		for _, f := range families {
			list = append(list, f.kind)
		}
	}
	return list
}

// object is the BPF object with the hook's program for a kind.
func object(name string, kind Kind) string {
	if kind == XDP || kind == XDPGeneric {
		return name + "_xdp"
	}
	return name + "_tc"
}

// Function is the name of a hook's program.
func Function(name string) string { return "weft_" + name }

// Attachment is a hook attached, or to be attached, as one of its kinds.
type Attachment struct {
	Name    string
	Kind    Kind
	Program *ebpf.Program
}

// Every lists all that can be pinned for an interface, in any mode, the last to be attached first.
func Every() []Attachment {
	var list []Attachment
	for _, h := range Table {
		if h.netfilter != nil {
			continue
		}
		for _, k := range h.kinds() {
			list = append(list, Attachment{Name: h.Name, Kind: k})
		}
	}
	slices.Reverse(list)
	return list
}
