package keys

import (
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/epochs"
)

// rotateByAge lets the newest epoch become old.
func (b *fixture) rotateByAge(n *node) {
	b.t.Helper()
	before := n.Status().Newest
	b.clock.skip(24 * time.Hour)
	b.until("the next epoch comes by age", func() bool { return n.Status().Newest > before })
}

func TestRotationByAge(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b")
	b.up(1)
	for i := range 4 {
		b.rotateByAge(nodes[0])
		b.up(uint64(i + 2))
	}
	if got := nodes[0].Status().Counters.Rotations[epochs.ReasonAge] + nodes[1].Status().Counters.Rotations[epochs.ReasonAge]; got != 4 {
		t.Errorf("%d rotations by age: want 4", got)
	}
	b.sound()
}

func TestRotationByPackets(t *testing.T) {
	b := newFixture(t)
	b.options = func(o *Options) { o.MaxPackets = 3000 }
	nodes := b.cluster("a", "b")
	b.up(1)
	for range 3000 {
		b.fabric.try("b", "a")
	}
	b.clock.skip(tick)
	b.up(2)
	if got := nodes[1].Status().Counters.Rotations[epochs.ReasonPackets]; got != 1 {
		t.Errorf("the node that sent made %d epochs: want 1", got)
	}
	b.sound()
}

func TestAgentAwayUntilHardTTL(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b", "c")
	b.up(1)
	for _, n := range nodes {
		n.stop()
	}
	b.clock.skip(71 * time.Hour)
	for _, from := range b.order {
		for _, to := range b.order {
			if got := b.fabric.try(from, to); from != to && got != "" {
				t.Errorf("before the hard TTL, %s to %s: %s", from, to, got)
			}
		}
	}
	b.forgiveAll(true)
	b.clock.skip(2 * time.Hour)
	if got := b.fabric.try("a", "b"); got != "key_expired" {
		t.Errorf("after the hard TTL: %q, want key_expired", got)
	}
	b.forgiveAll(false)
	for _, n := range nodes {
		n.start()
	}
	b.up(2)
	b.sound()
}

func (b *fixture) forgiveAll(begin bool) {
	for i, from := range b.order {
		for _, to := range b.order[i+1:] {
			b.fabric.forgive(from, to, begin)
		}
	}
}

// TestOneAgentAwayForManyEpochs also makes the epochs' numbers on the wire come round.
func TestOneAgentAwayForManyEpochs(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b", "c")
	b.up(1)
	nodes[2].stop()
	for range 15 {
		b.rotate(nodes[0])
	}
	b.up(16, "a", "b")
	if p := b.peer(nodes[0], "c"); p.EpochTX != 1 {
		t.Errorf("a seals towards c with epoch %d: want 1", p.EpochTX)
	}
	nodes[2].start()
	b.up(16)
	b.sound()
}

func TestTwoLeaders(t *testing.T) {
	b := newFixture(t)
	b.election.all = true
	b.cluster("a", "b", "c")
	b.up(1)
	for i := range 3 {
		b.rotateByAge(b.nodes["a"])
		b.up(uint64(i + 2))
	}
	b.sound()
}

func TestClockJumps(t *testing.T) {
	b := newFixture(t)
	b.election.closed["b"] = true // a leads
	nodes := b.cluster("a", "b")
	b.up(1)
	for _, jump := range []time.Duration{1000 * time.Hour, -2000 * time.Hour, 1000 * time.Hour} {
		for _, n := range nodes {
			before := n.Status().Counters.ClockJumps
			n.clock.jump(jump)
			n.signal.Poke()
			b.until("it notices", func() bool { return n.Status().Counters.ClockJumps > before })
			if s := n.Status(); !s.Settled() || s.Peers[0].State != StateUp {
				t.Errorf("after a jump by %s: %+v", jump, s.Peers)
			}
		}
	}
	// A node whose clock is ahead starts: the only epoch seems to have ended. Traffic goes on, and
	// it helps itself.
	nodes[0].stop()
	nodes[0].clock.jump(1000 * time.Hour)
	nodes[0].start()
	b.up(2)
	// Its clock is put right; its epoch comes from the future now.
	nodes[0].clock.jump(-1000 * time.Hour)
	for _, n := range nodes {
		n.stop()
		n.start()
	}
	b.up(2)
	// A node that does not lead starts with its clock ahead: it keeps what it has, and says so.
	nodes[1].stop()
	nodes[1].clock.jump(2000 * time.Hour)
	nodes[1].start()
	b.until("it says so", func() bool {
		return strings.Contains(strings.Join(nodes[1].Status().Problems, " "),
			"is the clock right") && b.fabric.try("b", "a") == ""
	})
	nodes[1].clock.jump(-2000 * time.Hour)
	nodes[1].signal.Poke()
	b.up(2)
	b.rotateByAge(nodes[0])
	b.up(3)
	b.sound()
}
