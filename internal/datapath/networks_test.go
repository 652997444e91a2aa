package datapath

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

// blue is a network of its own, in which pod A's addresses are another pod's.
const blue = 0x123456

var (
	blueA = Endpoint{Slot: 3, HostIf: "wtx", MAC: mac(0x1a), GatewayMAC: gatewayMAC,
		IPv4: podA.IPv4, IPv6: podA.IPv6, MTU: 1500, Network: blue}
	blueB = Endpoint{Slot: 4, HostIf: "wty", MAC: mac(0x1b), GatewayMAC: gatewayMAC,
		IPv4: podB.IPv4, IPv6: addr("fd00:1::99"), MTU: 1500, Network: blue,
		More: []netip.Addr{addr("10.77.0.1"), addr("fd00:77::1")}}
)

// enterBlue attaches both pods of the blue network, behind interfaces of their own.
func enterBlue(t *testing.T, b *harness) {
	t.Helper()
	must(t, b.putEndpoint(blueA, []int{b.index["wtx"]}))
	must(t, b.putEndpoint(blueB, []int{b.index["wty"]}))
}

func fromBlue(dst netip.Addr) packet {
	return newPacket(blueA.MAC, gatewayMAC, addrOf(blueA, dst), dst)
}

// TestNetworks: a pod's packets are looked up in its own network alone, also where two networks
// have the same address on one node; nothing crosses, and nothing of a network other than the
// cluster's leaves the node.
func TestNetworks(t *testing.T) {
	u := func(p packet) packet { return p.udp(1000, 53, 24) }
	toBlueB := routedTo(gatewayMAC, blueB.MAC)
	stack := both(enterBlue, func(t *testing.T, b *harness) {
		b.config.Flags |= bpf.ConfigStack
		must(t, b.changed())
	})
	// A flow of the cluster's between the very same addresses, and its decision.
	cached := both(enterBlue, func(t *testing.T, b *harness) {
		for range 2 {
			b.send(t, "tc", "from_pod", "wta", u(fromA(podB.IPv4)).bytes())
			b.send(t, "tc", "from_pod", "wta", fromA(podB.IPv4).tcp(1000, 80, syn, 0).bytes())
		}
	})
	closed := both(enterBlue, func(t *testing.T, b *harness) {
		key := bpf.RouteKeyIn(blue, mustPrefix("10.1.0.0/24"))
		must(t, b.maps.Routes.Put(&key, &bpf.Route{}))
		must(t, b.changed())
	})
	takesNoXDP := both(enterBlue, func(t *testing.T, b *harness) {
		b.mode.Active = ModeTC
		must(t, b.putEndpoint(blueB, []int{b.index["wty"]}))
	})
	detached := both(enterBlue, func(t *testing.T, b *harness) { must(t, b.forgetEndpoint(blueB)) })
	sent := u(fromBlue(podB.IPv4))
	local := []string{"3 egress local 1", "4 ingress local 1"}
	crossing := []string{"3 egress other_network 1"}
	in := func(name string, setup func(*testing.T, *harness), p packet, counts ...string) row {
		return row{name: name, iface: "wtx", setup: setup, in: p, want: "redirect", out: toBlueB,
			counts: counts}
	}
	drop := func(name string, setup func(*testing.T, *harness), p packet) row {
		return row{name: name, iface: "wtx", setup: setup, in: p, want: "drop",
			reason: bpf.ReasonOtherNetwork, counts: crossing}
	}
	rows := []row{
		in("IPv4 to the pod of its network", enterBlue, sent, local...),
		in("IPv6 to the pod of its network", enterBlue, u(fromBlue(blueB.IPv6)), local...),
		in("IPv4 to a further address", enterBlue, u(fromBlue(blueB.More[0])), local...),
		in("IPv6 to a further address", enterBlue, u(fromBlue(blueB.More[1])), local...),
		in("in mode stack", stack, sent, local...),
		in("beside the same flow of the cluster's", cached, sent),
		in("in the middle of a connection that the table does not know", enterBlue,
			fromBlue(podB.IPv4).tcp(1000, 80, ack, 8)),
		in("beside the same connection of the cluster's", cached,
			fromBlue(podB.IPv4).tcp(1000, 80, ack, 8)),
		{name: "the cluster's beside it", setup: enterBlue, in: u(fromA(podB.IPv4)),
			want: "redirect", out: toB, counts: []string{"1 egress local 1", "2 ingress local 1"}},
		{name: "the cluster's from the wire", setup: enterBlue, hook: "from_wire",
			in: u(fromPeer(podA.IPv4)), want: "redirect", out: toA},
		{name: "the cluster's from the wire to an address of the other network", setup: enterBlue,
			hook: "from_wire", in: u(fromPeer(blueB.More[0])), want: "pass", counts: []string{}},
		{name: "the cluster's to an address of the other network", setup: enterBlue,
			in: u(fromA(blueB.IPv6)), want: "drop", reason: bpf.ReasonNoEndpoint},
		{name: "the cluster's from an address of the other network", setup: enterBlue,
			in: u(fromA(peer4)).src(blueB.More[0]), want: "drop", reason: bpf.ReasonSpoofedIp},
		{name: "from an address of the cluster's", setup: enterBlue, iface: "wtx",
			in: u(fromBlue(blueB.IPv6)).src(podB.IPv6), want: "drop", reason: bpf.ReasonSpoofedIp},
		drop("to a pod of the cluster's", enterBlue, u(fromBlue(podB.IPv6))),
		drop("to a pod on another node", enterBlue, u(fromBlue(peer4))),
		drop("IPv6 to a pod on another node", enterBlue, u(fromBlue(peer6))),
		drop("to the node", enterBlue, u(fromBlue(node4))),
		drop("to the gateway", enterBlue, u(fromBlue(GatewayIPv4))),
		drop("to the outside", enterBlue, u(fromBlue(world4))),
		drop("to another node, in mode stack", stack, u(fromBlue(peer4))),
		drop("to a pod that is gone", detached, sent),
		{name: "to nobody in a range of its network", iface: "wtx", setup: closed,
			in: u(fromBlue(nobody4)), want: "drop", reason: bpf.ReasonNoEndpoint},
		{name: "to a pod that takes no XDP frames", iface: "wtx", setup: takesNoXDP, in: sent,
			want: "drop", reason: bpf.ReasonOtherNetwork, only: "xdp",
			why: "TC needs no NAPI there"},
		{name: "from the host's stack", iface: "wtx", setup: enterBlue, hook: "to_pod",
			in: newPacket(gatewayMAC, blueA.MAC, node4, blueA.IPv4).udp(1, 2, 8), want: "drop",
			reason: bpf.ReasonOtherNetwork},
	}
	runTable(t, rows)
}

// TestNetworksOfFlows: two networks' flows between the same addresses are two.
func TestNetworksOfFlows(t *testing.T) {
	b := newHarness(t)
	enterBlue(t, b)
	for _, p := range []struct {
		iface string
		in    packet
	}{{"wta", fromA(podB.IPv4)}, {"wtx", fromBlue(podB.IPv4)}, {"wtx", fromBlue(podB.IPv4)}} {
		if v, _ := b.send(t, "tc", "from_pod", p.iface,
			p.in.udp(1000, 53, 8).bytes()); v != "redirect" {
			t.Fatalf("%s: %s", p.iface, v)
		}
	}
	got := map[uint32]uint64{}
	for _, f := range b.flowList(t) {
		got[f.Network] += f.Forward.Packets
	}
	if len(got) != 2 || got[0] != 1 || got[blue] != 2 {
		t.Errorf("packets by network: %v", got)
	}
}

// TestAddressesOfAnEndpoint: each address of an endpoint is its own, up to the last, and no other
// is; what it gives up is nobody's at once.
func TestAddressesOfAnEndpoint(t *testing.T) {
	b := newHarness(t)
	ep := podA
	for i := range MaxAddresses - 2 {
		text := fmt.Sprintf("10.1.0.%d", 100+i)
		if i%2 == 1 {
			text = fmt.Sprintf("fd00:1::%d", 100+i)
		}
		ep.More = append(ep.More, addr(text))
	}
	sixteenth, seventeenth := ep.More[len(ep.More)-1], addr("fd00:1::777")
	fewer := ep
	fewer.IPv4, fewer.More = netip.Addr{}, ep.More[:3]
	enter := func(ep Endpoint) func(*testing.T, *harness) {
		return func(t *testing.T, b *harness) { must(t, b.putEndpoint(ep, []int{b.index["wta"]})) }
	}
	all := enter(ep)
	less := both(all, enter(fewer))
	u := func(p packet) packet { return p.udp(1000, 53, 24) }
	var rows []row
	for _, a := range ep.Addresses() {
		to := podB.IPv4
		if a.Is6() {
			to = podB.IPv6
		}
		kept := a == ep.IPv6 || a == ep.More[0] || a == ep.More[1] || a == ep.More[2]
		gone := row{name: "given up, from " + a.String(), setup: less, in: u(fromA(to)).src(a),
			want: "drop", reason: bpf.ReasonSpoofedIp}
		if kept {
			gone = row{name: "kept, from " + a.String(), setup: less, in: u(fromA(to)).src(a),
				want: "redirect", out: toB}
		}
		rows = append(rows, gone,
			row{name: "from " + a.String(), setup: all, in: u(fromA(to)).src(a), want: "redirect",
				out: toB},
			row{name: "to " + a.String(), setup: all, iface: "wtb", in: u(fromB(a)),
				want: "redirect", out: toA},
			row{name: "from the wire to " + a.String(), setup: all, hook: "from_wire",
				in: u(fromPeer(a)), want: "redirect", out: toA},
			row{name: "another pod from " + a.String(), setup: all, iface: "wtb",
				in: u(fromB(to)).src(a), want: "drop", reason: bpf.ReasonSpoofedIp},
			row{name: "from the wire from " + a.String(), setup: all, hook: "from_wire",
				in: u(fromPeer(to)).src(a), want: "drop", reason: bpf.ReasonForeignSource})
	}
	rows = append(rows,
		row{name: "ARP for a further address", setup: all,
			in: arpRequest(podA, ep.More[0], GatewayIPv4), want: "redirect",
			out: func(_, _ []byte) error { return nil }},
		row{name: "ARP for an address that it has not", setup: all,
			in: arpRequest(podA, addr("10.1.0.200"), GatewayIPv4), want: "drop",
			reason: bpf.ReasonSpoofedArp},
		row{name: "ND from the sixteenth", setup: all,
			in: solicit(podA, sixteenth, GatewayIPv6, true), want: "redirect", out: wantAdvertised},
		row{name: "ND from a seventeenth", setup: all,
			in: solicit(podA, seventeenth, GatewayIPv6, true), want: "drop",
			reason: bpf.ReasonSpoofedNd},
		row{name: "from a seventeenth", setup: all, in: u(fromA(podB.IPv6)).src(seventeenth),
			want: "drop", reason: bpf.ReasonSpoofedIp})
	runTable(t, rows)
	ep.More = append(ep.More, seventeenth)
	if err := b.AttachEndpoint(ep); err == nil ||
		!strings.Contains(err.Error(), seventeenth.String()) {
		t.Errorf("seventeen addresses: %v, want an error that names the last", err)
	}
	for _, bad := range []Endpoint{{HostIf: "wta", Network: MaxNetwork + 1},
		{HostIf: "wta", Network: 1, Chained: true}} {
		if err := b.AttachEndpoint(bad); err == nil || !strings.Contains(err.Error(), "network") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
