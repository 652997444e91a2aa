package datapath

import (
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

func TestRoute(t *testing.T) {
	stackMode := func(t *testing.T, b *harness) {
		b.config.Flags |= bpf.ConfigStack
		must(t, b.changed())
	}
	noXDPOut := func(t *testing.T, b *harness) {
		b.setPeer(t,
			bpf.Nexthop{Ifindex: uint32(b.index["wtup"]), Flags: bpf.NexthopResolved, Mtu: 1500,
				Dmac: bpf.ToMAC(peerMAC), Smac: bpf.ToMAC(uplinkMAC)})
		b.mode.Active = ModeTC
		must(t, b.putEndpoint(podB, []int{b.index["wtb"]}))
	}
	u := func(p packet) packet { return p.udp(1000, 53, 24) }
	openRanges := func(t *testing.T, b *harness) {
		for _, prefix := range []string{"10.1.0.0/24", "fd00:1::/64"} {
			key := bpf.RouteKeyOf(mustPrefix(prefix))
			must(t, b.maps.Routes.Put(&key, &bpf.Route{Flags: bpf.RouteOpen}))
		}
		must(t, b.changed())
	}
	local := []string{"1 egress local 1", "2 ingress local 1"}
	runTable(t, []row{
		{name: "IPv4 to a local pod", in: u(fromA(podB.IPv4)), want: "redirect", out: toB,
			counts: local},
		{name: "IPv6 to a local pod", in: u(fromA(podB.IPv6)), want: "redirect", out: toB,
			counts: local},
		{name: "IPv4 to a remote pod", in: u(fromA(peer4)), want: "redirect", out: toPeer,
			counts: []string{"1 egress remote 1"}},
		{name: "IPv6 to a remote pod", in: u(fromA(peer6)), want: "redirect", out: toPeer,
			counts: []string{"1 egress remote 1"}},
		{name: "IPv4 from the wire to a pod", hook: "from_wire", in: u(fromPeer(podA.IPv4)),
			want: "redirect", out: toA, counts: []string{"1 ingress local 1"}},
		{name: "IPv6 from the wire to a pod", hook: "from_wire", in: u(fromPeer(podA.IPv6)),
			want: "redirect", out: toA, counts: []string{"1 ingress local 1"}},
		{name: "IPv4 to the outside", in: u(fromA(world4)), want: "pass",
			counts: []string{"1 egress stack 1"}},
		{name: "IPv6 to the outside", in: u(fromA(world6)), want: "pass",
			counts: []string{"1 egress stack 1"}},
		{name: "IPv4 to the node", in: u(fromA(node4)), want: "pass",
			counts: []string{"1 egress stack 1"}},
		{name: "IPv4 to loopback is for the stack to refuse", in: u(fromA(addr("127.0.0.1"))),
			want: "pass"},
		{name: "IPv4 to 0.0.0.0 is for the stack to refuse", in: u(fromA(addr("0.0.0.0"))),
			want: "pass"},
		{name: "IPv4 to the gateway (link-local)", in: u(fromA(GatewayIPv4)), want: "pass"},
		{name: "IPv4 to the metadata service (link-local)", in: u(fromA(addr("169.254.169.254"))),
			want: "pass"},
		{name: "IPv6 to the gateway (link-local)", in: u(fromA(GatewayIPv6)), want: "drop",
			reason: bpf.ReasonLinkLocal, counts: []string{"1 egress link_local 1"}},
		{name: "IPv4 from the wire to the host", hook: "from_wire", in: u(fromPeer(node4)),
			want: "pass", counts: []string{}},
		{name: "IPv6 from the wire to the host", hook: "from_wire", in: u(fromPeer(node6)),
			want: "pass", counts: []string{}},
		{name: "from the wire to a pod range without an endpoint is the host's", hook: "from_wire",
			in: u(fromPeer(nobody4)), want: "pass", counts: []string{}},
		{name: "IPv4 to an address that no pod has", in: u(fromA(nobody4)), want: "drop",
			reason: bpf.ReasonNoEndpoint, counts: []string{"1 egress no_endpoint 1"}},
		{name: "IPv6 to an address that no pod has", in: u(fromA(nobody6)), want: "drop",
			reason: bpf.ReasonNoEndpoint},
		{name: "the same, ranges shared with another plugin", setup: openRanges,
			in: u(fromA(nobody4)), want: "pass"},
		{name: "IPv4 to a node that is not resolved", in: u(fromA(cold4)), want: "pass",
			counts: []string{"1 egress stack 1"}},
		{name: "IPv6 to a node that is not resolved", in: u(fromA(cold6)), want: "pass"},
		{name: "to itself", in: u(fromA(podA.IPv4)), want: "redirect", out: toA,
			counts: []string{"1 egress local 1", "1 ingress local 1"}},
		{name: "IPv4 link-local from the wire", hook: "from_wire",
			in: u(fromPeer(podA.IPv4)).src(GatewayIPv4), want: "drop", reason: bpf.ReasonLinkLocal},
		{name: "IPv6 link-local from the wire", hook: "from_wire",
			in: u(fromPeer(podA.IPv6)).src(GatewayIPv6), want: "drop", reason: bpf.ReasonLinkLocal},
		{name: "stack mode, local", setup: stackMode, in: u(fromA(podB.IPv4)), want: "pass",
			counts: []string{"1 egress stack 1"}},
		{name: "stack mode, remote", setup: stackMode, in: u(fromA(peer6)), want: "pass"},
		{name: "stack mode, from the wire", setup: stackMode, hook: "from_wire",
			in: u(fromPeer(podA.IPv4)), want: "pass", counts: []string{"1 ingress stack 1"}},
		{name: "stack mode, spoofed", setup: stackMode, in: u(fromA(peer4)).src(podB.IPv4),
			want: "drop", reason: bpf.ReasonSpoofedIp},
		{name: "uplink takes no XDP frames", setup: noXDPOut, in: u(fromA(peer4)), want: "pass",
			only: "xdp", why: "TC needs no NAPI there"},
		{name: "uplink takes no XDP frames, TC does not care", setup: noXDPOut, in: u(fromA(peer4)),
			want: "redirect", out: toPeer, only: "tc", why: "TC needs no NAPI there"},
		{name: "pod takes no XDP frames", setup: noXDPOut, in: u(fromA(podB.IPv4)), want: "pass",
			only: "xdp", why: "TC redirects to the peer"},
		{name: "pod takes no XDP frames, TC does not care", setup: noXDPOut,
			in: u(fromA(podB.IPv4)), want: "redirect", out: toB, only: "tc",
			why: "TC redirects to the peer"},
		{name: "from the wire with another node's MAC", hook: "from_wire",
			in: u(fromPeer(podA.IPv4)).dstMAC(mac(0x77)), want: "redirect", out: toA},
	})
}

func TestMulticast(t *testing.T) {
	mcast4, mcast6 := addr("239.1.2.3"), addr("ff0e::1234")
	u := func(p packet) packet { return p.udp(1000, 53, 24) }
	chained := func(t *testing.T, b *harness) {
		ep := podA
		ep.Chained = true
		must(t, b.inside(func() error { return b.putEndpoint(ep, []int{b.index["wta"]}) }))
	}
	runTable(t, []row{
		{name: "IPv4 multicast", in: u(fromA(mcast4)).dstMAC(mac(1)), want: "drop",
			reason: bpf.ReasonMulticast, counts: []string{"1 egress multicast 1"}},
		{name: "IPv4 all hosts", in: u(fromA(addr("224.0.0.1"))), want: "drop",
			reason: bpf.ReasonMulticast},
		{name: "IPv4 broadcast", in: u(fromA(addr("255.255.255.255"))).dstMAC(broadcastMAC),
			want: "drop", reason: bpf.ReasonMulticast},
		{name: "IPv4 unicast in a broadcast frame", in: u(fromA(peer4)).dstMAC(broadcastMAC),
			want: "drop", reason: bpf.ReasonMulticast},
		{name: "IPv4 unicast in a multicast frame",
			in: u(fromA(peer4)).dstMAC([]byte{1, 0, 0x5e, 0, 0, 1}), want: "drop",
			reason: bpf.ReasonMulticast},
		{name: "IPv6 unicast in a multicast frame",
			in: u(fromA(peer6)).dstMAC([]byte{0x33, 0x33, 0, 0, 0, 1}), want: "drop",
			reason: bpf.ReasonMulticast},
		{name: "IPv6 multicast", in: u(fromA(mcast6)), want: "drop", reason: bpf.ReasonMulticast},
		{name: "IPv6 multicast DNS from the pod's own address", in: u(fromA(addr("ff02::fb"))),
			want: "drop", reason: bpf.ReasonMulticast},
		{name: "IPv6 multicast DNS from link-local",
			in: u(fromA(addr("ff02::fb"))).src(addr("fe80::a")), want: "drop",
			reason: bpf.ReasonLinkLocal},
		{name: "IGMP report", in: fromA(addr("224.0.0.22")).raw(2, make([]byte, 16)), want: "drop",
			counts: []string{"1 egress absorbed 1"}},
		{name: "spoofed IGMP report",
			in: fromA(addr("224.0.0.22")).src(podB.IPv4).raw(2, make([]byte, 16)), want: "drop",
			reason: bpf.ReasonSpoofedIp},
		{name: "chained: multicast is the bridge's", setup: chained, in: u(fromA(mcast4)),
			want: "pass"},
		{name: "chained: an error to a group", setup: chained,
			in:   fromA(mcast4).icmpError(3, 3, 0, fromPeer(podA.IPv4).udp(53, 1000, 60), 28),
			want: "drop", reason: bpf.ReasonIcmpNoFlow},
		{name: "chained: an IPv6 error to a group", setup: chained,
			in:   fromA(mcast6).icmpError(2, 0, 1280, fromPeer(podA.IPv6).udp(53, 1000, 60), 88),
			want: "drop", reason: bpf.ReasonIcmpNoFlow},
		{name: "multicast from the wire is the host's", hook: "from_wire", in: u(fromPeer(mcast4)),
			want: "pass", counts: []string{}},
		{name: "DHCP from a pod without an address",
			in: newPacket(podA.MAC, broadcastMAC, addr("0.0.0.0"), addr("255.255.255.255")).udp(68,
				67, 20), want: "drop", reason: bpf.ReasonSpoofedIp},
	})
}

// TestMartiansFromWire: sources that no single host can have must not reach a pod.
func TestMartiansFromWire(t *testing.T) {
	var rows []row
	for _, src := range []string{"0.0.0.0", "127.0.0.1", "224.0.0.5", "255.255.255.255",
		"240.0.0.1"} {
		rows = append(rows,
			row{name: src, hook: "from_wire", in: fromPeer(podA.IPv4).src(addr(src)).udp(1, 2, 8),
				want: "drop", reason: bpf.ReasonMartian})
	}
	for _, src := range []string{"::", "::1", "ff0e::1"} {
		rows = append(rows,
			row{name: src, hook: "from_wire", in: fromPeer(podA.IPv6).src(addr(src)).udp(1, 2, 8),
				want: "drop", reason: bpf.ReasonMartian})
	}
	runTable(t, rows)
}
