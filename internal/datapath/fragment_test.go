package datapath

import (
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

func TestFragments(t *testing.T) {
	u4, u6 := fromA(peer4).udp(1000, 53, 120), fromA(peer6).udp(1000, 53, 120)
	w4, w6 := fromPeer(podA.IPv4).udp(53, 1000, 120), fromPeer(podA.IPv6).udp(53, 1000, 120)
	tcp := fromA(peer4).tcp(1000, 80, syn, 40)
	first := func(p packet) packet { return p.fragment(0, 64, true) }
	later := func(p packet) packet { return p.fragment(64, 128, false) }
	seen := func(p packet) func(*testing.T, *harness) { return after("from_pod", first(p)) }
	other := func(p packet) packet { return p.id(0x4321) }
	behind := func(p packet) packet { return p.ext(unix.IPPROTO_DSTOPTS, optionsHeader(8)) }
	runTable(t, []row{
		{name: "IPv4 first", in: first(u4), want: "redirect", out: toPeer,
			counts: []string{"1 egress remote 1"}},
		{name: "IPv6 first", in: first(u6), want: "redirect", out: toPeer},
		{name: "IPv4 later", setup: seen(u4), in: later(u4), want: "redirect", out: toPeer},
		{name: "IPv6 later", setup: seen(u6), in: later(u6), want: "redirect", out: toPeer},
		{name: "IPv4 middle, out of order behind the first", setup: seen(u4),
			in: u4.fragment(96, 120, true), want: "redirect", out: toPeer},
		{name: "IPv4 later without its first", in: later(u4), want: "drop",
			reason: bpf.ReasonFragmentUnknown, counts: []string{"1 egress fragment_unknown 1"}},
		{name: "IPv6 later without its first", in: later(u6), want: "drop",
			reason: bpf.ReasonFragmentUnknown},
		{name: "IPv4 later of another datagram", setup: seen(u4), in: other(later(u4)),
			want: "drop", reason: bpf.ReasonFragmentUnknown},
		{name: "IPv6 later of another datagram", setup: seen(u6), in: later(other(u6)),
			want: "drop", reason: bpf.ReasonFragmentUnknown},
		{name: "IPv4 later to another destination", setup: seen(u4), in: later(u4.dst(podB.IPv4)),
			want: "drop", reason: bpf.ReasonFragmentUnknown},
		{name: "IPv4 later of another protocol", setup: seen(u4), in: tcp.fragment(32, 64, false),
			want: "drop", reason: bpf.ReasonFragmentUnknown},
		{name: "IPv4 later overlaps the first", setup: seen(u4), in: u4.fragment(56, 128, false),
			want: "drop", reason: bpf.ReasonFragmentOverlap,
			counts: []string{"1 egress fragment_overlap 1"}},
		{name: "IPv6 later overlaps the first", setup: seen(u6), in: u6.fragment(56, 128, false),
			want: "drop", reason: bpf.ReasonFragmentOverlap},
		{name: "IPv4 later inside the transport header", setup: seen(tcp),
			in: tcp.fragment(8, 40, false), want: "drop", reason: bpf.ReasonFragmentOverlap},
		{name: "IPv4 first of 8 bytes TCP", in: tcp.fragment(0, 8, true), want: "drop",
			reason: bpf.ReasonFragmentTiny, counts: []string{"1 egress fragment_tiny 1"}},
		{name: "IPv4 first of 16 bytes TCP", in: tcp.fragment(0, 16, true), want: "drop",
			reason: bpf.ReasonFragmentTiny},
		{name: "IPv6 first of 16 bytes TCP",
			in: fromA(peer6).tcp(1, 2, syn, 40).fragment(0, 16, true), want: "drop",
			reason: bpf.ReasonFragmentTiny},
		{name: "IPv4 first of 8 bytes UDP is whole", in: u4.fragment(0, 8, true), want: "redirect",
			out: toPeer},
		{name: "IPv6 first without any transport header", in: u6.fragment(0, 0, true), want: "drop",
			reason: bpf.ReasonFragmentTiny},
		{name: "IPv4 echo first", in: fromA(peer4).echo(5, 100).fragment(0, 64, true),
			want: "redirect", out: toPeer},
		{name: "IPv4 first from the wire", hook: "from_wire", in: first(w4), want: "redirect",
			out: toA},
		{name: "IPv4 later from the wire", hook: "from_wire", setup: after("from_wire", first(w4)),
			in: later(w4), want: "redirect", out: toA},
		{name: "IPv6 later from the wire", hook: "from_wire", setup: after("from_wire", first(w6)),
			in: later(w6), want: "redirect", out: toA},
		{name: "IPv4 later without its first from the wire", hook: "from_wire", in: later(w4),
			want: "drop", reason: bpf.ReasonFragmentUnknown,
			counts: []string{"1 ingress fragment_unknown 1"}},
		{name: "IPv4 later to the host is the host's", hook: "from_wire", in: later(w4.dst(node4)),
			want: "pass", counts: []string{}},
		{name: "IPv4 fragments to the outside take the stack",
			setup: after("from_pod", first(u4.dst(world4))), in: later(u4.dst(world4)),
			want: "pass"},
		{name: "IPv6 first with destination options behind the fragment header",
			in: fragmentBefore(u6, 0, 64, true), want: "redirect", out: toPeer},
		{name: "IPv6 later of such a datagram",
			setup: after("from_pod", fragmentBefore(u6, 0, 64, true)),
			in:    fragmentBefore(u6, 64, 128, false), want: "redirect", out: toPeer},
		{name: "IPv6 fragment behind destination options",
			setup: after("from_pod", first(behind(u6))), in: later(behind(u6)), want: "redirect",
			out: toPeer},
		{name: "IPv6 second fragment header",
			in: u6.ext(unix.IPPROTO_FRAGMENT,
				[]byte{0, 0, 0, 1, 0, 0, 0, 1}).ext(unix.IPPROTO_FRAGMENT,
				[]byte{0, 0, 0, 0, 0, 0, 0, 2}), want: "redirect", out: toPeer},
	})
}

// fragmentBefore cuts a packet whose fragmentable part starts with a destination options header.
func fragmentBefore(p packet, from, to int, more bool) packet {
	whole := append(optionsHeader(8), p.transport()...)
	whole[0] = p.protocol
	p = p.raw(unix.IPPROTO_DSTOPTS, whole)
	return p.fragment(from, to, more)
}

// TestFragmentPorts: a later fragment belongs to the flow of its first.
func TestFragmentPorts(t *testing.T) {
	b := newHarness(t)
	for _, p := range []packet{fromA(peer4).udp(1000, 53, 120), fromA(peer6).udp(1000, 53, 120)} {
		for _, context := range contexts {
			b.reset(t)
			for _, f := range []packet{p.fragment(0, 64, true), p.fragment(64, 128, false)} {
				if v, _ := b.send(t, context, "from_pod", "wta", f.bytes()); v != "redirect" {
					t.Fatalf("%s: fragment: %s", context, v)
				}
			}
			flows := b.flowList(t)
			if len(flows) != 1 || flows[0].Src.Port() != 1000 || flows[0].Dst.Port() != 53 ||
				flows[0].Forward.Packets != 2 {
				t.Errorf("%s: flows %+v, want one of two packets from port 1000 to 53", context,
					flows)
			}
		}
	}
}

// TestFragmentNeverCached: a fragment's flow must not hand later packets an unchecked path, and a
// fragment must not use one.
func TestFragmentNeverCached(t *testing.T) {
	b := newHarness(t)
	for _, context := range contexts {
		b.reset(t)
		u := fromA(peer4).udp(1000, 53, 120)
		for range 3 {
			b.send(t, context, "from_pod", "wta", u.bytes())
		}
		if v, _ := b.send(t, context, "from_pod", "wta",
			u.fragment(64, 128, false).bytes()); v != "drop" {
			t.Errorf("%s: later fragment of a cached flow without its first: %s", context, v)
		}
	}
}

// TestFragmentOfCachedFlow: the first fragment in a cached flow is still remembered for those
// behind it.
func TestFragmentOfCachedFlow(t *testing.T) {
	b := newHarness(t)
	for _, u := range []packet{fromA(peer4).udp(1000, 53, 120), fromA(peer6).udp(1000, 53, 120)} {
		for _, context := range contexts {
			b.reset(t)
			warm(t, b, context, "from_pod", "wta", u.bytes())
			for i, f := range []packet{u.fragment(0, 64, true), u.fragment(64, 128, false)} {
				frame := f.bytes()
				verdict, out := b.send(t, context, "from_pod", "wta", frame)
				if verdict != "redirect" {
					t.Fatalf("%s: fragment %d: %s", context, i+1, verdict)
				}
				must(t, toPeer(frame, out))
			}
		}
	}
}
