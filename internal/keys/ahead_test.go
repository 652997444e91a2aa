package keys

import (
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/schedule"
	"weft.dev/weft/internal/statefile"
)

// add puts an epoch beside those in the store.
func (s *memStore) add(e epochs.Epoch) {
	s.mu.Lock()
	s.epochs[e.Number] = e
	s.mu.Unlock()
	s.changed()
}

// TestNumberFarAhead has somebody who may write to the store put an epoch there that nobody can
// open, with the highest number there can be. Rotation goes on while it is there and when it is
// gone; also on nodes that had opened nothing when they saw it.
func TestNumberFarAhead(t *testing.T) {
	const highest = 1 << 48
	for name, fresh := range map[string]bool{"on nodes in use": false, "on fresh nodes": true} {
		t.Run(name, func(t *testing.T) {
			b, key := newFileFixture(t)
			nodes := b.cluster("a", "b")
			b.up(1)
			if fresh {
				for _, n := range nodes {
					n.stop()
					n.dp.wipe()
					if err := statefile.Write(n.opt.SeenFile, []byte("{}")); err != nil {
						t.Fatal(err)
					}
				}
			}
			now := b.clock.Wall().Truncate(time.Millisecond)
			b.store.add(epochs.Epoch{Number: highest, Created: now, Expires: now.Add(testHardTTL),
				KEK: key.URL(), Wrapped: []byte("nothing")})
			for _, n := range nodes {
				if fresh {
					n.start()
				}
				b.until("it is told of", func() bool {
					return slices.ContainsFunc(n.Status().Epochs,
						func(e epochs.Status) bool {
							return e.Number == highest &&
								e.ErrorKind != ""
						})
				})
			}
			// Until their own epoch is open, nobody can open any, for as long as time passes here.
			b.up(1)
			b.clock.skip(25 * time.Hour)
			b.up(2)
			if err := b.store.DeleteEpoch(highest); err != nil {
				t.Fatal(err)
			}
			b.clock.skip(25 * time.Hour)
			b.up(3)
			if made := b.store.highest(); made != 3 {
				t.Errorf("the highest epoch is %d, want 3", made)
			}
			if !fresh { // a wiped node has lost packets
				b.sound()
			}
		})
	}
}

// TestNextNumberTaken has somebody who may write to the store take the number after the newest
// again and again, each time by a fresh epoch that nobody can open. The epoch in use is followed by
// the next all the same, when it is old.
func TestNextNumberTaken(t *testing.T) {
	b, key := newFileFixture(t)
	nodes := b.cluster("a", "b")
	b.up(1)
	for range 16 {
		now := b.clock.Wall().Truncate(time.Millisecond)
		taken := b.store.highest() + 1
		b.store.add(epochs.Epoch{Number: taken, Created: now, Expires: now.Add(testHardTTL),
			KEK: key.URL(), Wrapped: []byte("nothing")})
		for _, n := range nodes {
			b.until("it is told of",
				func() bool {
					b.clock.skip(20 * time.Millisecond)
					return dekState(n,
						taken) == "corrupt"
				})
		}
		b.clock.skip(6 * time.Hour)
		for _, n := range nodes {
			b.until("the epoch in use is not old", func() bool {
				age := b.clock.Wall().Sub(b.store.created(n.Status().Epoch))
				return age < 24*time.Hour && n.Status().NextRotation.After(n.clock.Wall())
			})
		}
	}
	b.sound()
}

// TestWireNumberTaken has somebody who may write to the store lead the next number to one that
// stands for the epoch in use on the wire, whose keys are in the way there.
func TestWireNumberTaken(t *testing.T) {
	b, key := newFileFixture(t)
	nodes := b.cluster("a", "b")
	b.up(1)
	now := b.clock.Wall().Truncate(time.Millisecond)
	b.store.add(epochs.Epoch{Number: schedule.WireNumbers, Created: now,
		Expires: now.Add(testHardTTL), KEK: key.URL(), Wrapped: []byte("nothing")})
	for _, n := range nodes {
		b.until("it is told of", func() bool {
			b.clock.skip(20 * time.Millisecond)
			return dekState(n, schedule.WireNumbers) == "corrupt"
		})
	}
	b.clock.skip(25 * time.Hour)
	b.up(schedule.WireNumbers + 2)
	b.sound()
}
