package keys

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/kek"
)

// testClock runs like a real one, can be put forward, and its wall clock set.
type testClock struct {
	start time.Time
	stop  chan struct{}

	mu      sync.Mutex
	skipped time.Duration
	shift   time.Duration
	waiting []waiter
}

type waiter struct {
	at time.Duration
	ch chan time.Time
}

func newTestClock(t *testing.T) *testClock {
	c := &testClock{start: time.Now(), stop: make(chan struct{})}
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-c.stop:
				return
			case <-tick.C:
				c.fire()
			}
		}
	}()
	t.Cleanup(func() { close(c.stop) })
	return c
}

func (c *testClock) Boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot()
}

func (c *testClock) boot() time.Duration { return time.Since(c.start) + c.skipped }

func (c *testClock) Wall() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(c.boot() + c.shift)
}

func (c *testClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := waiter{c.boot() + d, make(chan time.Time, 1)}
	c.waiting = append(c.waiting, w)
	return w.ch
}

func (c *testClock) fire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.boot()
	c.waiting = slices.DeleteFunc(c.waiting, func(w waiter) bool {
		if now >= w.at {
			w.ch <- time.Time{}
			return true
		}
		return false
	})
}

// skip puts the clock forward.
func (c *testClock) skip(d time.Duration) {
	c.mu.Lock()
	c.skipped += d
	c.mu.Unlock()
	c.fire()
}

// view is a clock whose wall clock may be wrong.
type view struct {
	*testClock
	mu    sync.Mutex
	shift time.Duration
}

func (v *view) Wall() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.testClock.Wall().Add(v.shift)
}

func (v *view) jump(d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shift += d
}

// memStore is an epochs.Store in memory.
type memStore struct {
	mu      sync.Mutex
	epochs  map[uint64]epochs.Epoch
	down    bool
	changed func()
}

var errStoreDown = errors.New("the store is away")

func (s *memStore) Epochs() ([]epochs.Epoch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errStoreDown
	}
	return slices.SortedFunc(maps.Values(s.epochs),
		func(a, b epochs.Epoch) int { return int(a.Number) - int(b.Number) }), nil
}

func (s *memStore) CreateEpoch(e epochs.Epoch) error {
	s.mu.Lock()
	if s.down {
		s.mu.Unlock()
		return errStoreDown
	}
	if _, taken := s.epochs[e.Number]; taken {
		s.mu.Unlock()
		return epochs.ErrExists
	}
	s.epochs[e.Number] = e
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s *memStore) ReplaceEpoch(e epochs.Epoch, old []byte) error {
	s.mu.Lock()
	if !bytes.Equal(s.epochs[e.Number].Wrapped, old) {
		s.mu.Unlock()
		return epochs.ErrChanged
	}
	s.epochs[e.Number] = e
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s *memStore) DeleteEpoch(number uint64) error {
	s.mu.Lock()
	if s.down {
		s.mu.Unlock()
		return errStoreDown
	}
	delete(s.epochs, number)
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s *memStore) setDown(down bool) {
	s.mu.Lock()
	s.down = down
	s.mu.Unlock()
	s.changed()
}

// nodeStore counts a node's steps in the store.
type nodeStore struct {
	epochs.Store
	life *life
}

func (s nodeStore) CreateEpoch(e epochs.Epoch) error {
	return s.life.step("publish", func() error { return s.Store.CreateEpoch(e) })
}

func (s nodeStore) ReplaceEpoch(e epochs.Epoch, old []byte) error {
	return s.life.step("replace", func() error { return s.Store.ReplaceEpoch(e, old) })
}

func (s nodeStore) DeleteEpoch(n uint64) error {
	return s.life.step("delete", func() error { return s.Store.DeleteEpoch(n) })
}

// fakeKEK wraps by adding a hash of the binding; fail refuses.
type fakeKEK struct {
	mu      sync.Mutex
	fail    func(epoch uint64) error
	life    *life
	unwraps map[uint64]int
	// version is what wraps now; retired are those that unwrap nothing any more.
	version string
	retired []string
}

func pad(bind kek.Binding) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%s %d %d %d", bind.Cluster, bind.Epoch,
		bind.Created.UnixMilli(), bind.Expires.UnixMilli()))
}

func (k *fakeKEK) do(what string, in []byte, bind kek.Binding) (out []byte, err error) {
	k.mu.Lock()
	fail, life := k.fail, k.life
	if what == "unwrap" {
		k.unwraps[bind.Epoch]++
	}
	k.mu.Unlock()
	if fail != nil {
		if err := fail(bind.Epoch); err != nil {
			return nil, err
		}
	}
	err = life.step(what, func() error {
		mask := pad(bind)
		for i, b := range in {
			out = append(out, b^mask[i%32])
		}
		return nil
	})
	return out, err
}

// Wrap puts the version before what it wraps: one digit.
func (k *fakeKEK) Wrap(ctx context.Context, dek []byte, bind kek.Binding) ([]byte, string, error) {
	version, err := k.Version(ctx)
	if err != nil {
		return nil, "", err
	}
	blob, err := k.do("wrap", dek, bind)
	return append([]byte(version), blob...), version, err
}

func (k *fakeKEK) Unwrap(_ context.Context, blob []byte, bind kek.Binding) ([]byte, error) {
	k.mu.Lock()
	retired := slices.Contains(k.retired, string(blob[:1]))
	k.mu.Unlock()
	if retired {
		return nil, &kek.Error{Kind: kek.ErrDisabled}
	}
	return k.do("unwrap", blob[1:], bind)
}

func (k *fakeKEK) Version(context.Context) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.version == "" {
		return "1", nil
	}
	return k.version, nil
}

// rotate begins a version, and retires another.
func (k *fakeKEK) rotate(version string, retire ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version, k.retired = version, retire
}

func (k *fakeKEK) URL() string { return "file:///test/kek" }

func (k *fakeKEK) refuse(fail func(uint64) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = fail
}

// election is what fakeLeaders run for. With all set, everybody is elected.
type election struct {
	mu     sync.Mutex
	holder string
	all    bool
	closed map[string]bool
}

type fakeLeader struct {
	election *election
	node     string
}

func (l fakeLeader) Campaign(ctx context.Context, trouble func(error)) error {
	for {
		trouble(nil)
		l.election.mu.Lock()
		won := !l.election.closed[l.node] &&
			(l.election.all || l.election.holder == "" || l.election.holder == l.node)
		if won {
			l.election.holder = l.node
		}
		l.election.mu.Unlock()
		if won {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (l fakeLeader) IsLeader() bool {
	l.election.mu.Lock()
	defer l.election.mu.Unlock()
	return l.election.all || l.election.holder == l.node
}

func (l fakeLeader) Resign() {
	l.election.mu.Lock()
	defer l.election.mu.Unlock()
	if l.election.holder == l.node {
		l.election.holder = ""
	}
}

func (l fakeLeader) Holder() string {
	l.election.mu.Lock()
	defer l.election.mu.Unlock()
	return l.election.holder
}
