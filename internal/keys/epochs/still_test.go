package epochs

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/schedule"
	"weft.dev/weft/internal/keys/secmem"
)

// stillClock stands: what is decided at a moment depends on nothing else.
type stillClock time.Duration

func (c stillClock) Boot() time.Duration { return time.Duration(c) }
func (c stillClock) Wall() time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(c))
}
func (c stillClock) After(time.Duration) <-chan time.Time { return nil }

const stillNow = 100 * time.Second

// fakePeers run on what they are told to.
type fakePeers struct {
	confirmed map[uint64]bool
	oldest    uint64
}

func (p *fakePeers) Count() int                 { return 1 }
func (p *fakePeers) Confirmed() map[uint64]bool { return p.confirmed }
func (p *fakePeers) OldestInUse() uint64        { return p.oldest }

// fakeSAs are what was sent, by epoch.
type fakeSAs map[uint64]uint64

func (s fakeSAs) Sent(epoch uint64) (uint64, bool) { counter, ok := s[epoch]; return counter, ok }
func (s fakeSAs) Highest() uint64                  { return 0 }

// plainKEK wraps nothing up.
type plainKEK struct{}

func (plainKEK) URL() string { return "file:///test/kek" }

func (plainKEK) Wrap(_ context.Context, dek []byte, _ kek.Binding) ([]byte, string, error) {
	return bytes.Clone(dek), "1", nil
}

func (plainKEK) Unwrap(_ context.Context, blob []byte, _ kek.Binding) ([]byte, error) {
	return bytes.Clone(blob), nil
}

// memStore is a Store in memory.
type memStore struct {
	Store
	mu     sync.Mutex
	epochs map[uint64]Epoch
}

func (s *memStore) Epochs() ([]Epoch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.epochs)), nil
}

func (s *memStore) CreateEpoch(e Epoch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.epochs[e.Number]; taken {
		return ErrExists
	}
	s.epochs[e.Number] = e
	return nil
}

func (s *memStore) highest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Max(slices.Collect(maps.Keys(s.epochs)))
}

// still is a keeper that does not run, with live epochs of these numbers, whose keys it holds.
func still(t *testing.T, numbers ...uint64) (*Keeper, *fakePeers, fakeSAs) {
	t.Helper()
	now, peers, sas := stillClock(stillNow), &fakePeers{}, fakeSAs{}
	k := New(Options{
		KEK: plainKEK{}, Peers: peers, SAs: sas, HardTTL: time.Hour, MaxAge: time.Hour,
		MaxPackets: 1600, Clock: now,
		Signal: clock.NewSignal(), Journal: audit.NewJournal(now.Wall, nil),
		Problem: func(string, error) {},
		Log:     slog.New(slog.DiscardHandler),
	})
	k.listed = true
	for _, number := range numbers {
		secret, err := secmem.Random(schedule.DEKSize)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(secret.Release)
		k.epochs[number] = &epoch{
			Epoch: Epoch{Number: number}, dek: secret, deadline: stillNow + time.Hour,
			end:      stillNow + time.Hour,
			rotateAt: stillNow + time.Hour,
		}
		k.highest, k.target = max(k.highest, number), max(k.target, number)
	}
	return k, peers, sas
}
