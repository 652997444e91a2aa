package epochs

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/kek"
)

// listed puts epochs into a keeper's listing that were not tried so far.
func listed(k *Keeper, from, to uint64) {
	for number := from; number <= to; number++ {
		k.epochs[number] = &epoch{Epoch: Epoch{Number: number, Wrapped: []byte("nothing")},
			nextTry: stillNow, deadline: 100 * time.Hour, end: 100 * time.Hour}
	}
}

// asksKEK notes which epochs it is asked for, and opens none. While it is shut, who asks waits.
type asksKEK struct {
	KEK
	shut  sync.RWMutex
	mu    sync.Mutex
	asked []uint64
}

func (k *asksKEK) Unwrap(_ context.Context, _ []byte, bind kek.Binding) ([]byte, error) {
	k.mu.Lock()
	k.asked = append(k.asked, bind.Epoch)
	k.mu.Unlock()
	k.shut.RLock()
	defer k.shut.RUnlock()
	return nil, &kek.Error{Kind: kek.ErrCorrupt}
}

func (k *asksKEK) numbers() []uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.asked)
}

// TestUnreadableEpochsCostLittle: thousands of epochs in the store that cannot be read, old ones or
// fresh ones all the time, do not have a node ask the KMS without end.
func TestUnreadableEpochsCostLittle(t *testing.T) {
	for name, row := range map[string]struct {
		fresh bool
		most  int
	}{
		// Four of them, at first 1, 2, 4 s apart and so on, then half a minute at least.
		"a thousand":          {false, 4 * (3600/30 + 7)},
		"and one each second": {true, 3600/5 + 4 + 1},
	} {
		k, _, _ := still(t, 1)
		k.epochs[1].deadline, k.epochs[1].end = 100*time.Hour, 100*time.Hour
		asks := &asksKEK{KEK: k.opt.KEK}
		k.opt.KEK = asks
		listed(k, 2, 1001)
		for at := range time.Duration(3600) {
			k.clock = stillClock(stillNow + at*time.Second)
			if row.fresh {
				listed(k, uint64(1002+at), uint64(1002+at))
				delete(k.epochs, uint64(2+at))
			}
			if row.fresh || at%5 == 0 {
				k.unwrapDue(t.Context())
				k.work.Wait()
			}
		}
		if got := len(asks.numbers()); got > row.most || got < 4 {
			t.Errorf("%s: the KMS was asked %d times in an hour, want at most %d", name, got,
				row.most)
		}
		if k.epochs[1].dek == nil {
			t.Errorf("%s: the key of the epoch in use was forgotten", name)
		}
	}
}

// TestWhatIsUnwrappedFirst: beside a thousand that cannot be read, and while the KMS is slow, what
// this node has used before is tried, and what peers ask for; of the others few at a time.
func TestWhatIsUnwrappedFirst(t *testing.T) {
	k, _, sent := still(t)
	asks := &asksKEK{KEK: k.opt.KEK}
	k.opt.KEK = asks
	listed(k, 1, 1000)
	sent[100], k.seen.Opened = 7, 200
	asks.shut.Lock()
	wait := func(number uint64) {
		t.Helper()
		if _, wait, err := k.tryDEK(number); wait == nil {
			t.Errorf("epoch %d: %v", number, err)
		}
	}
	k.unwrapDue(t.Context())
	wait(300)
	for number := range uint64(10) {
		k.unwrapDue(t.Context())
		wait(400 + number)
	}
	k.mu.Lock()
	running := k.unwraps
	k.mu.Unlock()
	if running.running != unwrapParallel || running.unproven != keep {
		t.Errorf("%d under way, %d of them at unproven epochs", running.running, running.unproven)
	}
	asks.shut.Unlock()
	k.work.Wait()
	first := asks.numbers()
	slices.Sort(first)
	if want := []uint64{100, 200, 999, 1000}; !slices.Equal(first, want) {
		t.Errorf("at first epochs %v: want %v", first, want)
	}
	for range 10 {
		k.unwrapDue(t.Context())
		k.work.Wait()
	}
	for _, number := range append(first, 300, 400, 401, 402, 403, 404, 405, 406, 407, 408, 409) {
		if !slices.Contains(asks.numbers(), number) {
			t.Errorf("epoch %d was not tried: %v", number, asks.numbers())
		}
	}
	if got := len(asks.numbers()); got > 2+11+unprovenTried {
		t.Errorf("%d were tried", got)
	}
}
