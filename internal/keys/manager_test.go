package keys

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/epochs"
)

func TestFirstEpoch(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b", "c")
	b.up(1)
	s := nodes[0].Status()
	if len(s.Epochs) != 1 || s.Epochs[0].DEK != epochs.DEKReadable ||
		s.Epochs[0].KEK != "file:///test/kek" || !s.Ready {
		t.Errorf("status %+v", s)
	}
	for _, p := range s.Peers {
		if !p.PostQuantum || p.Group == "" || p.Lanes != 2 || p.LastError != "" {
			t.Errorf("peer %+v", p)
		}
	}
	b.sound()
}

func TestFiftyRotations(t *testing.T) {
	b := newFixtureWithDrain(t, 5*time.Millisecond)
	nodes := b.cluster("a", "b", "c")
	b.up(1)
	for i := range 50 {
		e := b.rotate(nodes[i%len(nodes)])
		if e.Number < uint64(i+2) {
			t.Fatalf("rotation %d made epoch %d", i, e.Number)
		}
	}
	b.up(51)
	t.Logf("exchanges of a: %v", nodes[0].Status().Counters.Handshakes)
	b.until("only two epochs are kept", func() bool {
		list, _ := b.store.Epochs()
		return len(list) == 2
	})
	b.sound()
}

// TestCrashAtEveryStep kills one side at each step of a rotation in turn, before and
// after the step, and starts it again on what the datapath holds.
func TestCrashAtEveryStep(t *testing.T) {
	for _, victim := range []string{"a", "b"} {
		for _, rotator := range []string{"a", "b"} {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s dies, %s rotates, after=%v", victim, rotator, after),
					func(t *testing.T) {
						crashAtEveryStep(t, victim, rotator, after)
					})
			}
		}
	}
}

func crashAtEveryStep(t *testing.T, victim, rotator string, after bool) {
	t.Parallel()
	b := newFixture(t)
	b.election.closed["b"] = true // a removes old epochs
	b.cluster("a", "b")
	b.up(1)
	b.rotate(b.nodes["a"]) // so that each of the following removes an old epoch
	b.up(2)
	kinds := map[string]int{"install": 4, "seal": 1, "remove": 2}
	if victim == rotator {
		kinds["wrap"], kinds["publish"] = 1, 1
	} else {
		kinds["unwrap"] = 1
	}
	if victim == "a" {
		kinds["delete"] = 1
	}
	for what, times := range kinds {
		for n := 1; n <= times; n++ {
			if !b.rotateAndKill(b.nodes[victim], b.nodes[rotator], what, n, after) {
				t.Errorf("did not die at %s %d", what, n)
			}
		}
	}
	b.sound()
}

// rotateAndKill rotates while a node dies at its nth step of a kind; false if it did not.
func (b *fixture) rotateAndKill(victim, rotator *node, what string, n int, after bool) bool {
	b.t.Helper()
	before := victim.Status().Epoch
	victim.life.arm(what, n, after)
	if rotator == victim {
		// Its death may come before or after the epoch is published.
		go victim.Rotate(b.t.Context()) //nolint:errcheck // may die
	} else {
		b.rotate(rotator)
	}
	b.until("it dies, or the rotation ends and drains", func() bool {
		if victim.dead() {
			return true
		}
		s := victim.Status()
		return s.Epoch > before && s.Settled() && s.Peers[0].State == StateUp && len(s.Epochs) <= 2
	})
	died := victim.life.disarm()
	if died {
		<-victim.done
		victim.start()
	}
	b.up(before)
	b.until("only two epochs and no old keys are left", func() bool {
		for _, n := range b.nodes {
			s := n.Status()
			if len(s.Epochs) > 2 || len(s.Peers) == 0 || s.Peers[0].State != StateUp {
				return false
			}
		}
		return true
	})
	return died
}

func (n *node) dead() bool {
	n.life.mu.Lock()
	defer n.life.mu.Unlock()
	return n.life.dead
}

// TestKilledFasterThanItDrains has agents that never live as long as the drain, while
// epochs' numbers on the wire come round.
func TestKilledFasterThanItDrains(t *testing.T) {
	b := newFixtureWithDrain(t, 400*time.Millisecond)
	nodes := b.cluster("a", "b", "c")
	b.up(1)
	for i := range 25 {
		victim := nodes[(i+1)%3]
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		nodes[i%3].Rotate(ctx) //nolint:errcheck // may have to wait for an epoch that drains
		cancel()
		for range rand.N(10) {
			b.fabric.pump()
			time.Sleep(time.Millisecond)
		}
		victim.stop()
		b.fabric.pump()
		victim.start()
	}
	b.rotate(nodes[0])
	b.up(nodes[0].Status().Newest)
	b.sound()
}

// TestIdlePairsMoveOn is the same without a single packet, so that nothing tells what the peer
// sends with.
func TestIdlePairsMoveOn(t *testing.T) {
	b := newFixture(t)
	b.fabric.idle = true
	nodes := b.cluster("a", "b")
	b.up(1)
	for i := range 33 {
		b.rotate(nodes[0])
		b.up(uint64(i + 2))
		nodes[1].stop()
		nodes[1].start()
	}
	b.up(34)
	b.sound()
}
