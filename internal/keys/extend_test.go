package keys

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/auditlog"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/kek"
)

// extendMost is the longest step by which keys are extended.
const extendMost = 10 * time.Minute

const (
	testHardTTL = 72 * time.Hour
	testExtend  = time.Hour
	// testStride is shorter than what is left of keys when they are extended.
	testStride = 3 * time.Minute
)

// extending makes a fixture whose nodes extend keys, unless they are named as those that do not.
func extending(t *testing.T, not ...string) *fixture {
	b := newFixture(t)
	b.options = func(o *Options) {
		if !slices.Contains(not, o.Node) {
			o.ExtendTTL = testExtend
		}
	}
	return b
}

// away takes the KMS from nodes, or gives it back.
func away(yes bool, nodes ...*node) {
	for _, n := range nodes {
		var fail func(uint64) error
		if yes {
			fail = func(uint64) error { return &kek.Error{Kind: kek.ErrUnreachable} }
		}
		n.kek.refuse(fail)
	}
}

// walk lets time pass until the newest epoch has an age, slowly enough for the nodes to keep the
// keys with their peers alive.
func (b *fixture) walk(age time.Duration, nodes ...*node) {
	b.t.Helper()
	for b.age() < age {
		b.clock.skip(min(testStride, age-b.age()))
		b.until("the keys' end is put off", func() bool {
			for _, n := range nodes {
				if b.left(n) < testStride {
					return false
				}
			}
			return true
		})
	}
}

// outlast has two nodes without the KMS until their epoch is extended, that long past the hard TTL.
func (b *fixture) outlast(past time.Duration) []*node {
	b.t.Helper()
	nodes := b.cluster("a", "b")
	b.up(1)
	away(true, nodes...)
	b.clock.skip(testHardTTL - 10*time.Minute - b.age())
	b.walk(testHardTTL+past, nodes...)
	return nodes
}

// left is how soon a node's first key ends; those that have reached the end of all ends do not
// count.
func (b *fixture) left(n *node) time.Duration {
	b.fabric.mu.Lock()
	defer b.fabric.mu.Unlock()
	end := testHardTTL + testExtend - b.age() - time.Second
	left := time.Duration(1 << 62)
	for _, sa := range n.dp.sas {
		if d := sa.deadline - b.clock.Boot(); d < end {
			left = min(left, d)
		}
	}
	return left
}

// alarms counts the steps that a node told of.
func alarms(n *node) int {
	return len(slices.DeleteFunc(n.History(),
		func(e audit.Record) bool { return e.Event != audit.EventExtended }))
}

// alarmed says whether a node's status says that an epoch is extended.
func alarmed(n *node) bool {
	s := n.Status()
	said := strings.Contains(strings.Join(s.Problems, "\n"), "ttl: EXTENDED: epoch 1 ")
	listed := slices.ContainsFunc(s.Epochs,
		func(e epochs.Status) bool { return !e.Extended.IsZero() })
	if said != listed {
		panic("the problem and the epoch's row do not say the same")
	}
	return said
}

// dropped waits until packets are dropped in both directions, and the nodes say why.
func (b *fixture) dropped(nodes ...*node) {
	b.t.Helper()
	b.until("packets are dropped", func() bool {
		return b.fabric.try(nodes[0].name, nodes[1].name) != "" &&
			b.fabric.try(nodes[1].name, nodes[0].name) != ""
	})
	for i, n := range nodes {
		b.until("the state says so",
			func() bool { return b.peer(n, nodes[1-i].name).State == StateExpired && !alarmed(n) })
	}
}

// recovered waits for the next epoch, after which nothing of the extended one is left.
func (b *fixture) recovered(nodes ...*node) {
	b.t.Helper()
	away(false, nodes...)
	b.until("the next epoch",
		func() bool { b.clock.skip(100 * time.Millisecond); return nodes[0].Status().Epoch == 2 })
	b.forgiveAll(false)
	b.up(2)
	b.until("the old keys are gone, and with them the alarm", func() bool {
		b.clock.skip(10 * time.Millisecond)
		b.fabric.mu.Lock()
		defer b.fabric.mu.Unlock()
		for _, d := range b.fabric.nodes {
			for _, sa := range d.sas {
				if sa.number != 2 {
					return false
				}
			}
		}
		return true
	})
	for _, n := range nodes {
		if alarmed(n) {
			b.t.Errorf("%s: the alarm goes on: %v", n.name, n.Status().Problems)
		}
	}
	b.sound()
}

// TestExtendTTL keeps the KMS away past the hard TTL: nothing is lost up to the end of the
// extension, and every step is told. Whether the KMS comes back in time or not, all recovers by
// itself.
func TestExtendTTL(t *testing.T) {
	for _, inTime := range []bool{true, false} {
		b := extending(t)
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		log := auditlog.Open(auditlog.Options{Path: path, Node: "a", MaxSize: 1 << 20, Keep: 1})
		configured := b.options
		b.options = func(o *Options) {
			if configured(o); o.Node == "a" {
				o.Audit = log.Add
			}
		}
		nodes := b.cluster("a", "b")
		b.up(1)
		away(true, nodes...)
		b.clock.skip(testHardTTL - 30*time.Minute - b.age())
		b.walk(testHardTTL-10*time.Minute, nodes...)
		for _, n := range nodes {
			if alarmed(n) || alarms(n) != 0 {
				t.Errorf("%s: an alarm before the hard TTL: %v", n.name, n.Status().Problems)
			}
		}
		b.walk(testHardTTL+testExtend-10*time.Minute, nodes...)
		for _, n := range nodes {
			b.until("the steps are told", func() bool { return alarmed(n) && alarms(n) >= 5 })
			s := n.Status()
			if s.TTLRatio != 1 || !s.Epochs[0].Readable {
				t.Errorf("%s: status %+v", n.name, s)
			}
			if end := s.Epochs[0].Expires.Add(testExtend); s.Epochs[0].Extended.After(end.Add(time.Second)) || s.Epochs[0].ExtendedMost.Sub(end).Abs() > time.Second {
				t.Errorf("%s: extended to %s of %s: the end is %s", n.name, s.Epochs[0].Extended,
					s.Epochs[0].ExtendedMost, end)
			}
		}
		if list, _ := b.store.Epochs(); len(list) != 1 {
			t.Errorf("the store holds %d epochs: the leader removed what is in use", len(list))
		}
		b.sound()
		if !inTime {
			b.forgiveAll(true)
			b.clock.skip(testHardTTL + testExtend + time.Second - b.age())
			b.dropped(nodes...)
		}
		b.recovered(nodes...)
		for _, n := range nodes {
			n.stop()
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		told := slices.DeleteFunc(readAudit(t, path),
			func(r audit.Record) bool { return r.Op != audit.EventExtended })
		if len(told) < 5 || told[0].Epoch != 1 ||
			!strings.Contains(told[0].Detail, "no newer epoch") {
			t.Errorf("the audit log says %+v", told)
		}
	}
}

// TestExtendTTLOneSideOnly has one node that does not extend: it fails closed, whoever leads.
func TestExtendTTLOneSideOnly(t *testing.T) {
	for _, leader := range []string{"a", "b"} {
		b := extending(t, "b")
		b.election.holder = leader
		nodes := b.cluster("a", "b")
		b.up(1)
		away(true, nodes...)
		b.clock.skip(testHardTTL - 10*time.Minute - b.age())
		b.walk(testHardTTL-time.Minute, nodes[0])
		b.fabric.pump()
		b.forgiveAll(true)
		b.clock.skip(2 * time.Minute)
		if got := b.fabric.try("b", "a"); got == "" {
			t.Error("b seals with a key that has ended")
		}
		b.until("b has removed it", func() bool {
			return b.peer(nodes[1], "a").State == StateExpired &&
				b.fabric.try("b", "a") == "no_key"
		})
		b.until("a tells of it", func() bool { return alarms(nodes[0]) > 0 })
		if got := b.fabric.try("a", "b"); !strings.HasPrefix(got, "esp_unknown_sa") {
			t.Errorf("b opens: %q", got)
		}
		if alarmed(nodes[1]) || alarms(nodes[1]) != 0 {
			t.Errorf("b, which does not extend, tells of it %d times", alarms(nodes[1]))
		}
		b.recovered(nodes...)
	}
}

// TestExtendTTLAndRestart starts an agent anew while keys are extended and the KMS is away: it
// cannot read the epoch, and keeps alive what the datapath has.
func TestExtendTTLAndRestart(t *testing.T) {
	b := extending(t)
	nodes := b.outlast(5 * time.Minute)
	before := b.ids()
	for _, n := range nodes {
		n.stop()
		n.start()
		b.until("the new agent has seen it",
			func() bool { return alarmed(n) && alarms(n) == 1 && dekState(n, 1) == "unreachable" })
	}
	b.walk(testHardTTL+40*time.Minute, nodes...)
	for _, n := range nodes {
		b.until("the steps are told", func() bool { return alarmed(n) && alarms(n) >= 4 })
	}
	if after := b.ids(); !slices.Equal(before, after) {
		t.Errorf("keys were %v, are %v", before, after)
	}
	b.recovered(nodes...)
}

// TestExtendTTLWithoutAgents has packets stop at the last step's end, and what has ended stay so.
func TestExtendTTLWithoutAgents(t *testing.T) {
	b := extending(t)
	nodes := b.outlast(time.Minute)
	for _, n := range nodes {
		n.stop()
	}
	b.clock.skip(testStride)
	b.fabric.pump()
	b.forgiveAll(true)
	b.clock.skip(extendMost)
	for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}} {
		if got := b.fabric.try(pair[0], pair[1]); got != "key_expired" {
			t.Errorf("%s to %s: %q, want key_expired", pair[0], pair[1], got)
		}
	}
	for _, n := range nodes {
		n.start()
	}
	b.dropped(nodes...)
	b.recovered(nodes...)
}

// TestExtendTTLAndReboot has a node lose all that it has while the epoch is extended. If the KMS
// answers it, it may use the epoch; else it is out.
func TestExtendTTLAndReboot(t *testing.T) {
	for _, answers := range []bool{true, false} {
		b := extending(t)
		b.election.closed["b"] = true // the leader cannot make an epoch
		nodes := b.outlast(5 * time.Minute)
		away(!answers, nodes[1])
		nodes[1].stop()
		nodes[1].dp.reboot()
		nodes[1].start()
		b.until("it is back, or out", func() bool {
			b.clock.skip(10 * time.Millisecond)
			passes := b.fabric.try("a", "b") == "" && b.fabric.try("b", "a") == ""
			return passes == answers &&
				b.peer(nodes[1], "a").State == map[bool]string{true: StateUp,
					false: StateNoEpoch}[answers]
		})
		if answers {
			b.walk(testHardTTL+testExtend-10*time.Minute, nodes...)
			b.until("the alarm", func() bool { return alarmed(nodes[0]) && alarmed(nodes[1]) })
		}
		b.recovered(nodes...)
	}
}

// TestExtendTTLAndExchange loses a node's keys while the epoch is extended: both hold its key, so
// new ones can be made.
func TestExtendTTLAndExchange(t *testing.T) {
	b := extending(t)
	nodes := b.outlast(5 * time.Minute)
	nodes[1].dp.reboot()
	nodes[0].RequestRekey("b")
	nodes[1].RequestRekey("a")
	b.until("new keys", func() bool {
		b.clock.skip(10 * time.Millisecond)
		return b.fabric.try("a", "b") == "" && b.fabric.try("b", "a") == ""
	})
	b.walk(testHardTTL+testExtend-time.Minute, nodes...)
	b.sound()
	b.forgiveAll(true)
	b.clock.skip(2 * time.Minute)
	b.dropped(nodes...)
	b.recovered(nodes...)
}
