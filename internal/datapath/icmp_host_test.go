package datapath

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// errorToHost is an ICMP error from the wire to this host.
type errorToHost struct {
	name   string
	in     packet
	behind []byte     // what the frame has behind the IP packet's end
	reason bpf.Reason // bpf.ReasonNone: it passes
}

// hostEnds are the addresses of one family: own and second are this host's.
type hostEnds struct{ router, own, second, pod, peer, world netip.Addr }

func (e hostEnds) about(src, dst netip.Addr) packet { return fromA(dst).src(src).udp(1000, 53, 60) }

// error is a router's to this host. It quotes the packet's headers whole, and some payload.
func (e hostEnds) error(quoted packet) packet {
	p := newPacket(peerMAC, uplinkMAC, e.router, e.own)
	if e.own.Is4() {
		return p.icmpError(3, 4, 1280, quoted, 56)
	}
	return p.icmpError(2, 0, 1280, quoted, 88)
}

// forged rows are about what this host sends sealed: each hides from a check that reads less than
// the kernel does.
func (e hostEnds) forged() []errorToHost {
	sealed, open := e.error(e.about(e.own, e.peer)), e.error(e.about(e.own, e.world))
	quote := open.payload[8:]
	unreadable := newPacket(peerMAC, uplinkMAC, e.router, e.own).icmp(sealed.payload[0],
		sealed.payload[1], make([]byte, 4+12))
	rows := []errorToHost{
		{name: "about a later fragment", in: e.error(e.about(e.own, e.peer).fragment(8, 64, false)),
			reason: bpf.ReasonIcmpUnsealed},
		{name: "about a packet from another own address", in: e.error(e.about(e.second, e.peer)),
			reason: bpf.ReasonIcmpUnsealed},
		{name: "about a packet in a plain pod's name", in: e.error(e.about(e.pod, e.peer)),
			reason: bpf.ReasonIcmpUnsealed},
		{name: "quoting another IP version",
			in:     open.edit(func(f []byte) { f[len(f)-len(quote)] ^= 0x70 }),
			reason: bpf.ReasonIcmpUnsealed},
		{name: "quoting less than a header", in: unreadable, reason: bpf.ReasonIcmpUnsealed},
		{name: "in fragments, the first without a quote", in: sealed.fragment(0, 8, true),
			reason: bpf.ReasonIcmpUnsealed},
		{name: "in fragments, another quote behind the first's end",
			in: sealed.fragment(0, 8, true), behind: quote, reason: bpf.ReasonIcmpUnsealed},
		{name: "in fragments, the first with a quote that the kernel cuts",
			in: open.fragment(0, 28, true), reason: bpf.ReasonIcmpUnsealed},
		{name: "in fragments, the first without a whole header", in: sealed.fragment(0, 4, true),
			reason: bpf.ReasonFragmentTiny},
	}
	if e.own.Is4() {
		return append(rows,
			errorToHost{name: "behind a source route", in: sealed.opts(131, 3, 4, 0),
				reason: bpf.ReasonSourceRoute})
	}
	many, long := sealed, sealed.ext(unix.IPPROTO_DSTOPTS,
		optionsHeader(160)).ext(unix.IPPROTO_DSTOPTS, optionsHeader(160))
	for range 7 {
		many = many.ext(unix.IPPROTO_DSTOPTS, optionsHeader(8))
	}
	data := newPacket(peerMAC, uplinkMAC, e.router, e.own).udp(53, 1000, 10)
	for range 7 {
		data = data.ext(unix.IPPROTO_DSTOPTS, optionsHeader(8))
	}
	over := routingHeader(0, 8)
	over[3] = 0
	return append(rows,
		errorToHost{name: "behind seven extension headers", in: many,
			reason: bpf.ReasonExtensionHeaders},
		errorToHost{name: "anything else behind seven extension headers", in: data,
			reason: bpf.ReasonExtensionHeaders},
		errorToHost{name: "behind extension headers of more than 320 bytes", in: long,
			reason: bpf.ReasonExtensionHeaders},
		errorToHost{name: "behind a source route that is over",
			in: sealed.ext(unix.IPPROTO_ROUTING, over), reason: bpf.ReasonSourceRoute},
		errorToHost{name: "in fragments, the first ends before the header",
			in: sealed.ext(unix.IPPROTO_FRAGMENT, []byte{0, 0, 0, 1, 0, 0, 0, 9}).
				raw(unix.IPPROTO_DSTOPTS, nil), reason: bpf.ReasonTruncated})
}

// honest rows are the nearest that have to pass.
func (e hostEnds) honest() []errorToHost {
	ping := newPacket(peerMAC, uplinkMAC, e.world, e.own).echo(7, 1000)
	pong := newPacket(peerMAC, uplinkMAC, e.world, e.own).echoReply(7, 1000)
	data := newPacket(peerMAC, uplinkMAC, e.world, e.own).udp(53, 1000, 1000)
	open := e.error(e.about(e.own, e.world))
	header := map[bool]int{true: 20, false: 40}[e.own.Is4()]
	rows := []errorToHost{
		{name: "about the world", in: open},
		{name: "about a fragment to the world",
			in: e.error(e.about(e.own, e.world).fragment(0, 32, true))},
		{name: "about a later fragment to the world",
			in: e.error(e.about(e.own, e.world).fragment(8, 64, false))},
		{name: "about a packet to the world from another own address",
			in: e.error(e.about(e.second, e.world))},
		{name: "about a packet to the world, quoting its header alone",
			in: open.raw(open.protocol, open.transport()[:8+header])},
		{name: "about a sealed packet's plain sender",
			in: e.error(e.about(e.pod, e.peer)).dst(e.pod)},
		{name: "no error: an echo's first fragment", in: ping.fragment(0, 512, true)},
		{name: "no error: an echo's last fragment", in: ping.fragment(512, 1008, false)},
		{name: "no error: an echo's first fragment of eight bytes", in: ping.fragment(0, 8, true)},
		{name: "no error: a reply's first fragment", in: pong.fragment(0, 512, true)},
		{name: "no error: a reply's last fragment", in: pong.fragment(512, 1008, false)},
		{name: "no error: a datagram's first fragment", in: data.fragment(0, 512, true)},
		{name: "no error: a datagram's last fragment", in: data.fragment(512, 1008, false)},
		{name: "no error: a datagram's first fragment, smaller than its header",
			in: newPacket(peerMAC, uplinkMAC, e.world, e.own).tcp(1, 2, ack, 64).fragment(0, 8,
				true)},
	}
	if e.own.Is4() {
		return rows
	}
	for range 6 {
		data = data.ext(unix.IPPROTO_DSTOPTS, optionsHeader(8))
	}
	return append(rows,
		errorToHost{name: "no error: a datagram behind six extension headers", in: data})
}

// TestICMPErrorsToThisHost: the kernel looks for what an error is about by the addresses that it
// quotes, after reassembly and behind all headers. So nothing in that an error about a sealed
// packet can hide in passes; what is honest does.
func TestICMPErrorsToThisHost(t *testing.T) {
	b := newSealHarness(t, 4).keyed(t)
	must(t, b.putUplink(b.index["wtup"]))
	plain4, plain6 := addr("10.5.0.50"), addr("fd00:5::50")
	must(t, b.SetPlain([]netip.Prefix{netip.PrefixFrom(plain4, 32), netip.PrefixFrom(plain6, 128)}))
	t.Cleanup(func() { must(t, b.SetPlain(nil)) })
	for family, ends := range map[string]hostEnds{
		"IPv4": {addr("203.0.113.1"), node4, unlisted4, plain4, peer4, world4},
		"IPv6": {addr("2001:db8:5::1"), node6, addr("2001:db8::77"), plain6, peer6, world6},
	} {
		for _, context := range contexts {
			for _, c := range append(ends.forged(), ends.honest()...) {
				t.Run(context+" "+family+" "+c.name, func(t *testing.T) {
					must(t, emptyMap(b.maps.Drops))
					want := map[bool]string{true: "pass", false: "drop"}[c.reason == bpf.ReasonNone]
					if v, _ := b.send(t, context, "from_wire", "wtup",
						append(c.in.bytes(), c.behind...)); v != want {
						t.Errorf("%s, want %s", v, want)
					}
					if got := reasonsIn(b.counted(t)); c.reason == bpf.ReasonNone && got != nil ||
						c.reason != bpf.ReasonNone &&
							(len(got) != 1 || got[0] != c.reason.String()) {
						t.Errorf("drop reasons %v, want %s", got, c.reason)
					}
				})
			}
		}
	}
}
