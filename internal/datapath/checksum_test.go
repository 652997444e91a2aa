package datapath

import (
	"encoding/binary"
	"testing"

	"weft.dev/weft/internal/inet"
)

// TestChecksumUpdate: whatever the header checksum was, the one after the TTL went down is what a
// computation from scratch gives (RFC 1624's corner cases among them). The IP identification steers
// the checksum through its values: the corners all, the rest in steps.
func TestChecksumUpdate(t *testing.T) {
	b := newHarness(t)
	base := fromA(peer4).udp(1000, 53, 4)
	for _, context := range contexts {
		b.reset(t)
		seen := map[uint16]bool{}
		for id := range 65536 {
			frame := base.id(uint16(id)).bytes()
			sum := binary.BigEndian.Uint16(frame[atSum:])
			corner := sum < 0x10 || sum > 0xffef || sum&0xff == 0xff && sum > 0xfc00 ||
				sum>>8 >= 0xfe || sum>>8 == 0
			if !corner && id%29 != 0 {
				continue
			}
			seen[sum] = true
			_, out := b.send(t, context, "from_pod", "wta", frame)
			if err := toPeer(frame, out); err != nil {
				t.Fatalf("%s: checksum %#04x: %v", context, sum, err)
			}
		}
		if len(seen) < 2500 || !seen[0xfeff] || !seen[0] || !seen[0xff00] {
			t.Errorf("%s: %d checksums tried, corners missing", context, len(seen))
		}
	}
}

// TestChecksumNegativeZero: 0xffff is the same number as 0 in one's complement; a sender may write
// either, and the way on must be valid too.
func TestChecksumNegativeZero(t *testing.T) {
	b := newHarness(t)
	for id := range 65536 {
		p := fromA(peer4).udp(1000, 53, 4).id(uint16(id))
		frame := p.bytes()
		if binary.BigEndian.Uint16(frame[atSum:]) != 0 {
			continue
		}
		frame[atSum], frame[atSum+1] = 0xff, 0xff
		for _, context := range contexts {
			verdict, out := b.send(t, context, "from_pod", "wta", frame)
			if verdict != "redirect" || inet.Checksum(out[atIP:atL4]) != 0 {
				t.Errorf("%s: %s, checksum afterwards %x", context, verdict, out[atSum:][:2])
			}
		}
	}
}

// TestTTLValues: each TTL goes down by one and leaves a right checksum.
func TestTTLValues(t *testing.T) {
	b := newHarness(t)
	for _, context := range contexts {
		for n := 2; n <= 255; n++ {
			for _, p := range []packet{fromA(peer4), fromA(peer6)} {
				frame := p.udp(1000, 53, 4).ttl(uint8(n)).bytes()
				_, out := b.send(t, context, "from_pod", "wta", frame)
				if err := toPeer(frame, out); err != nil {
					t.Fatalf("%s: TTL %d: %v", context, n, err)
				}
			}
		}
	}
}
