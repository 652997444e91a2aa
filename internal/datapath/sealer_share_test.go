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
		return bpf.SealerQueue{Given: 1000, Done: done, Awaited: 1, AwaitedNs: later,
			Period: period, Senders: senders}
	}
	share := func(before, since uint32) bpf.SealerShare {
		return bpf.SealerShare{Last: 1000, Mark: 600, MarkedNs: later, Before: before,
			Since: since, Period: period}
	}
	for _, c := range []struct {
		name  string
		queue bpf.SealerQueue
		share bpf.SealerShare
		edit  func(*bpf.SealerQueue, *bpf.SealerShare)
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
			edit: func(_ *bpf.SealerQueue, s *bpf.SealerShare) { s.Period-- }},
		{name: "one of a thousand, nothing of it waits", queue: queue(500, 1000),
			share: share(0, 0), given: true},
		{name: "one of a thousand, one waits", queue: queue(500, 1000), share: share(0, 1)},
		{name: "one of a thousand, where the queue is not half full",
			queue: queue(1000-shared/2+1, 1000), share: share(0, shared-1), given: true},
		{name: "one of a thousand, where it is", queue: queue(1000-shared/2, 1000),
			share: share(0, shared-1)},
		{name: "one of a thousand of long ago", queue: queue(500, 1000),
			share: share(0, shared-1), edit: func(q *bpf.SealerQueue, _ *bpf.SealerShare) {
				q.Period = uint32(now>>24) - 1<<31 - 1
			}, given: true},
		{name: "its share, where nothing is awaited that could tell", queue: queue(500, 1),
			share: share(shared, 0), edit: func(q *bpf.SealerQueue, _ *bpf.SealerShare) {
				q.Awaited = 0
			}, given: true},
		{name: "all of its own are answered", queue: queue(1000, 1), share: share(shared, shared),
			given: true},
		{name: "those before the mark are", queue: queue(600, 1), share: share(shared, 100),
			given: true},
		{name: "those are, its share came later", queue: queue(600, 1), share: share(0, shared)},
		{name: "those are not", queue: queue(599, 1), share: share(shared-100, 100)},
		{name: "no answer for long", queue: queue(500, 1), share: share(shared, shared),
			edit: func(_ *bpf.SealerQueue, s *bpf.SealerShare) {
				s.MarkedNs = now - uint64(time.Second)
			}, given: true},
		{name: "an earlier sealer's", queue: queue(0, 1), share: share(shared, shared),
			edit: func(_ *bpf.SealerQueue, s *bpf.SealerShare) { s.Last = 1001 }, given: true},
	} {
		if c.edit != nil {
			c.edit(&c.queue, &c.share)
		}
		must(t, b.maps.Sealer.Put(uint32(0), &bpf.SealerState{}))
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
		var state bpf.SealerState
		must(t, b.maps.Sealer.Lookup(uint32(0), &state))
		if (state.AskedNs != 0) != c.given {
			t.Errorf("%s: the sealer owes an answer since %d", c.name, state.AskedNs)
		}
	}
}

// TestSealerShareOfALateSealer: shares are of the queue; while the sealer does not answer the hooks
// seal all.
func TestSealerShareOfALateSealer(t *testing.T) {
	b := newSealerHarness(t, 4)
	now := monotonic(t)
	later := now + uint64(time.Hour)
	must(t, b.maps.SealerQueue.Put(uint32(0), &bpf.SealerQueue{Given: 1000, Awaited: 1,
		AwaitedNs: later, Period: uint32(later >> 24), Senders: 1}))
	must(t, b.maps.SealerShares.Put(uint32(podA.Slot), &bpf.SealerShare{Last: 1000, Mark: 1000,
		MarkedNs: later, Since: shared, Period: uint32(later >> 24)}))
	must(t, b.maps.Sealer.Put(uint32(0), &bpf.SealerState{AskedNs: now - uint64(time.Second),
		RetriedNs: now}))
	verdict, out := b.toBeSealed(t)
	if verdict != "redirect" || readTapFrame(out).kind == bpf.SealerSeal4 {
		t.Errorf("%s %v, %x", verdict, b.counted(t), out[:14])
	}
}

// TestWhoseShare: what the host's stack sends counts for who has sent it, also if its source was
// translated, and what this host relays for others is not the host's.
func TestWhoseShare(t *testing.T) {
	const others = 4096 // SHARE_OTHERS
	for _, o := range []struct {
		origin
		who uint32
	}{
		{origin{name: "this host", in: fromA(peer4).src(node4)}, 0},
		{origin{name: "a pod", via: "wta", in: fromA(peer4)}, uint32(podA.Slot)},
		{origin{name: "a pod, translated", via: "wta", in: fromA(peer4).src(node4)},
			uint32(podA.Slot)},
		{origin{name: "the world", via: "wtup", in: fromA(peer4).src(world4)}, others},
		{origin{name: "an unmanaged container", via: "wtx",
			in: fromA(peer4).src(addr("172.17.0.2"))}, others},
	} {
		b := newSealerHarness(t, 4)
		for _, who := range []uint32{0, uint32(podA.Slot), others} {
			must(t, b.maps.SealerShares.Put(who, &bpf.SealerShare{}))
		}
		must(t, b.maps.SealerQueue.Put(uint32(0), &bpf.SealerQueue{}))
		via := 0
		if o.via != "" {
			via = b.index[o.via]
		}
		code, _, err := b.runWith(b.progs.Get("to_wire", hook.TCEgress), &skbContext{
			Ifindex: uint32(b.index["wtup"]), IngressIfindex: uint32(via),
		}, o.in.tcp(4000, 80, ack, 100).bytes())
		must(t, err)
		var s bpf.SealerShare
		must(t, b.maps.SealerShares.Lookup(o.who, &s))
		if verdictOf("tc", code) != "redirect" || s.Since != 1 {
			t.Errorf("%s: %s %v, its share %+v", o.name, verdictOf("tc", code), b.counted(t), s)
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
	key := func(id uint32, seq uint64) uint64 { return uint64(id)<<39 | seq }
	if q.Awaited != key(first.id, first.seq) && q.Awaited != key(first.id, first.seq+2) {
		t.Errorf("%x is awaited, of %+v", q.Awaited, first)
	}
	q = bpf.SealerQueue{Given: 2, Awaited: key(first.id, first.seq), AwaitedNumber: 1,
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
		"the one that is waited for": {func(*tapFrame) {}, 1},
		"the one behind it":          {func(f *tapFrame) { f.seq++ }, 1},
		"it is refused":              {func(f *tapFrame) { f.kind = bpf.SealerRefused }, 1},
		"something to be opened is refused": {func(f *tapFrame) {
			f.kind, f.seq = bpf.SealerRefused, 0
		}, 0},
		"another SA": {func(f *tapFrame) { f.id = sealerSA(0) }, 0},
	} {
		if done := answer(c.change); done != c.done {
			t.Errorf("%s: %d is done, want %d", name, done, c.done)
		}
	}
	q.Awaited++
	if done := answer(func(*tapFrame) {}); done != 0 {
		t.Errorf("one before the one that is waited for: %d is done", done)
	}
	q.Awaited = key(first.id-1, first.seq)
	if done := answer(func(*tapFrame) {}); done != 0 {
		t.Errorf("one of another SA than the one that is waited for: %d is done", done)
	}
	q.Awaited = ^uint64(0) // another CPU is about to wait for one
	if done := answer(func(*tapFrame) {}); done != 0 {
		t.Errorf("while one is chosen: %d is done", done)
	}
	must(t, b.maps.SealerQueue.Put(uint32(0), &q))
	give()
	if now, _ := state(); now.Awaited != q.Awaited {
		t.Errorf("while one is chosen: %+v", now)
	}
	q.Awaited, q.AwaitedNs = key(first.id, first.seq), later-uint64(2*time.Hour)
	must(t, b.maps.SealerQueue.Put(uint32(0), &q))
	third := give()
	if q, _ = state(); q.Awaited != key(third.id, third.seq) || q.AwaitedNumber != 3 {
		t.Errorf("without an answer for long: %+v", q)
	}
	must(t, b.inside(func() error { return b.SetSealer(false) }))
	must(t, b.inside(func() error { return b.SetSealer(true) }))
	if q, _ = state(); q != (bpf.SealerQueue{}) {
		t.Errorf("of a new sealer: %+v", q)
	}
}
