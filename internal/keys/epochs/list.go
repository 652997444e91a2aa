package epochs

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
)

// anchor computes an epoch's times by Clock.Boot. An object from the future counts as
// made now, and none lives longer than it says, nor than this node's own hard TTL, from the moment
// it was first seen.
func (k *Keeper) anchor(e *epoch) {
	now, wall := k.clock.Boot(), k.clock.Wall()
	first := wall
	if e.refused == nil {
		first = k.seen.first(e.Number, wall)
	}
	e.born = now - max(wall.Sub(e.Created), 0)
	e.deadline = now + min(e.Expires.Sub(wall), e.Expires.Sub(e.Created),
		k.opt.HardTTL-wall.Sub(first))
	e.end = e.deadline + k.opt.ExtendTTL
	// Some jitter, so that a node that takes over does not act in the same moment.
	e.rotateAt = e.born + k.opt.MaxAge - clock.Spread(k.opt.MaxAge/20)
}

// live says whether an epoch has not reached its hard TTL, or may go on beyond it. The caller holds
// mu.
func (k *Keeper) live(e *epoch) bool {
	now := k.clock.Boot()
	if e.refused != nil {
		return false
	}
	return now < e.deadline || (now < e.end && k.mayExtend(e))
}

// sorted are the epochs, the newest first. The caller holds mu.
func (k *Keeper) sorted() []*epoch {
	out := make([]*epoch, 0, len(k.epochs))
	for _, e := range k.epochs {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b *epoch) int { return cmp.Compare(b.Number, a.Number) })
	return out
}

// newest is the newest live epoch, whether it can be read here or not, unless it is far ahead. The
// caller holds mu.
func (k *Keeper) newest() *epoch {
	for _, e := range k.sorted() {
		if k.live(e) && !k.seen.farAhead(e.Number) {
			return e
		}
	}
	return nil
}

// open is the newest live epoch whose key this node holds, nil if there is none. The caller holds
// mu.
func (k *Keeper) open() *epoch {
	for _, e := range k.sorted() {
		if e.dek != nil && k.live(e) {
			return e
		}
	}
	return nil
}

// Reload reads the store's epochs. When it does not answer, those known stay.
func (k *Keeper) Reload() {
	k.storeLock.Lock()
	k.mu.Lock()
	// Before the listing: a change that is told while it is made is not in it.
	k.due.store = k.clock.Boot() + storeEvery + clock.Spread(storeEvery/4)
	k.mu.Unlock()
	list, err := k.opt.Store.Epochs()
	k.mu.Lock()
	if err != nil {
		k.due.storeRetry = min(max(2*k.due.storeRetry, retryMin), retryMax)
		k.due.store = k.clock.Boot() + k.due.storeRetry
	} else {
		k.due.storeRetry = 0
		k.merge(list)
	}
	k.mu.Unlock()
	k.storeLock.Unlock()
	if err != nil {
		err = fmt.Errorf("read epochs, those known stay in use: %w", err)
	}
	k.opt.Problem("store", err)
}

// merge takes a listing over. The caller holds mu.
func (k *Keeper) merge(list []Epoch) {
	k.listed = true
	k.seen.keep(list, k.clock.Wall(), k.opt.HardTTL+k.opt.ExtendTTL)
	highest := k.seen.Highest
	there := map[uint64]bool{}
	for i := range list {
		there[list[i].Number] = true
		k.add(list[i], highest)
	}
	for number, e := range k.epochs {
		if !there[number] {
			k.drop(e)
		}
	}
	k.retarget()
}

// add takes one epoch over and returns it. highest is the highest number seen before. The caller
// holds mu.
func (k *Keeper) add(e Epoch, highest uint64) *epoch {
	k.opt.Journal.WrappedBy(e.Number, e.KEK, e.KEKVersion, k.highest)
	if old := k.epochs[e.Number]; old != nil {
		if bytes.Equal(old.Wrapped, e.Wrapped) && old.Created.Equal(e.Created) &&
			old.Expires.Equal(e.Expires) {
			return old
		}
		if old.Created.Equal(e.Created) && old.Expires.Equal(e.Expires) && old.KEK == e.KEK {
			k.rewrapped(old, e)
			return old
		}
		// Somebody put another key in its place: nothing of the old one may be made any more.
		k.drop(old)
	}
	added := &epoch{Epoch: e, refused: k.seen.refuse(&e, highest)}
	k.anchor(added)
	added.nextTry = k.clock.Boot()
	if k.target != 0 {
		added.nextTry += clock.Spread(k.span())
	}
	k.epochs[e.Number] = added
	if !k.seen.farAhead(e.Number) {
		k.seen.listed(e.Number)
		k.highest = max(k.highest, e.Number)
	}
	if added.refused != nil {
		k.refuseEpoch(added)
		return added
	}
	k.opt.Journal.Add(audit.Record{Event: audit.EventSeen, Epoch: e.Number})
	return added
}

// drop forgets an epoch that is no longer in the store. Keys made with it stay in the
// datapath until their pair has moved on. The caller holds mu.
func (k *Keeper) drop(e *epoch) {
	e.withdrawn = true
	e.forget()
	delete(k.epochs, e.Number)
	k.opt.Journal.Add(audit.Record{Event: audit.EventWithdrawn, Epoch: e.Number})
}

// retarget finds the newest epoch that can be read. The caller holds mu.
func (k *Keeper) retarget() {
	k.target = 0
	if e := k.open(); e != nil {
		k.target = e.Number
	}
	k.opt.Signal.Poke()
}
