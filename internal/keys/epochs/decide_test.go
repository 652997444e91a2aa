package epochs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/schedule"
	"weft.dev/weft/internal/keys/secmem"
)

// TestWhyAnEpochIsMade, and that none is made for less.
func TestWhyAnEpochIsMade(t *testing.T) {
	for name, row := range map[string]struct {
		set  func(*Keeper, fakeSAs)
		want string
	}{
		"nothing is due":         {func(k *Keeper, sent fakeSAs) { k.leader = true }, ""},
		"it is old":              {func(k *Keeper, sent fakeSAs) { k.leader, k.epochs[2].rotateAt = true, stillNow }, ReasonAge},
		"it is old, not leading": {func(k *Keeper, sent fakeSAs) { k.epochs[2].rotateAt = stillNow }, ""},
		"there is none":          {func(k *Keeper, sent fakeSAs) { k.leader = true; clear(k.epochs) }, ReasonFirst},
		"the newest was removed": {func(k *Keeper, sent fakeSAs) { k.leader, k.highest = true, 3 },
			ReasonRemoved},
		"many packets": {func(k *Keeper, sent fakeSAs) { sent[2] = 1500 },
			ReasonPackets},
		"nearly as many":          {func(k *Keeper, sent fakeSAs) { sent[2] = 1499 }, ""},
		"many, in the one before": {func(k *Keeper, sent fakeSAs) { sent[1] = 1600 }, ""},
		"the newest cannot be read, the one before is old": {func(k *Keeper, sent fakeSAs) {
			k.leader, k.epochs[1].rotateAt = true, stillNow
			closed(k, 2, kek.ErrCorrupt)
		}, ReasonAge},
		"the newest cannot be read, the one before is not old": {func(k *Keeper, sent fakeSAs) { k.leader = true; closed(k, 2, kek.ErrCorrupt) }, ""},
		"the newest cannot be read, many packets in the one before": {func(k *Keeper, sent fakeSAs) {
			sent[1] = 1500
			closed(k, 2, kek.ErrWrongBinding)
		}, ReasonPackets},
		"the newest was not tried so far, the one before is old": {func(k *Keeper, sent fakeSAs) {
			k.leader, k.epochs[1].rotateAt = true, stillNow
			closed(k, 2, nil)
		}, ""},
		"the newest was not tried so far, many packets in the one before": {func(k *Keeper, sent fakeSAs) {
			sent[1] = 1500
			closed(k, 2, nil)
		}, ""},
		"the KMS is away for the newest, the one before is old": {func(k *Keeper, sent fakeSAs) {
			k.leader, k.epochs[1].rotateAt = true, stillNow
			closed(k, 2, kek.ErrUnreachable)
		}, ""},
		"the same, for as long as that is waited for": {func(k *Keeper, sent fakeSAs) {
			k.leader, k.epochs[1].rotateAt, k.due.decide = true, stillNow, stillNow
			closed(k, 2, kek.ErrUnreachable)
		}, ReasonAge},
		"none can be read": {func(k *Keeper, sent fakeSAs) {
			k.leader = true
			closed(k, 1, kek.ErrCorrupt)
			closed(k, 2, kek.ErrCorrupt)
		}, ReasonFirst},
		"none can be read, not leading": {func(k *Keeper, sent fakeSAs) {
			closed(k, 1, kek.ErrCorrupt)
			closed(k, 2, kek.ErrCorrupt)
		}, ""},
		"none was tried so far": {func(k *Keeper, sent fakeSAs) {
			k.leader = true
			closed(k, 1, nil)
			closed(k, 2, nil)
		}, ""},
	} {
		k, _, sent := still(t, 1, 2)
		k.opt.HardTTL = 5 * time.Hour
		row.set(k, sent)
		if got, _ := k.reason(stillNow); got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}

// closed takes an epoch's key away: it could not be unwrapped, or was not tried so far.
func closed(k *Keeper, number uint64, kind error) {
	e := k.epochs[number]
	e.dek, e.err = nil, nil
	if kind != nil {
		e.err, e.failures, e.nextTry = &kek.Error{Kind: kind}, 1, stillNow+time.Second
	}
}

// TestWhichEpochsAreDeleted: two are kept, and those that a peer may still run on.
func TestWhichEpochsAreDeleted(t *testing.T) {
	for name, row := range map[string]struct {
		oldest uint64 // in use
		set    func(*Keeper)
		want   []uint64
	}{
		"the peer is on the newest": {4, func(*Keeper) {}, []uint64{2, 1}},
		"the peer is on an old one": {2, func(*Keeper) {}, []uint64{1}},
		"the peer is on the first":  {1, func(*Keeper) {}, nil},
		"there is no peer":          {0, func(*Keeper) {}, []uint64{2, 1}},
		"the newest two cannot be read": {4, func(k *Keeper) {
			closed(k, 3, kek.ErrCorrupt)
			closed(k, 4, nil)
		}, nil},
		"the newest is past its end": {1, func(k *Keeper) { k.epochs[4].end = stillNow },
			[]uint64{4}},
	} {
		k, peers, _ := still(t, 1, 2, 3, 4)
		peers.oldest = row.oldest
		row.set(k)
		if got := k.outdated(); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// TestKeysOfOldEpochsAreForgotten: this node holds those of the two newest, and of what a peer runs
// on.
func TestKeysOfOldEpochsAreForgotten(t *testing.T) {
	for confirmed, want := range map[uint64][]uint64{4: {3, 4}, 1: {1, 3, 4}} {
		k, peers, _ := still(t, 1, 2, 3, 4)
		peers.confirmed = map[uint64]bool{confirmed: true}
		k.unwrapDue(t.Context())
		var got []uint64
		for _, number := range slices.Sorted(maps.Keys(k.epochs)) {
			if k.epochs[number].dek != nil {
				got = append(got, number)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("with a peer on epoch %d: keys of %v, want %v", confirmed, got, want)
		}
	}
}

// TestReplacedEpoch: where somebody put another epoch under the same number, the key of the one
// before is gone.
func TestReplacedEpoch(t *testing.T) {
	k, _, _ := still(t, 1)
	old := k.epochs[1]
	secret := old.dek
	created := k.clock.Wall()
	added := k.add(Epoch{Number: 1, Created: created, Expires: created.Add(time.Hour),
		Wrapped: []byte("another")}, 1)
	if added == old || old.dek != nil || !old.withdrawn {
		t.Errorf("the one before is %+v", old)
	}
	if _, err := secret.Copy(); !errors.Is(err, secmem.ErrReleased) {
		t.Errorf("its key: %v", err)
	}
}

// shortKEK unwraps everything to fewer bytes than a key has.
type shortKEK struct{ KEK }

func (shortKEK) Unwrap(context.Context, []byte, kek.Binding) ([]byte, error) {
	return make([]byte, schedule.DEKSize-1), nil
}

func TestUnwrappedToTooFewBytes(t *testing.T) {
	k, _, _ := still(t, 1)
	k.opt.KEK = shortKEK{k.opt.KEK}
	e := k.epochs[1]
	e.dek = nil
	k.unwrap(t.Context(), e)
	if e.dek != nil || !errors.Is(e.err, kek.ErrCorrupt) {
		t.Errorf("key %v, error %v", e.dek, e.err)
	}
}

// squatter is a store in which somebody takes the next number whenever this node is about to.
type squatter struct {
	*memStore
	epoch Epoch
}

func (s squatter) CreateEpoch(e Epoch) error {
	next := s.epoch
	next.Number = s.highest() + 1
	if err := s.memStore.CreateEpoch(next); err != nil {
		return err
	}
	return s.memStore.CreateEpoch(e)
}

// TestEveryNextNumberTaken: a number that nobody can foresee is not taken.
func TestEveryNextNumberTaken(t *testing.T) {
	k, _, _ := still(t, 1)
	k.leader, k.epochs[1].rotateAt = true, stillNow
	junk := Epoch{Created: k.clock.Wall(), Expires: k.clock.Wall().Add(time.Hour),
		Wrapped: []byte("nothing")}
	first := k.epochs[1].Epoch
	first.Created, first.Expires = junk.Created, junk.Expires
	k.epochs[1].Epoch = first
	store := &memStore{epochs: map[uint64]Epoch{1: first}}
	k.opt.Store = squatter{store, junk}
	for range 50 {
		if e, err := k.create(t.Context(), ReasonAge); err == nil {
			if e.Number < 3 {
				t.Errorf("made epoch %d", e.Number)
			}
			return
		}
		k.unwraps.nextUnproven = 0
		k.unwrapDue(t.Context())
		k.work.Wait()
	}
	t.Errorf("no epoch was made; the highest in the store is %d", store.highest())
}

// TestNoKeysOfAnEpochThatIsOver: keys are installed in live epochs alone, and end with them.
func TestNoKeysOfAnEpochThatIsOver(t *testing.T) {
	k, _, _ := still(t, 2)
	if end, ok := k.Until(2); !ok || end != stillNow+time.Hour {
		t.Errorf("a live epoch: %s, %v", end, ok)
	}
	k.epochs[2].deadline, k.epochs[2].end = stillNow, stillNow
	for _, number := range []uint64{1, 2} {
		if end, ok := k.Until(number); ok {
			t.Errorf("epoch %d, which is over or unknown, ends at %s", number, end)
		}
	}
}
