package keys

import (
	"maps"
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/statefile"
)

// put replaces all that is in the store, in one step.
func (s *memStore) put(list ...epochs.Epoch) {
	s.mu.Lock()
	clear(s.epochs)
	for _, e := range list {
		s.epochs[e.Number] = e
	}
	s.mu.Unlock()
	s.changed()
}

func (s *memStore) highest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Max(slices.Collect(maps.Keys(s.epochs)))
}

// untimed is an epoch as an older version of Weft has made it.
func (b *fixture) untimed(key kek.KEK, number uint64) epochs.Epoch {
	b.t.Helper()
	dek := make([]byte, kek.DEKSize)
	dek[3] = byte(number)
	blob, version, err := key.Wrap(b.t.Context(), dek, kek.Binding{Cluster: "test", Epoch: number})
	if err != nil {
		b.t.Fatal(err)
	}
	created := b.clock.Wall().Truncate(time.Millisecond)
	return epochs.Epoch{Number: number, Created: created, Expires: created.Add(testHardTTL),
		KEK: key.URL(), KEKVersion: version, Wrapped: blob}
}

func (b *fixture) refused(n *node, number uint64) {
	b.t.Helper()
	b.until("it is refused, and the error is named", func() bool {
		s := n.Status()
		i := slices.IndexFunc(s.Epochs, func(e epochs.Status) bool { return e.Number == number })
		if i >= 0 && s.Epochs[i].Readable {
			b.t.Fatalf("%s: epoch %d lives again", n.name, number)
		}
		return i >= 0 && s.Epochs[i].ErrorKind == "replayed" &&
			s.Counters.UnwrapErrors["replayed"] > 0
	})
}

// TestReplayedEpoch has somebody who may write to the store put an epoch back that is long over,
// dated today, in the place of all others: an old key, which may have leaked, must not live again.
// Restarts change nothing, and the next epoch comes.
func TestReplayedEpoch(t *testing.T) {
	b, key := newFileFixture(t)
	first := b.untimed(key, 1)
	never := b.untimed(key, 9)
	b.store.put(first)
	nodes := b.cluster("a", "b")
	b.up(1)
	for epoch := uint64(2); epoch <= 5; epoch++ {
		b.rotate(nodes[0])
		b.up(epoch)
		b.clock.skip(20 * time.Hour)
	}
	b.rotate(nodes[1])
	b.up(6)
	b.until("the first is forgotten", func() bool {
		for _, n := range nodes {
			kept, err := readSeen(n.opt.SeenFile)
			if _, known := kept.First[1]; err != nil || known || kept.Opened < 6 || !kept.Bound {
				return false
			}
		}
		return true
	})
	for i, replayed := range []epochs.Epoch{first, never} {
		replayed.Created = b.clock.Wall().Truncate(time.Millisecond)
		replayed.Expires = replayed.Created.Add(testHardTTL)
		b.store.put(replayed)
		for _, n := range nodes {
			b.refused(n, replayed.Number)
		}
		nodes[i].stop()
		nodes[i].start()
		b.refused(nodes[i], replayed.Number)
		b.until("the next epoch comes", func() bool {
			for _, n := range nodes {
				if s := n.Status(); s.Epoch <= max(6, replayed.Number) {
					return false
				}
			}
			return true
		})
		b.up(max(6, replayed.Number) + 1)
		if made := b.store.highest(); made != max(6, replayed.Number)+1 {
			t.Fatalf("each node made an epoch of its own: the highest is %d", made)
		}
	}
	b.sound()
}

// TestNewLeaderTakesReplayedEpoch: where all epochs are gone and a leader that knows of none of
// them makes number 1 again, the nodes that have used higher numbers refuse it, and make the next
// themselves.
func TestNewLeaderTakesReplayedEpoch(t *testing.T) {
	b, _ := newFileFixture(t)
	b.election.closed["b"] = true
	nodes := b.cluster("a", "b")
	b.up(1)
	b.rotate(nodes[0])
	b.up(2)
	b.until("it is written down", func() bool {
		kept, err := readSeen(nodes[1].opt.SeenFile)
		return err == nil && kept.Opened == 2
	})
	b.clock.skip(testHardTTL / 2)
	nodes[0].stop()
	nodes[1].stop()
	b.clock.skip(testHardTTL)
	b.store.put()
	if err := statefile.Write(nodes[0].opt.SeenFile, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	nodes[0].dp.wipe()
	nodes[0].start()
	b.until("it makes the first again", func() bool { return nodes[0].Status().Epoch == 1 })
	nodes[1].start()
	b.up(3)
}

// wipe is a reboot: the maps are gone.
func (d *fakeDP) wipe() {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	clear(d.sealing)
	clear(d.sas)
}
