package datapath

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/test/espref"
)

// TestPlainByPolicy: what a policy names travels in cleartext in both directions, and nothing else
// does.
func TestPlainByPolicy(t *testing.T) {
	for _, context := range contexts {
		b := newSealHarness(t, 4).keyed(t)
		must(t, b.SetPlain([]netip.Prefix{netip.PrefixFrom(podA.IPv4, 32)}))
		verdict, out := b.send(t, context, "from_pod", "wta", fromA(peer4).udp(1, 2, 3).bytes())
		if err := toPeer(fromA(peer4).udp(1, 2, 3).bytes(), out); verdict != "redirect" ||
			err != nil {
			t.Errorf("%s out: %s, %v", context, verdict, err)
		}
		if verdict, _ := b.send(t, context, "from_wire", "wtup",
			fromPeer(podA.IPv4).udp(2, 1, 3).bytes()); verdict != "redirect" {
			t.Errorf("%s in: %s, %v", context, verdict, b.counted(t))
		}
		b.checkSealed(t, context, fromA(peer6).udp(1, 2, 3).bytes())
		if verdict, _ := b.send(t, context, "from_wire", "wtup",
			fromPeer(podB.IPv4).udp(2, 1, 3).bytes()); verdict != "drop" {
			t.Errorf("%s in, for a pod that no policy names: %s", context, verdict)
		}
		// The policy goes: cached decisions go with it.
		must(t, b.SetPlain(nil))
		b.checkSealed(t, context, fromA(peer4).udp(1, 2, 3).bytes())
		if verdict, _ := b.send(t, context, "from_wire", "wtup",
			fromPeer(podA.IPv4).udp(2, 1, 3).bytes()); verdict != "drop" {
			t.Errorf("%s in, after the policy went: %s", context, verdict)
		}
	}
}

// TestSealedThenPlain: a decision cached for sealed packets is not used for plain ones of the same
// flow, nor for those of another identity.
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

// TestHostsTraffic: the host's own packets to pods are sealed under its identity and come back the
// same way; between hosts nothing is.
func TestHostsTraffic(t *testing.T) {
	b := newSealHarness(t, 4).keyed(t)
	out := newPacket(uplinkMAC, peerMAC, node4, peer4).udp(5, 6, 7).bytes()
	verdict, frame := b.send(t, "tc", "to_wire", "wtup", out)
	if verdict != "redirect" {
		t.Fatalf("to a pod: %s", verdict)
	}
	_, frame = b.send(t, "tc", "from_segment", "wtx", frame)
	if _, p := b.opened(t, frame); p.SPI&0x3fffff != 1 || !bytes.Equal(p.Inner, out[atIP:]) {
		t.Errorf("sealed as %#x:\n%x\nwant\n%x", p.SPI, p.Inner, out[atIP:])
	}
	plain := newPacket(uplinkMAC, peerMAC, node4, wireB4).udp(5, 4551, 7).bytes()
	if verdict, same := b.send(t, "tc", "to_wire", "wtup", plain); verdict != "pass" ||
		!bytes.Equal(same, plain) {
		t.Errorf("between hosts: %s", verdict)
	}
	for _, context := range receiveWays {
		fromHost := espref.SA{SPI: spiOf(sealEpoch, 0, 1), Key: keyIn, Salt: saltIn}
		in := newPacket(peerMAC, uplinkMAC, wireB4, podA.IPv4).udp(6, 5, 7).bytes()
		frame := b.sealedBy(t, fromHost, espref.Packet{Seq: uint64(len(context)), Inner: in[atIP:]},
			wireB4)
		if verdict, _ := b.receive(t, context, frame); verdict != "redirect" {
			t.Errorf("%s, from the peer's host to a pod: %s %v", context, verdict, b.counted(t))
		}
		in = fromPeer(node4).udp(6, 5, 7).bytes()
		frame = b.sealedBy(t, peerSA(0),
			espref.Packet{Seq: uint64(len(context)) + 5, Inner: in[atIP:]}, wireB4)
		if verdict, opened := b.receive(t, context, frame); verdict != "pass" ||
			!bytes.Equal(opened[atIP:], in[atIP:]) {
			t.Errorf("%s, from a pod to this host: %s\n%x\nwant\n%x", context, verdict, opened, in)
		}
		if verdict, _ := b.receive(t, context,
			newPacket(peerMAC, uplinkMAC, wireB4, node4).udp(6, 4551,
				7).bytes()); verdict != "pass" {
			t.Errorf("%s, between hosts: %s", context, verdict)
		}
		// What the agents send each other on ESP's own port (RFC 3948's non-ESP marker) is theirs.
		marked := newPacket(peerMAC, uplinkMAC, wireB4, node4).udp(4500, 4500, 12).set(atSPI, 0, 0,
			0, 0).bytes()
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
		verdict, out := b.send(t, context, "from_pod", "wta",
			fromA(peer4).udp(1, 2, limit-28+1).bytes())
		if verdict != "redirect" || out[atProtocol] != unix.IPPROTO_ICMP ||
			int(binary.BigEndian.Uint16(out[atICMPMTU:])) != limit {
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
			frame := b.sealedBy(t, peerSA(0), espref.Packet{Seq: uint64(seq) + 1, Inner: in[atIP:]},
				wireB4)
			frame[atTOS] |= r.outer
			fixIPv4(frame)
			verdict, out := b.receive(t, context, frame)
			if verdict != r.verdict || (verdict == "redirect" && out[atTOS]&3 != r.want) {
				t.Errorf("%s, inner %d, outer %d: %s, %d, want %s, %d", context, r.inner, r.outer,
					verdict, out[atTOS]&3, r.verdict, r.want)
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
		if verdict, _ := b.send(t, context, "from_pod", "wta",
			fromA(world4).udp(1, 2, 3).bytes()); verdict != "pass" {
			t.Errorf("%s, to the outside: %s", context, verdict)
		}
		if verdict, _ := b.send(t, context, "from_wire", "wtup",
			fromPeer(podA.IPv4).src(world4).udp(1, 2, 3).bytes()); verdict == "drop" {
			t.Errorf("%s, from the outside: %s %v", context, verdict, b.counted(t))
		}
	}
}
