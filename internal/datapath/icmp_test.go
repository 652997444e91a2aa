package datapath

import (
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestICMPErrors: an error passes if the packet it quotes belongs to a flow and was sent by the
// error's receiver.
func TestICMPErrors(t *testing.T) {
	sent4, sent6 := fromA(peer4).udp(1000, 53, 40), fromA(peer6).udp(1000, 53, 40)
	tcp4, ping4, ping6 := fromA(peer4).tcp(1000, 80, syn, 0), fromA(peer4).echo(77,
		20), fromA(peer6).echo(77, 20)
	flow := func(p packet) func(*testing.T, *harness) { return after("from_pod", p) }
	router4 := func(p packet) packet { return fromPeer(podA.IPv4).src(addr("203.0.113.1")).icmpError(11, 0, 0, p, 28) }
	router6 := func(p packet) packet {
		return fromPeer(podA.IPv6).src(addr("2001:db8:5::1")).icmpError(2, 0, 1280, p, 88)
	}
	outside := fromA(world4).tcp(1000, 80, syn, 0)
	hop6 := sent6.ext(unix.IPPROTO_FRAGMENT, []byte{0, 0, 0, 0, 0, 0, 0, 9})
	dest6 := sent6.ext(unix.IPPROTO_DSTOPTS, optionsHeader(8))
	opts4 := sent4.opts(1, 1, 1, 1)
	runTable(t, []row{
		{name: "IPv4 time exceeded, UDP flow", hook: "from_wire", setup: flow(sent4),
			in: router4(sent4), want: "redirect", out: toA, counts: []string{"1 ingress local 1"}},
		{name: "IPv6 too big, UDP flow", hook: "from_wire", setup: flow(sent6), in: router6(sent6),
			want: "redirect", out: toA},
		{name: "IPv4 unreachable by the peer itself", hook: "from_wire", setup: flow(sent4),
			in: fromPeer(podA.IPv4).icmpError(3, 3, 0, sent4, 28), want: "redirect", out: toA},
		{name: "IPv4 too big, TCP flow, 8 bytes of it quoted", hook: "from_wire", setup: flow(tcp4),
			in: fromPeer(podA.IPv4).icmpError(3, 4, 1400, tcp4, 28), want: "redirect", out: toA},
		{name: "IPv4 about an echo", hook: "from_wire", setup: flow(ping4), in: router4(ping4),
			want: "redirect", out: toA},
		{name: "IPv6 about an echo", hook: "from_wire", setup: flow(ping6), in: router6(ping6),
			want: "redirect", out: toA},
		{name: "IPv4 quoting options", hook: "from_wire", setup: flow(sent4),
			in: fromPeer(podA.IPv4).icmpError(11, 0, 0, opts4, 40), want: "redirect", out: toA},
		{name: "IPv6 quoting an atomic fragment", hook: "from_wire", setup: flow(sent6),
			in: router6(hop6), want: "redirect", out: toA},
		{name: "IPv6 quoting destination options", hook: "from_wire", setup: flow(dest6),
			in: router6(dest6), want: "redirect", out: toA},
		{name: "IPv6 quoting hop-by-hop options", hook: "from_wire", setup: flow(sent6),
			in: router6(sent6.ext(unix.IPPROTO_HOPOPTS, optionsHeader(8))), want: "redirect",
			out: toA},
		{name: "IPv4 quoting another TTL than sent", hook: "from_wire", setup: flow(sent4),
			in: router4(sent4.ttl(1)), want: "redirect", out: toA},
		{name: "IPv4 without a flow", hook: "from_wire", in: router4(sent4), want: "drop",
			reason: bpf.ReasonIcmpNoFlow, counts: []string{"1 ingress icmp_no_flow 1"}},
		{name: "IPv4 without a flow, hiding behind a cached echo of identifier 0",
			hook: "from_wire", setup: echoZero,
			in: fromPeer(podA.IPv4).icmpError(11, 0, 0, sent4, 28), want: "drop",
			reason: bpf.ReasonIcmpNoFlow},
		{name: "IPv6 without a flow", hook: "from_wire", in: router6(sent6), want: "drop",
			reason: bpf.ReasonIcmpNoFlow},
		{name: "IPv4 about another port", hook: "from_wire", setup: flow(sent4),
			in: router4(fromA(peer4).udp(1001, 53, 40)), want: "drop",
			reason: bpf.ReasonIcmpNoFlow},
		{name: "IPv6 about another destination", hook: "from_wire", setup: flow(sent6),
			in: router6(fromA(addr("fd00:2::21")).udp(1000, 53, 40)), want: "drop",
			reason: bpf.ReasonIcmpNoFlow},
		{name: "IPv4 about another protocol", hook: "from_wire", setup: flow(sent4),
			in: router4(fromA(peer4).tcp(1000, 53, ack, 0)), want: "drop",
			reason: bpf.ReasonIcmpNoFlow},
		{name: "IPv4 about an echo of another identifier", hook: "from_wire", setup: flow(ping4),
			in: router4(fromA(peer4).echo(78, 20)), want: "drop", reason: bpf.ReasonIcmpNoFlow},
		{name: "IPv4 about a packet of another pod", hook: "from_wire", setup: cachedB,
			in: router4(fromB(peer4).tcp(1000, 80, ack, 8)), want: "drop",
			reason: bpf.ReasonIcmpMismatch, counts: []string{"1 ingress icmp_mismatch 1"}},
		{name: "IPv6 about a packet of another pod", hook: "from_wire", setup: flow(sent6),
			in: router6(fromB(peer6).udp(1000, 53, 40)), want: "drop",
			reason: bpf.ReasonIcmpMismatch},
		{name: "IPv4 about a packet to the pod", hook: "from_wire", setup: flow(sent4),
			in: router4(fromPeer(podA.IPv4).udp(53, 1000, 40)), want: "drop",
			reason: bpf.ReasonIcmpMismatch},
		{name: "IPv4 about a later fragment", hook: "from_wire", setup: flow(sent4),
			in: router4(sent4.fragment(8, 24, true)), want: "drop", reason: bpf.ReasonIcmpNoFlow},
		{name: "IPv4 in fragments", hook: "from_wire", setup: flow(sent4),
			in:   fromPeer(podA.IPv4).icmpError(11, 0, 0, sent4, 56).fragment(0, 56, true),
			want: "drop", reason: bpf.ReasonIcmpNoFlow},
		{name: "IPv6 in fragments", hook: "from_wire", setup: flow(sent6),
			in: router6(sent6).fragment(0, 88, true), want: "drop", reason: bpf.ReasonIcmpNoFlow},
		{name: "IPv4 quote cut inside the IP header", hook: "from_wire", setup: flow(sent4),
			in: fromPeer(podA.IPv4).icmpError(11, 0, 0, sent4, 19), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "IPv4 quote cut inside the ports", hook: "from_wire", setup: flow(sent4),
			in: fromPeer(podA.IPv4).icmpError(11, 0, 0, sent4, 27), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "IPv4 without any quote", hook: "from_wire",
			in: fromPeer(podA.IPv4).icmp(3, 1, make([]byte, 4)), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "IPv6 quote cut inside the ports", hook: "from_wire", setup: flow(sent6),
			in: fromPeer(podA.IPv6).icmpError(2, 0, 1280, sent6, 47), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "IPv4 quoting IPv6", hook: "from_wire", setup: flow(sent4),
			in: fromPeer(podA.IPv4).icmpError(3, 1, 0, sent6, 60), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "IPv4 error from a pod about what it received",
			setup: after("from_wire", fromPeer(podA.IPv4).udp(53, 1000, 40)),
			in:    fromA(peer4).icmpError(3, 3, 0, fromPeer(podA.IPv4).udp(53, 1000, 40), 28),
			want:  "redirect", out: toPeer},
		{name: "IPv6 error from a pod about what it received",
			setup: after("from_wire", fromPeer(podA.IPv6).udp(53, 1000, 40)),
			in:    fromA(peer6).icmpError(1, 4, 0, fromPeer(podA.IPv6).udp(53, 1000, 40), 88),
			want:  "redirect", out: toPeer},
		{name: "forged error from a pod about another's flow", setup: cachedB,
			in:   fromA(peer4).icmpError(3, 3, 0, fromPeer(podB.IPv4).tcp(80, 1000, ack, 8), 28),
			want: "drop", reason: bpf.ReasonIcmpMismatch},
		{name: "forged error from a pod with a spoofed source", setup: cachedB,
			in: fromA(peer4).src(podB.IPv4).icmpError(3, 3, 0,
				fromPeer(podB.IPv4).tcp(80, 1000, ack, 8), 28), want: "drop",
			reason: bpf.ReasonSpoofedIp},
		{name: "about a flow of the stack, takes the stack", hook: "from_wire",
			setup: both(midstream, flow(outside)), in: router4(fromA(peer4).tcp(2000, 80, ack, 8)),
			want: "pass"},
		{name: "about a flow to the outside, from the wire", hook: "from_wire",
			setup: flow(outside), in: router4(outside), want: "redirect", out: toA},
	})
}

// midstream leaves a flow of pod A to the peer that the stack routes: its start was not seen.
func midstream(t *testing.T, b *harness) {
	t.Helper()
	if v, _ := b.send(t, "tc", "from_pod", "wta",
		fromA(peer4).tcp(2000, 80, ack, 8).bytes()); v != "pass" {
		t.Fatalf("midstream packet: %s, want pass", v)
	}
}

// echoZero leaves cached decisions for an echo of identifier 0, whose flow has the ports that ICMP
// errors have.
func echoZero(t *testing.T, b *harness) {
	t.Helper()
	for _, context := range contexts {
		for range 3 {
			b.send(t, context, "from_pod", "wta", fromA(peer4).echo(0, 8).bytes())
			b.send(t, context, "from_wire", "wtup", fromPeer(podA.IPv4).echoReply(0, 8).bytes())
		}
	}
}

// TestICMPErrorsMakeNoFlow: errors are counted, and leave the flow table alone.
func TestICMPErrorsMakeNoFlow(t *testing.T) {
	b := newHarness(t)
	sent := fromA(peer4).udp(1000, 53, 40)
	for _, context := range contexts {
		b.reset(t)
		b.send(t, context, "from_pod", "wta", sent.bytes())
		before := b.flowList(t)
		b.send(t, context, "from_wire", "wtup",
			fromPeer(podA.IPv4).icmpError(3, 3, 0, sent, 28).bytes())
		b.send(t, context, "from_wire", "wtup",
			fromPeer(podA.IPv4).icmpError(3, 3, 0, fromA(peer4).udp(9, 9, 9), 28).bytes())
		if after := b.flowList(t); len(after) != 1 || after[0].Reply != before[0].Reply ||
			after[0].State != before[0].State {
			t.Errorf("%s: flows before %+v, after %+v", context, before, after)
		}
	}
}
