package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/test/espref"
)

// sealerLane is the one behind those of the hooks in newSealHarness.
const sealerLane = 2

// tapFrame is a frame on weft_sealer (struct weft_sealer_header).
type tapFrame struct {
	kind     uint64
	count    uint64
	id       uint32
	identity uint32
	seq      uint64
	packet   []byte
}

func (f tapFrame) bytes() []byte {
	hi := f.kind<<61 | f.count<<53 | uint64(f.id)<<31 | uint64(f.identity)<<9 | f.seq>>30&0x1ff
	out := binary.BigEndian.AppendUint64(nil, hi)
	out = binary.BigEndian.AppendUint32(out, uint32(f.seq)<<2)
	if len(f.packet) > 0 && f.packet[0]>>4 == 6 {
		return append(append(out, 0x86, 0xdd), f.packet...)
	}
	return append(append(out, 8, 0), f.packet...)
}

func readTapFrame(frame []byte) tapFrame {
	hi, lo := binary.BigEndian.Uint64(frame), binary.BigEndian.Uint32(frame[8:])
	return tapFrame{hi >> 61, hi >> 53 & 0xff, uint32(hi>>31) & 0x3fffff, uint32(hi>>9) & 0x3fffff,
		hi&0x1ff<<30 | uint64(lo>>2), frame[14:]}
}

// newSealerHarness has a sealer's lane in both directions, and a sealer that holds its keys.
func newSealerHarness(t testing.TB, family int) *sealHarness {
	t.Helper()
	b := newSealHarness(t, family)
	b.UseSealer("")
	t.Cleanup(func() {
		b.UseSealer("only newSealerHarness has one")
		b.config.SealerIfindex = 0
		must(t, b.inside(b.configure))
	})
	b.lanes = sealerLane + 1
	b.rekey(t, func(sa *esp.SA) { sa.Last = sa.Lane == sealerLane })
	b.sealerIndex.Store(uint32(b.index["wtx"])) // any interface will do
	t.Cleanup(func() { b.sealerIndex.Store(0) })
	must(t, b.inside(func() error { return b.SetSealer(true) }))
	for _, k := range b.SealerKeys() {
		must(t, b.MarkSealer(k, true))
	}
	return b
}

func sealerSA(lane uint32) uint32 { return 1<<10 | sealEpoch<<6 | lane }

// fromSealer runs from_sealer on a frame.
func (b *sealHarness) fromSealer(t testing.TB, f tapFrame) (verdict string, out []byte) {
	t.Helper()
	return b.runProgram(t, b.sealerProgram(t, "from_sealer"), "tc", "wtx", f.bytes())
}

func (b *sealHarness) sealerProgram(t testing.TB, name string) *ebpf.Program {
	t.Helper()
	hooks, err := b.progs.Sealer()
	must(t, err)
	for _, h := range hooks {
		if h.Name == name {
			return h.Program
		}
	}
	t.Fatalf("no hook %s", name)
	return nil
}

// opened is what a sealer gives back of packets that node b sealed for pod A.
func opened(seq, count uint64) tapFrame {
	return tapFrame{kind: bpf.SealerOpened, count: count, id: sealerSA(sealerLane),
		identity: identityPeer, seq: seq, packet: inner()}
}

// TestOpenedBySealer: what the sealer has opened passes the same checks as what a hook opens, and
// its numbers are taken, all or none.
func TestOpenedBySealer(t *testing.T) {
	b := newSealerHarness(t, 4)
	for _, step := range []struct {
		name   string
		frame  func() tapFrame
		reason string
	}{
		{"one packet", func() tapFrame { return opened(1, 1) }, ""},
		{"many", func() tapFrame { return opened(2, 44) }, ""},
		{"64, over two words of the window", func() tapFrame { return opened(100, 64) }, ""},
		{"hostile: the end of that run again", func() tapFrame { return opened(150, 1) },
			"esp_replayed"},
		{"hostile: the same again", func() tapFrame { return opened(2, 44) }, "esp_replayed"},
		{"hostile: one of them again", func() tapFrame { return opened(45, 1) }, "esp_replayed"},
		{"hostile: a run that begins with a new one and ends with an old one",
			func() tapFrame { return opened(46, 60) }, "esp_replayed"},
		{"of which none was taken", func() tapFrame { return opened(46, 1) }, ""},
		{"hostile: number 0", func() tapFrame { return opened(0, 1) }, "esp_replayed"},
		{"hostile: none", func() tapFrame { return opened(500, 0) }, "esp_replayed"},
		{"hostile: more than a run can have", func() tapFrame { return opened(500, 65) },
			"esp_replayed"},
		{"hostile: a lane that no sealer has", func() tapFrame {
			f := opened(600, 1)
			f.id = sealerSA(0)
			return f
		}, "esp_unknown_sa"},
		{"hostile: an SA that there is not", func() tapFrame {
			f := opened(600, 1)
			f.id = sealerSA(17)
			return f
		}, "esp_unknown_sa"},
		{"hostile: a node that there is not", func() tapFrame {
			f := opened(600, 1)
			f.id = 4095<<10 | sealEpoch<<6 | sealerLane
			return f
		}, "no_next_hop"},
		{"hostile: an identity that the node does not host", func() tapFrame {
			f := opened(601, 1)
			f.identity = identityOther
			return f
		}, "identity_not_on_node"},
		{"hostile: from a pod of this node", func() tapFrame {
			f := opened(602, 1)
			f.packet = newPacket(peerMAC, uplinkMAC, podB.IPv4, podA.IPv4).udp(1, 2,
				8).bytes()[atIP:]
			return f
		}, "foreign_source"},
		{"hostile: from the world, under a pod's identity", func() tapFrame {
			f := opened(603, 1)
			f.packet = newPacket(peerMAC, uplinkMAC, world4, podA.IPv4).udp(1, 2, 8).bytes()[atIP:]
			return f
		}, "inner_source"},
		{"hostile: a broken packet", func() tapFrame {
			f := opened(604, 1)
			f.packet = slices.Clone(f.packet)
			f.packet[10]++
			return f
		}, "bad_ip_checksum"},
	} {
		must(t, emptyMap(b.maps.Drops))
		verdict, _ := b.fromSealer(t, step.frame())
		want := "redirect"
		var reasons []string
		if step.reason != "" {
			want, reasons = "drop", []string{step.reason}
		}
		if got := reasonsIn(b.counted(t)); verdict != want || !slices.Equal(got, reasons) {
			t.Errorf("%s: %s %v, want %s %v", step.name, verdict, got, want, reasons)
		}
	}
}

// TestOpenedBySealerEnds: nothing that a sealer says counts once its key has ended, was taken away
// or never was.
func TestOpenedBySealerEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(t *testing.T, b *sealHarness)
		reason string
	}{
		"expired": {func(t *testing.T, b *sealHarness) {
			b.rekey(t,
				func(sa *esp.SA) {
					sa.Last, sa.Expires = sa.Lane == sealerLane,
						time.Now().Add(300*time.Millisecond)
				})
			for _, k := range b.SealerKeys() {
				must(t, b.MarkSealer(k, true))
			}
		}, "key_expired"},
		"removed": {func(t *testing.T, b *sealHarness) { must(t, b.RemoveSAs("b", false, sealEpoch)) }, "esp_unknown_sa"},
		"not marked": {func(t *testing.T, b *sealHarness) { must(t, b.UnmarkSealer()) },
			"esp_unknown_sa"},
	} {
		b := newSealerHarness(t, 4)
		c.end(t, b)
		must(t, emptyMap(b.maps.Drops))
		verdict, _ := b.fromSealer(t, opened(1, 1))
		if got := reasonsIn(b.counted(t)); verdict != "drop" ||
			!slices.Equal(got, []string{c.reason}) {
			t.Errorf("%s: %s %v, want %s", name, verdict, got, c.reason)
		}
	}
}

// sealedFrame is what a sealer gives back to be sent: ESP of one packet, outer addresses left open.
func (b *sealHarness) sealedFrame(t testing.TB, seq uint64) tapFrame {
	t.Helper()
	sa := espref.SA{SPI: spiOf(sealEpoch, sealerLane, identityA), Key: laneKey(keyOut, sealerLane),
		Salt: saltOut}
	sealed, err := sa.Seal(seq, inner())
	must(t, err)
	unspecified := netip.IPv4Unspecified()
	if b.family == 6 {
		unspecified = netip.IPv6Unspecified()
	}
	packet := espref.Outer{From: netip.AddrPortFrom(unspecified, 0x8123),
		To: netip.AddrPortFrom(unspecified, espref.Port)}.Wrap(sealed)
	if b.family == 4 {
		packet[6], packet[7] = 0x40, 0
	}
	return tapFrame{kind: bpf.SealerSealed, count: 1, id: sealerSA(sealerLane), identity: identityA,
		seq: seq, packet: packet}
}

// reserve has numbers given out, as to a sealer.
func (b *sealHarness) reserve(t testing.TB, lane uint32, n uint64) {
	t.Helper()
	var sa bpf.SaOut
	id := sealerSA(lane)
	must(t, b.maps.SAOut.Lookup(&id, &sa))
	sa.Counter = n
	must(t, b.maps.SAOut.Put(&id, &sa))
}

// TestSealedBySealer: what the sealer has sealed leaves with the outer addresses of the SA's node,
// and nothing else leaves.
func TestSealedBySealer(t *testing.T) {
	for _, family := range []int{4, 6} {
		b := newSealerHarness(t, family)
		b.reserve(t, sealerLane, 10)
		b.reserve(t, 0, 10)
		here, there := b.outer()
		udp := map[int]int{4: 20, 6: 40}[family]
		for _, c := range []struct {
			name   string
			change func(*tapFrame)
			reason string
		}{
			{"as it should be", func(*tapFrame) {}, ""},
			{"its last number", func(f *tapFrame) { f.seq = 10 }, ""},
			{"hostile: a number that was not given out", func(f *tapFrame) { f.seq = 11 },
				"seal_failed"},
			{"hostile: more than were given out", func(f *tapFrame) { f.count = 11 },
				"seal_failed"},
			{"hostile: number 0", func(f *tapFrame) { f.seq = 0 }, "seal_failed"},
			{"hostile: another lane than the SPI's", func(f *tapFrame) { f.id = sealerSA(0) },
				"seal_failed"},
			{"hostile: a hook's lane", func(f *tapFrame) {
				f.id = sealerSA(0)
				binary.BigEndian.PutUint32(f.packet[udp+8:], spiOf(sealEpoch, 0, identityA))
			}, "seal_failed"},
			{"hostile: no such SA", func(f *tapFrame) { f.id = sealerSA(9) }, "no_key"},
			{"hostile: another identity than the SPI's",
				func(f *tapFrame) { f.identity = identityOther }, "seal_failed"},
			{"hostile: another port", func(f *tapFrame) { f.packet[udp+3]++ }, "seal_failed"},
			{"hostile: a hook's source port", func(f *tapFrame) { f.packet[udp] = 0xc1 },
				"seal_failed"},
			{"hostile: another length", func(f *tapFrame) { f.packet[udp+5]++ }, "seal_failed"},
			{"hostile: TCP", func(f *tapFrame) { f.packet[map[int]int{4: 9, 6: 6}[family]] = 6 },
				"seal_failed"},
			{"hostile: another family", func(f *tapFrame) { f.packet = inner() }, "seal_failed"},
			{"hostile: cleartext", func(f *tapFrame) { clear(f.packet[udp+8 : udp+12]) },
				"seal_failed"},
		} {
			f := b.sealedFrame(t, 1)
			f.packet = slices.Clone(f.packet)
			c.change(&f)
			must(t, emptyMap(b.maps.Drops))
			verdict, out := b.fromSealer(t, f)
			if c.reason != "" {
				if got := reasonsIn(b.counted(t)); verdict != "drop" ||
					!slices.Equal(got, []string{c.reason}) {
					t.Errorf("IPv%d, %s: %s %v, want %s", family, c.name, verdict, got, c.reason)
				}
				continue
			}
			if verdict != "redirect" {
				t.Fatalf("IPv%d, %s: %s %v", family, c.name, verdict, b.counted(t))
			}
			whole := slices.Clone(out[14:])
			clear(whole[udp+6 : udp+8])
			if family == 6 {
				inet.SetTransportChecksum(here, there, 17, whole[udp:])
			}
			outer, _, err := espref.Unwrap(whole)
			if err == nil && (outer.From.Addr() != here || outer.To.Addr() != there) {
				err = fmt.Errorf("from %s to %s", outer.From, outer.To)
			}
			if err == nil && !bytes.Equal(out[:12], append(slices.Clone(peerMAC), uplinkMAC...)) {
				err = fmt.Errorf("link addresses %x", out[:12])
			}
			// The field holds what a device goes on from: the sum of the pseudo-header.
			length := len(out) - 14 - udp
			pseudo := ^inet.TransportChecksum(here, there, 17, make([]byte, length))
			if got := binary.BigEndian.Uint16(out[14+udp+6:]); err == nil && got != pseudo {
				err = fmt.Errorf("checksum field %#x, want %#x", got, pseudo)
			}
			if err != nil {
				t.Errorf("IPv%d, %s: %v\n%x", family, c.name, err, out)
			}
		}
	}
}

// TestRefusedBySealer: what the sealer could do nothing with is counted by name, as many packets as
// it says.
func TestRefusedBySealer(t *testing.T) {
	b := newSealerHarness(t, 4)
	for why, want := range map[uint32]string{
		bpf.SealerNoKey: "esp_unknown_sa", bpf.SealerMalformed: "esp_malformed",
		bpf.SealerBadTag:   "esp_bad_tag",
		bpf.SealerReplayed: "esp_replayed", bpf.SealerSealFailed: "seal_failed",
		bpf.SealerEcn: "esp_malformed", 99: "esp_malformed",
	} {
		must(t, emptyMap(b.maps.Drops))
		must(t, b.clearCounters(0))
		f := tapFrame{kind: bpf.SealerRefused, count: 7, id: sealerSA(sealerLane), identity: why,
			packet: make([]byte, 20)}
		verdict, _ := b.fromSealer(t, f)
		if got := b.counted(t); verdict != "drop" || !slices.Contains(got, "0 ingress "+want+" 7") {
			t.Errorf("refusal %d: %s %v, want %s 7", why, verdict, got, want)
		}
	}
	for _, kind := range []uint64{bpf.SealerInvalid, bpf.SealerSeal4, bpf.SealerSeal6,
		bpf.SealerOpen, 7} {
		must(t, emptyMap(b.maps.Drops))
		f := opened(1, 1)
		f.kind = kind
		if verdict, _ := b.fromSealer(t, f); verdict != "drop" ||
			!slices.Equal(reasonsIn(b.counted(t)), []string{"internal"}) {
			t.Errorf("hostile: kind %d: %s %v", kind, verdict, b.counted(t))
		}
	}
}

// TestOnlyHooksReachSealer: what a process sends to the tap does not get there.
func TestOnlyHooksReachSealer(t *testing.T) {
	b := newSealerHarness(t, 4)
	program := b.sealerProgram(t, "to_sealer")
	frame := opened(1, 1).bytes()
	if verdict, _ := b.runProgram(t, program, "tc", "wtx", frame); verdict != "drop" {
		t.Errorf("verdict %s", verdict)
	}
	if got := reasonsIn(b.counted(t)); !slices.Equal(got, []string{"not_for_sealer"}) {
		t.Errorf("counted %v", got)
	}
}
