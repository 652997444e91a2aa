package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

var broadcastMAC = net.HardwareAddr{255, 255, 255, 255, 255, 255}

// arp builds an ARP frame; the packet is a carrier whose bytes are replaced.
func arp(op uint16, smac, sha net.HardwareAddr, spa netip.Addr, tha net.HardwareAddr,
	tpa netip.Addr) packet {
	body := []byte{0, 1, 8, 0, 6, 4}
	body = binary.BigEndian.AppendUint16(body, op)
	body = slices.Concat(body, sha, spa.AsSlice(), tha, tpa.AsSlice())
	p := newPacket(smac, broadcastMAC, addr("0.0.0.0"), addr("0.0.0.0")).raw(0, make([]byte, 8))
	return p.edit(func(f []byte) { f[12], f[13] = 8, 6; copy(f[14:], body) })
}

func arpRequest(ep Endpoint, spa, tpa netip.Addr) packet {
	return arp(1, ep.MAC, ep.MAC, spa, make(net.HardwareAddr, 6), tpa)
}

func TestARP(t *testing.T) {
	zero := addr("0.0.0.0")
	chained := func(t *testing.T, b *harness) {
		ep := podA
		ep.Chained = true
		must(t, b.inside(func() error { return b.putEndpoint(ep, []int{b.index["wta"]}) }))
	}
	answered := func(in, out []byte) error {
		want := arp(2, gatewayMAC, gatewayMAC, GatewayIPv4, podA.MAC,
			addrFrom4(in[28:32])).dstMAC(podA.MAC).bytes()
		if !bytes.Equal(out, want) {
			return fmt.Errorf("answer:\n got %x\nwant %x", out, want)
		}
		return nil
	}
	good := arpRequest(podA, podA.IPv4, GatewayIPv4)
	runTable(t, []row{
		{name: "request for the gateway", in: good, want: "redirect", out: answered,
			counts: []string{"1 egress answered 1"}},
		{name: "probe for the gateway", in: arpRequest(podA, zero, GatewayIPv4), want: "redirect",
			out: answered},
		{name: "unicast request for the gateway", in: good.dstMAC(gatewayMAC), want: "redirect",
			out: answered},
		{name: "announcement of its own address", in: arpRequest(podA, podA.IPv4, podA.IPv4),
			want: "drop", counts: []string{"1 egress absorbed 1"}},
		{name: "probe of its own address", in: arpRequest(podA, zero, podA.IPv4), want: "drop",
			counts: []string{"1 egress absorbed 1"}},
		{name: "announcement of another's address", in: arpRequest(podA, podB.IPv4, podB.IPv4),
			want: "drop", reason: bpf.ReasonSpoofedArp, counts: []string{"1 egress spoofed_arp 1"}},
		{name: "reply that claims another's address",
			in: arp(2, podA.MAC, podA.MAC, podB.IPv4, gatewayMAC, GatewayIPv4), want: "drop",
			reason: bpf.ReasonSpoofedArp},
		{name: "claims the gateway's address", in: arpRequest(podA, GatewayIPv4, podB.IPv4),
			want: "drop", reason: bpf.ReasonSpoofedArp},
		{name: "sender hardware address forged",
			in: arp(1, podA.MAC, podB.MAC, podA.IPv4, broadcastMAC, GatewayIPv4), want: "drop",
			reason: bpf.ReasonSpoofedArp},
		{name: "frame's source MAC forged",
			in: arp(1, podB.MAC, podA.MAC, podA.IPv4, broadcastMAC, GatewayIPv4), want: "drop",
			reason: bpf.ReasonSpoofedMac},
		{name: "request for another pod", in: arpRequest(podA, podA.IPv4, podB.IPv4), want: "drop",
			reason: bpf.ReasonArpTarget},
		{name: "reply to the gateway",
			in: arp(2, podA.MAC, podA.MAC, podA.IPv4, gatewayMAC, GatewayIPv4), want: "drop",
			reason: bpf.ReasonArpTarget},
		{name: "hardware type not Ethernet", in: good.set(14, 0, 6), want: "drop",
			reason: bpf.ReasonSpoofedArp},
		{name: "protocol not IPv4", in: good.set(16, 0x86, 0xdd), want: "drop",
			reason: bpf.ReasonSpoofedArp},
		{name: "address lengths wrong", in: good.set(18, 8, 4), want: "drop",
			reason: bpf.ReasonSpoofedArp},
		{name: "truncated", in: good, cut: 41, want: "drop", reason: bpf.ReasonTruncated},
		{name: "tagged", in: good.set(12, 0x81, 0), want: "drop", reason: bpf.ReasonVlanTagged},
		{name: "unknown interface", iface: "wtx", in: good, want: "drop",
			reason: bpf.ReasonUnknownInterface},
		{name: "chained: request for any address goes to the bridge", setup: chained,
			in: arpRequest(podA, podA.IPv4, podB.IPv4), want: "pass"},
		{name: "chained: a forged claim does not", setup: chained,
			in: arpRequest(podA, podB.IPv4, podB.IPv4), want: "drop", reason: bpf.ReasonSpoofedArp},
	})
}

func addrFrom4(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) }

func solicitedNode(target netip.Addr) netip.Addr {
	a, t := addr("ff02::1:ff00:0").As16(), target.As16()
	copy(a[13:], t[13:])
	return netip.AddrFrom16(a)
}

// solicit is a neighbour solicitation, with the source link-layer address option if asked for.
func solicit(ep Endpoint, src, target netip.Addr, option bool) packet {
	body := slices.Concat(make([]byte, 4), target.AsSlice())
	if option {
		body = append(append(body, 1, 1), ep.MAC...)
	}
	return newPacket(ep.MAC, net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 1}, src,
		solicitedNode(target)).icmp(135, 0, body).ttl(255)
}

func advertise(ep Endpoint, src, target netip.Addr, optionMAC net.HardwareAddr) packet {
	body := slices.Concat([]byte{0x20, 0, 0, 0}, target.AsSlice())
	if optionMAC != nil {
		body = append(append(body, 2, 1), optionMAC...)
	}
	return newPacket(ep.MAC, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, src,
		addr("ff02::1")).icmp(136, 0, body).ttl(255)
}

// wantAdvertised checks the whole answer byte for byte, its ICMPv6 checksum by the oracle.
func wantAdvertised(in, out []byte) error {
	src := netip.AddrFrom16([16]byte(in[22:38]))
	body := slices.Concat([]byte{0xe0, 0, 0, 0}, GatewayIPv6.AsSlice())
	if len(in) >= 86 {
		body = append(append(body, 2, 1), gatewayMAC...)
	}
	want := newPacket(gatewayMAC, podA.MAC, GatewayIPv6, src).icmp(136, 0, body).ttl(255).bytes()
	want = append(want,
		in[min(len(want), len(in)):]...) // further options stay behind the packet as padding
	if !bytes.Equal(out, want) {
		return fmt.Errorf("answer:\n got %x\nwant %x", out, want)
	}
	return nil
}

// eui64 is the link-local address that an interface makes of its MAC.
func eui64(m net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe,
		13: m[3], 14: m[4], 15: m[5]})
}

// options puts neighbour discovery options behind an NS or NA in place of its own.
func (p packet) ndOptions(options ...[]byte) packet {
	body := slices.Concat(p.transport()[4:24], slices.Concat(options...))
	return newPacket(p.smac, p.dmac, p.from, p.to).icmp(p.transport()[0], 0, body).ttl(255)
}

// TestNeighbourOptions: each option of a message counts, not only the first, and a broken one
// refuses the whole.
func TestNeighbourOptions(t *testing.T) {
	mine, theirs := append([]byte{1, 1}, podA.MAC...), append([]byte{1, 1}, podB.MAC...)
	target := append([]byte{2, 1}, podB.MAC...)
	nonce := []byte{14, 1, 1, 2, 3, 4, 5, 6}
	ns, na := solicit(podA, podA.IPv6, GatewayIPv6, false), advertise(podA, podA.IPv6, podA.IPv6,
		nil)
	many := slices.Repeat([][]byte{nonce}, 9)
	runTable(t, []row{
		{name: "own MAC behind a nonce", in: ns.ndOptions(nonce, mine), want: "redirect",
			out: func(in, out []byte) error { return nil }},
		{name: "another's MAC behind a nonce", in: ns.ndOptions(nonce, theirs), want: "drop",
			reason: bpf.ReasonSpoofedNd},
		{name: "another's MAC behind one's own", in: ns.ndOptions(mine, theirs), want: "drop",
			reason: bpf.ReasonSpoofedNd},
		{name: "another's target MAC in a solicitation", in: ns.ndOptions(mine, target),
			want: "drop", reason: bpf.ReasonSpoofedNd},
		{name: "another's target MAC as the second of an advertisement",
			in: na.ndOptions(nonce, target), want: "drop", reason: bpf.ReasonSpoofedNd},
		{name: "option of length 0", in: ns.ndOptions([]byte{14, 0, 0, 0, 0, 0, 0, 0}, theirs),
			want: "drop", reason: bpf.ReasonNdOption},
		{name: "option that reaches beyond the packet",
			in: ns.ndOptions([]byte{14, 2, 0, 0, 0, 0, 0, 0}), want: "drop",
			reason: bpf.ReasonNdOption},
		{name: "option cut short", in: ns.ndOptions([]byte{1, 1, 2}), want: "drop",
			reason: bpf.ReasonNdOption},
		{name: "MAC option of two units",
			in: na.ndOptions(append([]byte{2, 2}, make([]byte, 14)...)), want: "drop",
			reason: bpf.ReasonNdOption},
		{name: "more options than are looked at", in: ns.ndOptions(many...), want: "drop",
			reason: bpf.ReasonNdOption},
	})
}

// TestChainedClaims: a pod behind another plugin's bridge speaks for itself alone.
func TestChainedClaims(t *testing.T) {
	chained := func(ep Endpoint, iface string) func(*testing.T, *harness) {
		return func(t *testing.T, b *harness) {
			ep.Chained = true
			must(t, b.inside(func() error { return b.putEndpoint(ep, []int{b.index[iface]}) }))
		}
	}
	podsChained := both(chained(podA, "wta"), chained(podB, "wtb"))
	opaque, second := addr("fe80::1234:5678:9abc:def0"), addr("fe80::feed:1:2:3")
	claimedByB := both(podsChained, func(t *testing.T, b *harness) {
		if v, _ := b.send(t, "tc", "from_pod", "wtb",
			advertise(podB, opaque, opaque, podB.MAC).bytes()); v != "pass" {
			t.Fatalf("the neighbour's own claim: %s", v)
		}
	})
	claimedByA := both(podsChained, after("from_pod", solicit(podA, addr("::"), opaque, false)))
	own := eui64(podA.MAC)
	drop := func(name string, setup func(*testing.T, *harness), in packet) row {
		return row{name: name, setup: setup, in: in, want: "drop", reason: bpf.ReasonSpoofedNd}
	}
	pass := func(name string, setup func(*testing.T, *harness), in packet) row {
		return row{name: name, setup: setup, in: in, want: "pass"}
	}
	rs := func(src netip.Addr, m net.HardwareAddr) packet {
		return newPacket(podA.MAC, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 2}, src,
			addr("ff02::2")).icmp(133, 0, append([]byte{0, 0, 0, 0, 1, 1}, m...)).ttl(255)
	}
	none := addr("::")
	mld := func(src, dst netip.Addr, ttl uint8) packet {
		return newPacket(podA.MAC, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 0x16}, src,
			dst).icmp(143, 0, make([]byte, 24)).ttl(ttl)
	}
	routers := addr("ff02::16")
	runTable(t, []row{
		pass("a report of groups from its MAC's address", podsChained, mld(own, routers, 1)),
		pass("a report of groups from no address", podsChained, mld(none, routers, 1)),
		drop("a query for groups", podsChained, newPacket(podA.MAC,
			net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, own, addr("ff02::1")).icmp(130, 0,
			make([]byte, 24)).ttl(1)),
		drop("a report of groups from its own global address", podsChained,
			mld(podA.IPv6, routers, 1)),
		drop("a report of groups from a neighbour's address", podsChained,
			mld(podB.IPv6, routers, 1)),
		drop("a report of groups from the address of a neighbour's MAC", podsChained,
			mld(eui64(podB.MAC), routers, 1)),
		drop("a report of groups from another node's pod", podsChained, mld(peer6, routers, 1)),
		drop("a report of groups to another node's pod", podsChained, mld(own, peer6, 1)),
		drop("a report of groups that could be routed", podsChained, mld(own, routers, 64)),
		pass("its MAC's address", podsChained, advertise(podA, own, own, podA.MAC)),
		pass("duplicate address detection of its MAC's address", podsChained,
			solicit(podA, none, own, false)),
		pass("duplicate address detection of its own address", podsChained,
			solicit(podA, none, podA.IPv6, false)),
		pass("solicitation from its MAC's address", podsChained,
			solicit(podA, own, podB.IPv6, true)),
		pass("an opaque address (RFC 7217)", podsChained,
			advertise(podA, opaque, opaque, podA.MAC)),
		pass("the opaque address that it has claimed, again", claimedByA,
			advertise(podA, opaque, opaque, podA.MAC)),
		drop("a second opaque address", claimedByA, advertise(podA, second, second, podA.MAC)),
		drop("an opaque address that a neighbour has claimed", claimedByB,
			advertise(podA, opaque, opaque, podA.MAC)),
		drop("duplicate address detection of a neighbour's", claimedByB,
			solicit(podA, none, opaque, false)),
		drop("solicitation from a neighbour's", claimedByB, solicit(podA, opaque, podB.IPv6, true)),
		drop("the address of a neighbour's MAC", podsChained,
			advertise(podA, eui64(podB.MAC), eui64(podB.MAC), podA.MAC)),
		drop("the address of the bridge's MAC", podsChained,
			advertise(podA, eui64(gatewayMAC), eui64(gatewayMAC), podA.MAC)),
		drop("solicitation from the address of the bridge's MAC", podsChained,
			solicit(podA, eui64(gatewayMAC), podB.IPv6, true)),
		drop("a gateway's address", podsChained,
			advertise(podA, GatewayIPv6, GatewayIPv6, podA.MAC)),
		drop("another address given by hand", podsChained,
			advertise(podA, addr("fe80::53"), addr("fe80::53"), podA.MAC)),
		drop("a link-local address outside fe80::/64", podsChained,
			advertise(podA, addr("fe80:1::1:2:3:4"), addr("fe80:1::1:2:3:4"), podA.MAC)),
		drop("a neighbour's address", podsChained, advertise(podA, own, podB.IPv6, podA.MAC)),
		drop("duplicate address detection of a neighbour's global address", podsChained,
			solicit(podA, none, podB.IPv6, false)),
		pass("router solicitation", podsChained, rs(own, podA.MAC)),
		drop("router solicitation from the bridge's address", podsChained,
			rs(eui64(gatewayMAC), podA.MAC)),
		drop("router solicitation with another's MAC", podsChained, rs(own, podB.MAC)),
		pass("an address that was a gone pod's claim",
			both(claimedByB, func(t *testing.T, b *harness) { must(t, b.forgetEndpoint(podB)) }),
			advertise(podA, opaque, opaque, podA.MAC)),
	})
}

func TestNeighbourDiscovery(t *testing.T) {
	ll, none := addr("fe80::a"), addr("::")
	good := solicit(podA, podA.IPv6, GatewayIPv6, true)
	nonce := slices.Concat(make([]byte, 4), GatewayIPv6.AsSlice(), []byte{1, 1}, podA.MAC,
		[]byte{14, 1, 1, 2, 3, 4, 5, 6})
	message := func(typ uint8, dst string, size int) packet {
		return newPacket(podA.MAC, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 2}, ll,
			addr(dst)).icmp(typ, 0, make([]byte, size)).ttl(255)
	}
	absorbed := []string{"1 egress absorbed 1"}
	runTable(t, []row{
		{name: "solicitation for the gateway", in: good, want: "redirect", out: wantAdvertised,
			counts: []string{"1 egress answered 1"}},
		{name: "from its link-local address", in: solicit(podA, ll, GatewayIPv6, true),
			want: "redirect", out: wantAdvertised},
		{name: "unicast, without option (reachability probe)",
			in:   solicit(podA, podA.IPv6, GatewayIPv6, false).dst(GatewayIPv6).dstMAC(gatewayMAC),
			want: "redirect", out: wantAdvertised},
		{name: "with a nonce option",
			in: newPacket(podA.MAC, broadcastMAC, podA.IPv6, solicitedNode(GatewayIPv6)).icmp(135,
				0, nonce).ttl(255), want: "redirect", out: wantAdvertised},
		{name: "from another's address", in: solicit(podA, podB.IPv6, GatewayIPv6, true),
			want: "drop", reason: bpf.ReasonSpoofedNd, counts: []string{"1 egress spoofed_nd 1"}},
		{name: "with another's link-layer address", in: good.set(80, podB.MAC...), want: "drop",
			reason: bpf.ReasonSpoofedNd},
		{name: "with another's frame MAC", in: good.srcMAC(podB.MAC), want: "drop",
			reason: bpf.ReasonSpoofedMac},
		{name: "hop limit 254", in: good.ttl(254), want: "drop", reason: bpf.ReasonSpoofedNd},
		{name: "behind an extension header", in: good.ext(unix.IPPROTO_DSTOPTS, optionsHeader(8)),
			want: "drop", reason: bpf.ReasonSpoofedNd},
		{name: "as a first fragment",
			in: good.ext(unix.IPPROTO_FRAGMENT, []byte{0, 0, 0, 1, 1, 2, 3, 4}), want: "drop",
			reason: bpf.ReasonSpoofedNd},
		{name: "solicitation for another pod", in: solicit(podA, podA.IPv6, podB.IPv6, true),
			want: "drop", reason: bpf.ReasonNdTarget},
		{name: "duplicate address detection of its own", in: solicit(podA, none, podA.IPv6, false),
			want: "drop", counts: absorbed},
		{name: "duplicate address detection of the gateway's",
			in: solicit(podA, none, GatewayIPv6, false), want: "drop", reason: bpf.ReasonSpoofedNd},
		{name: "advertisement of its own address",
			in: advertise(podA, podA.IPv6, podA.IPv6, podA.MAC), want: "drop", counts: absorbed},
		{name: "advertisement of its link-local address", in: advertise(podA, ll, ll, podA.MAC),
			want: "drop", counts: absorbed},
		{name: "advertisement of another's address",
			in: advertise(podA, podA.IPv6, podB.IPv6, podA.MAC), want: "drop",
			reason: bpf.ReasonSpoofedNd},
		{name: "advertisement of the gateway's address",
			in: advertise(podA, podA.IPv6, GatewayIPv6, podA.MAC), want: "drop",
			reason: bpf.ReasonSpoofedNd},
		{name: "advertisement with another's MAC",
			in: advertise(podA, podA.IPv6, podA.IPv6, podB.MAC), want: "drop",
			reason: bpf.ReasonSpoofedNd},
		{name: "router advertisement", in: message(134, "ff02::1", 12), want: "drop",
			reason: bpf.ReasonSpoofedNd},
		{name: "redirect", in: message(137, "ff02::1", 36), want: "drop",
			reason: bpf.ReasonSpoofedNd},
		{name: "router solicitation", in: message(133, "ff02::2", 4), want: "drop",
			counts: absorbed},
		{name: "multicast listener report, version 1", in: message(131, "ff02::1", 20).ttl(1),
			want: "drop", counts: absorbed},
		{name: "multicast listener report, version 2, behind router alert",
			in: message(143, "ff02::16", 24).ttl(1).ext(unix.IPPROTO_HOPOPTS,
				[]byte{0, 0, 5, 2, 0, 0, 1, 0}), want: "drop", counts: absorbed},
		{name: "solicitation cut before its target ends", in: good, cut: 70, want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "short solicitation in a whole packet",
			in: newPacket(podA.MAC, broadcastMAC, podA.IPv6, solicitedNode(GatewayIPv6)).icmp(135,
				0, make([]byte, 8)).ttl(255), want: "drop", reason: bpf.ReasonTruncated},
		{name: "unknown interface", iface: "wtx", in: good, want: "drop",
			reason: bpf.ReasonUnknownInterface},
		{name: "router advertisement from the wire to a pod", hook: "from_wire",
			in:   fromPeer(podA.IPv6).src(addr("fe80::2")).icmp(134, 0, make([]byte, 12)).ttl(255),
			want: "drop", reason: bpf.ReasonLinkLocal},
		{name: "solicitation on the wire is the host's", hook: "from_wire",
			in: solicit(podA, podA.IPv6, node6, true), want: "pass", counts: []string{}},
	})
}
