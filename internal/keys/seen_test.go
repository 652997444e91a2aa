package keys

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/kek"
)

// newFileFixture is a fixture whose epochs a key file wraps, and whose nodes remember what they
// saw.
func newFileFixture(t *testing.T) (*fixture, kek.KEK) {
	t.Helper()
	path, state := filepath.Join(t.TempDir(), "kek"), t.TempDir()
	b := newFixture(t) // last: its nodes stop before the directories are removed
	if _, err := kek.CreateKeyFile(path); err != nil {
		t.Fatal(err)
	}
	key, err := kek.Open(t.Context(), "file://"+path, kek.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b.options = func(o *Options) { o.KEK, o.SeenFile = key, filepath.Join(state, o.Node+".json") }
	return b, key
}

// edit changes an epoch's object behind everybody's back.
func (s *memStore) edit(number uint64, change func(*epochs.Epoch)) {
	s.mu.Lock()
	e := s.epochs[number]
	change(&e)
	s.epochs[number] = e
	s.mu.Unlock()
	s.changed()
}

func (n *node) deadlineOf(number uint64) time.Duration {
	all, _ := n.epochs.Ending(math.MaxInt64 / 2)
	for _, e := range all {
		if e.Number == number {
			return e.Deadline
		}
	}
	return 0
}

// seenFile is what a node remembers of epochs, as it is written down.
type seenFile struct {
	First           map[uint64]time.Time
	Highest, Opened uint64
	Bound           bool
}

func readSeen(path string) (seenFile, error) {
	var out seenFile
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	return out, err
}

// TestEpochProlonged has somebody who may write to the store prolong, or shorten, an epoch's life
// by its object: nobody opens its key any more, and it never counts for longer than before.
func TestEpochProlonged(t *testing.T) {
	for name, change := range map[string]func(*epochs.Epoch){
		"expires later":                func(e *epochs.Epoch) { e.Expires = e.Expires.Add(10000 * time.Hour) },
		"created later":                func(e *epochs.Epoch) { e.Created = e.Created.Add(time.Hour) },
		"both later":                   func(e *epochs.Epoch) { e.Created, e.Expires = e.Created.Add(time.Hour), e.Expires.Add(time.Hour) },
		"expires a millisecond later":  func(e *epochs.Epoch) { e.Expires = e.Expires.Add(time.Millisecond) },
		"expires earlier":              func(e *epochs.Epoch) { e.Expires = e.Expires.Add(-time.Hour) },
		"the envelope says so as well": func(e *epochs.Epoch) { prolongEnvelope(e, 1000*time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newFileFixture(t)
			nodes := b.cluster("a", "b")
			b.up(1)
			was := nodes[0].deadlineOf(1)
			b.store.edit(1, change)
			for _, n := range nodes {
				b.until("its key is refused", func() bool {
					s := n.Status()
					i := slices.IndexFunc(s.Epochs,
						func(e epochs.Status) bool { return e.Number == 1 })
					return i >= 0 &&
						(s.Epochs[i].ErrorKind == "wrong_binding" ||
							s.Epochs[i].ErrorKind == "corrupt")
				})
				if now := n.deadlineOf(1); now > was+time.Minute {
					t.Errorf("%s: the epoch ends at %s, before it was %s", n.name, now, was)
				}
			}
			// What is in use goes on, and the next epoch puts everything right.
			b.rotate(nodes[0])
			b.up(2)
			b.sound()
		})
	}
}

// prolongEnvelope changes the object and the names on the envelope, which say what the ciphertext
// is bound to.
func prolongEnvelope(e *epochs.Epoch, by time.Duration) {
	was := strings.NewReplacer(`"expires":`+millisOf(e.Expires),
		`"expires":`+millisOf(e.Expires.Add(by)))
	e.Wrapped = []byte(was.Replace(string(e.Wrapped)))
	e.Expires = e.Expires.Add(by)
}

// TestUpgradeFromUntimedEpochs starts nodes on an epoch that an older version has wrapped, whose
// times are bound to nothing: it is read, its end is this node's own hard TTL from when it was
// first seen, restarts included, and the next epoch takes over without the loss of a packet.
func TestUpgradeFromUntimedEpochs(t *testing.T) {
	b, key := newFileFixture(t)
	dek := make([]byte, kek.DEKSize)
	dek[3] = 9
	blob, version, err := key.Wrap(t.Context(), dek, kek.Binding{Cluster: "test", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	created := b.clock.Wall().Truncate(time.Millisecond)
	// Somebody has prolonged it already.
	b.store.epochs[1] = epochs.Epoch{Number: 1, Created: created,
		Expires: created.Add(100000 * time.Hour), KEK: key.URL(), KEKVersion: version,
		Wrapped: blob}
	nodes := b.cluster("a", "b")
	b.up(1)
	end := nodes[0].deadlineOf(1)
	if end > b.clock.Boot()+testHardTTL {
		t.Errorf("the epoch ends in %s, after more than this node's hard TTL", end-b.clock.Boot())
	}
	b.until("what was seen is written down", func() bool {
		kept, err := readSeen(nodes[0].opt.SeenFile)
		return err == nil && len(kept.First) == 1
	})
	b.clock.skip(10 * time.Hour)
	nodes[0].stop()
	nodes[0].start()
	b.until("it has read the store", func() bool { return nodes[0].deadlineOf(1) != 0 })
	if again := nodes[0].deadlineOf(1); (again - end).Abs() > time.Minute {
		t.Errorf("after a restart the epoch ends at %s, before it was %s", again, end)
	}
	b.up(1)
	b.rotate(nodes[0])
	b.up(2)
	for _, e := range b.store.epochs {
		if kek.BindsTimes(e.Wrapped) != (e.Number > 1) {
			t.Errorf("epoch %d: binds its times: %t", e.Number, kek.BindsTimes(e.Wrapped))
		}
	}
	b.sound()
}

// TestHardTTLIsEachNodesOwn: a leader with a longer hard TTL prolongs nothing on a node with a
// shorter one.
func TestHardTTLIsEachNodesOwn(t *testing.T) {
	b, _ := newFileFixture(t)
	file := b.options
	b.options = func(o *Options) {
		file(o)
		if o.Node == "a" {
			o.HardTTL = 1000 * time.Hour
		}
	}
	b.election.closed["b"] = true // a leads
	nodes := b.cluster("a", "b")
	b.up(1)
	if left := nodes[1].deadlineOf(1) - b.clock.Boot(); left > testHardTTL {
		t.Errorf("b ends the epoch in %s, its hard TTL is %s", left, testHardTTL)
	}
	if left := nodes[0].deadlineOf(1) - b.clock.Boot(); left < 900*time.Hour {
		t.Errorf("a ends the epoch in %s, its hard TTL is 1000h", left)
	}
}

func millisOf(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }
