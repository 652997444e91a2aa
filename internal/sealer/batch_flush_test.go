package sealer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns/nettest"
)

// TestWaitsBounded: what waits to become more leaves within a bounded number of frames, though
// others keep coming and none of them joins it.
func TestWaitsBounded(t *testing.T) {
	for _, c := range []struct {
		name          string
		first         []byte
		kind, another kind
	}{
		{"to be sealed", frames(stream(1, 100, nil))[0], kindSealed, kindOpened},
		{"opened", opens(t, stream(1, 100, nil))[0], kindOpened, kindSealed},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			f := newFeeder(e)
			f.frame(c.first)
			others := stream(3*maxWaiting, 100, func(_ int, s *single) { s.seq += 1000 })
			list := opens(t, others)
			if c.another == kindSealed {
				list = frames(others)
			}
			for i, other := range list {
				f.frame(other)
				if i == maxWaiting {
					break
				}
			}
			if !slices.ContainsFunc(metas(out.take()),
				func(m meta) bool { return m.kind == c.kind }) {
				t.Errorf("nothing after %d frames", maxWaiting)
			}
		})
	}
}

// TestOrder: datagrams of some flows, alone and as large packets, of all sizes, come out in order
// and whole, whatever has joined what.
func TestOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	e, out := testEngine(t, testSA)
	var input [][]byte
	seq := uint64(1)
	for range 600 {
		row := cutRow{udp: true, size: []int{40, 64, 512, 1400}[random.IntN(4)], id: uint16(seq)}
		row.bytes = row.size
		switch random.IntN(4) {
		case 0:
			row.bytes = row.size * (1 + random.IntN(44))
		case 1:
			row.bytes = 1 + random.IntN(row.size*4)
		}
		f := row.frame(seq)
		if v, m, ip := split(f); m.count == 1 {
			f = frame(vnet{unfinished: true, start: v.start, offset: v.offset}, m, ip)
		}
		seq += uint64((row.bytes + row.size - 1) / row.size)
		input = append(input, f)
	}
	var want [][]byte
	for _, f := range input {
		v, _, ip := split(bytes.Clone(f))
		var c cutter
		p := append(bytes.Clone(ip), make([]byte, slack)...)
		if !c.begin(p, len(ip), v) {
			t.Fatal("cannot be cut")
		}
		for i := range c.count {
			at, length := c.segment(i)
			want = append(want, bytes.Clone(p[at:at+length]))
		}
	}
	sealed := feed(e, out, input...)
	var outers [][]byte
	for _, f := range sealed {
		v, m, ip := split(f)
		outers = append(outers, frame(v, meta{kind: kindOpen, count: 1, sa: m.sa, seq: m.seq}, ip))
	}
	refused, opened := refusalsOf(feed(e, out, outers...))
	if got := segmentsOf(t, opened); len(refused) != 0 || !equalAll(got, want) {
		t.Errorf("%d packets of %d, or in another order; refused %v", len(got), len(want), refused)
	}
	if len(sealed) >= len(input) || len(opened) >= len(input) {
		t.Errorf("%d frames sealed, %d opened, of %d", len(sealed), len(opened), len(input))
	}
}

// testWorker is the worker on a tap of its own, to be run by hand.
func testWorker(t testing.TB) (*worker, *hooks) {
	t.Helper()
	ns := nettest.New(t, "worker")
	file := testTap(t, ns)
	if err := unix.SetNonblock(int(file.Fd()), true); err != nil {
		t.Fatal(err)
	}
	e, _ := testEngine(t, testSA)
	e.out = tap{int(file.Fd())}
	return &worker{tap: tap{int(file.Fd())}, engine: e}, newHooks(t, ns, tapName)
}

// drain works on what the tap has.
func drain(t testing.TB, w *worker, arena []byte) {
	t.Helper()
	for at := 0; ; {
		n, errno := w.tap.read(arena[at : at+readLen])
		if errno == unix.EAGAIN {
			w.engine.flush()
			return
		}
		if errno != 0 {
			t.Fatal(errno)
		}
		at = w.frame(arena, at, n)
	}
}

// TestJoinedOnTap: Linux takes what has joined, cut as it says it is.
func TestJoinedOnTap(t *testing.T) {
	w, h := testWorker(t)
	arena := make([]byte, arenaLen)
	const n = 50
	for _, size := range []int{1, 64, 512, 1400} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			all := stream(n, size, func(i int, s *single) { s.seq = uint64(size*1000 + i) })
			for _, f := range frames(all) {
				h.send(f)
			}
			drain(t, w, arena)
			var sealed [][]byte
			for got := 0; got < n; {
				f := h.receive()
				if f == nil {
					t.Fatalf("%d of %d are sealed", got, n)
				}
				_, m, _ := split(f)
				checkSealed(t, f, all[got:got+int(m.count)])
				got += int(m.count)
				sealed = append(sealed, f)
			}
			for _, f := range sealed {
				v, m, ip := split(f)
				h.send(frame(v, meta{kind: kindOpen, count: 1, sa: testSA, seq: m.seq}, ip))
			}
			drain(t, w, arena)
			var opened, want [][]byte
			for _, s := range all {
				want = append(want, s.ip())
			}
			for got := 0; got < n; {
				f := h.receive()
				if f == nil {
					t.Fatalf("%d of %d are opened", got, n)
				}
				_, m, _ := split(f)
				got += int(m.count)
				opened = append(opened, f)
			}
			if len(sealed) > 2 || len(opened) > 2 || !equalAll(segmentsOf(t, opened), want) {
				t.Errorf("%d frames sealed, %d opened", len(sealed), len(opened))
			}
		})
	}
}

// TestEnd: what a worker was at when it was told to end leaves.
func TestEnd(t *testing.T) {
	w, h := testWorker(t)
	arena, one := make([]byte, arenaLen), stream(1, 100, nil)
	w.frame(arena, 0, copy(arena, one[0].frame()))
	w.stop.Store(true)
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	if f := h.receive(); f == nil {
		t.Error("nothing comes")
	} else {
		checkSealed(t, f, one)
	}
}

// TestLone: what is alone comes back without another one behind it.
func TestLone(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	for i, one := range stream(3, 100, nil) {
		s.hooks.send(one.frame())
		f := s.hooks.receive()
		if f == nil {
			t.Fatalf("packet %d does not come", i)
		}
		checkSealed(t, f, []single{one})
		v, m, ip := split(f)
		s.hooks.send(frame(v, meta{kind: kindOpen, count: 1, sa: testSA, seq: m.seq}, ip))
		if f = s.hooks.receive(); f == nil || !bytes.Equal(f[headLen:], one.ip()) {
			t.Fatalf("packet %d is not opened", i)
		}
	}
}
