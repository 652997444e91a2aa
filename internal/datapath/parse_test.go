package datapath

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// optionsHeader is a hop-by-hop or destination options header of n bytes, all padding.
func optionsHeader(n int) []byte {
	h := make([]byte, n)
	h[1], h[2], h[3] = byte(n/8-1), 1, byte(n-4)
	return h
}

func routingHeader(typ byte, n int) []byte {
	h := make([]byte, n)
	h[1], h[2], h[3] = byte(n/8-1), typ, 1
	return h
}

func authHeader(n int) []byte {
	h := make([]byte, n)
	h[1] = byte(n/4 - 2)
	return h
}

func TestParseEthernet(t *testing.T) {
	u4, u6 := fromA(peer4).udp(1000, 53, 8), fromA(peer6).udp(1000, 53, 8)
	runTable(t, []row{
		{name: "802.1Q from a pod", in: u4.tag(0x8100, 5), want: "drop",
			reason: bpf.ReasonVlanTagged, counts: []string{"1 egress vlan_tagged 1"}},
		{name: "802.1ad from a pod", in: u6.tag(0x88a8, 5), want: "drop",
			reason: bpf.ReasonVlanTagged},
		{name: "priority tag from a pod", in: u4.tag(0x8100, 0xe000), want: "drop",
			reason: bpf.ReasonVlanTagged},
		{name: "double tag from a pod", in: u4.tag(0x88a8, 5).tag(0x8100, 6), want: "drop",
			reason: bpf.ReasonVlanTagged},
		{name: "802.1Q from the wire is the host's", hook: "from_wire",
			in: fromPeer(podA.IPv4).udp(1, 2, 8).tag(0x8100, 5), want: "pass", counts: []string{}},
		{name: "802.1Q from the host to a pod", hook: "to_pod", iface: "wta",
			in: fromPeer(podA.IPv4).udp(1, 2, 8).tag(0x8100, 5), want: "drop",
			reason: bpf.ReasonVlanTagged},
		{name: "MPLS from a pod", in: u4.set(atEtherType, 0x88, 0x47), want: "drop",
			reason: bpf.ReasonEthertype},
		{name: "802.3 length field (STP) from a pod", in: u4.set(atEtherType, 0, 38), want: "drop",
			reason: bpf.ReasonEthertype},
		{name: "MPLS from the wire is the host's", hook: "from_wire",
			in: fromPeer(podA.IPv4).udp(1, 2, 8).set(atEtherType, 0x88, 0x47), want: "pass",
			counts: []string{}},
		{name: "ARP from the wire is the host's", hook: "from_wire",
			in: fromPeer(podA.IPv4).udp(1, 2, 8).set(atEtherType, 8, 6), want: "pass",
			counts: []string{}},
	})
}

func TestParseIPv4(t *testing.T) {
	u := fromA(peer4).udp(1000, 53, 16)
	header := func(at int, b ...byte) packet { return u.set(at, b...).edit(fixIPv4) }
	options := func(b ...byte) packet { return u.opts(b...) }
	forty := append([]byte{7, 39, 4}, make([]byte, 37)...)
	runTable(t, []row{
		{name: "version 5", in: header(atIP, 0x55), want: "drop", reason: bpf.ReasonBadIpHeader},
		{name: "version 6 in an IPv4 frame", in: header(atIP, 0x65), want: "drop",
			reason: bpf.ReasonBadIpHeader},
		{name: "header length 16", in: u.set(atIP, 0x44), want: "drop",
			reason: bpf.ReasonBadIpHeader},
		{name: "header length 0", in: u.set(atIP, 0x40), want: "drop",
			reason: bpf.ReasonBadIpHeader},
		{name: "total length below the header's", in: header(atLength, 0, 19), want: "drop",
			reason: bpf.ReasonBadIpHeader},
		{name: "total length beyond the frame", in: header(atLength, 0, 45), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "total length 65535", in: header(atLength, 0xff, 0xff), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "bad checksum", in: u.set(atSum, 0xba, 0xad), want: "drop",
			reason: bpf.ReasonBadIpChecksum, counts: []string{"1 egress bad_ip_checksum 1"}},
		{name: "checksum off by one", in: u.edit(func(f []byte) { f[atSum+1]++ }), want: "drop",
			reason: bpf.ReasonBadIpChecksum},
		{name: "bad checksum to the outside", in: fromA(world4).udp(1, 2, 8).set(atSum, 1, 2),
			want: "drop", reason: bpf.ReasonBadIpChecksum},
		{name: "bad checksum from the wire to a pod", hook: "from_wire",
			in: fromPeer(podA.IPv4).udp(1, 2, 8).set(atSum, 1, 2), want: "drop",
			reason: bpf.ReasonBadIpChecksum},
		{name: "bad checksum from the wire to the host is the host's", hook: "from_wire",
			in: fromPeer(node4).udp(1, 2, 8).set(atSum, 1, 2), want: "pass", counts: []string{}},
		{name: "option NOP", in: options(1, 1, 1, 1), want: "redirect", out: toPeer},
		{name: "option end of list, rest ignored", in: options(0, 131, 131, 131), want: "redirect",
			out: toPeer},
		{name: "option record route", in: options(7, 7, 4, 0, 0, 0, 0, 0), want: "redirect",
			out: toPeer},
		{name: "option record route, 40 bytes", in: options(forty...), want: "redirect",
			out: toPeer},
		{name: "option router alert", in: options(148, 4, 0, 0), want: "redirect", out: toPeer},
		{name: "option LSRR", in: options(131, 7, 4, 10, 2, 0, 1, 0), want: "drop",
			reason: bpf.ReasonSourceRoute},
		{name: "option SSRR", in: options(137, 7, 4, 10, 2, 0, 1, 0), want: "drop",
			reason: bpf.ReasonSourceRoute},
		{name: "option LSRR behind NOPs", in: options(1, 1, 1, 131, 3, 4, 0, 0), want: "drop",
			reason: bpf.ReasonSourceRoute},
		{name: "option LSRR behind record route", in: options(7, 7, 4, 0, 0, 0, 0, 131, 3, 4, 0, 0),
			want: "drop", reason: bpf.ReasonSourceRoute},
		{name: "option LSRR in the last bytes",
			in: options(append(bytes.Repeat([]byte{1}, 37), 131, 3, 4)...), want: "drop",
			reason: bpf.ReasonSourceRoute},
		{name: "option of length 0", in: options(7, 0, 0, 0), want: "drop",
			reason: bpf.ReasonBadIpHeader},
		{name: "option of length 1", in: options(7, 1, 0, 0), want: "drop",
			reason: bpf.ReasonBadIpHeader},
		{name: "option longer than the header", in: options(7, 5, 4, 0), want: "drop",
			reason: bpf.ReasonBadIpHeader},
		{name: "option without its length byte", in: options(1, 1, 1, 7), want: "drop",
			reason: bpf.ReasonBadIpHeader},
		{name: "LSRR from the wire", hook: "from_wire",
			in: fromPeer(podA.IPv4).udp(1, 2, 8).opts(131, 3, 4, 0), want: "drop",
			reason: bpf.ReasonSourceRoute},
		{name: "bad checksum with options", in: options(1, 1, 1, 1).set(atSum, 1, 2), want: "drop",
			reason: bpf.ReasonBadIpChecksum},
		{name: "protocol without ports", in: fromA(peer4).raw(47, pattern(12)), want: "redirect",
			out: toPeer},
		{name: "empty payload", in: fromA(peer4).raw(253, nil), want: "redirect", out: toPeer},
	})
}

func TestParseIPv6(t *testing.T) {
	u := fromA(peer6).udp(1000, 53, 16)
	chain := func(n, size int) packet {
		p := u
		for range n {
			p = p.ext(unix.IPPROTO_DSTOPTS, optionsHeader(size))
		}
		return p
	}
	runTable(t, []row{
		{name: "version 4 in an IPv6 frame", in: u.set(atIP, 0x40), want: "drop",
			reason: bpf.ReasonBadIpHeader},
		{name: "mapped IPv4 source", in: u.src(addr("::ffff:10.1.0.10")), want: "drop",
			reason: bpf.ReasonMartian},
		{name: "mapped IPv4 destination", in: u.dst(addr("::ffff:10.2.0.20")), want: "drop",
			reason: bpf.ReasonMartian},
		{name: "payload length beyond the frame", in: u.set(atLength6, 0, 25), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "payload length too short for UDP", in: u.set(atLength6, 0, 7), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "hop-by-hop options", in: u.ext(unix.IPPROTO_HOPOPTS, optionsHeader(8)),
			want: "redirect", out: toPeer},
		{name: "destination options", in: chain(1, 24), want: "redirect", out: toPeer},
		{name: "hop-by-hop and destination options",
			in: u.ext(unix.IPPROTO_HOPOPTS, optionsHeader(8)).ext(unix.IPPROTO_DSTOPTS,
				optionsHeader(16)), want: "redirect", out: toPeer},
		{name: "routing header type 0", in: u.ext(unix.IPPROTO_ROUTING, routingHeader(0, 24)),
			want: "drop", reason: bpf.ReasonSourceRoute},
		{name: "routing header type 0 behind destination options",
			in: chain(1, 8).ext(unix.IPPROTO_ROUTING, routingHeader(0, 24)), want: "drop",
			reason: bpf.ReasonSourceRoute},
		{name: "routing header type 2", in: u.ext(unix.IPPROTO_ROUTING, routingHeader(2, 24)),
			want: "redirect", out: toPeer},
		{name: "routing header type 0 from the wire", hook: "from_wire",
			in:   fromPeer(podA.IPv6).udp(1, 2, 8).ext(unix.IPPROTO_ROUTING, routingHeader(0, 24)),
			want: "drop", reason: bpf.ReasonSourceRoute},
		{name: "authentication header", in: u.ext(unix.IPPROTO_AH, authHeader(24)),
			want: "redirect", out: toPeer},
		{name: "mobility header", in: u.ext(135, optionsHeader(8)), want: "redirect", out: toPeer},
		{name: "no next header", in: fromA(peer6).raw(59, nil), want: "redirect", out: toPeer},
		{name: "six headers", in: chain(6, 8), want: "redirect", out: toPeer},
		{name: "seven headers", in: chain(7, 8), want: "drop", reason: bpf.ReasonExtensionHeaders,
			counts: []string{"1 egress extension_headers 1"}},
		{name: "headers up to 320 bytes", in: chain(1, 264), want: "redirect", out: toPeer},
		{name: "headers beyond 320 bytes", in: chain(1, 272), want: "drop",
			reason: bpf.ReasonExtensionHeaders},
		{name: "one header of 2048 bytes", in: chain(1, 2048), want: "drop",
			reason: bpf.ReasonExtensionHeaders},
		{name: "header that claims more than the packet", in: chain(1, 8).set(atL46+1, 3),
			want: "drop", reason: bpf.ReasonTruncated},
		{name: "jumbogram option",
			in: u.ext(unix.IPPROTO_HOPOPTS, []byte{0, 0, 0xc2, 4, 0, 1, 0, 0}).set(atLength6, 0,
				0),
			want: "drop", reason: bpf.ReasonTruncated},
		{name: "atomic fragment", in: u.ext(unix.IPPROTO_FRAGMENT, []byte{0, 0, 0, 0, 1, 2, 3, 4}),
			want: "redirect", out: toPeer},
		{name: "atomic fragment behind destination options",
			in:   chain(1, 8).ext(unix.IPPROTO_FRAGMENT, []byte{0, 0, 0, 0, 1, 2, 3, 4}),
			want: "redirect", out: toPeer},
	})
}

func TestParseTransport(t *testing.T) {
	u4, t4 := fromA(peer4).udp(1000, 53, 16), fromA(peer4).tcp(1000, 80, syn, 4)
	short := func(p packet, proto uint8, n int) packet { return p.raw(proto, make([]byte, n)) }
	runTable(t, []row{
		{name: "UDP length beyond the packet", in: u4.set(atUDPLength, 0, 25), want: "drop",
			reason: bpf.ReasonBadL4Header},
		{name: "UDP length of the packet", in: u4.set(atUDPLength, 0, 24), want: "redirect",
			out: toPeer},
		{name: "UDP length below the packet's", in: u4.set(atUDPLength, 0, 9), want: "redirect",
			out: toPeer},
		{name: "UDP length 7", in: u4.set(atUDPLength, 0, 7), want: "drop",
			reason: bpf.ReasonBadL4Header},
		{name: "TCP header length 16", in: t4.set(atTCPOffset, 4<<4), want: "drop",
			reason: bpf.ReasonBadL4Header},
		{name: "TCP header longer than the packet", in: t4.set(atTCPOffset, 15<<4), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "TCP header with options", in: t4.set(atTCPOffset, 6<<4), want: "redirect",
			out: toPeer},
		{name: "IPv4 TCP of 19 bytes", in: short(fromA(peer4), unix.IPPROTO_TCP, 19), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "IPv6 TCP of 19 bytes", in: short(fromA(peer6), unix.IPPROTO_TCP, 19), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "IPv4 UDP of 7 bytes", in: short(fromA(peer4), unix.IPPROTO_UDP, 7), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "IPv6 UDP of 7 bytes", in: short(fromA(peer6), unix.IPPROTO_UDP, 7), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "ICMP of 7 bytes", in: short(fromA(peer4), unix.IPPROTO_ICMP, 7), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "ICMPv6 of 7 bytes", in: short(fromA(peer6), unix.IPPROTO_ICMPV6, 7), want: "drop",
			reason: bpf.ReasonTruncated},
		{name: "UDP-Lite",
			in:   fromA(peer4).raw(unix.IPPROTO_UDPLITE, []byte{1, 2, 3, 4, 0, 8, 0, 0, 9}),
			want: "redirect", out: toPeer},
		{name: "ICMP timestamp", in: fromA(peer4).icmp(13, 0, make([]byte, 16)), want: "redirect",
			out: toPeer},
	})
}

// TestPadding: short frames arrive padded, and the padding travels on untouched.
func TestPadding(t *testing.T) {
	b := newHarness(t)
	for _, context := range contexts {
		for _, p := range []packet{fromA(peer4).udp(1, 2, 1), fromA(peer6).udp(1, 2, 1)} {
			in := append(p.bytes(), pattern(20)...)
			verdict, out := b.send(t, context, "from_pod", "wta", in)
			if verdict != "redirect" {
				t.Errorf("%s: padded frame: %s", context, verdict)
			} else if err := toPeer(in, out); err != nil {
				t.Errorf("%s: %v", context, err)
			}
		}
	}
}

// TestTruncated cuts frames at every length from a bare Ethernet header on. None may be forwarded:
// each lacks a byte that its headers promise.
func TestTruncated(t *testing.T) {
	b := newHarness(t)
	whole := map[string]packet{
		"IPv4 UDP":        fromA(peer4).udp(1, 2, 20),
		"IPv4 TCP":        fromA(podB.IPv4).tcp(1, 2, syn, 10),
		"IPv4 echo":       fromA(peer4).echo(7, 10),
		"IPv4 options":    fromA(peer4).udp(1, 2, 8).opts(7, 7, 4, 0, 0, 0, 0, 0),
		"IPv4 fragment":   fromA(peer4).udp(1, 2, 64).fragment(0, 32, true),
		"IPv4 ICMP error": fromA(peer4).icmpError(3, 1, 0, fromPeer(podA.IPv4).udp(1, 2, 20), 28),
		"IPv6 UDP":        fromA(peer6).udp(1, 2, 20),
		"IPv6 TCP":        fromA(podB.IPv6).tcp(1, 2, syn, 10),
		"IPv6 echo":       fromA(peer6).echo(7, 10),
		"IPv6 headers": fromA(peer6).udp(1, 2, 8).ext(unix.IPPROTO_HOPOPTS,
			optionsHeader(8)).ext(unix.IPPROTO_DSTOPTS, optionsHeader(16)),
		"IPv6 fragment":  fromA(peer6).udp(1, 2, 64).fragment(0, 32, true),
		"to the outside": fromA(world4).udp(1, 2, 20),
		"solicitation":   solicit(podA, podA.IPv6, GatewayIPv6, true),
		"authentication": fromA(peer6).udp(1, 2, 8).ext(unix.IPPROTO_AH, authHeader(24)),
		"routing, type 2": fromA(peer6).udp(1, 2, 8).ext(unix.IPPROTO_ROUTING,
			routingHeader(2, 24)),
		"UDP-Lite":         fromA(peer4).raw(unix.IPPROTO_UDPLITE, make([]byte, 12)),
		"protocol unknown": fromA(peer4).raw(253, make([]byte, 12)),
		"IPv4 all options": fromA(peer4).udp(1, 2, 8).opts(bytes.Repeat([]byte{1}, 40)...),
		"IPv6 long headers": fromA(peer6).udp(1, 2, 8).ext(unix.IPPROTO_DSTOPTS,
			optionsHeader(256)),
	}
	for name, p := range whole {
		frame := p.bytes()
		for _, context := range contexts {
			b.reset(t)
			for n := 14; n < len(frame); n++ {
				if v, _ := b.send(t, context, "from_pod", "wta", frame[:n]); v != "drop" &&
					v != "refused" {
					t.Errorf("%s/%s from a pod, %d of %d bytes: %s", name, context, n, len(frame),
						v)
				}
			}
			wantReasons(t, b, fmt.Sprintf("%s/%s", name, context), "truncated", "fragment_tiny")
		}
	}
}

// TestTruncatedFromWire: a truncated packet for a pod is dropped; cut so short that its destination
// cannot be read, it is the host's, whose stack drops it.
func TestTruncatedFromWire(t *testing.T) {
	b := newHarness(t)
	for _, p := range []packet{fromPeer(podA.IPv4).udp(1, 2, 20),
		fromPeer(podA.IPv6).tcp(1, 2, syn, 20), fromPeer(podA.IPv4).echo(1, 8)} {
		frame := p.bytes()
		for _, context := range contexts {
			b.reset(t)
			for n := 14; n < len(frame); n++ {
				v, _ := b.send(t, context, "from_wire", "wtup", frame[:n])
				if v == "redirect" {
					t.Errorf("%s: %d of %d bytes were forwarded", context, n, len(frame))
				}
			}
			wantReasons(t, b, context, "truncated")
			if flows := b.flowList(t); len(flows) != 0 {
				t.Errorf("%s: truncated packets made flows: %v", context, flows)
			}
		}
	}
}

func wantReasons(t *testing.T, b *harness, what string, allowed ...string) {
	t.Helper()
	for _, got := range reasonsIn(b.counted(t)) {
		known := false
		for _, a := range allowed {
			known = known || a == got
		}
		if !known {
			t.Errorf("%s: drop reason %s, want one of %v", what, got, allowed)
		}
	}
}
