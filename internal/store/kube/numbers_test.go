package kube

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/store"
)

func TestIdentitiesAreGivenOnce(t *testing.T) {
	s := startServer(t)
	const agents = 8
	numbers := make([]uint32, agents)
	var group sync.WaitGroup
	for n := range agents {
		k := open(t, s, fmt.Sprint("n", n))
		group.Go(func() {
			var err error
			// Two and two want the same.
			numbers[n], err = identity.Allocate(k, identity.ID{TrustDomain: "weft.local",
				Namespace: "shop", ServiceAccount: fmt.Sprint("sa-", n/2)})
			if err != nil {
				t.Errorf("allocate: %v", err)
			}
		})
	}
	group.Wait()
	for n := range agents {
		for m := range n {
			if (numbers[n] == numbers[m]) != (n/2 == m/2) {
				t.Errorf("agents %d and %d: %d and %d", n, m, numbers[n], numbers[m])
			}
		}
	}
	if _, fake := s.(*server); !fake {
		return // its definition refuses what follows
	}
	// One that is given to another by hand stays with the first.
	k := open(t, s, "a")
	w := watching(t, k)
	name := fmt.Sprint(numbers[0])
	first := w.until("it", func(s *store.Snapshot) bool { return s.Identities[name] != nil }).
		Identities[name].Spec.Key()
	s.put("weft.dev/v1alpha1/identities", "", name, thing{"apiVersion": "weft.dev/v1alpha1",
		"kind": "Identity", "spec": thing{"spiffeID": "spiffe://weft.local/ns/shop/sa/other"}})
	got := w.until("the error", func(s *store.Snapshot) bool {
		return strings.Contains(fmt.Sprint(s.Errors), "and was given to "+first)
	})
	if got.Identities[name] == nil || got.Identities[name].Spec.Key() != first {
		t.Errorf("%+v", got.Identities[name])
	}
}

func epoch(number uint64, wrapped string) *v1alpha1.Epoch {
	now := time.Now().UTC()
	return &v1alpha1.Epoch{
		Metadata: v1alpha1.ObjectMeta{Name: v1alpha1.EpochName(number)},
		Spec: v1alpha1.EpochSpec{Number: number, Created: v1alpha1.Time{Time: now},
			Expires: v1alpha1.Time{Time: now.Add(time.Hour)}, KEK: "file:///kek",
			Wrapped: []byte(wrapped)},
	}
}

func TestEpochs(t *testing.T) {
	s := startServer(t)
	k, other := open(t, s, "a"), open(t, s, "b")
	must(t, k.CreateEpoch(epoch(1, "one")))
	if err := other.CreateEpoch(epoch(1, "two")); !errors.Is(err, store.ErrExists) {
		t.Errorf("created twice: %v", err)
	}
	if err := other.ReplaceEpoch(epoch(1, "two"), []byte("other")); !errors.Is(err,
		store.ErrChanged) {
		t.Errorf("replaced another: %v", err)
	}
	must(t, other.ReplaceEpoch(epoch(1, "two"), []byte("one")))
	must(t, other.CreateEpoch(epoch(2, "three")))
	list, err := k.Epochs()
	must(t, err)
	if len(list) != 2 || list[0].Spec.Number != 1 || string(list[0].Spec.Wrapped) != "two" ||
		list[1].Spec.Number != 2 {
		t.Errorf("%+v", list)
	}
	must(t, k.DeleteEpoch(1))
	must(t, k.DeleteEpoch(1))
	if err := other.ReplaceEpoch(epoch(1, "four"), []byte("two")); !errors.Is(err,
		store.ErrChanged) {
		t.Errorf("replaced one that is gone: %v", err)
	}
}

// TestLeader: one of two, and the other once it resigns or falls silent.
func TestLeader(t *testing.T) {
	s := startServer(t)
	first, second := open(t, s, "a").Leader("a"), open(t, s, "b").Leader("b")
	must(t, first.Campaign(t.Context(), nil))
	if won, err := second.try(t.Context()); won || err != nil || second.IsLeader() ||
		!first.IsLeader() || second.Holder() != "a" {
		t.Errorf("two leaders: %t, %v, holder %q", won, err, second.Holder())
	}
	first.Resign()
	must(t, second.Campaign(t.Context(), nil))
	if !second.IsLeader() || first.IsLeader() {
		t.Error("the leadership did not change hands")
	}
	// b falls silent: a has seen its Lease unchanged for as long as it lasts.
	if won, err := first.try(t.Context()); won || err != nil {
		t.Errorf("took a Lease that lasts: %v", err)
	}
	first.since = first.since.Add(-2 * leaseTTL)
	if won, err := first.try(t.Context()); !won || err != nil {
		t.Errorf("did not take a Lease that has ended: %v", err)
	}
	second.renew(t.Context())
	if second.IsLeader() {
		t.Error("a leader whose Lease another has")
	}
	first.Resign()
}
