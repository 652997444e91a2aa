package datapath

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/test/espref"
)

// TestICMPErrorsAboutSealedFlows: nobody between two nodes sees what they seal, so an error about
// it is believed from the other node only, and sealed.
func TestICMPErrorsAboutSealedFlows(t *testing.T) {
	routers := map[int]netip.Addr{4: addr("203.0.113.1"), 6: addr("2001:db8:5::1")}
	for family, dst := range map[int]netip.Addr{4: peer4, 6: peer6} {
		b := newSealHarness(t, 4).keyed(t)
		sent := fromA(dst).udp(1000, 53, 40)
		outside := fromA(world4).udp(1000, 53, 40)
		host := wireB4
		if family == 6 {
			outside, host = fromA(world6).udp(1000, 53, 40), wireB6
		}
		toHost := fromA(host).udp(1000, 53, 40)
		about := func(p packet, from netip.Addr) packet {
			error := newPacket(peerMAC, uplinkMAC, from, p.from)
			if family == 4 {
				return error.icmpError(3, 4, 1280, p, 28)
			}
			return error.icmpError(2, 0, 1280, p, 88)
		}
		next := uint64(1)
		sealedAs := func(p packet, identity uint32) []byte {
			sa := peerSA(0)
			sa.SPI = spiOf(sealEpoch, 0, identity)
			next++
			return b.sealedBy(t, sa, espref.Packet{Seq: next, Inner: p.bytes()[14:]}, wireB4)
		}
		for _, context := range contexts {
			for _, c := range []struct {
				name, want, reason string
				frame              func() []byte
			}{
				{"too big, from a router in cleartext", "drop", "icmp_unsealed",
					func() []byte { return about(sent, routers[family]).bytes() }},
				{"too big about what went outside, in cleartext", "redirect", "",
					func() []byte { return about(outside, routers[family]).bytes() }},
				{"too big, sealed by the peer as its host", "redirect", "",
					func() []byte { return sealedAs(about(sent, host), 1) }},
				{"too big, sealed by the peer as the world's", "drop", "icmp_unsealed",
					func() []byte { return sealedAs(about(sent, routers[family]), 3) }},
				{"too big about what went to the peer's host, sealed as the world's", "redirect",
					"", func() []byte { return sealedAs(about(toHost, routers[family]), 3) }},
				{"too big about what went outside, sealed as the world's", "redirect", "",
					func() []byte { return sealedAs(about(outside, routers[family]), 3) }},
				{"unreachable, sealed by the peer's pod", "redirect", "",
					func() []byte { return sealedAs(about(sent, dst), identityPeer) }},
			} {
				t.Run(context+" "+c.name+" "+dst.String(), func(t *testing.T) {
					must(t, emptyMap(b.maps.Drops))
					for _, p := range []packet{sent, outside, toHost} {
						if v, _ := b.send(t, "tc", "from_pod", "wta", p.bytes()); v == "drop" {
							t.Fatalf("the flow to %s: %s", p.to, v)
						}
					}
					must(t, emptyMap(b.maps.Drops))
					v, _ := b.send(t, context, "from_wire", "wtup", c.frame())
					if v == "pass" && c.want == "redirect" {
						v = c.want // the stack may carry it
					}
					if v != c.want {
						t.Errorf("%s, want %s; %v", v, c.want, b.counted(t))
					}
					if got := reasonsIn(b.counted(t)); c.reason == "" && got != nil ||
						c.reason != "" && (len(got) != 1 || got[0] != c.reason) {
						t.Errorf("drop reasons %v, want %q", got, c.reason)
					}
				})
			}
		}
	}
}

// TestICMPErrorsThroughTheStack: an error in cleartext about what travels sealed does not reach a
// pod by the host's stack either (S12): neither by an interface without hooks nor translated from
// this host's address. The host's own errors do.
func TestICMPErrorsThroughTheStack(t *testing.T) {
	type errorRow struct {
		name, hook, via string
		in              packet
		want            string
		reason          bpf.Reason
	}
	rows := func(name string, router, pod, own, peer, peerHost, lost, world netip.Addr) []errorRow {
		about := func(to, src, dst netip.Addr) packet {
			quoted := fromA(dst).src(src).udp(1000, 53, 60)
			error := newPacket(peerMAC, uplinkMAC, router, to)
			if to.Is4() {
				return error.icmpError(3, 4, 1280, quoted, 28)
			}
			return error.icmpError(2, 0, 1280, quoted, 88)
		}
		return []errorRow{
			{name + " by an interface without hooks, about a remote pod", "to_pod", "wtx",
				about(pod, pod, peer), "drop", bpf.ReasonIcmpUnsealed},
			{name + " translated, about a remote pod", "to_pod", "wtup", about(pod, pod, peer),
				"drop", bpf.ReasonIcmpUnsealed},
			{name + " translated, about a remote host", "to_pod", "wtup", about(pod, pod, peerHost),
				"drop", bpf.ReasonIcmpUnsealed},
			{name + " about a lost node's pod", "to_pod", "wtup", about(pod, pod, lost), "drop",
				bpf.ReasonIcmpUnsealed},
			{name + " about the world", "to_pod", "wtup", about(pod, pod, world), "pass",
				bpf.ReasonNone},
			{name + " about the world, by an interface without hooks", "to_pod", "wtx",
				about(pod, pod, world), "pass", bpf.ReasonNone},
			{name + " about the world, in fragments", "to_pod", "wtx",
				about(pod, pod, world).fragment(0, 96, true), "drop", bpf.ReasonIcmpNoFlow},
			{name + " in which another's packet is quoted", "to_pod", "wtx",
				about(pod, world, peer), "drop", bpf.ReasonIcmpMismatch},
			{name + " of this host itself, about a remote pod", "to_pod", "", about(pod, pod, peer),
				"pass", bpf.ReasonNone},
			{name + " of another pod, about a remote pod", "to_pod", "wtb", about(pod, pod, peer),
				"pass", bpf.ReasonNone},
			{name + " to this host, about a remote pod", "from_wire", "wtup", about(own, own, peer),
				"drop", bpf.ReasonIcmpUnsealed},
			{name + " to this host, about a lost node's pod", "from_wire", "wtup",
				about(own, own, lost), "drop", bpf.ReasonIcmpUnsealed},
			{name + " to this host, about a remote host", "from_wire", "wtup",
				about(own, own, peerHost), "pass", bpf.ReasonNone},
			{name + " to this host, about the world", "from_wire", "wtup", about(own, own, world),
				"pass", bpf.ReasonNone},
		}
	}
	for _, c := range append(rows("IPv4", addr("203.0.113.1"), podA.IPv4, node4, peer4, wireB4,
		lost4, world4),
		rows("IPv6", addr("2001:db8:5::1"), podA.IPv6, node6, peer6, wireB6, lost6, world6)...) {
		t.Run(c.hook+" "+c.name, func(t *testing.T) {
			b := newSealHarness(t, 4).keyed(t)
			loseNode(t, b.harness)
			must(t, b.putUplink(b.index["wtup"]))
			frame := c.in.bytes()
			iface := map[string]string{"to_pod": "wta", "from_wire": "wtup"}[c.hook]
			options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512),
				Repeat: 1, Context: &skbContext{
					Ifindex: uint32(b.index[iface]), IngressIfindex: uint32(b.index[c.via]),
				}}
			var code uint32
			must(t, b.inside(func() (err error) {
				code, err = b.program("tc", c.hook).Run(options)
				return err
			}))
			if got := verdictOf("tc", code); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if got := reasonsIn(b.counted(t)); c.reason == bpf.ReasonNone && got != nil ||
				c.reason != bpf.ReasonNone && (len(got) != 1 || got[0] != c.reason.String()) {
				t.Errorf("drop reasons %v, want %s", got, c.reason)
			}
		})
	}
}

// TestSealedErrorIsNoSYN: the error about a sealed SYN, which goes back sealed, is not taken for
// the SYN whose MSS is to be lowered: at the places of its options it quotes an IP header, which
// here reads like an MSS of 2561.
func TestSealedErrorIsNoSYN(t *testing.T) {
	b := newSealHarness(t, 4).keyed(t)
	pod := addr("10.2.2.4")
	key := bpf.RouteKeyOf(mustPrefix("10.2.2.0/24"))
	must(t, b.maps.Routes.Put(&key, &bpf.Route{Node: 1}))
	sent := newPacket(peerMAC, uplinkMAC, pod, podA.IPv4).tcp(1000, 80, syn, 0).ttl(1).id(0xc000)
	for i, context := range contexts {
		frame := b.sealedBy(t, peerSA(0),
			espref.Packet{Seq: uint64(i) + 1, Inner: sent.bytes()[14:]}, wireB4)
		v, out := b.send(t, context, "from_wire", "wtup", frame)
		if v != "redirect" {
			t.Fatalf("%s: %s, want redirect; %v", context, v, b.counted(t))
		}
		_, back := b.opened(t, out)
		icmp := back.Inner[20:]
		if !bytes.Equal(icmp[8:], sent.bytes()[14:]) {
			t.Errorf("%s: quotes\n%x, want\n%x", context, icmp[8:], sent.bytes()[14:])
		}
		if inet.Checksum(icmp) != 0 || icmp[0] != 11 {
			t.Errorf("%s: type %d, want 11; checksum off by %#x", context, icmp[0],
				inet.Checksum(icmp))
		}
	}
}

// TestErrorsQuoteNothing: what a host has sent sealed to a pod is not readable in the error that
// this host's kernel sends back; errors about what travels readable go as ever.
func TestErrorsQuoteNothing(t *testing.T) {
	for _, c := range []struct {
		own, pod, remote,
		lost netip.Addr
	}{{node4, podA.IPv4, wireB4, lostHost4}, {node6, podA.IPv6, wireB6, lostHost6}} {
		quoting := func(to netip.Addr, quoted packet, size int) packet {
			p := newPacket(gatewayMAC, gatewayMAC, c.own, to)
			if to.Is4() {
				return p.icmpError(3, 1, 0, quoted, size)
			}
			return p.icmpError(1, 0, 0, quoted, size)
		}
		error := func(to, quotedSrc, quotedDst netip.Addr) packet {
			return quoting(to, fromA(quotedDst).src(quotedSrc).udp(1, 2, 60),
				map[bool]int{true: 48, false: 88}[to.Is4()])
		}
		// Neither has the eight bytes that a transport header would be read from; the IPv6 one ends
		// in an extension header.
		short := func(from, to netip.Addr) packet {
			quoted := fromA(to).src(from).raw(253, []byte("abcd"))
			if to.Is6() {
				quoted = quoted.raw(unix.IPPROTO_DSTOPTS, []byte{253, 4, 1, 0})
			}
			return quoting(from, quoted, 88)
		}
		cut := func(from, to netip.Addr, size int) packet {
			return quoting(from, fromA(to).src(from).udp(1, 2, 60), size)
		}
		for _, o := range []origin{
			{name: "about a packet to a pod", in: error(c.remote, c.remote, c.pod),
				want: "redirect", into: bpf.IdentityHost},
			{name: "about a packet to a pod of a protocol and size that nothing is known of",
				in: short(c.remote, c.pod), want: "redirect", into: bpf.IdentityHost},
			{name: "about such a packet to this host", in: short(c.remote, c.own), want: "pass"},
			{name: "about a packet whose header is cut off", in: cut(c.remote, c.pod, 16),
				want: "redirect", into: bpf.IdentityHost},
			{name: "about a packet to this host", in: error(c.remote, c.remote, c.own),
				want: "pass"},
			{name: "about a packet of somebody else's", in: error(c.remote, c.lost, c.pod),
				want: "redirect", into: bpf.IdentityHost},
			{name: "to a lost node, about a packet to a pod", in: error(c.lost, c.lost, c.pod),
				want: "drop", reason: bpf.ReasonNoNode},
			{name: "of the world's, about a packet to a pod", via: "wtup",
				in: error(c.remote, c.remote, c.pod).src(world4), want: "pass"},
		} {
			if o.via != "" && c.own.Is6() {
				o.in = o.in.src(world6)
			}
			o.hook = "to_wire"
			t.Run(o.name+" "+c.own.String(), func(t *testing.T) { o.run(t) })
		}
	}
}
