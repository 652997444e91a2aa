package keys

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/kek"
)

// TestKEKVersionRotates has the live epochs wrapped again by the KEK's new version: nobody unwraps
// what it holds already, and a node that starts when the old version is gone can read them.
func TestKEKVersionRotates(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b", "c")
	b.up(1)
	b.rotate(nodes[0])
	b.up(2)
	b.until("the send keys of the first epoch are gone", func() bool {
		return !strings.Contains(strings.Join(b.sends(), "\n"), " true 1 ")
	})
	before := b.sends()
	for _, n := range nodes {
		n.kek.rotate("2")
	}
	rewraps := func() (sum uint64) {
		for _, n := range nodes {
			sum += n.Status().Counters.Rewraps
		}
		return sum
	}
	versions := func() bool {
		for _, n := range nodes {
			for _, e := range n.Status().Epochs {
				if e.KEKVersion != "2" {
					return false
				}
			}
		}
		return true
	}
	b.until("the leader wraps both epochs again", func() bool {
		b.clock.skip(time.Minute)
		return rewraps() == 2 && versions()
	})
	for _, n := range nodes {
		n.kek.mu.Lock()
		if n.kek.unwraps[1] > 1 || n.kek.unwraps[2] > 1 {
			t.Errorf("%s unwrapped again: %v", n.name, n.kek.unwraps)
		}
		n.kek.mu.Unlock()
	}
	// The old version is disabled.
	for _, n := range nodes {
		n.kek.rotate("2", "1")
		n.stop()
		n.start()
	}
	b.up(2)
	if after := b.sends(); strings.Join(before, "\n") != strings.Join(after, "\n") {
		t.Errorf("keys were %v, are %v", before, after)
	}
	b.rotate(nodes[1])
	b.up(3)
	b.sound()
}

// sends are the fingerprints of all keys for sending.
func (b *fixture) sends() []string {
	return slices.DeleteFunc(b.ids(),
		func(id string) bool { return !strings.Contains(id, " true ") })
}

// newestVersion is what wrapped the newest epoch.
func newestVersion(n *node) string {
	if list := n.Status().Epochs; len(list) > 0 {
		return list[0].KEKVersion
	}
	return ""
}

// TestRewrapHeals lets a node in that could not read the blob of before.
func TestRewrapHeals(t *testing.T) {
	b := newFixture(t)
	b.election.closed["c"] = true
	nodes := b.cluster("a", "b", "c")
	b.up(1)
	nodes[2].kek.rotate("1", "1") // it may not use version 1 any more
	b.rotate(nodes[0])
	b.up(2, "a", "b")
	b.until("c cannot read it", func() bool { return dekState(nodes[2], 2) == "disabled" })
	for _, n := range nodes[:2] {
		n.kek.rotate("2")
	}
	b.until("c can", func() bool { b.clock.skip(time.Minute); return nodes[2].Status().Epoch == 2 })
	b.up(2)
	b.sound()
}

// TestRewrapAndCrash dies before and after the new blob is published.
func TestRewrapAndCrash(t *testing.T) {
	for _, after := range []bool{false, true} {
		b := newFixture(t)
		nodes := b.cluster("a", "b")
		b.up(1)
		for _, n := range nodes {
			n.kek.rotate("2")
			n.life.arm("replace", 1, after)
		}
		b.until("the leader dies",
			func() bool { b.clock.skip(time.Minute); return nodes[0].dead() || nodes[1].dead() })
		for _, n := range nodes {
			n.life.disarm()
			if n.dead() {
				n.stop()
				b.election.mu.Lock()
				b.election.holder = ""
				b.election.mu.Unlock()
				n.start()
			}
		}
		b.until("the epoch is wrapped again",
			func() bool { b.clock.skip(time.Minute); return newestVersion(nodes[0]) == "2" })
		b.rotate(nodes[0])
		b.up(2)
		b.sound()
	}
}

// dekState is the kind of an epoch's failure, or how its key is.
func dekState(n *node, number uint64) string {
	for _, e := range n.Status().Epochs {
		if e.Number == number && e.Error != "" {
			return e.ErrorKind
		} else if e.Number == number {
			return e.DEK
		}
	}
	return ""
}

// TestOutages has a KMS fail one node in every way while a new epoch is made: it is named
// everywhere, nobody loses a packet, the others move on, and the node follows when it is over,
// without a restart.
func TestOutages(t *testing.T) {
	for name, kind := range map[string]error{
		"unreachable": kek.ErrUnreachable, "throttled": kek.ErrThrottled, "denied": kek.ErrDenied,
		"credentials": kek.ErrCredentials,
		"disabled":    kek.ErrDisabled, "not_found": kek.ErrNotFound,
		"wrong_region": kek.ErrWrongRegion, "corrupt": kek.ErrCorrupt,
		"wrong_binding": kek.ErrWrongBinding, "wrong_kek": kek.ErrWrongKEK,
		"other": errors.New("the KMS says something new"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			b.election.closed["c"] = true
			nodes := b.cluster("a", "b", "c")
			c := nodes[2]
			b.up(1)
			c.kek.refuse(func(epoch uint64) error {
				if epoch < 2 {
					return nil
				}
				var known *kek.Error
				if errors.As(kind, &known) || name == "other" {
					return kind
				}
				return &kek.Error{Kind: kind}
			})
			b.rotate(nodes[0])
			b.up(2, "a", "b")
			b.until("it is named", func() bool {
				s := c.Status()
				return dekState(c, 2) == name && s.Counters.UnwrapErrors[name] > 0 &&
					s.Epoch == 1 && s.Newest == 2 && hasEvent(c, audit.EventUnwrapped, name)
			})
			// Half of the old epoch's hard TTL later that becomes a problem of its own.
			b.clock.skip(37 * time.Hour)
			b.until("the end of the old epoch is told", func() bool {
				return strings.Contains(strings.Join(c.Status().Problems, "\n"),
					"cannot read epoch 2 ("+name+")") || c.Status().Newest > 2
			})
			c.kek.refuse(nil)
			b.until("it follows",
				func() bool {
					b.clock.skip(time.Second)
					return c.Status().Epoch >= 2 &&
						c.Status().Settled()
				})
			b.up(2)
			b.sound()
		})
	}
}

func hasEvent(n *node, event, outcome string) bool {
	for _, e := range n.History() {
		if e.Event == event && e.Outcome == outcome {
			return true
		}
	}
	return false
}

// TestKMSAwayForAWholeAge keeps everybody from wrapping for longer than an epoch shall live:
// warnings come at 50, 80 and 95 % of the hard TTL, nothing is lost before it, and all comes back
// by itself. At the hard TTL it ends.
func TestKMSAwayForAWholeAge(t *testing.T) {
	for _, past := range []bool{false, true} {
		b := newFixture(t)
		nodes := b.cluster("a", "b")
		b.up(1)
		for _, n := range nodes {
			n.kek.refuse(func(uint64) error { return &kek.Error{Kind: kek.ErrUnreachable} })
		}
		b.clock.skip(24 * time.Hour)
		b.until("it is told", func() bool {
			b.clock.skip(time.Second)
			text := strings.Join(append(nodes[0].Status().Problems, nodes[1].Status().Problems...),
				"\n")
			return strings.Contains(text, "rotation: make epoch 2: KMS unreachable")
		})
		for i, percent := range []int{50, 80, 95} {
			until := 72*time.Hour*time.Duration(percent)/100 + time.Minute
			b.clock.skip(until - b.age())
			b.until("it warns",
				func() bool { return warned(nodes[0]) == i+1 && warned(nodes[1]) == i+1 })
			if text := strings.Join(nodes[0].Status().Problems, "\n"); !strings.Contains(text,
				"ttl: ") || nodes[0].Status().TTLRatio < float64(percent)/100 {
				t.Errorf("at %d %%: ratio %f, problems %s", percent, nodes[0].Status().TTLRatio,
					text)
			}
			b.fabric.pump()
		}
		if past {
			b.forgiveAll(true)
			b.clock.skip(4 * time.Hour)
			b.until("packets are dropped",
				func() bool { return b.fabric.try("a", "b") != "" && b.fabric.try("b", "a") != "" })
			b.until("the state says so",
				func() bool { return b.peer(nodes[0], "b").State == StateExpired })
		}
		for _, n := range nodes {
			n.kek.refuse(nil)
		}
		b.until("it recovers",
			func() bool { b.clock.skip(100 * time.Millisecond); return nodes[0].Status().Epoch == 2 })
		b.forgiveAll(false)
		b.up(2)
		if text := strings.Join(nodes[0].Status().Problems, "\n"); strings.Contains(text, "ttl: ") {
			t.Errorf("it is over: %s", text)
		}
		b.sound()
	}
}

// age is how old the newest epoch is.
func (b *fixture) age() time.Duration {
	list, _ := b.store.Epochs()
	return b.clock.Wall().Sub(list[len(list)-1].Created)
}

// warned counts warnings of an epoch's end.
func warned(n *node) int {
	count := 0
	for _, e := range n.History() {
		if e.Event == audit.EventTTL {
			count++
		}
	}
	return count
}
