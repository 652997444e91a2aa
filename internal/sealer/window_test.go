package sealer

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"weft.dev/weft/internal/sealer/control"
	"weft.dev/weft/test/espref"
)

// TestNumbersInferred: the upper half of a number, which is not sent, is found by what was opened,
// or by what the hooks have opened while that is nothing.
func TestNumbersInferred(t *testing.T) {
	for _, c := range []struct {
		name   string
		opened []uint64 // before
		hint   uint64
		seq    uint64
		want   control.Reason
	}{
		{"first of all", nil, 0, 1, 0},
		{"nothing known, second round", nil, 0, 1<<32 + 5, control.ReasonAuth},
		{"hint, second round", nil, 1<<32 + 1, 1<<32 + 5, 0},
		{"hint, next round", nil, 1<<32 - 5, 1<<32 + 5, 0},
		{"hint, older", nil, 1<<33 + 500, 1<<33 + 5, 0},
		{"hint, round before", nil, 1<<33 + 5, 1<<33 - 5, 0},
		{"hint is not believed over what was opened", []uint64{50}, 1 << 34, 60, 0},
		{"ahead", []uint64{50}, 0, 1 << 31, 0},
		{"next round", []uint64{1<<32 - 10}, 0, 1<<32 + 10, 0},
		{"round before", []uint64{1<<32 - 10, 1<<32 + 10}, 0, 1<<32 - 9, 0},
		{"again", []uint64{50}, 0, 50, control.ReasonReplayed},
		{"number 0", nil, 0, 0, control.ReasonReplayed},
		{"within the window", []uint64{90000}, 0, 90000 - windowSize + 1, 0},
		{"older than the window", []uint64{90000}, 0, 90000 - windowSize,
			control.ReasonAuth}, // taken for the next round's
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			ip := segment(podPacket(false), tcp{flags: tcpACK}, pattern(10))
			hint := uint64(0)
			for _, seq := range append(slices.Clone(c.opened), c.seq) {
				if seq == c.seq {
					hint = c.hint
				}
				esp, _ := reference(testSA).Seal(seq, ip)
				refused, frames := refusalsOf(give(e, out, wrap(false, 0, hint, esp)))
				if c.want != 0 && hint == c.hint && seq == c.seq && len(frames) == 0 {
					if len(refused) != 1 || refused[0].reason != c.want {
						t.Errorf("refused %v, want %v", refused, c.want)
					}
					return
				}
				if len(frames) != 1 {
					t.Fatalf("number %d: refused %v", seq, refused)
				}
				if _, m, _ := split(frames[0]); m.seq != seq {
					t.Errorf("number %d, want %d", m.seq, seq)
				}
			}
			if c.want != 0 {
				t.Errorf("opened, want %v", c.want)
			}
		})
	}
}

// TestForgedMovesNothing: a packet that is not genuine leaves the window as it is.
func TestForgedMovesNothing(t *testing.T) {
	e, out := testEngine(t, testSA)
	esp, inner := five(t, 10)
	give(e, out, wrap(false, 0, 0, esp[0]))
	forged := bytes.Clone(esp[1])
	be.PutUint32(forged[4:], 1<<30)
	give(e, out, wrap(false, 0, 0, forged))
	if top := e.keys.current.Load().in[testSA].window.top; top != 10 {
		t.Errorf("the window's top is %d", top)
	}
	_, frames := refusalsOf(give(e, out, wrap(false, 0, 0, esp[1:]...)))
	if !equalAll(segmentsOf(t, frames), inner[1:]) {
		t.Error("the others do not arrive")
	}
}

// TestWindow: against a set of all numbers ever used.
func TestWindow(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		var w window
		used, top := map[uint64]bool{}, uint64(0)
		for range 5000 {
			n := top + random.Uint64N(200) - min(top, random.Uint64N(windowSize+300))
			if random.IntN(500) == 0 {
				n = top + random.Uint64N(3*windowSize)
			}
			want := n != 0 && !used[n] && (n > top || top-n < windowSize)
			if got := w.fresh(n); got != want {
				t.Fatalf("number %d, top %d, used %v: fresh %v", n, top, used[n], got)
			}
			if want {
				w.use(n)
				used[n], top = true, max(top, n)
			}
		}
	}
}

// TestInfer: against the reference's reading of RFC 4303 appendix A2.
func TestInfer(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 100000 {
		top := random.Uint64() >> (25 + random.IntN(39))
		low := uint32(top) + uint32(random.Int32N(3*windowSize)) - windowSize
		if random.IntN(2) == 0 {
			low = random.Uint32()
		}
		want := uint64(espref.High(low, top, windowSize))<<32 | uint64(low)
		if top>>32 == 0 && want>>32 == 1<<32-1 {
			want = uint64(low) // there is no round before the first
		}
		if got := infer(top, low); got != want {
			t.Fatalf("top %#x, lower half %#x: %#x, want %#x", top, low, got, want)
		}
	}
}

// TestSum: against plain sums of 16 bits, at every length.
func TestSum(t *testing.T) {
	b := pattern(300)
	for i := range b {
		b[i] |= byte(i & 0xf0) // carries
	}
	for n := range len(b) {
		var want uint64
		for i := 0; i < n; i += 2 {
			pair := []byte{b[i], 0}
			if i+1 < n {
				pair[1] = b[i+1]
			}
			want += uint64(ne.Uint16(pair))
		}
		if got := fold(sum(b[:n], 0)); got != fold(want) {
			t.Errorf("%d bytes: %#x, want %#x", n, got, fold(want))
		}
	}
	if got := fold(^uint64(0)); got != 0xffff {
		t.Errorf("the largest sum folds to %#x", got)
	}
}
