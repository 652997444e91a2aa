// Package datapath loads Weft's BPF programs, attaches them with pinned links,
// and keeps the maps they read. It knows packets and interfaces, not pods: what an
// endpoint is called and why it exists is package endpoint's business.
package datapath

import (
	"fmt"
	"net"
	"net/netip"

	"weft.dev/weft/internal/datapath/flowtable"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/datapath/nexthop"
)

// MaxEndpoints is how many endpoints one node can hold; slot 0 is the node itself.
const MaxEndpoints = 4096

// MaxAddresses is how many addresses one endpoint can have, of both families together.
const MaxAddresses = 16

// MaxNetwork is the highest number of a network.
const MaxNetwork = 1<<24 - 1

// Mode is how a node's datapath is hooked.
type Mode string

// The modes. ModeAuto is ModeTC with the XDP datapath for endpoints that ask for it.
const (
	ModeAuto  Mode = "auto"
	ModeXDP   Mode = "xdp"
	ModeTC    Mode = "tc"
	ModeStack Mode = "stack"
)

// Endpoint is one workload interface as the datapath sees it.
type Endpoint struct {
	// Slot is the endpoint's index in per-endpoint arrays, 1 to MaxEndpoints-1,
	// owned by the caller for as long as the endpoint is attached.
	Slot uint16
	// HostIf is the name of the interface's host side; it also names the pins.
	HostIf string
	// NetNS is the path of the pod's network namespace, PodIf the interface in it.
	NetNS string
	PodIf string
	// MAC is the pod side's address, GatewayMAC the one the pod sends to.
	MAC        net.HardwareAddr
	GatewayMAC net.HardwareAddr
	// IPv4 and IPv6 are its first addresses, either of which may be invalid (absent), and More
	// those besides: at most MaxAddresses, the only ones that it may send from.
	IPv4 netip.Addr
	IPv6 netip.Addr
	More []netip.Addr
	// Network is the one in which its packets are looked up and its addresses are its own; 0 is the
	// cluster's. In any other it reaches, and is reached by, endpoints of this node alone.
	Network uint32
	// MTU is the largest IP packet the pod's interface takes, in bytes.
	MTU int
	// Identity is who the endpoint is to other nodes (22 bits), 0 if nobody has said.
	Identity uint32
	// EgressSet and IngressSet are the policy sets (AddPolicySet) of what it begins and of what
	// others begin towards it; 0: none, all is allowed. One that is not there denies everything.
	EgressSet, IngressSet uint32
	// Chained marks an interface that another CNI plugin made (bridge, ptp): ARP and ND
	// beyond the gateway go to the stack and the interface's own settings stay.
	Chained bool
	// XDPDatapath asks for native XDP on the endpoint's interface and a second one, with TC, for
	// what its stack sends; see Datapath.PodDatapath for what it gets.
	XDPDatapath bool
}

// Addresses are all of the endpoint's, the first of each family first.
func (ep Endpoint) Addresses() []netip.Addr {
	var out []netip.Addr
	for _, a := range append([]netip.Addr{ep.IPv4, ep.IPv6}, ep.More...) {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// check refuses what no endpoint can be.
func (ep Endpoint) check() error {
	addrs := ep.Addresses()
	switch {
	case len(addrs) > MaxAddresses:
		return fmt.Errorf("endpoint %s: %s is one address too many: %d are possible", ep.HostIf,
			addrs[MaxAddresses], MaxAddresses)
	case ep.Network > MaxNetwork:
		return fmt.Errorf("endpoint %s: network %d: want at most %d", ep.HostIf, ep.Network,
			MaxNetwork)
	case ep.Network != 0 && ep.Chained:
		return fmt.Errorf("endpoint %s: the interface of another CNI plugin is in the cluster's network, not in %d", ep.HostIf, ep.Network)
	}
	return nil
}

// PodDatapath is how packets get off an endpoint's interface, and why so.
type PodDatapath struct {
	Name string `json:"name"` // xdp, tc or stack
	Why  string `json:"why"`
	// Refused says that the endpoint asks for the XDP datapath and cannot have it.
	Refused bool `json:"refused,omitempty"`
}

// RouteProtocol marks the kernel routes that Weft makes.
const RouteProtocol = nexthop.RouteProtocol

// What is known of other nodes, see package nexthop.
type (
	Node        = nexthop.Node
	NodeProblem = nexthop.NodeProblem
	Inherited   = nexthop.Inherited
)

// What the flow table holds, see package flowtable.
type (
	Traffic    = flowtable.Traffic
	Counter    = flowtable.Counter
	Budget     = flowtable.Budget
	Flow       = flowtable.Flow
	FlowEvent  = flowtable.Event
	EventType  = flowtable.EventType
	EventStats = flowtable.EventStats
)

// The event types.
const (
	EventNew  = flowtable.EventNew
	EventEnd  = flowtable.EventEnd
	EventDrop = flowtable.EventDrop
)

// TraceStep is one decision of a traced packet, in order.
type TraceStep struct {
	Hook   string `json:"hook"`
	Step   string `json:"step"`   // parse, antispoof, flow, route, mtu, verdict…
	Detail string `json:"detail"` // for people
	// Policy is what a step policy has decided.
	Policy *TracePolicy `json:"policy,omitempty"`
}

// TracePolicy is what a policy set said.
type TracePolicy struct {
	// Direction is egress, of the set of the sender, or ingress, of the receiver's.
	Direction string `json:"direction"`
	// Identity is that of the peer, Rule the number of the entry that decided, 0 where there was
	// none.
	Identity uint32 `json:"identity"`
	Rule     uint32 `json:"rule,omitempty"`
	Allowed  bool   `json:"allowed"`
}

// Trace is what the live programs decided on a crafted packet.
type Trace struct {
	Steps   []TraceStep `json:"steps"`
	Verdict string      `json:"verdict"`
	Reason  string      `json:"reason,omitempty"`
	OutIf   string      `json:"outInterface,omitempty"`
	NextHop string      `json:"nextHop,omitempty"` // peer node or endpoint interface
}

// LinkStatus is one attached hook.
type LinkStatus = hook.Status

// ModeStatus says which mode runs and why.
type ModeStatus struct {
	Asked  Mode   `json:"asked"`
	Active Mode   `json:"active"`
	Why    string `json:"why"`
	// XDPDatapath says whether endpoints that ask for the XDP datapath get it.
	XDPDatapath bool `json:"xdpDatapath"`
}
