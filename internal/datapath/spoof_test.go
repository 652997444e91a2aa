package datapath

import (
	"net/netip"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

func TestSpoof(t *testing.T) {
	chained := func(t *testing.T, b *harness) {
		ep := podA
		ep.Chained = true
		must(t, b.inside(func() error { return b.putEndpoint(ep, []int{b.index["wta"]}) }))
	}
	only4 := func(t *testing.T, b *harness) {
		must(t, b.forgetEndpoint(podA))
		ep := podA
		ep.IPv6 = netip.Addr{}
		must(t, b.inside(func() error { return b.putEndpoint(ep, []int{b.index["wta"]}) }))
	}
	drop := []string{"1 egress spoofed_ip 1"}
	runTable(t, []row{
		{name: "own IPv4 source", in: fromA(peer4).udp(1000, 53, 8), want: "redirect", out: toPeer},
		{name: "own IPv6 source", in: fromA(peer6).udp(1000, 53, 8), want: "redirect", out: toPeer},
		{name: "another pod's MAC", in: fromA(peer4).srcMAC(podB.MAC).udp(1000, 53, 8),
			want: "drop", reason: bpf.ReasonSpoofedMac},
		{name: "the gateway's MAC", in: fromA(peer4).srcMAC(gatewayMAC).udp(1000, 53, 8),
			want: "drop", reason: bpf.ReasonSpoofedMac},
		{name: "another pod's IPv4", in: fromA(peer4).src(podB.IPv4).udp(1000, 53, 8), want: "drop",
			reason: bpf.ReasonSpoofedIp, counts: drop},
		{name: "another pod's IPv6", in: fromA(peer6).src(podB.IPv6).udp(1000, 53, 8), want: "drop",
			reason: bpf.ReasonSpoofedIp, counts: drop},
		{name: "the gateway's IPv4", in: fromA(podB.IPv4).src(GatewayIPv4).udp(1000, 53, 8),
			want: "drop", reason: bpf.ReasonSpoofedIp},
		{name: "the node's IPv4", in: fromA(podB.IPv4).src(node4).udp(1000, 53, 8), want: "drop",
			reason: bpf.ReasonSpoofedIp},
		{name: "IPv4 0.0.0.0", in: fromA(podB.IPv4).src(addr("0.0.0.0")).udp(68, 67, 8),
			want: "drop", reason: bpf.ReasonSpoofedIp},
		{name: "IPv4 loopback", in: fromA(podB.IPv4).src(addr("127.0.0.1")).udp(1, 2, 8),
			want: "drop", reason: bpf.ReasonSpoofedIp},
		{name: "IPv6 unspecified", in: fromA(podB.IPv6).src(addr("::")).udp(1, 2, 8), want: "drop",
			reason: bpf.ReasonSpoofedIp},
		{name: "IPv6 mapped IPv4 of its own",
			in: fromA(podB.IPv6).src(addr("::ffff:10.1.0.10")).udp(1, 2, 8), want: "drop",
			reason: bpf.ReasonMartian},
		{name: "IPv6 link-local source to a routable address",
			in: fromA(peer6).src(addr("fe80::10")).udp(1, 2, 8), want: "drop",
			reason: bpf.ReasonLinkLocal},
		{name: "IPv6 link-local destination", in: fromA(addr("fe80::1")).udp(1, 2, 8), want: "drop",
			reason: bpf.ReasonLinkLocal},
		{name: "spoofed while a flow of the spoofed pod is cached", setup: cachedB,
			in: fromA(peer4).src(podB.IPv4).tcp(1000, 80, ack, 8), want: "drop",
			reason: bpf.ReasonSpoofedIp},
		{name: "spoofed MAC and IP while that flow is cached", setup: cachedB,
			in: fromB(peer4).tcp(1000, 80, ack, 8), want: "drop", reason: bpf.ReasonSpoofedMac},
		{name: "interface without an endpoint", iface: "wtx", in: fromA(peer4).udp(1, 2, 8),
			want: "drop", reason: bpf.ReasonUnknownInterface,
			counts: []string{"0 egress unknown_interface 1"}},
		{name: "endpoint without IPv6 sends from ::", setup: only4,
			in: fromA(peer6).src(addr("::")).udp(1, 2, 8), want: "drop",
			reason: bpf.ReasonSpoofedIp},
		{name: "endpoint without IPv6 sends from its old address", setup: only4,
			in: fromA(peer6).udp(1, 2, 8), want: "drop", reason: bpf.ReasonSpoofedIp},
		{name: "chained endpoint, another's IPv4", setup: chained,
			in: fromA(peer4).src(podB.IPv4).udp(1, 2, 8), want: "drop",
			reason: bpf.ReasonSpoofedIp},
		{name: "spoofed broadcast", in: fromA(addr("255.255.255.255")).src(podB.IPv4).udp(1, 2, 8),
			want: "drop", reason: bpf.ReasonSpoofedIp},
		{name: "spoofed later fragment",
			in: fromA(peer4).src(podB.IPv4).udp(1, 2, 64).fragment(32, 64, true), want: "drop",
			reason: bpf.ReasonSpoofedIp},
		{name: "local pod's address from the wire", hook: "from_wire",
			in: fromPeer(podA.IPv4).src(podB.IPv4).udp(1, 2, 8), want: "drop",
			reason: bpf.ReasonForeignSource, counts: []string{"1 ingress foreign_source 1"}},
		{name: "the pod's own address from the wire, IPv6", hook: "from_wire",
			in: fromPeer(podA.IPv6).src(podA.IPv6).udp(1, 2, 8), want: "drop",
			reason: bpf.ReasonForeignSource},
		{name: "local pod's address from the wire while cached inside", hook: "from_wire",
			setup: cachedLocal, in: fromPeer(podB.IPv4).src(podA.IPv4).udp(1000, 53, 8),
			want: "drop", reason: bpf.ReasonForeignSource},
	})
}

// cachedB leaves an established TCP flow of pod B to the peer.
func cachedB(t *testing.T, b *harness) {
	t.Helper()
	for _, p := range []struct {
		hook, iface string
		packet      packet
	}{
		{"from_pod", "wtb", fromB(peer4).tcp(1000, 80, syn, 0)},
		{"from_wire", "wtup", fromPeer(podB.IPv4).tcp(80, 1000, syn|ack, 0)},
		{"from_pod", "wtb", fromB(peer4).tcp(1000, 80, ack, 0)},
		{"from_pod", "wtb", fromB(peer4).tcp(1000, 80, ack, 8)},
	} {
		for _, context := range contexts {
			if v, _ := b.send(t, context, p.hook, p.iface, p.packet.bytes()); v != "redirect" {
				t.Fatalf("setup packet on %s: %s", p.hook, v)
			}
		}
	}
}

// cachedLocal leaves a UDP flow from pod A to pod B.
func cachedLocal(t *testing.T, b *harness) {
	t.Helper()
	for range 3 {
		b.send(t, "tc", "from_pod", "wta", fromA(podB.IPv4).udp(1000, 53, 8).bytes())
	}
}
