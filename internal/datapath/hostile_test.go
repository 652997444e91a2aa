package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

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
		{name: "unknown epoch", frame: as(spi(spiOf(5, 0, identityPeer))),
			reason: "esp_unknown_sa"},
		{name: "epoch 0", frame: as(spi(spiOf(0, 1, identityPeer))), reason: "esp_unknown_sa"},
		{name: "wrong lane: the sender has none of that number",
			frame: as(spi(spiOf(sealEpoch, 9, identityPeer))), reason: "esp_unknown_sa"},
		{name: "another lane's key",
			frame: as(espref.SA{SPI: spiOf(sealEpoch, 1, identityPeer), Key: peerSA(0).Key,
				Salt: saltIn}), reason: "esp_bad_tag"},
		{name: "lane changed on the way",
			frame: edited(func(f []byte) { binary.BigEndian.PutUint32(f[atSPI:], spiOf(sealEpoch, 1, identityPeer)) }), reason: "esp_bad_tag"},
		{name: "identity changed on the way", frame: edited(func(f []byte) { f[atSPI+3] ^= 1 }),
			reason: "esp_bad_tag"},
		{name: "sequence number changed", frame: edited(func(f []byte) { f[atSeq+3] ^= 2 }),
			reason: "esp_bad_tag"},
		{name: "IV changed", frame: edited(func(f []byte) { f[atIV+7] ^= 1 }),
			reason: "esp_bad_tag"},
		{name: "text changed", frame: edited(func(f []byte) { f[atText] ^= 1 }),
			reason: "esp_bad_tag"},
		{name: "tag changed", frame: edited(func(f []byte) { f[len(f)-1] ^= 0x80 }),
			reason: "esp_bad_tag"},
		{name: "another key", frame: as(espref.SA{SPI: peerSA(0).SPI, Key: keyOut, Salt: saltIn}),
			reason: "esp_bad_tag"},
		{name: "another salt", frame: as(espref.SA{SPI: peerSA(0).SPI, Key: keyIn, Salt: saltOut}),
			reason: "esp_bad_tag"},
		{name: "our own packet, reflected", reason: "esp_unknown_peer",
			frame: func(b *sealHarness) []byte {
				here, _ := b.outer()
				return b.sealedBy(t, peerSA(0), espref.Packet{Seq: 1, Inner: inner()}, here)
			}},
		{name: "our own packet, reflected as the peer's", reason: "esp_bad_tag",
			frame: func(b *sealHarness) []byte {
				// What this node seals for the peer, with the addresses of both ends exchanged and
				// every checksum right.
				_, there := b.outer()
				ours := espref.SA{SPI: spiOf(sealEpoch, 0, identityPeer), Key: laneKey(keyOut, 0),
					Salt: saltOut}
				return b.sealedBy(t, ours, espref.Packet{Seq: 1, Inner: inner()}, there)
			}},
		{name: "an address that no node has", reason: "esp_unknown_peer",
			frame: func(b *sealHarness) []byte {
				return b.sealedBy(t, peerSA(0), espref.Packet{Seq: 1, Inner: inner()}, world4)
			}},
		{name: "number 0", frame: with(func(p *espref.Packet) { p.Seq, p.IV = 0, 9 }),
			reason: "esp_replayed"},
		{name: "identity of nobody there", frame: as(spi(spiOf(sealEpoch, 0, identityOther))),
			reason: "identity_not_on_node"},
		{name: "identity 0", frame: as(spi(spiOf(sealEpoch, 0, 0))),
			reason: "identity_not_on_node"},
		{name: "source of another node's range",
			frame:  with(insideOf(fromPeer(podA.IPv4).src(cold4).udp(1, 2, 3))),
			reason: "inner_source"},
		{name: "source of this node's range",
			frame:  with(insideOf(fromPeer(podA.IPv4).src(podB.IPv4).udp(1, 2, 3))),
			reason: "foreign_source"},
		{name: "source of the outside under a pod's identity",
			frame:  with(insideOf(fromPeer(podA.IPv4).src(world4).udp(1, 2, 3))),
			reason: "inner_source"},
		{name: "this host's address under a pod's identity",
			frame:  with(insideOf(fromPeer(podA.IPv4).src(node4).udp(1, 2, 3))),
			reason: "inner_source"},
		{name: "a pod's address under the host's identity", frame: as(spi(spiOf(sealEpoch, 0, 1))),
			reason: "inner_source"},
		{name: "martian inside", frame: func(b *sealHarness) []byte {
			return one(b, t, spi(spiOf(sealEpoch, 0, 1)),
				insideOf(fromPeer(podA.IPv4).src(addr("127.0.0.1")).udp(1, 2, 3)))
		}, reason: "martian"},
		{name: "to nobody here", frame: with(insideOf(fromPeer(nobody4).udp(1, 2, 3))),
			reason: "no_endpoint"},
		{name: "more padding than text",
			frame:  textOf(t, append(bytes.Repeat([]byte{1}, 26), 255, espref.NextIPv4)),
			reason: "esp_padding"},
		{name: "more padding than text, its last bytes right",
			frame:  textOf(t, append(make([]byte, 23), 253, 254, 255, 255, espref.NextIPv4)),
			reason: "esp_padding"},
		{name: "padding that leaves less than a header",
			frame:  textOf(t, append(make([]byte, 23), 5, 6, 7, 7, espref.NextIPv4)),
			reason: "esp_padding"},
		{name: "wrong padding", frame: textOf(t, append(inner(), 7, 7, 2, espref.NextIPv4)),
			reason: "esp_padding"},
		{name: "not IP inside", frame: textOf(t, append(inner(), 1, 2, 2, 6)),
			reason: "esp_padding"},
		{name: "dummy packet (RFC 4303, 2.6)",
			frame: textOf(t, append(inner(), 1, 2, 2, espref.NextDummy)), reason: "esp_padding"},
		{name: "IPv6 inside that says IPv4",
			frame: textOf(t,
				append(fromPeer(podA.IPv6).udp(1, 2, 8).bytes()[atIP:], 1, 2, 2, espref.NextIPv4)),
			reason: "bad_ip_header"},
		{name: "inner packet longer than the text",
			frame:  with(func(p *espref.Packet) { p.Inner = inner()[:len(inner())-4] }),
			reason: "truncated"},
		{name: "first fragment of ESP",
			frame:  edited(func(f []byte) { f[atFragment] = inet.MoreFragments >> 8; fixIPv4(f) }),
			reason: "esp_fragment"},
		{name: "UDP says more than there is",
			frame: edited(func(f []byte) { f[atUDPLength+1] += 8 }), reason: "esp_malformed"},
		{name: "plain, from a pod of the peer",
			frame: func(*sealHarness) []byte { return fromPeer(podA.IPv4).udp(2000, 1000, 10).bytes() }, reason: "plaintext"},
		{name: "plain, IPv6",
			frame: func(*sealHarness) []byte { return fromPeer(podA.IPv6).udp(2000, 1000, 10).bytes() }, reason: "plaintext"},
		{name: "plain, from the peer's host",
			frame: func(*sealHarness) []byte { return fromPeer(podA.IPv4).src(wireB4).udp(2000, 1000, 10).bytes() }, reason: "plaintext"},
		{name: "plain, from a pod to this host",
			frame:  func(*sealHarness) []byte { return fromPeer(node4).udp(2000, 1000, 10).bytes() },
			reason: "plaintext"},
		{name: "key past its time", reason: "key_expired", frame: with(nil),
			setup: func(t *testing.T, b *sealHarness) {
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

// TestHostile: every one of them is dropped under its own name, in both contexts and by a sealer,
// and counted once.
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
				if reasons := reasonsIn(b.counted(t)); verdict != "drop" ||
					!slices.Equal(reasons, want) {
					t.Errorf("verdict %s, counted %v: want drop, %s", verdict, b.counted(t),
						r.reason)
				}
			})
		}
	}
}

// TestTruncatedESP cuts a good packet at every length: none is opened, none is taken for cleartext
// to a pod.
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
					t.Fatalf("%s: %d of %d bytes (adapted: %v) were delivered", context, n,
						len(whole), adapted)
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

// TestNoKey: without keys nothing leaves, in either context and by either path, and the drop is
// named.
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
				if verdict, _ := b.sealFrame(t, context,
					fromA(peer4).udp(1, 2, 3).bytes()); verdict != "drop" {
					t.Errorf("verdict %s", verdict)
				}
				if reasons := reasonsIn(b.counted(t)); !slices.Equal(reasons, []string{reason}) {
					t.Errorf("counted %v", b.counted(t))
				}
			})
		}
	}
}
