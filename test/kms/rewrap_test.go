package kms_test

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
	"weft.dev/weft/test/kms"
)

// TestRewrap rotates the key in each KMS: the leader notices, wraps the live epoch's key again, and
// what it publishes is the same key.
func TestRewrap(t *testing.T) {
	starts := map[string]func(testing.TB) *kms.Counterpart{
		"aws": kms.StartAWS, "google": kms.StartGoogle, "azure": kms.StartAzure,
		"vault": func(t testing.TB) *kms.Counterpart { return kms.StartVault(t).Counterpart },
	}
	for _, name := range slices.Sorted(maps.Keys(starts)) {
		t.Run(name, func(t *testing.T) {
			c := starts[name](t)
			c.Setenv(t)
			key, err := kek.Open(t.Context(), c.URL, kek.Options{Node: "a"})
			if err != nil {
				t.Fatal(err)
			}
			defer key.Close()
			store := &memoryStore{epochs: map[uint64]epochs.Epoch{}, changed: func() {}}
			authority := nodeidtest.NewAuthority(t)
			m, err := keys.New(keys.Options{
				Node: "a", TrustDomain: nodeidtest.TrustDomain, Cluster: "rewrap",
				Identity: authority.Source(authority.Node(t, "a", nil)),
				KEK:      key, Store: store, Leader: first(true), Datapath: noDatapath{},
				VersionEvery: 200 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			running.Go(func() { _ = m.Run(ctx) })
			before := store.await(t, m, "")
			c.Rotate(t)
			after := store.await(t, m, before.KEKVersion)
			if after.Number != before.Number || !after.Created.Equal(before.Created) ||
				bytes.Equal(after.Wrapped, before.Wrapped) {
				t.Errorf("was %+v, is %+v", before, after)
			}
			bind := kek.Binding{Cluster: "rewrap", Epoch: before.Number, Created: before.Created,
				Expires: before.Expires}
			was, errWas := key.Unwrap(t.Context(), before.Wrapped, bind)
			is, errIs := key.Unwrap(t.Context(), after.Wrapped, bind)
			if errWas != nil || errIs != nil || !bytes.Equal(was, is) {
				t.Errorf("another key was published, or none: %v, %v", errWas, errIs)
			}
			if _, decrypts := c.Calls(); decrypts != 2 {
				t.Errorf("the KMS was asked to unwrap %d times, 2 by this test", decrypts)
			}
		})
	}
}

// await waits for an epoch that another version has wrapped.
func (s *memoryStore) await(t *testing.T, m *keys.Manager, not string) epochs.Epoch {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		list, _ := s.Epochs()
		if len(list) > 0 && list[0].KEKVersion != not {
			return list[0]
		}
	}
	t.Fatalf("no epoch, or none of another version than %q: %+v", not, m.Status())
	return epochs.Epoch{}
}
