package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/sealer/control"
)

// left starts a sealer with keys, by an agent that ends.
func (b *harness) left(t *testing.T, keys ...esp.SealerKey) (pid int) {
	t.Helper()
	h := newHost(keys...)
	s, stop := b.run(t, h, control.Build())
	eventually(t, "the keys", func() error { return b.hasExactly(t, s, h, keys...) })
	stop()
	return s.Status().PID
}

func gone(pid int) func() error {
	return func() error {
		if unix.Kill(pid, 0) == nil {
			return fmt.Errorf("process %d is still there", pid)
		}
		return nil
	}
}

// TestHandOverFails: a sealer stays, and is found, when the one that is to replace it does not
// start.
func TestHandOverFails(t *testing.T) {
	b := newHarness(t)
	first := b.left(t, key(1), key(2))
	binary, err := exec.LookPath(control.Program)
	if err != nil {
		t.Fatal(err)
	}
	works := filepath.Join(t.TempDir(), "works")
	if err := errors.Join(os.Rename(binary, works), os.Symlink("/bin/false", binary)); err != nil {
		t.Fatal(err)
	}
	h := newHost()
	s, _ := b.run(t, h, "another build")
	eventually(t, "the problem", func() error {
		if b.problem() == nil {
			return errors.New("none")
		}
		return nil
	})
	if held := b.holds(t); len(held) != 2 || gone(first)() == nil {
		t.Errorf("the first one holds %v", held)
	}
	if err := os.Rename(works, binary); err != nil {
		t.Fatal(err)
	}
	eventually(t, "replacing", func() error { return b.hasExactly(t, s, h, key(1), key(2)) })
	eventually(t, "the end of the first", gone(first))
}

// TestNeverBegun: a process that an agent has started and not begun, since it was killed, is ended:
// another may read the tap.
func TestNeverBegun(t *testing.T) {
	for _, published := range []bool{false, true} {
		t.Run(fmt.Sprint("published ", published), func(t *testing.T) {
			b, h := newHarness(t), newHost(key(1))
			tap, err := h.OpenSealerTap()
			if err != nil {
				t.Fatal(err)
			}
			defer tap.Close()
			p, err := control.Start(t.Context(), control.Options{Tap: tap, SocketPath: b.socket})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			defer p.Kill() //nolint:errcheck // it has ended
			if published {
				if err := p.Publish(); err != nil {
					t.Fatal(err)
				}
			}
			s, _ := b.run(t, h, control.Build())
			eventually(t, "another process", func() error { return b.hasExactly(t, s, h, key(1)) })
			eventually(t, "its end", gone(p.PID()))
		})
	}
}

// TestUnreachable: who reads the tap and cannot be reached loses it.
func TestUnreachable(t *testing.T) {
	b, h := newHarness(t), newHost(key(1))
	h.refuse = netdev.ErrSealerInUse
	s, _ := b.run(t, h, control.Build())
	eventually(t, "its start", func() error { return b.hasExactly(t, s, h, key(1)) })
	if h.removed != 1 {
		t.Errorf("the tap was removed %d times", h.removed)
	}
}

// TestSlowToAnswer: a process that does not answer for a while keeps its keys, which may be the
// only copies.
func TestSlowToAnswer(t *testing.T) {
	b := newHarness(t)
	first := b.left(t, key(1))
	if err := unix.Kill(first, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h := newHost()
	s, _ := b.run(t, h, control.Build())
	time.Sleep(2 * time.Second)
	if err := unix.Kill(first, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "taking over", func() error { return b.hasExactly(t, s, h, key(1)) })
	if s.Status().PID != first {
		t.Errorf("pid was %d: %+v", first, s.Status())
	}
}

// TestMarks: nothing is marked that the process does not hold.
func TestMarks(t *testing.T) {
	exactly := func(h *host, keys ...esp.SealerKey) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, k := range keys {
			if !h.marked[heldOf(k)] {
				return fmt.Errorf("marked: %v", h.marked)
			}
		}
		if len(h.marked) != len(keys) {
			return fmt.Errorf("marked: %v", h.marked)
		}
		return nil
	}
	b := newHarness(t)
	b.left(t, key(1), key(2), key(3))
	h := newHost()
	h.strange = func(id uint32) bool { return id == 2 }
	for _, id := range []uint32{1, 2, 3, 7} {
		h.marked[heldOf(key(id))] = true
	}
	s, _ := b.run(t, h, control.Build())
	eventually(t, "taking over all but one", func() error {
		return errors.Join(b.hasExactly(t, s, h, key(1), key(3)), exactly(h, key(1), key(3)))
	})
	early := make(chan bool, 1)
	h.onUnmark = func(k esp.SealerKey) { early <- slices.Contains(b.holds(t), heldOf(k)) }
	h.set(key(1))
	eventually(t, "one less", func() error {
		return errors.Join(b.hasExactly(t, s, h, key(1)), exactly(h, key(1)))
	})
	select {
	case held := <-early:
		if !held {
			t.Error("a key was removed before it was unmarked")
		}
	default:
		t.Error("it was never unmarked")
	}
	h.mu.Lock()
	h.prepare = errors.New("no more")
	h.mu.Unlock()
	if err := unix.Kill(s.Status().PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no marks without a process", func() error { return exactly(h) })
}

// TestCancelled: the end of an agent ends no sealer that works, wherever it comes.
func TestCancelled(t *testing.T) {
	t.Run("while keys are given", func(t *testing.T) {
		b, h := newHarness(t), newHost(key(1))
		s, stop := b.run(t, h, control.Build())
		eventually(t, "the key", func() error { return b.hasExactly(t, s, h, key(1)) })
		h.onSecret = b.cancel
		h.set(key(1), key(2))
		stop()
		if held := b.holds(t); !slices.Contains(held, heldOf(key(1))) {
			t.Errorf("it holds %v", held)
		}
	})
	t.Run("while one takes over from another", func(t *testing.T) {
		b := newHarness(t)
		first := b.left(t, key(1), key(2))
		h := newHost()
		ready := make(chan bool)
		h.onSweep = func() { <-ready; b.cancel() }
		s, stop := b.run(t, h, "another build")
		close(ready)
		eventually(t, "the end of the first", gone(first))
		stop()
		client, err := control.Dial(t.Context(), b.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if hello, err := client.Hello(t.Context()); err != nil || !hello.Begun ||
			client.PID() == first {
			t.Errorf("%+v %v; %+v", hello, err, s.Status())
		}
		if held := b.holds(t); len(held) != 2 {
			t.Errorf("it holds %v", held)
		}
	})
}
