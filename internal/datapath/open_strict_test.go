package datapath

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/test/espref"
)

// TestOpenOnlyWhatIsForThisNode: what is not ESP to this node's own address and port is the host's,
// and reaches it as it came.
func TestOpenOnlyWhatIsForThisNode(t *testing.T) {
	for _, family := range []int{4, 6} {
		b := newSealHarness(t, family).keyed(t)
		here, there := b.outer()
		seq := uint64(0)
		esp := func(to netip.Addr, port uint16) []byte {
			seq++
			sa := peerSA(0)
			esp, err := sa.Seal(seq, inner())
			must(t, err)
			ip := espref.Outer{From: netip.AddrPortFrom(there, 50000),
				To: netip.AddrPortFrom(to, port)}.Wrap(esp)
			return append(newPacket(peerMAC, uplinkMAC, there, to).bytes()[:14:14], ip...)
		}
		other := map[int]netip.Addr{4: addr("192.0.2.77"), 6: addr("2001:db8::77")}[family]
		toPort := func(size int) packet { return newPacket(peerMAC, uplinkMAC, there, here).udp(4500, 4500, size) }
		payload := map[int]int{4: 14 + 20 + 8, 6: 14 + 40 + 8}[family]
		frames := map[string][]byte{
			"another host's address":               esp(other, espref.Port),
			"another port":                         esp(here, espref.Port+1),
			"a keep-alive of one byte":             toPort(1).set(payload, 0xff).bytes(),
			"the non-ESP marker":                   toPort(40).set(payload, 0, 0, 0, 0).bytes(),
			"the non-ESP marker with nothing more": toPort(4).set(payload, 0, 0, 0, 0).bytes(),
		}
		if family == 4 {
			later := esp(here, espref.Port)
			later[14+6], later[14+7] = 0, 100
			fixIPv4(later)
			frames["a later fragment that looks like ESP"] = later
		}
		for name, frame := range frames {
			for _, context := range contexts {
				t.Run(fmt.Sprintf("IPv%d/%s/%s", family, name, context), func(t *testing.T) {
					verdict, out := b.send(t, context, "from_wire", "wtup", frame)
					if verdict != "pass" || !bytes.Equal(out, frame) {
						t.Errorf("verdict %s, counted %v\n%x\nwant it as it came:\n%x", verdict,
							b.counted(t), out, frame)
					}
				})
			}
		}
		// The same is opened where it is for this node, so that the rows above show what they say.
		if verdict, _ := b.send(t, "tc", "from_wire", "wtup",
			esp(here, espref.Port)); verdict != "redirect" {
			t.Errorf("IPv%d, for this node: %s %v", family, verdict, b.counted(t))
		}
	}
}

// TestESPLengths: lengths that no sender makes are refused before the cipher sees them.
func TestESPLengths(t *testing.T) {
	whole := inner() // 128 bytes
	for name, text := range map[string][]byte{
		"one byte more than words": append(slices.Clone(whole), 1, 2, 3, 3, espref.NextIPv4),
		"one byte less":            append(slices.Clone(whole), 1, 1, espref.NextIPv4),
		"too short for a header":   {1, 2, 2, espref.NextIPv4},
		"a header and no trailer":  slices.Clone(whole[:20]),
	} {
		for _, context := range contexts {
			b := newSealHarness(t, 4).keyed(t)
			verdict, _ := b.send(t, context, "from_wire", "wtup", textOf(t, text)(b))
			want := []string{"esp_malformed"}
			if reasons := reasonsIn(b.counted(t)); verdict != "drop" ||
				!slices.Equal(reasons, want) {
				t.Errorf("%s, %s: %s %v, want %v", context, name, verdict, reasons, want)
			}
		}
	}
}

// TestHigherHalfIsAuthenticated: of 64 bits of sequence number 32 are not sent, and the tag
// protects them (RFC 4303 section 2.2.1).
func TestHigherHalfIsAuthenticated(t *testing.T) {
	const wrap = 1 << 32
	for _, context := range contexts {
		b := newSealHarness(t, 4).keyed(t)
		for _, step := range []struct {
			seq  uint64
			want string
		}{{wrap - 1, "redirect"}, {wrap, "redirect"}, {wrap + 9, "redirect"}, {7*wrap + 10, "drop"},
			{wrap + 10, "redirect"}} {
			frame := one(b, t, peerSA(0), func(p *espref.Packet) { p.Seq = step.seq })
			if verdict, _ := b.send(t, context, "from_wire", "wtup", frame); verdict != step.want {
				t.Errorf("%s, number %#x: %s %v, want %s", context, step.seq, verdict, b.counted(t),
					step.want)
			}
		}
		if reasons := reasonsIn(b.counted(t)); !slices.Equal(reasons, []string{"esp_bad_tag"}) {
			t.Errorf("%s: counted %v", context, b.counted(t))
		}
	}
}

// TestEveryLane opens under each of the 64 lanes with that lane's key.
func TestEveryLane(t *testing.T) {
	b := newSealHarness(t, 4).keyed(t)
	keys := map[uint32]espref.SA{}
	for lane := range uint8(64) {
		sa := esp.SA{Node: "b", Epoch: sealEpoch, Lane: lane, ID: 99, Number: sealEpoch,
			Expires: time.Now().Add(time.Hour), Salt: [4]byte{lane}}
		key := bytes.Repeat([]byte{lane + 1}, 32)
		copy(sa.Key[:], key)
		keys[uint32(lane)] = espref.SA{SPI: spiOf(sealEpoch, uint32(lane), identityPeer), Key: key,
			Salt: sa.Salt}
		must(t, b.InstallSA(&sa)) // which zeroes the key
	}
	for lane, sa := range keys {
		for i, context := range contexts {
			frame := one(b, t, sa, func(p *espref.Packet) { p.Seq = uint64(i) + 1 })
			if verdict, _ := b.send(t, context, "from_wire", "wtup", frame); verdict != "redirect" {
				t.Errorf("%s, lane %d: %s %v", context, lane, verdict, b.counted(t))
			}
		}
	}
}

// setState puts an SA of node b into a state, with the program that esp has for it.
func (b *sealHarness) setState(t *testing.T, lane uint8, out bool, state uint32) {
	t.Helper()
	collection, err := bpf.Load(b.maps, "sa_xdp", "weft_sa_state", nil, false)
	must(t, err)
	defer collection.Close()
	request := struct { // struct sa_request of bpf/sa.bpf.c
		_       [408]byte
		ID, Out uint32
		_       [8]byte
		State   uint32
		Result  int32
		_       [16]byte
	}{ID: 1<<10 | sealEpoch<<6 | uint32(lane), Out: uint32(bpf.Flag(out)), State: state}
	after := request
	_, err = collection.Programs["weft_sa_state"].Run(&ebpf.RunOptions{Context: &request,
		ContextOut: &after})
	if must(t, err); after.Result != 0 {
		t.Fatalf("state %d of lane %d, out %t: %d", state, lane, out, after.Result)
	}
}

// TestKeysThatAreNotAlive: keys that are being made or removed neither seal nor open, and no number
// of theirs is used up.
func TestKeysThatAreNotAlive(t *testing.T) {
	for _, state := range []uint32{bpf.SaNew, bpf.SaDead} {
		for _, context := range contexts {
			b := newSealHarness(t, 4).keyed(t)
			for lane := range uint8(b.lanes) {
				for _, out := range []bool{true, false} {
					b.setState(t, lane, out, state)
				}
			}
			if verdict, _ := b.sealFrame(t, context,
				fromA(peer4).udp(1, 2, 3).bytes()); verdict != "drop" {
				t.Errorf("%s, state %d: sealing: %s", context, state, verdict)
			}
			if verdict, _ := b.send(t, context, "from_wire", "wtup",
				one(b, t, peerSA(0), nil)); verdict != "drop" {
				t.Errorf("%s, state %d: opening: %s", context, state, verdict)
			}
			if reasons := slices.Sorted(slices.Values(reasonsIn(b.counted(t)))); !slices.Equal(reasons, []string{"esp_unknown_sa", "no_key"}) {
				t.Errorf("%s, state %d: counted %v", context, state, b.counted(t))
			}
			list, err := b.SAs()
			must(t, err)
			for _, sa := range list {
				if sa.Counter != 0 {
					t.Errorf("%s, state %d: %+v has used a number", context, state, sa)
				}
			}
		}
	}
}
