package dir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

func epochObject(number uint64) *v1alpha1.Epoch {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &v1alpha1.Epoch{
		Metadata: v1alpha1.ObjectMeta{Name: v1alpha1.EpochName(number)},
		Spec: v1alpha1.EpochSpec{Number: number, Created: v1alpha1.Time{Time: now},
			Expires: v1alpha1.Time{Time: now.Add(time.Hour)},
			KEK:     "file:///etc/weft/kek", Wrapped: []byte("wrapped")},
	}
}

func TestEpochs(t *testing.T) {
	d := open(t, t.TempDir())
	list, err := d.Epochs()
	if err != nil || len(list) != 0 {
		t.Fatalf("at first: %v, %v", list, err)
	}
	for _, n := range []uint64{10, 2, 1} {
		must(t, d.CreateEpoch(epochObject(n)))
	}
	if err := d.CreateEpoch(epochObject(2)); !errors.Is(err, store.ErrExists) {
		t.Errorf("made twice: %v", err)
	}
	list, err = d.Epochs()
	must(t, err)
	var numbers []uint64
	for _, e := range list {
		numbers = append(numbers, e.Spec.Number)
	}
	if fmt.Sprint(numbers) != "[1 2 10]" || string(list[0].Spec.Wrapped) != "wrapped" {
		t.Errorf("epochs %v, %+v", numbers, list[0])
	}
	must(t, d.DeleteEpoch(2))
	must(t, d.DeleteEpoch(2))
	if s := snapshot(t, d); len(s.Epochs) != 2 || s.Epochs["epoch-10"] == nil ||
		len(s.Errors) != 0 {
		t.Errorf("snapshot %+v, %v", s.Epochs, s.Errors)
	}
	info, err := os.Stat(filepath.Join(d.Path(), "keys", "epoch-10.yaml"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(d.Path(), "keys", ".put-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestBadEpochsAreRefused(t *testing.T) {
	d := open(t, t.TempDir())
	bad := epochObject(1)
	bad.Spec.Wrapped = nil
	if err := d.CreateEpoch(bad); err == nil || !strings.Contains(err.Error(), "spec.wrapped") {
		t.Errorf("made without a key: %v", err)
	}
	// A file that holds no epoch takes the name all the same.
	tree(t, d.Path(), map[string]string{"keys/epoch-1.yaml": "kind: [\n"})
	if err := d.CreateEpoch(epochObject(1)); !errors.Is(err, store.ErrExists) {
		t.Errorf("made over a broken file: %v", err)
	}
	// So does an epoch in a file of another name.
	must(t, d.CreateEpoch(epochObject(2)))
	must(t,
		os.Rename(filepath.Join(d.Path(), "keys", "epoch-2.yaml"),
			filepath.Join(d.Path(), "mine.yaml")))
	if err := d.CreateEpoch(epochObject(2)); !errors.Is(err, store.ErrExists) {
		t.Errorf("made beside another: %v", err)
	}
}

func TestOnlyOneCreatorWins(t *testing.T) {
	path := t.TempDir()
	for number := uint64(1); number <= 20; number++ {
		var won atomic.Int32
		var all sync.WaitGroup
		for range 4 {
			d := open(t, path)
			all.Go(func() {
				err := d.CreateEpoch(epochObject(number))
				if err == nil {
					won.Add(1)
				} else if !errors.Is(err, store.ErrExists) {
					t.Errorf("epoch %d: %v", number, err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Errorf("epoch %d: %d creators won", number, won.Load())
		}
	}
}

func TestEpochsOfAStoreThatIsAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "objects")
	d := open(t, path)
	must(t, d.CreateEpoch(epochObject(1)))
	must(t, os.Rename(path, path+".away"))
	if _, err := d.Epochs(); err == nil {
		t.Error("a store that is away has no epochs, it says")
	}
	if err := d.CreateEpoch(epochObject(2)); err == nil {
		t.Error("made an epoch in a store that is away")
	}
}

func TestLeader(t *testing.T) {
	path := t.TempDir()
	a, b := open(t, path).Leader("a"), open(t, path).Leader("b")
	must(t, a.Campaign(t.Context(), nil))
	if !a.IsLeader() || b.IsLeader() || b.Holder() != "a" {
		t.Errorf("a %v, b %v, holder %q", a.IsLeader(), b.IsLeader(), b.Holder())
	}
	if won, err := b.try(); won || err != nil {
		t.Errorf("b: %v, %v", won, err)
	}
	a.Resign()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must(t, b.Campaign(ctx, func(err error) { must(t, err) }))
	if a.IsLeader() || !b.IsLeader() || a.Holder() != "b" {
		t.Errorf("a %v, b %v, holder %q", a.IsLeader(), b.IsLeader(), a.Holder())
	}
	// A lock whose file is gone guards nothing.
	must(t, os.Remove(filepath.Join(path, "keys", "leader.lock")))
	if b.IsLeader() {
		t.Error("b leads without its lock file")
	}
	if won, err := a.try(); !won || err != nil {
		t.Errorf("a: %v, %v", won, err)
	}
	done, end := context.WithCancel(t.Context())
	end()
	if err := b.Campaign(done, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("campaign after the end: %v", err)
	}
	if len(snapshot(t, open(t, path)).Errors) != 0 {
		t.Error("the lock file is taken for an object")
	}
}

func TestReplaceEpoch(t *testing.T) {
	d := open(t, t.TempDir())
	must(t, d.CreateEpoch(epochObject(1)))
	again := epochObject(1)
	again.Spec.Wrapped, again.Spec.KEKVersion = []byte("wrapped again"), "2"
	if err := d.ReplaceEpoch(again, []byte("something else")); !errors.Is(err, store.ErrChanged) {
		t.Errorf("another one was replaced: %v", err)
	}
	must(t, d.ReplaceEpoch(again, []byte("wrapped")))
	list, err := d.Epochs()
	must(t, err)
	if len(list) != 1 || string(list[0].Spec.Wrapped) != "wrapped again" ||
		list[0].Spec.KEKVersion != "2" {
		t.Errorf("epochs %+v", list)
	}
	path := filepath.Join(d.Path(), "keys", "epoch-1.yaml")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file %v, %v", info, err)
	}
	must(t, d.DeleteEpoch(1))
	if err := d.ReplaceEpoch(again, []byte("wrapped again")); !errors.Is(err, store.ErrChanged) {
		t.Errorf("a deleted one came back: %v", err)
	}
	again.Spec.Wrapped = nil
	if err := d.ReplaceEpoch(again, nil); err == nil {
		t.Error("a bad epoch was taken")
	}
	if left, _ := filepath.Glob(filepath.Join(d.Path(), "keys", "*epoch*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(d.Path(), "keys", ".put-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
