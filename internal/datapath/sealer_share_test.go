package datapath

import (
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
)

// shared is what of the sealer's queue is shared out (SHARED_FRAMES).
const shared = bpf.SealerFrames * 7 / 8

// toBeSealed runs from_pod on a packet of pod A's that stands for two.
func (b *sealHarness) toBeSealed(t testing.TB) (verdict string, out []byte) {
	t.Helper()
	code, out, err := b.runWith(b.progs.Get("from_pod", hook.TCIngress), &skbContext{
		Ifindex: uint32(b.index["wta"]), GSOSize: 500, GSOSegs: 2,
	}, fromA(peer4).udp(4000, 80, 1000).bytes())
	must(t, err)
	return verdictOf("tc", code), out
}

// TestSealerShare: of who has its share of the sealer's queue waiting no frame is given to it, and
// others' are.
func TestSealerShare(t *testing.T) {
	if netdev.SealerQueue != bpf.SealerFrames {
		t.Errorf("the queue holds %d frames, the programs share out %d", netdev.SealerQueue,
			bpf.SealerFrames)
	}
	b := newSealerHarness(t, 4)
	now := monotonic(t)
	later := now + uint64(time.Hour) // so that no time passes
	period := uint32(later >> 24)
	queue := func(done uint64, senders uint32) bpf.SealerQueue {
		return bpf.SealerQueue{Given: 1000, Done: done, Period: period, Senders: senders}
	}
	share := func(before, since uint32) bpf.SealerShare {
		return bpf.SealerShare{Last: 1000, Mark: 600, MarkedNs: later, Before: before,
			Since: since, Period: period}
	}
	for _, c := range []struct {
		name  string
		queue bpf.SealerQueue
		share bpf.SealerShare
		edit  func(*bpf.SealerShare)
		given bool
	}{
		{name: "nothing was given", given: true},
		{name: "alone, one short of its share", queue: queue(500, 1), share: share(200, shared-201),
			given: true},
		{name: "alone, its share", queue: queue(500, 1), share: share(200, shared-200)},
		{name: "one of two, one short", queue: queue(500, 2), share: share(0, shared/2-1),
			given: true},
		{name: "one of two, its share", queue: queue(500, 2), share: share(shared/2, 0)},
		{name: "it begins, beside another", queue: queue(500, 1), share: share(shared/2, 0),
			edit: func(s *bpf.SealerShare) { s.Period-- }},
		{name: "one of a thousand, one short", queue: queue(500, 1000), share: share(0, 15),
			given: true},
		{name: "one of a thousand, its share", queue: queue(500, 1000), share: share(0, 16)},
		{name: "all of its own are answered", queue: queue(1000, 1), share: share(shared, shared),
			given: true},
		{name: "those before the mark are", queue: queue(600, 1), share: share(shared, 100),
			given: true},
		{name: "those are, its share came later", queue: queue(600, 1), share: share(0, shared)},
		{name: "those are not", queue: queue(599, 1), share: share(shared-100, 100)},
		{name: "no answer for long", queue: queue(500, 1), share: share(shared, 100),
			edit: func(s *bpf.SealerShare) { s.MarkedNs = now - uint64(time.Second) }, given: true},
		{name: "an earlier sealer's", queue: queue(0, 1), share: share(shared, shared),
			edit: func(s *bpf.SealerShare) { s.Last = 1001 }, given: true},
	} {
		if c.edit != nil {
			c.edit(&c.share)
		}
		must(t, b.maps.SealerQueue.Put(uint32(0), &c.queue))
		must(t, b.maps.SealerShares.Put(uint32(podA.Slot), &c.share))
		// Another endpoint's share counts for nobody else.
		must(t, b.maps.SealerShares.Put(uint32(podB.Slot), new(share(shared, shared))))
		must(t, emptyMap(b.maps.Drops))
		verdict, out := b.toBeSealed(t)
		reasons := reasonsIn(b.counted(t))
		if c.given && (verdict != "redirect" || readTapFrame(out).kind != bpf.SealerSeal4) ||
			!c.given && (verdict != "drop" || !slices.Equal(reasons, []string{"sealer_share"})) {
			t.Errorf("%s: %s %v, want it given: %v", c.name, verdict, reasons, c.given)
		}
	}
}

// TestSealerShareSettled: frames are counted as they are given, and one that is answered says that
// all before it are out of the queue; one that is not is not waited for for ever.
func TestSealerShareSettled(t *testing.T) {
	b := newSealerHarness(t, 4)
	must(t, b.maps.SealerShares.Put(uint32(podA.Slot), &bpf.SealerShare{}))
	give := func() tapFrame {
		verdict, out := b.toBeSealed(t)
		if verdict != "redirect" {
			t.Fatalf("%s %v", verdict, b.counted(t))
		}
		return readTapFrame(out)
	}
	state := func() (q bpf.SealerQueue, s bpf.SealerShare) {
		must(t, b.maps.SealerQueue.Lookup(uint32(0), &q))
		must(t, b.maps.SealerShares.Lookup(uint32(podA.Slot), &s))
		return q, s
	}
	first := give()
	give()
	later := monotonic(t) + uint64(time.Hour)
	q, s := state()
	if q.Given != 2 || s.Last != 2 || s.Before+s.Since != 2 || q.Senders != 1 || q.Awaited == 0 {
		t.Fatalf("two were given: %+v, %+v", q, s)
	}
	q = bpf.SealerQueue{Given: 2, Awaited: 1, AwaitedId: first.id, AwaitedSeq: first.seq,
		AwaitedNs: later, Period: uint32(later >> 24), Senders: 1}
	answer := func(change func(*tapFrame)) (done uint64) {
		must(t, b.maps.SealerQueue.Put(uint32(0), &q))
		f := b.sealedFrame(t, first.seq)
		change(&f)
		b.fromSealer(t, f)
		now, _ := state()
		return now.Done
	}
	for name, c := range map[string]struct {
		change func(*tapFrame)
		done   uint64
	}{
		"the one that is waited for":          {func(*tapFrame) {}, 1},
		"the one behind it":                   {func(f *tapFrame) { f.seq++ }, 1},
		"hostile: a number not given out yet": {func(f *tapFrame) { f.seq += 100 }, 0},
		"hostile: another SA":                 {func(f *tapFrame) { f.id = sealerSA(0) }, 0},
	} {
		if done := answer(c.change); done != c.done {
			t.Errorf("%s: %d is done, want %d", name, done, c.done)
		}
	}
	q.AwaitedSeq++
	if done := answer(func(*tapFrame) {}); done != 0 {
		t.Errorf("one before the one that is waited for: %d is done", done)
	}
	q.AwaitedSeq--
	q.AwaitedId++
	if done := answer(func(*tapFrame) {}); done != 0 {
		t.Errorf("one of another SA than the one that is waited for: %d is done", done)
	}
	q.AwaitedNs = later - uint64(2*time.Hour)
	must(t, b.maps.SealerQueue.Put(uint32(0), &q))
	give()
	if q, _ = state(); q.Awaited != 3 {
		t.Errorf("without an answer for long: %+v", q)
	}
	must(t, b.inside(func() error { return b.SetSealer(false) }))
	must(t, b.inside(func() error { return b.SetSealer(true) }))
	if q, _ = state(); q != (bpf.SealerQueue{}) {
		t.Errorf("of a new sealer: %+v", q)
	}
}
