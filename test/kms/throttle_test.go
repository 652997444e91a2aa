package kms_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
	"weft.dev/weft/test/kms"
)

const (
	throttledNodes = 200
	// throttleLimit is how many requests a second the KMS answers.
	throttleLimit = 50
)

// TestThrottledKMS has 200 nodes unwrap a new epoch at once with a KMS that answers 50 requests a
// second: the others it throttles. Everybody gets the epoch, and nobody asks for what it has: one
// unwrap per node and epoch.
func TestThrottledKMS(t *testing.T) {
	c := kms.StartAzure(t)
	c.Setenv(t)
	store := &memoryStore{epochs: map[uint64]epochs.Epoch{}}
	records := &unwrapRecords{unwraps: map[string]int{}}
	authority := nodeidtest.NewAuthority(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var nodes []*keys.Manager
	for i := range throttledNodes {
		name := fmt.Sprintf("n%03d", i)
		key, err := kek.Open(ctx, c.URL,
			kek.Options{Node: name, Audit: records.add, Observe: records.observe})
		if err != nil {
			t.Fatal(err)
		}
		defer key.Close()
		m, err := keys.New(keys.Options{
			Node: name, TrustDomain: nodeidtest.TrustDomain, Cluster: "throttled",
			Identity: authority.Source(authority.Node(t, name, nil)),
			KEK:      key, Store: store, Leader: first(i == 0), Datapath: noDatapath{},
		})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, m)
	}
	store.changed = func() {
		for _, m := range nodes {
			m.StoreChanged()
		}
	}
	undo := c.Limit(t, throttleLimit)
	defer undo()
	for _, m := range nodes {
		running.Go(func() { _ = m.Run(ctx) })
	}
	for epoch := uint64(1); epoch <= 2; epoch++ {
		began := time.Now()
		if epoch > 1 {
			if _, err := nodes[0].Rotate(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for missing := nodes; len(missing) > 0; {
			missing = slices.DeleteFunc(slices.Clone(missing),
				func(m *keys.Manager) bool { return m.Status().Epoch >= epoch })
			if time.Since(began) > 3*time.Minute {
				t.Fatalf("%d nodes do not have epoch %d: %+v", len(missing), epoch,
					missing[0].Status())
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Logf("epoch %d: all %d nodes after %s", epoch, throttledNodes,
			time.Since(began).Round(time.Millisecond))
	}
	records.mu.Lock()
	defer records.mu.Unlock()
	t.Logf("calls: %v", records.calls)
	if records.calls["unwrap throttled"] == 0 {
		t.Error("nobody was throttled: this test shows nothing")
	}
	if records.bad > 0 {
		t.Errorf("%d operations failed after all their attempts", records.bad)
	}
	for who, count := range records.unwraps {
		if count > 1 {
			t.Errorf("%s: %d unwraps", who, count)
		}
	}
	if want := 2 * (throttledNodes - 1); len(records.unwraps) != want ||
		records.calls["unwrap ok"] != want {
		t.Errorf("%d nodes and epochs were unwrapped in %d calls, want %d: the leader has its own",
			len(records.unwraps), records.calls["unwrap ok"], want)
	}
}

// unwrapRecords counts what the KEKs tell.
type unwrapRecords struct {
	mu      sync.Mutex
	unwraps map[string]int
	calls   map[string]int
	bad     int
}

func (r *unwrapRecords) add(rec audit.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec.Op == "unwrap" {
		r.unwraps[fmt.Sprintf("%s epoch %d", rec.Node, rec.Epoch)]++
	}
	if rec.Outcome != "ok" && rec.Outcome != "canceled" {
		r.bad++
	}
}

func (r *unwrapRecords) observe(a kek.Attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[string]int{}
	}
	r.calls[a.Op+" "+a.Outcome]++
}

// memoryStore is an EpochStore in memory.
type memoryStore struct {
	mu      sync.Mutex
	epochs  map[uint64]epochs.Epoch
	changed func()
}

func (s *memoryStore) Epochs() ([]epochs.Epoch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.epochs),
		func(a, b epochs.Epoch) int { return int(a.Number) - int(b.Number) }), nil
}

func (s *memoryStore) CreateEpoch(e epochs.Epoch) error {
	s.mu.Lock()
	_, taken := s.epochs[e.Number]
	if !taken {
		s.epochs[e.Number] = e
	}
	s.mu.Unlock()
	if taken {
		return epochs.ErrExists
	}
	go s.changed() // the caller holds its manager's locks
	return nil
}

func (s *memoryStore) ReplaceEpoch(e epochs.Epoch, old []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bytes.Equal(s.epochs[e.Number].Wrapped, old) {
		return epochs.ErrChanged
	}
	s.epochs[e.Number] = e
	return nil
}

func (s *memoryStore) DeleteEpoch(number uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.epochs, number)
	return nil
}

// first is the leadership of the first node, for good.
type first bool

func (l first) Campaign(ctx context.Context, _ func(error)) error {
	if l {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (l first) IsLeader() bool { return bool(l) }
func (l first) Resign()        {}
func (l first) Holder() string { return "n000" }

// noDatapath holds no keys: there are no peers.
type noDatapath struct{}

func (noDatapath) InstallSA(*esp.SA) error                                { return nil }
func (noDatapath) RemoveSAs(string, bool, uint8) error                    { return nil }
func (noDatapath) ExtendSAs(string, bool, uint8, uint64, time.Time) error { return nil }
func (noDatapath) SealWith(string, uint8) error                           { return nil }
func (noDatapath) SAs() ([]esp.SAStatus, error)                           { return nil, nil }
func (noDatapath) Sealing() ([]esp.Sealing, error)                        { return nil, nil }
func (noDatapath) VMGeneration() (uint64, error)                          { return 0, nil }
func (noDatapath) Lanes() int                                             { return 1 }
