package handshake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// until repeats an exchange while the other end is busy, as the manager does.
func until(ctx context.Context, from, to *testNode, epoch uint64) (Result, error) {
	for i := 0; ; i++ {
		result, err := from.Exchange(ctx, to.peer(), epoch)
		if !errors.Is(err, ErrBusy) {
			return result, err
		}
		select {
		case <-ctx.Done():
			return result, fmt.Errorf("after %d attempts: %w", i, err)
		case <-time.After(time.Duration(1+i%13) * 5 * time.Millisecond):
		}
	}
}

func TestBothDialAtOnce(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	b := newFixture(t)
	x, y := b.node("x", 2, nil), b.node("y", 3, nil)
	x.listen()
	y.listen()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for round := range rounds {
		for _, n := range []*testNode{x, y} {
			n.mu.Lock()
			clear(n.tx)
			clear(n.rx)
			n.mu.Unlock()
		}
		var both sync.WaitGroup
		for _, pair := range [][2]*testNode{{x, y}, {y, x}, {x, y}, {y, x}} {
			both.Go(func() {
				if _, err := until(ctx, pair[0], pair[1], 1); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		both.Wait()
		b.settled(x, y, 1)
		if t.Failed() {
			return
		}
	}
}

// TestTwoEpochsAtOnce has each end want another epoch: they take turns.
func TestTwoEpochsAtOnce(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, nil)
	x.listen()
	y.listen()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var both sync.WaitGroup
	for pair, epoch := range map[[2]*testNode]uint64{{x, y}: 1, {y, x}: 2} {
		both.Go(func() {
			if _, err := until(ctx, pair[0], pair[1], epoch); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	b.settled(x, y, 1)
	b.settled(x, y, 2)
}

// TestWhoGivesWay holds one dial at a known point and looks at who wins.
func TestWhoGivesWay(t *testing.T) {
	for _, c := range []struct {
		name, self, peer string
		stage            stage
		busy, cancelled  bool
	}{
		{"smaller, connected: it wins", "a", "b", stageConnected, true, false},
		{"smaller, not even connected: the other's session is better than none", "a", "b",
			stageDialling, false, true},
		{"larger, dialling: gives way", "b", "a", stageDialling, false, true},
		{"larger, connected: gives way", "b", "a", stageConnected, false, true},
		{"served already", "b", "a", stageServing, true, false},
	} {
		p := newPeers(c.self)
		ctx, cancel := context.WithCancelCause(t.Context())
		running := p.begin(c.peer, &activity{stage: c.stage, cancel: cancel})
		context.AfterFunc(ctx, func() { p.end(c.peer, running) })
		got, err := p.serve(t.Context(), c.peer)
		if busy := errors.Is(err, ErrBusy); busy != c.busy || (ctx.Err() != nil) != c.cancelled {
			t.Errorf("%s: busy %t, cancelled %v", c.name, busy, ctx.Err())
		}
		if c.cancelled && !errors.Is(context.Cause(ctx), ErrBusy) {
			t.Errorf("%s: cancelled with %v", c.name, context.Cause(ctx))
		}
		if c.cancelled && p.reach(ctx, running, stageConnected) == nil {
			t.Errorf("%s: a dial goes on after it gave way", c.name)
		}
		if got != nil {
			p.end(c.peer, got)
		}
		cancel(nil)
	}
}

// The peer is done with our dial (or was restarted) and dials anew: ours may still end by itself.
func TestGreetedDialMayEnd(t *testing.T) {
	p := newPeers("b")
	ctx, cancel := context.WithCancelCause(t.Context())
	running := p.begin("a", &activity{stage: stageGreeted, cancel: cancel})
	served := make(chan error, 1)
	go func() {
		_, err := p.serve(t.Context(), "a")
		served <- err
	}()
	time.Sleep(10 * time.Millisecond)
	if ctx.Err() != nil {
		t.Error("cut off")
	}
	p.end("a", running)
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestStartTogether is a cluster after a power cut: one node and 200 peers that all dial it, while
// it dials all of them, and each its neighbour.
func TestStartTogether(t *testing.T) {
	count := 200
	if testing.Short() {
		count = 20
	}
	b := newFixture(t)
	names := make([]*testNode, count+1)
	for i := range names {
		names[i] = b.node(fmt.Sprintf("n%03d", (i+count/2)%(count+1)), 1,
			func(c *Config) { c.Timeout = time.Minute })
		names[i].listen()
	}
	hub, others := names[0], names[1:]
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	var most atomic.Int64
	turns := make(chan struct{}, 32)
	for i, n := range others {
		for _, pair := range [][2]*testNode{{n, hub}, {hub, n}, {n, others[(i+1)%count]}} {
			all.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				if now := int64(runtime.NumGoroutine()); now > most.Load() {
					most.Store(now)
				}
				if _, err := until(ctx, pair[0], pair[1], 1); err != nil {
					t.Errorf("%s→%s: %v", pair[0].name, pair[1].name, err)
				}
			})
		}
	}
	all.Wait()
	for i, n := range others {
		b.settled(hub, n, 1)
		b.settled(n, others[(i+1)%count], 1)
	}
	t.Logf("%d exchanges wanted, at most %d goroutines", 3*count, most.Load())
}

// mute is a listener's connection that is cut after so many reads or writes.
type mute struct {
	net.Conn
	reads, writes *atomic.Int64
}

func (m mute) Read(p []byte) (int, error) {
	if m.reads.Add(-1) < 0 {
		_ = m.Close()
		return 0, net.ErrClosed
	}
	return m.Conn.Read(p)
}

func (m mute) Write(p []byte) (int, error) {
	if m.writes.Add(-1) < 0 {
		_ = m.Close()
		return 0, net.ErrClosed
	}
	return m.Conn.Write(p)
}

type cutListener struct {
	net.Listener
	reads, writes int64
}

func (c cutListener) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	m := mute{conn, new(atomic.Int64), new(atomic.Int64)}
	m.reads.Store(c.reads)
	m.writes.Store(c.writes)
	return m, nil
}

// cut serves with connections that break, runs one exchange and stops serving.
func (b *fixture) cut(from, to *testNode, reads, writes int64) error {
	b.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = to.server.Serve(ctx, cutListener{listener, reads, writes})
	}()
	to.addr = listener.Addr().String()
	_, err = from.Exchange(b.t.Context(), to.peer(), 1)
	cancel()
	<-ended
	return err
}

// TestCutAtEveryPoint breaks the connection at every read and write, from a fresh start and from a
// state in which one direction is in order, then lets one exchange go through.
func TestCutAtEveryPoint(t *testing.T) {
	const far = 1 << 30
	for _, half := range []bool{false, true} {
		for _, writes := range []bool{false, true} {
			for n, whole := int64(0), false; !whole && n < 100; n++ {
				b := newFixture(t)
				x, y := b.node("x", 2, nil), b.node("y", 2, nil)
				var good *sa
				if half {
					stop := y.listen()
					b.exchange(x, y, 1)
					stop()
					delete(y.tx, key("x", 1))
					good = x.get(true, "y", 1)
				}
				reads, limit := int64(far), n
				if !writes {
					reads, limit = n, far
				}
				whole = b.cut(x, y, reads, limit) == nil
				y.restart()
				y.listen()
				b.exchange(x, y, 1)
				b.settled(x, y, 1)
				if good != nil && x.get(true, "y", 1) != good {
					t.Errorf("cut at %d: a direction in order was replaced", n)
				}
				if t.Failed() {
					t.Fatalf("half %t, writes %t, cut at %d", half, writes, n)
				}
			}
		}
	}
}

// TestCrashAtEveryStep ends one end's goroutine inside the datapath, before and after each call's
// work, as kill -9 does.
func TestCrashAtEveryStep(t *testing.T) {
	crash := func() error { runtime.Goexit(); return nil }
	fail := func() error { return errors.New("map is full at /secret/path") }
	steps := map[string]func(n *testNode, do func() error){
		"state":         func(n *testNode, do func() error) { n.onState = do },
		"before rx":     func(n *testNode, do func() error) { n.onRX = do },
		"after rx":      func(n *testNode, do func() error) { n.afterRX = do },
		"before switch": func(n *testNode, do func() error) { n.onTX = do },
		"after switch":  func(n *testNode, do func() error) { n.afterTX = do },
	}
	for step, arm := range steps {
		for what, do := range map[string]func() error{"crash": crash, "error": fail} {
			for _, onServer := range []bool{false, true} {
				b := newFixture(t)
				x, y := b.node("x", 2, nil), b.node("y", 2, nil)
				stop := y.listen()
				victim := x
				if onServer {
					victim = y
				}
				arm(victim, do)
				err := errors.New("crashed")
				var once sync.WaitGroup
				once.Go(func() { _, err = x.Exchange(t.Context(), y.peer(), 1) })
				once.Wait()
				if err == nil {
					t.Errorf("%s at %s: no error", what, step)
				}
				if what == "error" && !errors.Is(err, ErrInstall) {
					t.Errorf("%s at %s: %v", what, step, err)
				}
				stop()
				victim.onState, victim.onRX, victim.onTX, victim.afterRX, victim.afterTX = nil, nil, nil, nil, nil
				x.restart()
				y.restart()
				y.listen()
				b.exchange(x, y, 1)
				b.settled(x, y, 1)
				if t.Failed() {
					t.Fatalf("%s at %s, on the server %t", what, step, onServer)
				}
			}
		}
	}
}
