package keys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/statefile"
)

// newFileBed is a bed whose epochs a key file wraps, and whose nodes remember what they saw.
func newFileBed(t *testing.T) (*bed, kek.KEK) {
	t.Helper()
	path, state := filepath.Join(t.TempDir(), "kek"), t.TempDir()
	b := newBed(t) // last: its nodes stop before the directories are removed
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
func (s *memStore) edit(number uint64, change func(*Epoch)) {
	s.mu.Lock()
	e := s.epochs[number]
	change(&e)
	s.epochs[number] = e
	s.mu.Unlock()
	s.changed()
}

func (n *node) deadlineOf(number uint64) time.Duration {
	n.Manager.mu.Lock()
	defer n.Manager.mu.Unlock()
	if e := n.epochs[number]; e != nil {
		return e.deadline
	}
	return 0
}

// TestEpochProlonged has somebody who may write to the store prolong, or shorten, an epoch's life by its object: nobody
// opens its key any more, and it never counts for longer than before.
func TestEpochProlonged(t *testing.T) {
	for name, change := range map[string]func(*Epoch){
		"expires later":                func(e *Epoch) { e.Expires = e.Expires.Add(10000 * time.Hour) },
		"created later":                func(e *Epoch) { e.Created = e.Created.Add(time.Hour) },
		"both later":                   func(e *Epoch) { e.Created, e.Expires = e.Created.Add(time.Hour), e.Expires.Add(time.Hour) },
		"expires a millisecond later":  func(e *Epoch) { e.Expires = e.Expires.Add(time.Millisecond) },
		"expires earlier":              func(e *Epoch) { e.Expires = e.Expires.Add(-time.Hour) },
		"the envelope says so as well": func(e *Epoch) { prolongEnvelope(e, 1000*time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newFileBed(t)
			nodes := b.cluster("a", "b")
			b.up(1)
			was := nodes[0].deadlineOf(1)
			b.store.edit(1, change)
			for _, n := range nodes {
				b.until("its key is refused", func() bool {
					s := n.Status()
					i := slices.IndexFunc(s.Epochs, func(e EpochStatus) bool { return e.Number == 1 })
					return i >= 0 && (s.Epochs[i].ErrorKind == "wrong_binding" || s.Epochs[i].ErrorKind == "corrupt")
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

// prolongEnvelope changes the object and the names on the envelope, which say what the ciphertext is bound to.
func prolongEnvelope(e *Epoch, by time.Duration) {
	was := strings.NewReplacer(`"expires":`+millisOf(e.Expires), `"expires":`+millisOf(e.Expires.Add(by)))
	e.Wrapped = []byte(was.Replace(string(e.Wrapped)))
	e.Expires = e.Expires.Add(by)
}

// TestUpgradeFromUntimedEpochs starts nodes on an epoch that an older version has wrapped, whose times are bound to
// nothing: it is read, its end is this node's own hard TTL from when it was first seen, restarts included, and the
// next epoch takes over without the loss of a packet.
func TestUpgradeFromUntimedEpochs(t *testing.T) {
	b, key := newFileBed(t)
	dek := make([]byte, kek.DEKSize)
	dek[3] = 9
	blob, version, err := key.Wrap(t.Context(), dek, kek.Binding{Cluster: "test", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	created := b.clock.Wall().Truncate(time.Millisecond)
	// Somebody has prolonged it already.
	b.store.epochs[1] = Epoch{Number: 1, Created: created, Expires: created.Add(100000 * time.Hour), KEK: key.URL(), KEKVersion: version, Wrapped: blob}
	nodes := b.cluster("a", "b")
	b.up(1)
	end := nodes[0].deadlineOf(1)
	if end > b.clock.Boot()+testHardTTL {
		t.Errorf("the epoch ends in %s, after more than this node's hard TTL", end-b.clock.Boot())
	}
	b.until("what was seen is written down", func() bool {
		kept, err := openSeen(nodes[0].opt.SeenFile)
		return err == nil && len(kept.Times) == 1
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

// TestHardTTLIsEachNodesOwn: a leader with a longer hard TTL prolongs nothing on a node with a shorter one.
func TestHardTTLIsEachNodesOwn(t *testing.T) {
	b, _ := newFileBed(t)
	file := b.options
	b.options = func(o *Options) {
		file(o)
		if o.Node == "a" {
			o.HardTTL = 1000 * time.Hour
		}
	}
	b.office.closed["b"] = true // a leads
	nodes := b.cluster("a", "b")
	b.up(1)
	if left := nodes[1].deadlineOf(1) - b.clock.Boot(); left > testHardTTL {
		t.Errorf("b ends the epoch in %s, its hard TTL is %s", left, testHardTTL)
	}
	if left := nodes[0].deadlineOf(1) - b.clock.Boot(); left < 900*time.Hour {
		t.Errorf("a ends the epoch in %s, its hard TTL is 1000h", left)
	}
}

// TestSeenFile holds what is remembered to its rules.
func TestSeenFile(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, err := openSeen(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.first(1, now); !got.Equal(now) {
		t.Errorf("first look: %s", got)
	}
	if got := s.first(1, now.Add(time.Hour)); !got.Equal(now) {
		t.Errorf("second look: %s", got)
	}
	if got := s.first(1, now.Add(-time.Hour)); !got.Equal(now.Add(-time.Hour)) {
		t.Errorf("the clock was put back: %s", got)
	}
	s.keep([]Epoch{{Number: 2}}, now, time.Hour)
	if len(s.Times) != 1 {
		t.Errorf("an epoch that could be used still is forgotten: %v", s.Times)
	}
	s.keep([]Epoch{{Number: 1}}, now.Add(2*time.Hour), time.Hour)
	if len(s.Times) != 1 {
		t.Errorf("an epoch that is there is forgotten: %v", s.Times)
	}
	s.keep([]Epoch{{Number: 2}}, now.Add(2*time.Hour), time.Hour)
	if len(s.Times) != 0 {
		t.Errorf("an epoch that is gone is remembered: %v", s.Times)
	}
}

// TestBrokenSeenFile: one that cannot be read is kept aside beside those before it, and what a killed writer left goes.
func TestBrokenSeenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seen")
	for i, text := range []string{`{"1":"2026-01`, `{"one":"2026-01-02T03:04:05Z"}`} {
		left := fmt.Sprintf("%s.%d.tmp", path, i)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.WriteFile(left, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if s, err := openSeen(path); err == nil || s == nil {
			t.Errorf("a broken file: %v, %v", s, err)
		}
		aside := statefile.Aside(path)
		if len(aside) != i+1 {
			t.Fatalf("set aside: %q", aside)
		}
		if kept, err := os.ReadFile(aside[i]); err != nil || string(kept) != text {
			t.Errorf("%s: %q, %v", aside[i], kept, err)
		}
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s stays", left)
		}
	}
}

func millisOf(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }
