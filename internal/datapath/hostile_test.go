package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/test/espref"
)

// refusal is a frame from the wire that must be dropped, and why.
type refusal struct {
	name   string
	frame  func(b *sealHarness) []byte
	reason string
	setup  func(t *testing.T, b *sealHarness)
}

// inner is what node b's pod sends to pod A.
func inner() []byte { return fromPeer(podA.IPv4).udp(2000, 1000, 100).bytes()[atIP:] }

// one is a good packet of node b, changed.
func one(b *sealHarness, t testing.TB, sa espref.SA, change func(*espref.Packet)) []byte {
	_, there := b.outer()
	p := espref.Packet{Seq: 1, Inner: inner()}
	if change != nil {
		change(&p)
	}
	return b.sealedBy(t, sa, p, there)
}

func refusals(t *testing.T) []refusal {
	with := func(change func(*espref.Packet)) func(*sealHarness) []byte {
		return func(b *sealHarness) []byte { return one(b, t, peerSA(0), change) }
	}
	as := func(sa espref.SA) func(*sealHarness) []byte {
		return func(b *sealHarness) []byte { return one(b, t, sa, nil) }
	}
	spi := func(spi uint32) espref.SA { return espref.SA{SPI: spi, Key: keyIn, Salt: saltIn} }
	edited := func(edit func(frame []byte)) func(*sealHarness) []byte {
		return func(b *sealHarness) []byte {
			frame := one(b, t, peerSA(0), nil)
			edit(frame)
			return frame
		}
	}
	insideOf := func(p packet) func(*espref.Packet) {
		return func(e *espref.Packet) { e.Inner = p.bytes()[atIP:] }
	}
	return []refusal{
		{name: "unknown epoch", frame: as(spi(spiOf(5, 0, identityPeer))), reason: "esp_unknown_sa"},
		{name: "epoch 0", frame: as(spi(spiOf(0, 1, identityPeer))), reason: "esp_unknown_sa"},
		{name: "wrong lane: the sender has none of that number", frame: as(spi(spiOf(sealEpoch, 9, identityPeer))), reason: "esp_unknown_sa"},
		{name: "another lane's key", frame: as(espref.SA{SPI: spiOf(sealEpoch, 1, identityPeer), Key: peerSA(0).Key, Salt: saltIn}), reason: "esp_bad_tag"},
		{name: "lane changed on the way", frame: edited(func(f []byte) { binary.BigEndian.PutUint32(f[atSPI:], spiOf(sealEpoch, 1, identityPeer)) }), reason: "esp_bad_tag"},
		{name: "identity changed on the way", frame: edited(func(f []byte) { f[atSPI+3] ^= 1 }), reason: "esp_bad_tag"},
		{name: "sequence number changed", frame: edited(func(f []byte) { f[atSeq+3] ^= 2 }), reason: "esp_bad_tag"},
		{name: "IV changed", frame: edited(func(f []byte) { f[atIV+7] ^= 1 }), reason: "esp_bad_tag"},
		{name: "text changed", frame: edited(func(f []byte) { f[atText] ^= 1 }), reason: "esp_bad_tag"},
		{name: "tag changed", frame: edited(func(f []byte) { f[len(f)-1] ^= 0x80 }), reason: "esp_bad_tag"},
		{name: "another key", frame: as(espref.SA{SPI: peerSA(0).SPI, Key: keyOut, Salt: saltIn}), reason: "esp_bad_tag"},
		{name: "another salt", frame: as(espref.SA{SPI: peerSA(0).SPI, Key: keyIn, Salt: saltOut}), reason: "esp_bad_tag"},
		{name: "our own packet, reflected", reason: "esp_unknown_peer", frame: func(b *sealHarness) []byte {
			here, _ := b.outer()
			return b.sealedBy(t, peerSA(0), espref.Packet{Seq: 1, Inner: inner()}, here)
		}},
		{name: "our own packet, reflected as the peer's", reason: "esp_bad_tag", frame: func(b *sealHarness) []byte {
			// What this node seals for the peer, with the addresses of both ends exchanged and every checksum right.
			_, there := b.outer()
			ours := espref.SA{SPI: spiOf(sealEpoch, 0, identityPeer), Key: laneKey(keyOut, 0), Salt: saltOut}
			return b.sealedBy(t, ours, espref.Packet{Seq: 1, Inner: inner()}, there)
		}},
		{name: "an address that no node has", reason: "esp_unknown_peer", frame: func(b *sealHarness) []byte {
			return b.sealedBy(t, peerSA(0), espref.Packet{Seq: 1, Inner: inner()}, world4)
		}},
		{name: "number 0", frame: with(func(p *espref.Packet) { p.Seq, p.IV = 0, 9 }), reason: "esp_replayed"},
		{name: "identity of nobody there", frame: as(spi(spiOf(sealEpoch, 0, identityOther))), reason: "identity_not_on_node"},
		{name: "identity 0", frame: as(spi(spiOf(sealEpoch, 0, 0))), reason: "identity_not_on_node"},
		{name: "source of another node's range", frame: with(insideOf(fromPeer(podA.IPv4).src(cold4).udp(1, 2, 3))), reason: "inner_source"},
		{name: "source of this node's range", frame: with(insideOf(fromPeer(podA.IPv4).src(podB.IPv4).udp(1, 2, 3))), reason: "foreign_source"},
		{name: "source of the outside under a pod's identity", frame: with(insideOf(fromPeer(podA.IPv4).src(world4).udp(1, 2, 3))), reason: "inner_source"},
		{name: "this host's address under a pod's identity", frame: with(insideOf(fromPeer(podA.IPv4).src(node4).udp(1, 2, 3))), reason: "inner_source"},
		{name: "a pod's address under the host's identity", frame: as(spi(spiOf(sealEpoch, 0, 1))), reason: "inner_source"},
		{name: "martian inside", frame: func(b *sealHarness) []byte {
			return one(b, t, spi(spiOf(sealEpoch, 0, 1)), insideOf(fromPeer(podA.IPv4).src(addr("127.0.0.1")).udp(1, 2, 3)))
		}, reason: "martian"},
		{name: "to nobody here", frame: with(insideOf(fromPeer(nobody4).udp(1, 2, 3))), reason: "no_endpoint"},
		{name: "more padding than text", frame: textOf(t, append(bytes.Repeat([]byte{1}, 26), 255, espref.NextIPv4)), reason: "esp_padding"},
		{name: "more padding than text, its last bytes right", frame: textOf(t, append(make([]byte, 23), 253, 254, 255, 255, espref.NextIPv4)), reason: "esp_padding"},
		{name: "padding that leaves less than a header", frame: textOf(t, append(make([]byte, 23), 5, 6, 7, 7, espref.NextIPv4)), reason: "esp_padding"},
		{name: "wrong padding", frame: textOf(t, append(inner(), 7, 7, 2, espref.NextIPv4)), reason: "esp_padding"},
		{name: "not IP inside", frame: textOf(t, append(inner(), 1, 2, 2, 6)), reason: "esp_padding"},
		{name: "dummy packet (RFC 4303, 2.6)", frame: textOf(t, append(inner(), 1, 2, 2, espref.NextDummy)), reason: "esp_padding"},
		{name: "IPv6 inside that says IPv4", frame: textOf(t, append(fromPeer(podA.IPv6).udp(1, 2, 8).bytes()[atIP:], 1, 2, 2, espref.NextIPv4)), reason: "bad_ip_header"},
		{name: "inner packet longer than the text", frame: with(func(p *espref.Packet) { p.Inner = inner()[:len(inner())-4] }), reason: "truncated"},
		{name: "first fragment of ESP", frame: edited(func(f []byte) { f[atFragment] = inet.MoreFragments >> 8; fixIPv4(f) }), reason: "esp_fragment"},
		{name: "UDP says more than there is", frame: edited(func(f []byte) { f[atUDPLength+1] += 8 }), reason: "esp_malformed"},
		{name: "plain, from a pod of the peer", frame: func(*sealHarness) []byte { return fromPeer(podA.IPv4).udp(2000, 1000, 10).bytes() }, reason: "plaintext"},
		{name: "plain, IPv6", frame: func(*sealHarness) []byte { return fromPeer(podA.IPv6).udp(2000, 1000, 10).bytes() }, reason: "plaintext"},
		{name: "plain, from the peer's host", frame: func(*sealHarness) []byte { return fromPeer(podA.IPv4).src(wireB4).udp(2000, 1000, 10).bytes() }, reason: "plaintext"},
		{name: "plain, from a pod to this host", frame: func(*sealHarness) []byte { return fromPeer(node4).udp(2000, 1000, 10).bytes() }, reason: "plaintext"},
		{name: "key past its time", reason: "key_expired", frame: with(nil), setup: func(t *testing.T, b *sealHarness) {
			b.rekey(t, expired)
		}},
	}
}

// textOf seals exactly the text.
func textOf(t *testing.T, text []byte) func(*sealHarness) []byte {
	return func(b *sealHarness) []byte {
		sa := peerSA(0)
		esp, err := sa.SealText(1, 1, text)
		must(t, err)
		_, there := b.outer()
		return b.onWire(there, esp)
	}
}

// TestHostile: every one of them is dropped under its own name, in both contexts and by a sealer, and counted once.
func TestHostile(t *testing.T) {
	for _, r := range refusals(t) {
		for _, context := range receiveWays {
			t.Run(r.name+"/"+context, func(t *testing.T) {
				b := newSealHarness(t, 4).keyed(t)
				if r.setup != nil {
					r.setup(t, b)
				}
				verdict, _ := b.receive(t, context, r.frame(b))
				want := []string{sealersReason(context, r.reason)}
				if reasons := reasonsIn(b.counted(t)); verdict != "drop" || !slices.Equal(reasons, want) {
					t.Errorf("verdict %s, counted %v: want drop, %s", verdict, b.counted(t), r.reason)
				}
			})
		}
	}
}

// TestTruncatedESP cuts a good packet at every length: none is opened, none is taken for cleartext to a pod.
func TestTruncatedESP(t *testing.T) {
	b := newSealHarness(t, 4).keyed(t)
	whole := one(b, t, peerSA(0), nil)
	for _, context := range receiveWays {
		for n := 14 + 20; n < len(whole); n++ {
			frame := bytes.Clone(whole[:n])
			// As a link that cuts would leave it, and as a sender that lies less: lengths adapted.
			for _, adapted := range []bool{false, true} {
				if adapted {
					binary.BigEndian.PutUint16(frame[16:], uint16(n-14))
					fixIPv4(frame)
					if n >= atSPI {
						binary.BigEndian.PutUint16(frame[atUDPLength:], uint16(n-atL4))
					}
				}
				if verdict, _ := b.receive(t, context, frame); verdict == "redirect" {
					t.Fatalf("%s: %d of %d bytes (adapted: %v) were delivered", context, n, len(whole), adapted)
				}
			}
		}
	}
	if verdict, _ := b.send(t, "tc", "from_wire", "wtup", whole); verdict != "redirect" {
		t.Errorf("the whole packet: %s %v", verdict, b.counted(t))
	}
}

// TestReplayedOnce: a packet is delivered once, whichever context sees it again.
func TestReplayedOnce(t *testing.T) {
	for _, context := range receiveWays {
		b := newSealHarness(t, 4).keyed(t)
		frame := one(b, t, peerSA(0), nil)
		for i, want := range []string{"redirect", "drop", "drop"} {
			if verdict, _ := b.receive(t, context, frame); verdict != want {
				t.Errorf("%s, time %d: %s, want %s", context, i+1, verdict, want)
			}
		}
		if reasons := reasonsIn(b.counted(t)); !slices.Equal(reasons, []string{"esp_replayed"}) {
			t.Errorf("%s: counted %v", context, b.counted(t))
		}
	}
}

// TestNoKey: without keys nothing leaves, in either context and by either path, and the drop is named.
func TestNoKey(t *testing.T) {
	for _, path := range []string{"xdp from_pod", "tc from_pod", "tc to_wire"} {
		t.Run(path, func(t *testing.T) {
			b := newSealHarness(t, 4)
			var context, hook string
			_, err := fmt.Sscan(path, &context, &hook)
			must(t, err)
			frame := fromA(peer4).udp(1, 2, 3).bytes()
			if verdict, _ := b.send(t, context, hook, ifaceFor(hook), frame); verdict != "drop" {
				t.Errorf("verdict %s", verdict)
			}
			if reasons := reasonsIn(b.counted(t)); !slices.Equal(reasons, []string{"no_key"}) {
				t.Errorf("counted %v", b.counted(t))
			}
		})
	}
}

// expired lets an SA's time run out soon, but not before it is installed; rekey waits for it.
func expired(sa *esp.SA) { sa.Expires = time.Now().Add(time.Second) }

// TestKeyEnds: keys past their time or their number of packets seal nothing more.
func TestKeyEnds(t *testing.T) {
	ends := map[string]func(t *testing.T, b *sealHarness, context string){
		"key_expired": func(t *testing.T, b *sealHarness, _ string) { b.rekey(t, expired) },
		"key_exhausted": func(t *testing.T, b *sealHarness, context string) {
			b.lanes = 1
			b.opts.Encrypt.Lanes = 1
			b.rekey(t, func(sa *esp.SA) { sa.MaxPackets = 2 })
			b.checkSealed(t, context, fromA(peer4).udp(1, 2, 3).bytes())
			b.checkSealed(t, context, fromA(peer4).udp(1, 2, 3).bytes())
		},
	}
	for reason, end := range ends {
		for _, context := range sealWays {
			t.Run(reason+"/"+context, func(t *testing.T) {
				b := newSealHarness(t, 4).keyed(t)
				end(t, b, context)
				if verdict, _ := b.sealFrame(t, context, fromA(peer4).udp(1, 2, 3).bytes()); verdict != "drop" {
					t.Errorf("verdict %s", verdict)
				}
				if reasons := reasonsIn(b.counted(t)); !slices.Equal(reasons, []string{reason}) {
					t.Errorf("counted %v", b.counted(t))
				}
			})
		}
	}
}

// TestPlainByPolicy: what a policy names travels in cleartext in both directions, and nothing else does.
func TestPlainByPolicy(t *testing.T) {
	for _, context := range contexts {
		b := newSealHarness(t, 4).keyed(t)
		must(t, b.SetPlain([]netip.Prefix{netip.PrefixFrom(podA.IPv4, 32)}))
		verdict, out := b.send(t, context, "from_pod", "wta", fromA(peer4).udp(1, 2, 3).bytes())
		if err := toPeer(fromA(peer4).udp(1, 2, 3).bytes(), out); verdict != "redirect" || err != nil {
			t.Errorf("%s out: %s, %v", context, verdict, err)
		}
		if verdict, _ := b.send(t, context, "from_wire", "wtup", fromPeer(podA.IPv4).udp(2, 1, 3).bytes()); verdict != "redirect" {
			t.Errorf("%s in: %s, %v", context, verdict, b.counted(t))
		}
		b.checkSealed(t, context, fromA(peer6).udp(1, 2, 3).bytes())
		if verdict, _ := b.send(t, context, "from_wire", "wtup", fromPeer(podB.IPv4).udp(2, 1, 3).bytes()); verdict != "drop" {
			t.Errorf("%s in, for a pod that no policy names: %s", context, verdict)
		}
		// The policy goes: cached decisions go with it.
		must(t, b.SetPlain(nil))
		b.checkSealed(t, context, fromA(peer4).udp(1, 2, 3).bytes())
		if verdict, _ := b.send(t, context, "from_wire", "wtup", fromPeer(podA.IPv4).udp(2, 1, 3).bytes()); verdict != "drop" {
			t.Errorf("%s in, after the policy went: %s", context, verdict)
		}
	}
}

// TestSealedThenPlain: a decision cached for sealed packets is not used for plain ones of the same flow, nor for those
// of another identity.
func TestSealedThenPlain(t *testing.T) {
	for _, context := range receiveWays {
		b := newSealHarness(t, 4).keyed(t)
		must(t, b.SetPeerIdentities(map[string][]uint32{"b": {identityPeer, identityOther}}))
		for seq := range uint64(3) {
			frame := one(b, t, peerSA(0), func(p *espref.Packet) { p.Seq = seq + 1 })
			if verdict, _ := b.receive(t, context, frame); verdict != "redirect" {
				t.Fatalf("%s: %s %v", context, verdict, b.counted(t))
			}
		}
		frame := fromPeer(podA.IPv4).udp(2000, 1000, 100).bytes()
		if verdict, _ := b.receive(t, context, frame); verdict != "drop" {
			t.Errorf("%s: the same flow in cleartext: %s", context, verdict)
		}
		must(t, b.SetPeerIdentities(map[string][]uint32{"b": {identityOther}}))
		frame = one(b, t, peerSA(0), func(p *espref.Packet) { p.Seq = 9 })
		if verdict, _ := b.receive(t, context, frame); verdict != "drop" {
			t.Errorf("%s: the same flow after its identity left the node: %s", context, verdict)
		}
	}
}

// TestHostsTraffic: the host's own packets to pods are sealed under its identity and come back the same way; between
// hosts nothing is.
func TestHostsTraffic(t *testing.T) {
	b := newSealHarness(t, 4).keyed(t)
	out := newPacket(uplinkMAC, peerMAC, node4, peer4).udp(5, 6, 7).bytes()
	verdict, frame := b.send(t, "tc", "to_wire", "wtup", out)
	if verdict != "redirect" {
		t.Fatalf("to a pod: %s", verdict)
	}
	_, frame = b.send(t, "tc", "from_host", "wtx", frame)
	if _, p := b.opened(t, frame); p.SPI&0x3fffff != 1 || !bytes.Equal(p.Inner, out[atIP:]) {
		t.Errorf("sealed as %#x:\n%x\nwant\n%x", p.SPI, p.Inner, out[atIP:])
	}
	plain := newPacket(uplinkMAC, peerMAC, node4, wireB4).udp(5, 4551, 7).bytes()
	if verdict, same := b.send(t, "tc", "to_wire", "wtup", plain); verdict != "pass" || !bytes.Equal(same, plain) {
		t.Errorf("between hosts: %s", verdict)
	}
	for _, context := range receiveWays {
		fromHost := espref.SA{SPI: spiOf(sealEpoch, 0, 1), Key: keyIn, Salt: saltIn}
		in := newPacket(peerMAC, uplinkMAC, wireB4, podA.IPv4).udp(6, 5, 7).bytes()
		frame := b.sealedBy(t, fromHost, espref.Packet{Seq: uint64(len(context)), Inner: in[atIP:]}, wireB4)
		if verdict, _ := b.receive(t, context, frame); verdict != "redirect" {
			t.Errorf("%s, from the peer's host to a pod: %s %v", context, verdict, b.counted(t))
		}
		in = fromPeer(node4).udp(6, 5, 7).bytes()
		frame = b.sealedBy(t, peerSA(0), espref.Packet{Seq: uint64(len(context)) + 5, Inner: in[atIP:]}, wireB4)
		if verdict, opened := b.receive(t, context, frame); verdict != "pass" || !bytes.Equal(opened[atIP:], in[atIP:]) {
			t.Errorf("%s, from a pod to this host: %s\n%x\nwant\n%x", context, verdict, opened, in)
		}
		if verdict, _ := b.receive(t, context, newPacket(peerMAC, uplinkMAC, wireB4, node4).udp(6, 4551, 7).bytes()); verdict != "pass" {
			t.Errorf("%s, between hosts: %s", context, verdict)
		}
		// What the agents send each other on ESP's own port (RFC 3948's non-ESP marker) is theirs.
		marked := newPacket(peerMAC, uplinkMAC, wireB4, node4).udp(4500, 4500, 12).set(atSPI, 0, 0, 0, 0).bytes()
		if verdict, _ := b.receive(t, context, marked); verdict != "pass" {
			t.Errorf("%s, non-ESP marker: %s", context, verdict)
		}
	}
}

// TestSealedICMP: an error about a packet that came sealed goes back sealed, as the host's.
func TestSealedICMP(t *testing.T) {
	for _, context := range receiveWays {
		b := newSealHarness(t, 4).keyed(t)
		frame := one(b, t, peerSA(0), func(p *espref.Packet) {
			p.Inner = fromPeer(podA.IPv4).udp(2000, 1000, 100).ttl(1).bytes()[atIP:]
		})
		verdict, out := b.receive(t, context, frame)
		if verdict != "redirect" {
			t.Fatalf("%s: %s %v", context, verdict, b.counted(t))
		}
		if _, p := b.opened(t, out); p.SPI&0x3fffff != 1 || p.Inner[9] != 1 || p.Inner[20] != 11 {
			t.Errorf("%s: identity %d, inside %x", context, p.SPI&0x3fffff, p.Inner)
		}
	}
}

// TestSealedLimits: what does not fit is refused with the size that does, and a SYN is told before.
func TestSealedLimits(t *testing.T) {
	for _, context := range contexts {
		b := newSealHarness(t, 4).keyed(t)
		limit := inet.SealedMTU(1500, false)
		verdict, out := b.send(t, context, "from_pod", "wta", fromA(peer4).udp(1, 2, limit-28+1).bytes())
		if verdict != "redirect" || out[atProtocol] != unix.IPPROTO_ICMP || int(binary.BigEndian.Uint16(out[atICMPMTU:])) != limit {
			t.Errorf("%s, one byte too many: %s, %x", context, verdict, out)
		}
		for asked, want := range map[uint16]int{1460: limit - 40, 1000: 1000} {
			frame := withMSS(fromA(peer4).tcp(1, 2, syn, 0).bytes(), asked)
			_, out := b.sealFrame(t, context, frame)
			_, p := b.opened(t, out)
			if got := int(binary.BigEndian.Uint16(p.Inner[20+20+2+2:])); got != want {
				t.Errorf("%s, MSS %d became %d, want %d", context, asked, got, want)
			}
			if sum := tcpChecksum(p.Inner); sum != 0 {
				t.Errorf("%s, MSS %d: TCP checksum wrong (%#x)", context, asked, sum)
			}
		}
	}
}

// withMSS gives a TCP frame the options NOP, NOP, MSS.
func withMSS(frame []byte, mss uint16) []byte {
	f := append(bytes.Clone(frame), 1, 1, 2, 4, byte(mss>>8), byte(mss), 0, 0)
	binary.BigEndian.PutUint16(f[atLength:], uint16(len(f)-atIP))
	fixIPv4(f)
	f[atTCPOffset] = 7 << 4
	src, dst := addr4(f[atSource:]), addr4(f[atDestination:])
	inet.SetTransportChecksum(src, dst, unix.IPPROTO_TCP, f[atL4:])
	return f
}

// tcpChecksum is 0 if the checksum of an IPv4 packet's segment is right.
func tcpChecksum(ip []byte) uint16 {
	src, dst := addr4(ip[atSource-atIP:]), addr4(ip[atDestination-atIP:])
	return inet.TransportChecksum(src, dst, unix.IPPROTO_TCP, ip[inet.IPv4Len:])
}

func addr4(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b[:4])) }

// TestCongestion: RFC 6040, what the wire marks arrives inside.
func TestCongestion(t *testing.T) {
	rows := []struct {
		inner   byte
		outer   byte
		verdict string
		want    byte
	}{
		{0, 0, "redirect", 0}, {1, 1, "redirect", 1}, {2, 2, "redirect", 2}, {3, 3, "redirect", 3},
		{1, 3, "redirect", 3}, {2, 3, "redirect", 3}, {0, 3, "drop", 0}, {0, 1, "redirect", 0},
	}
	for _, context := range receiveWays {
		for seq, r := range rows {
			b := newSealHarness(t, 4).keyed(t)
			in := fromPeer(podA.IPv4).udp(2000, 1000, 100).set(atTOS, r.inner).bytes()
			fixIPv4(in)
			frame := b.sealedBy(t, peerSA(0), espref.Packet{Seq: uint64(seq) + 1, Inner: in[atIP:]}, wireB4)
			frame[atTOS] |= r.outer
			fixIPv4(frame)
			verdict, out := b.receive(t, context, frame)
			if verdict != r.verdict || (verdict == "redirect" && out[atTOS]&3 != r.want) {
				t.Errorf("%s, inner %d, outer %d: %s, %d, want %s, %d", context, r.inner, r.outer, verdict, out[atTOS]&3, r.verdict, r.want)
			}
			if verdict == "redirect" && inet.Checksum(out[atIP:atL4]) != 0 {
				t.Errorf("%s, inner %d, outer %d: header checksum", context, r.inner, r.outer)
			}
		}
	}
}

// TestOutsideStaysPlain: what has nothing to do with the nodes is not touched.
func TestOutsideStaysPlain(t *testing.T) {
	b := newSealHarness(t, 4).keyed(t)
	for _, context := range contexts {
		if verdict, _ := b.send(t, context, "from_pod", "wta", fromA(world4).udp(1, 2, 3).bytes()); verdict != "pass" {
			t.Errorf("%s, to the outside: %s", context, verdict)
		}
		if verdict, _ := b.send(t, context, "from_wire", "wtup", fromPeer(podA.IPv4).src(world4).udp(1, 2, 3).bytes()); verdict == "drop" {
			t.Errorf("%s, from the outside: %s %v", context, verdict, b.counted(t))
		}
	}
}
