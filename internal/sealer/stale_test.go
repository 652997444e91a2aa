package sealer

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/sealer/control"
)

// tapPair is a tap of a pair of sockets, and the hooks' end.
func tapPair(t *testing.T) (near tap, far int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[1]) })
	return tap{pair[0]}, pair[1]
}

// TestStaleNumbers: what lies in the tap for the key that an SA had does not use up numbers of the
// next one, whether that replaces it or comes after its removal.
func TestStaleNumbers(t *testing.T) {
	old := testKey(true, testSA)
	next := old
	next.Fingerprint++
	flip(&next.Key[0])
	for name, change := range map[string]func(r *keyring) error{
		"replaced": func(r *keyring) error { return r.install([]control.Key{next}) },
		"removed": func(r *keyring) error {
			r.remove([]control.Held{old.Held()})
			return r.install([]control.Key{next})
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			near, far := tapPair(t)
			defer unix.Close(near.fd)
			w, err := newWorker(near, e)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(w.wake)
			kinds := func() (got []kind) {
				for _, f := range out.take() {
					_, m, _ := split(f)
					got = append(got, m.kind)
				}
				return got
			}
			if give(e, out, bulk(2, 1e6)); kinds() != nil {
				t.Fatal("give has left frames")
			}
			if err := change(e.keys); err != nil {
				t.Fatal(err)
			}
			if got := give(e, out, bulk(2, 1e6+2)); len(got) != 1 {
				t.Fatalf("%d frames", len(got))
			} else if _, m, _ := split(got[0]); m.kind != kindRefused ||
				control.Reason(m.identity) != control.ReasonNoKey {
				t.Fatalf("a number of the key before: %+v", m)
			}
			// The tap has one more such frame, and is empty then.
			if _, err := unix.Write(far, bulk(2, 1e6+4)); err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			go func() { done <- w.run() }()
			deadline := time.Now().Add(time.Minute)
			for e.keys.drained.Load() != e.keys.changes.Load() {
				if time.Now().After(deadline) {
					t.Fatal("never empty")
				}
				time.Sleep(time.Millisecond)
			}
			if _, err := unix.Write(far, bulk(2, 1)); err != nil {
				t.Fatal(err)
			}
			for e.stats.seal.framesIn.Load() != 4 {
				if time.Now().After(deadline) {
					t.Fatal("not read")
				}
				time.Sleep(time.Millisecond)
			}
			w.end()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if got := kinds(); len(got) != 2 || got[0] != kindRefused || got[1] != kindSealed {
				t.Errorf("%v, want one refused and one sealed", got)
			}
		})
	}
}

// failing is an output in which the worker breaks down.
type failing struct{}

func (failing) writev([]unix.Iovec) syscall.Errno { panic("no way out") }

// TestFaultEndsProcess: a worker that panics leaves nobody waiting for it, and the process fails.
func TestFaultEndsProcess(t *testing.T) {
	near, far := tapPair(t)
	p, err := newProcess(near.fd)
	if err != nil {
		t.Fatal(err)
	}
	p.engine.out = failing{}
	if err := errors.Join(p.Configure(control.Config{ESPPort: testPort}), p.Begin()); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(far, bulk(2, 1)); err != nil { // no key: it is answered
		t.Fatal(err)
	}
	select {
	case <-p.leaving:
	case <-time.After(time.Minute):
		t.Fatal("the worker goes on")
	}
	done := make(chan error, 1)
	go func() {
		key := testKey(true, testSA)
		err := p.Install([]control.Key{key})
		p.Remove([]control.Held{key.Held()})
		if err != nil {
			t.Error(err)
		}
		done <- p.wait(nil, nil)
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("it ends as if nothing had happened")
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for a worker that is gone")
	}
}
