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
		if pod, err := a.podSpec("shop/web", ""); !errors.Is(err, away) || pod != nil {
			t.Errorf("%s: %v, %v", name, pod, err)
		}
	}
	a := &Agent{store: unreadable{}}
	a.index.Store(newIndex(store.NewSnapshot()))
	if pod, err := a.podSpec("shop/web", ""); pod != nil || err != nil {
		t.Errorf("a pod that nobody has declared: %v, %v", pod, err)
	}
}

// one is a store with one pod, of which a watch may not have told yet.
type one struct {
	store.Store
	pod *v1alpha1.Pod
}

func (s one) Pod(string) (*v1alpha1.Pod, error) { return s.pod, nil }

// TestPodSpecOfAnother: a pod gets nothing of another of its name, whoever has it first.
func TestPodSpecOfAnother(t *testing.T) {
	web := func(uid string) *v1alpha1.Pod {
		return &v1alpha1.Pod{
			Metadata: v1alpha1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec:     v1alpha1.PodSpec{UID: uid},
		}
	}
	for _, c := range []struct {
		name            string
		watched, stored *v1alpha1.Pod
		uid             string
		want            string // its UID, "error", or "none"
	}{
		{"as it is watched", web("1"), nil, "1", "1"},
		{"the runtime has no UID", web("1"), nil, "", "1"},
		{"the objects have none", web(""), nil, "1", ""},
		{"it has replaced another, which the store knows", web("1"), web("2"), "2", "2"},
		{"it has replaced another, which nobody knows", web("1"), web("1"), "2", "error"},
		{"another has replaced it", nil, web("2"), "1", "error"},
		{"nobody has declared it any more", web("1"), nil, "2", "none"},
	} {
		a := &Agent{store: one{pod: c.stored}}
		snapshot := store.NewSnapshot()
		if c.watched != nil {
			snapshot.Pods["shop/web"] = c.watched
		}
		a.index.Store(newIndex(snapshot))
		pod, err := a.podSpec("shop/web", c.uid)
		got := "none"
		switch {
		case err != nil:
			got = "error"
		case pod != nil:
			got = pod.Spec.UID
		}
		if got != c.want {
			t.Errorf("%s: %s (%v), want %s", c.name, got, err, c.want)
		}
	}
}
