package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/sealer/control"
)

// host is a datapath that remembers what it was told.
type host struct {
	mu      sync.Mutex
	keys    []esp.SealerKey
	marked  map[control.Held]bool
	on      bool
	refuse  error // of OpenSealerTap
	opened  int
	removed int
	changed chan struct{}
	prepare error             // of PrepareSealer
	strange func(uint32) bool // keys that are not taken over
	// Called without the lock, each if it is there: when a secret is fetched, when all but some are
	// unmarked, when one is.
	onSecret, onSweep func()
	onUnmark          func(esp.SealerKey)
}

func newHost(keys ...esp.SealerKey) *host {
	return &host{keys: keys, marked: map[control.Held]bool{}, changed: make(chan struct{}, 1)}
}

func (h *host) PrepareSealer() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.prepare
}

// OpenSealerTap gives one end of a pair of sockets.
func (h *host) OpenSealerTap() (*os.File, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opened++
	if h.refuse != nil {
		return nil, h.refuse
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(pair[1]), "tap"), nil // the other end stays open
}

func (h *host) SetSealer(on bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on = on
	return nil
}

func (h *host) SealerChanged() <-chan struct{} { return h.changed }

func (h *host) SealerKeys() []esp.SealerKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := slices.Clone(h.keys)
	for i := range list {
		list[i].Wipe()
	}
	return list
}

func (h *host) SealerSecret(k *esp.SealerKey) bool {
	if h.onSecret != nil {
		h.onSecret()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, have := range h.keys {
		if heldOf(have) == heldOf(*k) {
			*k = have
			return true
		}
	}
	return false
}

func (h *host) AdoptSealerKey(k *esp.SealerKey) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.strange != nil && h.strange(k.ID) {
		return false, nil
	}
	h.keys = append(h.keys, *k)
	return true, nil
}

func (h *host) MarkSealer(k esp.SealerKey, holds bool) error {
	if !holds && h.onUnmark != nil {
		h.onUnmark(k)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if holds {
		h.marked[heldOf(k)] = true
	} else {
		delete(h.marked, heldOf(k))
	}
	return nil
}

func (h *host) UnmarkSealer(but ...esp.SealerKey) error {
	if h.onSweep != nil {
		h.onSweep()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.marked, func(held control.Held, _ bool) bool {
		return !slices.ContainsFunc(but, func(k esp.SealerKey) bool { return heldOf(k) == held })
	})
	return nil
}

// RemoveSealerTap closes our end, as a tap that is gone ends its reader.
func (h *host) RemoveSealerTap() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removed++
	h.refuse = nil
	return nil
}

func (h *host) SealerLost() (uint64, error) { return 0, nil }

// set replaces the keys.
func (h *host) set(keys ...esp.SealerKey) {
	h.mu.Lock()
	h.keys = keys
	h.mu.Unlock()
	h.changed <- struct{}{}
}

func key(id uint32) esp.SealerKey {
	return esp.SealerKey{Out: id%2 == 0, ID: id, Fingerprint: uint64(id) + 100,
		Key: [32]byte{byte(id), 1}, Salt: [4]byte{9}}
}

// harness is where a sealer can be started.
type harness struct {
	socket string
	cancel context.CancelFunc // of the supervisor that was started last
	mu     sync.Mutex
	last   error
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: starts a process of another uid")
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, control.Program),
		"weft.dev/weft/cmd/weft-sealer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return &harness{socket: filepath.Join(dir, "sock")}
}

func (b *harness) problem() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// run has a supervisor work until stop, as an agent does.
func (b *harness) run(t *testing.T, h *host, build string) (s *Supervisor, stop func()) {
	t.Helper()
	s = New(Options{
		Datapath: h, Socket: b.socket, Port: 4500, Build: build, Log: slog.New(slog.DiscardHandler),
		Problem: func(err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.last = err
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	t.Cleanup(func() {
		stop()
		b.kill(t)
	})
	return s, stop
}

// kill ends the process that was left, if there is one. It is called from cleanups, when the
// test's own context is over.
func (b *harness) kill(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := control.Dial(ctx, b.socket)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return
	}
	if err != nil {
		t.Error("a sealer may be left:", err)
		return
	}
	if err := end(ctx, client); err != nil {
		t.Error(err)
	}
}

// holds asks the process itself which keys it has.
func (b *harness) holds(t *testing.T) []control.Held {
	t.Helper()
	client, err := control.Dial(t.Context(), b.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	held, err := client.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// hasExactly says whether a process works with these keys, and the host has been told of them.
func (b *harness) hasExactly(t *testing.T, s *Supervisor, h *host, keys ...esp.SealerKey) error {
	t.Helper()
	if s.Status().PID == 0 || b.problem() != nil {
		return fmt.Errorf("%+v %v", s.Status(), b.problem())
	}
	held := b.holds(t)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.on || len(held) != len(keys) {
		return fmt.Errorf("on %v, it holds %v", h.on, held)
	}
	for _, k := range keys {
		if !slices.Contains(held, heldOf(k)) || !h.marked[heldOf(k)] {
			return fmt.Errorf("%v: it holds %v, marked %v", heldOf(k), held, h.marked)
		}
	}
	return nil
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	err := check()
	for err != nil && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
		err = check()
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// TestKeysFollow: the process has the keys that the datapath has, and no others, also after it was
// killed.
func TestKeysFollow(t *testing.T) {
	b, h := newHarness(t), newHost(key(1))
	s, _ := b.run(t, h, control.Build())
	eventually(t, "the first key", func() error { return b.hasExactly(t, s, h, key(1)) })
	h.set(key(1), key(2), key(3))
	eventually(t, "more keys",
		func() error { return b.hasExactly(t, s, h, key(1), key(2), key(3)) })
	other := key(2)
	other.Fingerprint++
	h.set(other, key(3))
	eventually(t, "one less, one replaced",
		func() error { return b.hasExactly(t, s, h, other, key(3)) })
	first := s.Status().PID
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the next process", func() error {
		if s.Status().PID == first {
			return errors.New("still the first")
		}
		return b.hasExactly(t, s, h, other, key(3))
	})
	if s.Status().Starts != 2 {
		t.Errorf("started %d times, want 2", s.Status().Starts)
	}
}

// TestAgentRestarted: a process stays when its agent ends. The next agent of the same build takes
// it over, keys included; one of another build has its own take over, and the first ends.
func TestAgentRestarted(t *testing.T) {
	b, h := newHarness(t), newHost(key(1), key(2))
	s, stop := b.run(t, h, control.Build())
	eventually(t, "the keys", func() error { return b.hasExactly(t, s, h, key(1), key(2)) })
	first := s.Status().PID
	stop()
	h = newHost()
	s, stop = b.run(t, h, control.Build())
	eventually(t, "taking over", func() error { return b.hasExactly(t, s, h, key(1), key(2)) })
	if s.Status().PID != first || s.Status().Starts != 0 {
		t.Errorf("pid was %d: %+v", first, s.Status())
	}
	for _, want := range []esp.SealerKey{key(1), key(2)} {
		got := esp.SealerKey{Out: want.Out, ID: want.ID, Fingerprint: want.Fingerprint}
		if !h.SealerSecret(&got) || got.Key != want.Key || got.Salt != want.Salt {
			t.Errorf("%v was taken over as another key", heldOf(want))
		}
	}
	stop()
	opened := h.opened
	h = newHost()
	s, _ = b.run(t, h, "another build")
	eventually(t, "replacing", func() error { return b.hasExactly(t, s, h, key(1), key(2)) })
	if s.Status().PID == first || h.opened != 0 || opened != 0 {
		t.Errorf("pid %d, was %d; the tap was opened %d and %d times, want the first one's",
			s.Status().PID, first, opened, h.opened)
	}
	eventually(t, "the end of the first", func() error {
		if unix.Kill(first, 0) == nil {
			return fmt.Errorf("process %d is still there", first)
		}
		return nil
	})
}

// TestNoTap: what keeps the process from running is told, nothing is given to it, and it starts
// once that is over.
func TestNoTap(t *testing.T) {
	b, h := newHarness(t), newHost(key(1))
	h.refuse, h.on = errors.New("no such device"), true
	h.marked[heldOf(key(7))] = true // of a process that is gone
	s, _ := b.run(t, h, control.Build())
	eventually(t, "the problem", func() error {
		if !errors.Is(b.problem(), h.refuse) {
			return fmt.Errorf("told: %v", b.problem())
		}
		return nil
	})
	h.mu.Lock()
	if h.on || len(h.marked) != 0 {
		t.Errorf("on %v, marked %v", h.on, h.marked)
	}
	h.refuse = nil
	h.mu.Unlock()
	eventually(t, "its start", func() error { return b.hasExactly(t, s, h, key(1)) })
}
