package datapath

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/test/espref"
)

// toSealer is a packet of node b's sealer, as it comes by the wire.
func (b *sealHarness) toSealer(t testing.TB, seq uint64, port uint16) []byte {
	t.Helper()
	here, there := b.outer()
	sa := espref.SA{SPI: spiOf(sealEpoch, sealerLane, identityPeer),
		Key: laneKey(keyIn, sealerLane), Salt: saltIn}
	sealed, err := sa.Seal(seq, inner())
	must(t, err)
	ip := espref.Outer{From: netip.AddrPortFrom(there, port),
		To: netip.AddrPortFrom(here, espref.Port)}.Wrap(sealed)
	return append(newPacket(peerMAC, uplinkMAC, there, here).bytes()[:14:14], ip...)
}

// TestWhoOpens: packets of a peer's sealer go to this node's while it answers, and are opened by
// the hook otherwise; either way each number is taken once.
func TestWhoOpens(t *testing.T) {
	for _, family := range []int{4, 6} {
		b := newSealerHarness(t, family)
		state := func(asked time.Duration) {
			now := monotonic(t)
			s := bpf.SealerState{}
			if asked > 0 {
				s.AskedNs, s.RetriedNs = now-uint64(asked), now
			}
			must(t, b.maps.Sealer.Put(uint32(0), &s))
		}
		seq := uint64(0)
		send := func(port uint16) (verdict string, given *tapFrame) {
			seq++
			verdict, out := b.send(t, "tc", "from_wire", "wtup", b.toSealer(t, seq, port))
			if f := readTapFrame(out); verdict == "redirect" && f.kind == bpf.SealerOpen &&
				f.id == sealerSA(sealerLane) {
				return verdict, &f
			}
			return verdict, nil
		}
		for _, c := range []struct {
			name   string
			set    func()
			port   uint16
			sealer bool
		}{
			{"it is there", func() { state(0) }, 0x8001, true},
			{"it owes an answer for a moment", func() { state(20 * time.Millisecond) }, 0x8001,
				true},
			{"it owes one for long", func() { state(time.Second) }, 0x8001, false},
			{"from a hook's port", func() { state(0) }, 0xc001, false},
			{"its key is not marked", func() { state(0); must(t, b.UnmarkSealer()) }, 0x8001,
				false},
			{"none", func() { must(t, b.inside(func() error { return b.SetSealer(false) })) },
				0x8001, false},
		} {
			c.set()
			verdict, given := send(c.port)
			if verdict != "redirect" || (given != nil) != c.sealer {
				t.Errorf("IPv%d, %s: %s %v, to the sealer: %v, want %v", family, c.name, verdict,
					b.counted(t), given != nil, c.sealer)
			}
		}
	}
}

// TestWhoOpensMerged: several packets in one go to the sealer whole, but are cut if it has lost the
// key of the first: the hooks hold every key, and the sealer would refuse all.
func TestWhoOpensMerged(t *testing.T) {
	for _, family := range []int{4, 6} {
		for _, c := range []struct {
			name   string
			set    func(*sealHarness)
			lane   uint8
			port   uint16
			sealer bool
		}{
			{"it is there", func(*sealHarness) {}, sealerLane, 0x8001, true},
			{"from a hook's port", func(*sealHarness) {}, sealerLane, 0xc001, false},
			{"its key is not marked", func(b *sealHarness) { must(t, b.UnmarkSealer()) },
				sealerLane, 0x8001, false},
			{"begins with another sender's", func(*sealHarness) {}, sealerLane + 1, 0x8001, true},
			{"none",
				func(b *sealHarness) {
					must(t,
						b.inside(func() error { return b.SetSealer(false) }))
				}, sealerLane, 0x8001, false},
		} {
			b := newSealerHarness(t, family)
			c.set(b)
			verdict, out := b.sendMerged(t, c.lane, c.port)
			given := readTapFrame(out).kind == bpf.SealerOpen &&
				readTapFrame(out).id == sealerSA(uint32(c.lane))
			if verdict != "redirect" || given != c.sealer || isCut(out) == c.sealer {
				t.Errorf("IPv%d, %s: %s %v, to the sealer: %v, cut: %v, want to the sealer: %v",
					family, c.name, verdict, b.counted(t), given, isCut(out), c.sealer)
			}
		}
	}
}

// isCut says that a frame goes into the segmentation veth to be opened piece by piece
// (SEGMENT_OPEN).
func isCut(frame []byte) bool { return bytes.Equal(frame[:4], []byte{2, 0x57, 0x45, 0x4f}) }

// sendMerged runs from_wire on two packets of one of the peer's lanes in one, as GRO merges them.
func (b *sealHarness) sendMerged(t testing.TB, lane uint8,
	port uint16) (verdict string, out []byte) {
	t.Helper()
	here, there := b.outer()
	sa := espref.SA{SPI: spiOf(sealEpoch, uint32(lane), identityPeer), Key: laneKey(keyIn, lane),
		Salt: saltIn}
	var both []byte
	for seq := range uint64(2) {
		sealed, err := sa.Seal(seq+1, inner())
		must(t, err)
		both = append(both, sealed...)
	}
	ip := espref.Outer{From: netip.AddrPortFrom(there, port),
		To: netip.AddrPortFrom(here, espref.Port)}.Wrap(both)
	frame := append(newPacket(peerMAC, uplinkMAC, there, here).bytes()[:14:14], ip...)
	code, out, err := b.runWith(b.progs.Get("from_wire", hook.TCIngress), &skbContext{
		Ifindex: uint32(b.index["wtup"]), GSOSize: uint32(len(both) / 2), GSOSegs: 2,
	}, frame)
	must(t, err)
	return verdictOf("tc", code), out
}

// TestSealerRetried: of a sealer that does not answer one packet is risked now and then, and it is
// believed again at once when it answers.
func TestSealerRetried(t *testing.T) {
	b := newSealerHarness(t, 4)
	now := monotonic(t)
	must(t,
		b.maps.Sealer.Put(uint32(0),
			&bpf.SealerState{AskedNs: now - uint64(time.Second),
				RetriedNs: now - uint64(2*time.Second)}))
	given := 0
	for seq := range uint64(5) {
		verdict, out := b.send(t, "tc", "from_wire", "wtup", b.toSealer(t, seq+1, 0x8001))
		if verdict != "redirect" {
			t.Fatalf("%s %v", verdict, b.counted(t))
		}
		if readTapFrame(out).kind == bpf.SealerOpen {
			given++
		}
	}
	if given != 1 {
		t.Errorf("%d of 5 packets were risked, want 1", given)
	}
	b.fromSealer(t, tapFrame{kind: bpf.SealerRefused, count: 1, packet: make([]byte, 20)})
	if _, out := b.send(t, "tc", "from_wire", "wtup",
		b.toSealer(t, 9, 0x8001)); readTapFrame(out).kind != bpf.SealerOpen {
		t.Errorf("after its answer a packet went another way")
	}
}

func monotonic(t testing.TB) uint64 {
	t.Helper()
	var ts unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return uint64(ts.Nano())
}

// TestGivenToSealer: a packet that stands for many goes to the sealer with as many numbers as it is
// cut into, which nobody gets again; what it is not to have goes into the segmentation veth.
func TestGivenToSealer(t *testing.T) {
	for _, family := range []int{4, 6} {
		b := newSealerHarness(t, family)
		to := map[int]netip.Addr{4: peer4, 6: peer6}[family]
		send := func(payload, size int) (string, []byte) {
			frame := fromA(to).udp(4000, 80, payload).bytes()
			code, out, err := b.runWith(b.progs.Get("from_pod", hook.TCIngress), &skbContext{
				Ifindex: uint32(b.index["wta"]), GSOSize: uint32(size), GSOSegs: 1,
			}, frame)
			must(t, err)
			return verdictOf("tc", code), out
		}
		kind := map[int]uint64{4: bpf.SealerSeal4, 6: bpf.SealerSeal6}[family]
		next := uint64(1)
		for _, c := range []struct{ payload, size, count int }{{1000, 500, 2}, {1001, 500, 3},
			{999, 500, 2}, {400, 500, 1}, {2550, 10, 255}} {
			verdict, out := send(c.payload, c.size)
			want := tapFrame{kind: kind, count: uint64(c.count), id: sealerSA(sealerLane),
				identity: identityA, seq: next}
			got := readTapFrame(out)
			got.packet = nil
			if verdict != "redirect" || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("IPv%d, %d bytes by %d: %s %+v %v, want %+v", family, c.payload, c.size,
					verdict, got, b.counted(t), want)
			}
			next += uint64(c.count)
		}
		for name, c := range map[string]struct {
			payload, size int
			set           func()
		}{
			"more packets than a header can count": {2560, 10, func() {}},
			"no key": {1000, 500,
				func() { must(t, b.UnmarkSealer()) }},
			"no sealer": {1000, 500,
				func() { must(t, b.inside(func() error { return b.SetSealer(false) })) }},
		} {
			c.set()
			if verdict, out := send(c.payload, c.size); verdict != "redirect" || !isSegment(out) {
				t.Errorf("IPv%d, %s: %s %x, want it sent into the segmentation veth", family, name,
					verdict, out[:14])
			}
		}
	}
}

// TestStreams: a flow that streams goes to the sealer after a run of packets, also in small
// packets; one that is answered packet by packet never does, nor does any without a sealer.
func TestStreams(t *testing.T) {
	const runs = 64 // STREAM_RUN
	b := newSealerHarness(t, 4)
	seq := uint64(0)
	send := func(port uint16) (toSealer bool) {
		verdict, out := b.send(t, "tc", "from_pod", "wta", fromA(peer4).udp(port, 80, 100).bytes())
		if verdict != "redirect" {
			t.Fatalf("%s %v", verdict, b.counted(t))
		}
		return readTapFrame(out).kind == bpf.SealerSeal4
	}
	answer := func(port uint16) {
		seq++
		frame := one(b, t, peerSA(0), func(p *espref.Packet) {
			p.Seq, p.Inner = seq, fromPeer(podA.IPv4).udp(80, port, 100).bytes()[atIP:]
		})
		if verdict, _ := b.send(t, "tc", "from_wire", "wtup", frame); verdict != "redirect" {
			t.Fatalf("answer: %s %v", verdict, b.counted(t))
		}
	}
	streamBegins(t, b, runs, send)
	for n := range 4 * runs {
		if send(2000) {
			t.Fatalf("packet %d of a flow that is answered went to the sealer", n)
		}
		answer(2000)
	}
	must(t, b.inside(func() error { return b.SetSealer(false) }))
	for n := range 4 * runs {
		if send(3000) {
			t.Fatalf("packet %d went to a sealer that is not there", n)
		}
	}
}

// streamBegins sends a flow's packets until the sealer gets one, and holds it to come after that
// many in a row. The end of a tick begins the run anew; under translation it comes before so many
// can be sent, so what the flow table says of those between is written, not sent.
func streamBegins(t *testing.T, b *sealHarness, runs uint16, send func(port uint16) bool) {
	t.Helper()
	key := bpf.Key4{A: bpf.BE32(podA.IPv4), B: bpf.BE32(peer4), Pa: bpf.Ntohs(1000),
		Pb: bpf.Ntohs(80), Proto: unix.IPPROTO_UDP}
	var before, after bpf.Flow
	for range 10_000 {
		given := send(1000)
		must(t, b.maps.Flows4.Lookup(&key, &after))
		want := uint16(1)
		if after.RunTick == before.RunTick {
			want = before.Run + 1
		}
		if after.Run != want {
			t.Fatalf("a run of %d after one of %d, want %d (ticks %d, %d)", after.Run, before.Run,
				want, before.RunTick, after.RunTick)
		}
		if given {
			if before.Run < runs-1 {
				t.Errorf("went to the sealer after a run of %d, want %d", before.Run, runs-1)
			}
			return
		}
		if after.Run >= 3 && after.Run < runs-1 {
			after.Run = runs - 1
			must(t, b.maps.Flows4.Put(&key, &after))
		}
		before = after
	}
	t.Errorf("nothing went to the sealer")
}
