package keys

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/sadb"
)

// TestExtendTTLOfOnePair has one node without the KMS: the others go on to new epochs, and the
// leader leaves the old one's object alone. A KMS that answers no is obeyed: that node is out at
// the hard TTL.
func TestExtendTTLOfOnePair(t *testing.T) {
	for _, kind := range []error{kek.ErrUnreachable, kek.ErrDenied} {
		b := extending(t)
		b.election.closed["c"] = true
		nodes := b.cluster("a", "b", "c")
		a, c := nodes[0], nodes[2]
		b.up(1)
		c.kek.refuse(func(epoch uint64) error {
			if epoch > 1 || kind == kek.ErrDenied {
				return &kek.Error{Kind: kind}
			}
			return nil
		})
		first := b.store.created(1)
		age := func() time.Duration { return b.clock.Wall().Sub(first) }
		b.rotateByAge(a)
		b.up(2, "a", "b")
		b.rotateByAge(a)
		b.up(3, "a", "b")
		b.clock.skip(testHardTTL - 30*time.Minute - age())
		b.until("the others move on", func() bool {
			return a.Status().Epoch == b.nodes["b"].Status().Epoch &&
				dekState(c, a.Status().Newest) == kek.Outcome(&kek.Error{Kind: kind})
		})
		if kind == kek.ErrDenied {
			b.fabric.forgive("a", "c", true)
			b.fabric.forgive("b", "c", true)
		}
		if kind == kek.ErrDenied {
			b.clock.skip(testHardTTL - 7*time.Minute - age())
			b.until("c has asked",
				func() bool { b.clock.skip(10 * time.Second); return answered(c, "denied") })
		}
		for age() < testHardTTL+30*time.Minute {
			b.clock.skip(testStride)
			b.until("keys' end is put off", func() bool {
				c.extendDue(t.Context()) // it has its chance
				return b.left(a) > testStride && b.left(nodes[1]) > testStride &&
					(kind == kek.ErrDenied || b.left(c) > testStride)
			})
		}
		if kind == kek.ErrDenied {
			b.until("c is out",
				func() bool {
					return b.fabric.try("c", "a") == "no_key" && alarms(c) == 0 &&
						!alarmed(c)
				})
		} else {
			b.until("the alarm", func() bool {
				return alarmed(a) && alarmed(c) &&
					strings.Contains(strings.Join(a.Status().Problems, "\n"), "not every peer moves")
			})
			if b.store.created(1).IsZero() {
				t.Error("the epoch's object was removed")
			}
		}
		c.kek.refuse(nil)
		b.fabric.forgive("a", "c", false)
		b.fabric.forgive("b", "c", false)
		b.until("c is back",
			func() bool { b.clock.skip(time.Second); return b.peer(c, "a").State == StateUp })
		b.up(3)
		b.until("the alarm is over", func() bool { return !alarmed(a) && !alarmed(c) })
		b.sound()
	}
}

// answered says whether the KMS has given a node an answer about the first epoch.
func answered(n *node, outcome string) bool {
	return slices.ContainsFunc(n.History(), func(e audit.Record) bool {
		return e.Event == audit.EventUnwrapped && e.Epoch == 1 && e.Outcome == outcome
	})
}

// TestExtendTTLRefused has the KMS say no: before the hard TTL nothing is extended, later there is
// no further step.
func TestExtendTTLRefused(t *testing.T) {
	for _, kind := range []error{kek.ErrDenied, kek.ErrDisabled, kek.ErrNotFound} {
		for _, steps := range []int{0, 2} {
			b := extending(t)
			nodes := b.cluster("a", "b")
			b.up(1)
			away(true, nodes...)
			b.clock.skip(testHardTTL - 10*time.Minute - b.age())
			if steps > 0 {
				b.walk(testHardTTL, nodes...)
			}
			for _, n := range nodes {
				n.kek.refuse(func(uint64) error { return &kek.Error{Kind: kind} })
			}
			outcome := kek.Outcome(&kek.Error{Kind: kind})
			for _, n := range nodes {
				b.until("it has asked",
					func() bool { b.clock.skip(10 * time.Second); return answered(n, outcome) })
			}
			b.sound()
			for _, n := range nodes {
				if text := strings.Join(n.Status().Problems, "\n"); steps == 0 &&
					!strings.Contains(text, "the KMS refuses its key ("+outcome+")") {
					t.Errorf("%s says %s", n.name, text)
				}
			}
			told := alarms(nodes[0]) + alarms(nodes[1])
			b.forgiveAll(true)
			b.clock.skip(testHardTTL + testExtend/2 - b.age())
			b.dropped(nodes...)
			if now := alarms(nodes[0]) + alarms(nodes[1]); now != told || now > 2*steps ||
				(steps == 0) != (now == 0) {
				t.Errorf("%s: told of %d steps, then of %d: want at most %d", outcome, told, now,
					2*steps)
			}
			b.recovered(nodes...)
		}
	}
}

// created is when an epoch was made, zero if it is not there.
func (s *memStore) created(number uint64) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epochs[number].Created
}

// TestExtendTTLEndsByHand removes the epoch's object, which is the off-switch: no further step is
// made.
func TestExtendTTLEndsByHand(t *testing.T) {
	b := extending(t)
	nodes := b.outlast(5 * time.Minute)
	b.sound()
	if err := b.store.DeleteEpoch(1); err != nil {
		t.Fatal(err)
	}
	b.until("the nodes know",
		func() bool { return len(nodes[0].Status().Epochs)+len(nodes[1].Status().Epochs) == 0 })
	b.forgiveAll(true)
	b.clock.skip(extendMost)
	b.dropped(nodes...)
	b.recovered(nodes...)
}

// balky is a datapath that extends nothing for a while.
type balky struct {
	sadb.Datapath
	fails *atomic.Bool
}

var errBalky = errors.New("the map is full of sand")

func (d balky) ExtendSAs(node string, out bool, epoch uint8, id uint64, until time.Time) error {
	if d.fails.Load() {
		return errBalky
	}
	return d.Datapath.ExtendSAs(node, out, epoch, id, until)
}

// TestExtendTTLTriesAgain has the datapath fail when keys are to be extended: it is told as a
// problem, not as an extension, and tried again until it works.
func TestExtendTTLTriesAgain(t *testing.T) {
	b := extending(t)
	var fails atomic.Bool
	fails.Store(true)
	configured := b.options
	b.options = func(o *Options) {
		if configured(o); o.Node == "a" {
			o.Datapath = balky{o.Datapath, &fails}
		}
	}
	nodes := b.cluster("a", "b")
	b.up(1)
	away(true, nodes...)
	b.clock.skip(testHardTTL - testStride - b.age())
	b.until("it says so", func() bool {
		return strings.Contains(strings.Join(nodes[0].Status().Problems, "\n"),
			"extend keys: extend keys of peer b, epoch 1: "+errBalky.Error())
	})
	if alarms(nodes[0]) != 0 {
		t.Error("it says that keys are extended, which they are not")
	}
	fails.Store(false)
	b.until("it is tried again", func() bool {
		b.clock.skip(100 * time.Millisecond)
		return alarms(nodes[0]) == 1 && b.left(nodes[0]) > testStride
	})
	b.walk(testHardTTL+testStride, nodes...)
	if text := strings.Join(nodes[0].Status().Problems, "\n"); strings.Contains(text,
		errBalky.Error()) {
		t.Errorf("it works again, and still says %s", text)
	}
	b.recovered(nodes...)
}

// refusing is a datapath during whose first extension the KMS says no: nothing after that may be
// extended.
type refusing struct {
	sadb.Datapath
	calls *atomic.Int64
	first func()
}

func (d refusing) ExtendSAs(node string, out bool, epoch uint8, id uint64, until time.Time) error {
	if d.calls.Add(1) == 1 {
		d.first()
	}
	return d.Datapath.ExtendSAs(node, out, epoch, id, until)
}

// TestExtendTTLRefusedInAStep has the KMS say no while a step is made: what is left of the step is
// not.
func TestExtendTTLRefusedInAStep(t *testing.T) {
	b := extending(t)
	var calls atomic.Int64
	var a *node
	no := func() {
		a.kek.refuse(func(uint64) error { return &kek.Error{Kind: kek.ErrDenied} })
		a.epochs.Ask(t.Context(), 1, 0) // as if another time had been asked for
		for !answered(a, "denied") {
			b.clock.skip(time.Second) // not all nodes ask at once
			time.Sleep(time.Millisecond)
		}
	}
	configured := b.options
	b.options = func(o *Options) {
		if configured(o); o.Node == "a" {
			o.Datapath = refusing{o.Datapath, &calls, no}
		}
	}
	a = b.node("a")
	peers := []*node{b.node("b"), b.node("c")}
	for _, n := range append(peers, a) {
		n.start()
	}
	b.up(1)
	away(true, a, peers[0], peers[1])
	b.clock.skip(testHardTTL - testStride - b.age())
	b.until("the KMS has said no",
		func() bool { b.clock.skip(time.Second); return answered(a, "denied") })
	b.forgiveAll(true)
	b.clock.skip(testHardTTL + testExtend/2 - b.age())
	b.until("packets are dropped",
		func() bool {
			return b.peer(a, "b").State == StateExpired &&
				b.peer(a, "c").State == StateExpired
		})
	if n := calls.Load(); n != 1 {
		t.Errorf("%d extensions, although the KMS said no during the first", n)
	}
}
