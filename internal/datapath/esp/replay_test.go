package esp

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// replayWindow is SA_WINDOW: how many numbers back from the highest are told apart.
const replayWindow = 63*64 + 1

// freshIn replaces the SA that packets are opened with, so that its window is empty.
func (b *saHarness) freshIn(t testing.TB, fingerprint uint64) {
	t.Helper()
	must(t, b.InstallSA(testSA(false, fingerprint, 5)))
}

// TestReplayTable is wireguard-go's table (golang.zx2c4.com/wireguard/replay, replay_test.go,
// itself from the kernel's). Its numbers begin at 0 and end at a limit that the receiver enforces;
// ours begin at 1 and the sender enforces the limit, so each is moved by 1 and the limit's rows are
// left out.
func TestReplayTable(t *testing.T) {
	const limit, last = replayWindow, uint64(1<<64 - 1<<13 - 2)
	up := func(from, to uint64) (rows []replayRow) {
		for n := from; n <= to; n++ {
			rows = append(rows, replayRow{n, true})
		}
		return rows
	}
	down := func(from, to uint64) (rows []replayRow) {
		for n := from; n >= to; n-- {
			rows = append(rows, replayRow{n, true})
		}
		return rows
	}
	b := newSABed(t, "auto")
	for i, table := range []struct {
		name string
		rows []replayRow
	}{
		{"singles", []replayRow{
			{0, true}, {1, true}, {1, false}, {9, true}, {8, true}, {7, true}, {7, false},
			{limit, true}, {limit - 1, true},
			{limit - 1, false}, {limit - 2, true}, {2, true}, {2, false}, {limit + 16, true},
			{3, false}, {limit + 16, false},
			{limit * 4, true}, {limit*4 - (limit - 1), true}, {10, false}, {limit*4 - limit, false},
			{limit*4 - (limit + 1), false},
			{limit*4 - (limit - 2), true}, {limit*4 + 1 - limit, false}, {0, false}, {last, true},
			{last, false},
			{last - 1, true}, {last - 1, false}, {last - 2, true}, {0, false},
		}},
		{"bulk 1", append(up(1, limit-1), replayRow{0, true}, replayRow{0, false})},
		{"bulk 2", append(up(2, limit), replayRow{1, true}, replayRow{0, false})},
		{"bulk 3", down(limit, 1)},
		{"bulk 4", append(down(limit+1, 2), replayRow{0, false})},
		{"bulk 5", append(down(limit-1, 1), replayRow{limit, true}, replayRow{0, false})},
		{"a round of the ring later", []replayRow{
			{100, true}, {4096 + 200, true}, {4096 + 100, true}, {4096 + 100, false}, {100, false},
			{3*4096 + 300, true}, {3*4096 + 200, true}, {3*4096 + 100, true}, {3*4096 + 100, false},
		}},
		{"bulk 6", append(down(limit-1, 1), replayRow{0, true}, replayRow{limit, true})},
	} {
		t.Run(table.name, func(t *testing.T) {
			b.freshIn(t, uint64(i+1))
			for line, row := range table.rows {
				reason := b.commit(t, firstSA, row.n+1)
				if accepted := reason == 0; accepted != row.accept {
					t.Fatalf("row %d: number %d: %s, want accepted %t", line+1, row.n, reason,
						row.accept)
				}
			}
		})
	}
}

type replayRow struct {
	n      uint64
	accept bool
}

// TestReplayModel compares the window with a set of numbers seen, over random jumps of every size.
func TestReplayModel(t *testing.T) {
	b := newSABed(t, "auto")
	b.freshIn(t, 1)
	random := rand.New(rand.NewPCG(1, 2))
	seen := map[uint64]bool{}
	var top uint64
	for range 30_000 {
		n := top
		switch random.IntN(6) {
		case 0:
			n += random.Uint64N(2 * replayWindow)
		case 1:
			n += random.Uint64N(70)
		default:
			n -= min(n, random.Uint64N(replayWindow+80))
		}
		want := n != 0 && !seen[n] && (n > top || top-n < replayWindow)
		if got := b.commit(t, firstSA, n) == 0; got != want {
			t.Fatalf("number %d with highest %d, seen %t: accepted %t", n, top, seen[n], got)
		}
		if want {
			seen[n], top = true, max(top, n)
		}
	}
}

// TestReplayReorder sends a window's width of numbers in reverse, and one more.
func TestReplayReorder(t *testing.T) {
	b := newSABed(t, "auto")
	b.freshIn(t, 1)
	const top = 1 << 20
	for n := uint64(top); n > top-replayWindow; n-- {
		if got, reason := b.admit(t, firstSA, uint32(n)); got != n || reason != 0 {
			t.Fatalf("number %d: taken for %d, %s", n, got, reason)
		}
		if reason := b.commit(t, firstSA, n); reason != 0 {
			t.Fatalf("number %d: %s", n, reason)
		}
	}
	for n := uint64(top - replayWindow); n <= top; n++ {
		if _, reason := b.admit(t, firstSA, uint32(n)); reason != bpf.ReasonEspReplayed &&
			n > top-replayWindow {
			t.Fatalf("number %d again: admitted: %s", n, reason)
		}
		if reason := b.commit(t, firstSA, n); reason != bpf.ReasonEspReplayed {
			t.Fatalf("number %d again: %s", n, reason)
		}
	}
}

// TestReplayHigherHalf is RFC 4303 appendix A2: what 64-bit number a 32-bit one stands for.
func TestReplayHigherHalf(t *testing.T) {
	b := newSABed(t, "auto")
	const wrap = 1 << 32
	for i, row := range []struct {
		name string
		top  uint64
		low  uint32
		want uint64 // 0: refused
	}{
		{"first", 0, 1, 1},
		{"nothing is 0", 0, 0, 0},
		{"no round before the first", 10, 1<<32 - 5, 1<<32 - 5},
		{"next", 100, 101, 101},
		{"in the window, early", 100, 50, 50},
		{"far ahead, below the wrap", 100, 1 << 31, 1 << 31},
		{"up to the wrap", wrap - 1000, 1<<32 - 1, wrap - 1},
		{"over the wrap", wrap - 1000, 0, wrap},
		{"well over the wrap", wrap - 1000, 5000, wrap + 5000},
		{"back over the wrap", wrap + 10, 1<<32 - 1, wrap - 1},
		{"back at the window's edge", wrap + 10,
			uint32(wrap + 10 - (replayWindow - 1) - wrap + 1<<32), wrap + 10 - (replayWindow - 1)},
		{"beyond it: the next round", wrap + 10, uint32(wrap + 10 - replayWindow - wrap + 1<<32),
			wrap + wrap + 10 - replayWindow},
		{"far behind: the next round", 1<<40 + 100_000, 100, 1<<40 + wrap + 100},
		{"the last wrap but one", 1<<63 - 1, 0, 1 << 63},
	} {
		t.Run(row.name, func(t *testing.T) {
			b.freshIn(t, uint64(i+1))
			if row.top != 0 {
				if reason := b.commit(t, firstSA, row.top); reason != 0 {
					t.Fatal(reason)
				}
			}
			got, reason := b.admit(t, firstSA, row.low)
			if got != row.want || (reason == 0) != (row.want != 0) {
				t.Errorf("highest %#x, packet %#x: %#x (%s), want %#x", row.top, row.low, got,
					reason, row.want)
			}
		})
	}
}

// TestReplayCrossing sends numbers in order, and a little out of it, across the upper half's
// change.
func TestReplayCrossing(t *testing.T) {
	b := newSABed(t, "auto")
	b.freshIn(t, 1)
	const start = 1<<32 - 3000
	for n := uint64(start); n < start+6000; n += 4 {
		for _, each := range []uint64{n + 2, n, n + 3, n + 1} {
			got, reason := b.admit(t, firstSA, uint32(each))
			if got != each || reason != 0 {
				t.Fatalf("number %#x: taken for %#x, %s", each, got, reason)
			}
			if reason := b.commit(t, firstSA, each); reason != 0 {
				t.Fatalf("number %#x: %s", each, reason)
			}
		}
	}
}

// onCPUs runs f on up to two CPUs at once, on each in a thread that stays there.
func onCPUs(t *testing.T, f func(worker int)) {
	t.Helper()
	var all unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &all))
	var wg sync.WaitGroup
	for worker := range min(2, all.Count()) {
		wg.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			var one unix.CPUSet
			one.Set(nthCPU(&all, worker))
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				t.Error(fmt.Errorf("pin to a CPU: %w", err))
				return
			}
			f(worker)
		})
	}
	wg.Wait()
	if all.Count() < 2 {
		t.Skip("one CPU only: nothing ran at the same time")
	}
}

func nthCPU(set *unix.CPUSet, n int) int {
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			if n == 0 {
				return cpu
			}
			n--
		}
	}
	return 0
}

// TestReplayTwoCPUs gives every number to two CPUs at once: exactly one may accept it.
func TestReplayTwoCPUs(t *testing.T) {
	b := newSABed(t, "auto")
	b.freshIn(t, 1)
	const count = 20_000
	accepted := make([]atomic.Int32, count+1)
	var turn [2]atomic.Int64
	onCPUs(t, func(worker int) {
		random := rand.New(rand.NewPCG(uint64(worker), 3))
		for n := 1; n <= count; n += 8 {
			// Nobody runs away by more than the window's width.
			for turn[worker].Store(int64(n)); turn[1-worker].Load()+replayWindow/2 < int64(n); {
				runtime.Gosched()
			}
			for _, i := range random.Perm(8) {
				if n+i <= count && b.commit(t, firstSA, uint64(n+i)) == 0 {
					accepted[n+i].Add(1)
				}
			}
		}
		turn[worker].Store(1 << 40)
	})
	for n := 1; n <= count; n++ {
		if got := accepted[n].Load(); got != 1 {
			t.Fatalf("number %d was accepted %d times", n, got)
		}
	}
}

// TestCounterTwoCPUs draws numbers on two CPUs at once: none may come twice, none be left out.
func TestCounterTwoCPUs(t *testing.T) {
	b := newSABed(t, "auto")
	must(t, b.InstallSA(testSA(true, 1, 5)))
	const count = 20_000
	drawn := make([]atomic.Int32, 2*count+1)
	onCPUs(t, func(int) {
		for range count {
			n, reason := b.take(t, firstSA)
			if reason != 0 || n == 0 || n > 2*count {
				t.Errorf("number %d, %s", n, reason)
				return
			}
			drawn[n].Add(1)
		}
	})
	for n := 1; n <= 2*count; n++ {
		if got := drawn[n].Load(); got != 1 {
			t.Fatalf("number %d was drawn %d times", n, got)
		}
	}
}

// TestCounterIsOneInstruction is why TestCounterTwoCPUs holds: a counter that is read and written
// by two would pass it on most days.
func TestCounterIsOneInstruction(t *testing.T) {
	const object = "sa_test_xdp"
	spec, err := bpf.LoadSpec(object)
	must(t, err)
	counter := fieldsOf(t, object, "weft_sa_out")["counter"]
	drawn := 0
	for _, ins := range spec.Programs["weft_test_take"].Instructions {
		switch op := ins.OpCode; {
		case !op.Class().IsStore() || ins.Offset != int16(counter.from):
		case op.Mode() == asm.AtomicMode && op.AtomicOp() == asm.FetchAdd && op.Size() == asm.DWord:
			drawn++
		case ins.Dst != asm.RFP: // of the stack, that offset is something else
			t.Errorf("%v writes to where an SA's counter is", ins)
		}
	}
	if drawn != 1 {
		t.Errorf("%d atomic additions to the counter, want 1", drawn)
	}
}
