package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/test/espref"
)

// TestOuterHeader holds every field of the headers that a sealed packet travels behind to what
// docs/encryption.md and the RFCs say.
func TestOuterHeader(t *testing.T) {
	for _, family := range []int{4, 6} {
		b := newSealHarness(t, family).keyed(t)
		for _, way := range sealWays {
			for _, dst := range []netip.Addr{peer4, peer6} {
				t.Run(fmt.Sprintf("%s in IPv%d to %s", way, family, dst), func(t *testing.T) {
					ports := map[uint16]bool{}
					for port := range uint16(20) {
						_, frame := b.sealFrame(t, way,
							withClass(fromA(dst).udp(1000+port, 2000, 100).bytes(), 0xb9))
						ports[b.checkOuter(t, frame[14:], 0xb9)] = true
					}
					// The wire's hashing spreads flows by it (RFC 3948 leaves it open).
					if len(ports) < 10 {
						t.Errorf("20 flows have the outer source ports %v", ports)
					}
				})
			}
		}
	}
}

// withClass gives a frame a DSCP and ECN.
func withClass(frame []byte, class byte) []byte {
	if frame[atIP]>>4 == 4 {
		frame[atTOS] = class
		fixIPv4(frame)
		return frame
	}
	frame[atIP], frame[atIP+1] = 6<<4|class>>4, frame[atIP+1]&0xf|class<<4
	return frame
}

// checkOuter returns the outer source port.
func (b *sealHarness) checkOuter(t *testing.T, ip []byte, class byte) uint16 {
	t.Helper()
	here, there := b.outer()
	udp := ip[40:]
	if b.family == 4 {
		udp = ip[20:]
		// Version and length, class, total length, ID 0, "don't fragment" and no offset, TTL 64,
		// UDP.
		want := append([]byte{0x45, class}, binary.BigEndian.AppendUint16(nil, uint16(len(ip)))...)
		want = append(want, 0, 0, 0x40, 0, 64, 17, ip[10], ip[11])
		want = slices.Concat(want, here.AsSlice(), there.AsSlice())
		if !slices.Equal(ip[:20], want) {
			t.Errorf("IPv4 header %x, want %x", ip[:20], want)
		}
		if inet.Checksum(ip[:20]) != 0 {
			t.Errorf("IPv4 header %x: wrong checksum", ip[:20])
		}
	} else {
		// Version, class and flow label; length, UDP, hop limit 64.
		want := binary.BigEndian.AppendUint32(nil,
			6<<28|uint32(class)<<20|binary.BigEndian.Uint32(ip)&0xfffff)
		want = append(binary.BigEndian.AppendUint16(want, uint16(len(ip)-40)), 17, 64)
		want = slices.Concat(want, here.AsSlice(), there.AsSlice())
		if !slices.Equal(ip[:40], want) {
			t.Errorf("IPv6 header %x, want %x", ip[:40], want)
		}
		if binary.BigEndian.Uint32(ip)&0xfffff == 0 {
			t.Error("no flow label (RFC 6438)")
		}
	}
	source := binary.BigEndian.Uint16(udp)
	if source < 0xc000 || binary.BigEndian.Uint16(udp[2:]) != espref.Port ||
		int(binary.BigEndian.Uint16(udp[4:])) != len(udp) {
		t.Errorf("UDP header %x before %d bytes", udp[:8], len(udp)-8)
	}
	// RFC 3948 section 2.1 for IPv4, RFC 8200 section 8.1 for IPv6; espref.Unwrap computes the
	// latter.
	if sum := binary.BigEndian.Uint16(udp[6:]); (sum == 0) != (b.family == 4) {
		t.Errorf("UDP checksum %#x", sum)
	}
	if _, _, err := espref.Unwrap(ip); err != nil {
		t.Error(err)
	}
	return source
}

// TestEveryPaddingByte: padding is 1, 2, 3 (RFC 4303 section 2.4), and each byte of it is looked
// at.
func TestEveryPaddingByte(t *testing.T) {
	for _, length := range []int{1, 2, 3} {
		for wrong := range length + 1 { // the last: none
			padding := []byte{1, 2, 3}[:length:length]
			want := "drop"
			if wrong == length {
				want = "redirect"
			} else {
				padding = slices.Clone(padding)
				padding[wrong] ^= 0x80
			}
			// Text that is a multiple of four long with that padding.
			ip := fromPeer(podA.IPv4).udp(2000, 1000, 102-length).bytes()[14:]
			text := append(append(ip, padding...), byte(length), espref.NextIPv4)
			for _, context := range contexts {
				b := newSealHarness(t, 4).keyed(t)
				verdict, _ := b.send(t, context, "from_wire", "wtup", textOf(t, text)(b))
				reasons := reasonsIn(b.counted(t))
				if verdict != want || want == "drop" &&
					!slices.Equal(reasons, []string{"esp_padding"}) {
					t.Errorf("%s, padding %v: %s %v, want %s", context, padding, verdict, reasons,
						want)
				}
			}
		}
	}
}

// TestSealFew is TestSealSizes for the lengths of padding only, and holds every packet to a nonce
// of its own.
func TestSealFew(t *testing.T) {
	for _, family := range []int{4, 6} {
		b := newSealHarness(t, family).keyed(t)
		seen := map[uint64]bool{}
		for _, dst := range []netip.Addr{peer4, peer6} {
			for size := range 5 {
				in := fromA(dst).udp(1000, 2000, size).bytes()
				b.checkSealed(t, contexts[size%2], in)
				_, out := b.sealFrame(t, contexts[size%2], in)
				_, packet := b.opened(t, out)
				nonce := uint64(packet.SPI>>22)<<40 | packet.IV
				if seen[nonce] {
					t.Errorf("IPv%d: lane %d, IV %d twice", family, packet.SPI>>22&63, packet.IV)
				}
				seen[nonce] = true
			}
		}
	}
}
