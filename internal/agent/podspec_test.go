package agent

import (
	"errors"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// unreadable is a store in which a single pod cannot be asked for.
type unreadable struct {
	store.Store
	err error
}

func (s unreadable) Pod(string) (*v1alpha1.Pod, error) { return nil, s.err }

// noSnapshot is one that can be read only whole, and cannot.
type noSnapshot struct {
	store.Store
	err error
}

func (s noSnapshot) Snapshot() (*store.Snapshot, error) { return nil, s.err }

// TestPodSpecCannotBeRead: that a store is away is no word on who a pod is.
func TestPodSpecCannotBeRead(t *testing.T) {
	away := errors.New("the API is away")
	for name, in := range map[string]store.Store{
		"one pod": unreadable{err: away}, "all": noSnapshot{err: away}} {
		a := &Agent{store: in}
		a.index.Store(newIndex(store.NewSnapshot()))
		if pod, err := a.podSpec("shop/web"); !errors.Is(err, away) || pod != nil {
			t.Errorf("%s: %v, %v", name, pod, err)
		}
	}
	a := &Agent{store: unreadable{}}
	a.index.Store(newIndex(store.NewSnapshot()))
	if pod, err := a.podSpec("shop/web"); pod != nil || err != nil {
		t.Errorf("a pod that nobody has declared: %v, %v", pod, err)
	}
}
