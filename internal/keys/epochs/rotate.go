package epochs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/schedule"
	"weft.dev/weft/internal/keys/secmem"
)

// Why an epoch is made.
const (
	ReasonFirst   = "first"
	ReasonAge     = "age"
	ReasonPackets = "packets"
	ReasonHand    = "hand"
	// ReasonRemoved: the newest epoch is gone from the store.
	ReasonRemoved = "removed"
)

// createTries is how many numbers are tried before an epoch is given up for now.
const createTries = 4

// Make makes the next epoch now, whatever is due. Another node's that came first is as good.
func (k *Keeper) Make(ctx context.Context) (Epoch, error) {
	k.making.Lock()
	defer k.making.Unlock()
	k.Reload()
	e, err := k.create(ctx, ReasonHand)
	if errors.Is(err, ErrExists) {
		err = nil
	}
	return e, err
}

// createDue makes an epoch if one is due, removes old ones, and returns when to look again.
func (k *Keeper) createDue(ctx context.Context) time.Duration {
	reason, removes, next := k.creationDue()
	if reason != "" {
		k.work.Go(func() { k.createFor(ctx, reason) })
		return next
	}
	if !removes {
		return next
	}
	old := k.outdated()
	if len(old) == 0 {
		return next
	}
	k.mu.Lock()
	k.due.create = k.clock.Boot() + retryMin
	next = k.due.create
	k.mu.Unlock()
	k.work.Go(func() { k.removeEpochs(old) })
	return next
}

// creationDue says why an epoch is to be made, "" for not at all, whether old ones are this
// node's to remove, and when to look again.
func (k *Keeper) creationDue() (reason string, removes bool, next time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock.Boot()
	if !k.listed || now < k.due.create {
		return "", false, max(k.due.create, now+time.Millisecond)
	}
	if reason, next = k.reason(now); reason != "" {
		k.due.create = now + retryMin
		next = k.due.create
	}
	return reason, k.leader, next
}

// reason says why an epoch has to be made now, "" for not at all, and when to ask again. The caller
// holds mu.
func (k *Keeper) reason(now time.Duration) (string, time.Duration) {
	reason, next := k.lacking(now)
	if reason == "" {
		k.taken = 0
	}
	if reason == "" || !k.undecided() {
		k.due.decide = 0
		return reason, next
	}
	if k.due.decide == 0 {
		k.due.decide = now + min(decideMost, (k.opt.HardTTL-k.opt.MaxAge)/4)
	}
	if now < k.due.decide {
		return "", min(k.due.decide, now+tick)
	}
	return reason, now
}

// decideMost is how long an epoch that is due is put off, at most, for others that may turn out to
// be it.
const decideMost = 10 * time.Minute

// undecided says whether there is an epoch newer than all that this node can read, and it may be
// readable yet. Another node has made it, then, or somebody who may write to the store and not
// wrap. The caller holds mu.
func (k *Keeper) undecided() bool {
	var open uint64
	if e := k.open(); e != nil {
		open = e.Number
	}
	return slices.ContainsFunc(k.tries(), func(e *epoch) bool {
		return e.Number > open && !k.seen.farAhead(e.Number) && !k.unreadable(e)
	})
}

// lacking says why the epochs that there are do not do, "" if they do, and when to ask again. Age
// and packets are those of the newest that this node can read: what it cannot has a number, and
// proves nothing. The packet budget is every node's business, the rest the leader's. The caller
// holds mu.
func (k *Keeper) lacking(now time.Duration) (string, time.Duration) {
	newest, open := k.newest(), k.open()
	if open != nil && k.spent(open.Number) {
		return ReasonPackets, now
	}
	switch {
	case k.onlyPast():
		// A leader that is new to the cluster may take them for good, and does not know which
		// numbers were used.
		return ReasonRemoved, now
	case !k.leader:
		return "", now + tick
	case newest == nil, open == nil:
		return ReasonFirst, now
	case newest.Number < k.highest:
		return ReasonRemoved, now
	case now >= open.rotateAt:
		return ReasonAge, now
	}
	return "", min(open.rotateAt, now+tick)
}

// spent says whether a lane of this node has sent nearly as many packets as it may in
// an epoch. The caller holds mu.
func (k *Keeper) spent(number uint64) bool {
	sent, _ := k.opt.SAs.Sent(number)
	return sent >= k.opt.MaxPackets-k.opt.MaxPackets/16
}

// createFor makes an epoch that is due, and backs off when it cannot.
func (k *Keeper) createFor(ctx context.Context, reason string) {
	if !k.making.TryLock() {
		return
	}
	defer k.making.Unlock()
	_, err := k.create(ctx, reason)
	if ctx.Err() != nil {
		return
	}
	if errors.Is(err, ErrExists) {
		err = nil
	}
	k.opt.Problem("rotation", err)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.failures, k.due.create = 0, k.clock.Boot()
	} else {
		k.failures++
		k.due.create = k.clock.Boot() + clock.Backoff(k.failures, retryMin, retryMax)
	}
	k.opt.Signal.Poke()
}

// next is the number of the epoch to make, 0 if none is due any more: another node's may have come
// since it was found to be due, and of many nodes that want one each would make its own.
func (k *Keeper) next(reason string) uint64 {
	confirmed := k.opt.Peers.Confirmed()
	k.mu.Lock()
	defer k.mu.Unlock()
	if reason != ReasonHand {
		if now, _ := k.reason(k.clock.Boot()); now == "" {
			return 0
		}
	}
	if k.taken == 0 {
		return k.unusedFrom(k.highest+1, confirmed)
	}
	// Whoever may write to the store can take the next number as soon as it is, but not all of
	// them.
	return k.unusedFrom(k.highest+1+rand.Uint64N(1<<min(4*k.taken, 16)), confirmed)
}

// unusedFrom is the first number from one on that no epoch in use stands for on the wire: peers
// could not go from one epoch to another of the same SPIs. Numbers that others took may have led
// there. The caller holds mu.
func (k *Keeper) unusedFrom(number uint64, confirmed map[uint64]bool) uint64 {
	used := map[uint8]bool{}
	for epoch := range confirmed {
		used[schedule.WireNumber(epoch)] = true
	}
	for _, e := range k.epochs {
		if e.dek != nil && k.live(e) {
			used[schedule.WireNumber(e.Number)] = true
		}
	}
	for range schedule.WireNumbers {
		if !used[schedule.WireNumber(number)] {
			return number
		}
		number++
	}
	return number
}

// create makes and publishes the next epoch. Another node's that came first is as good,
// and is returned with ErrExists. The caller holds making.
func (k *Keeper) create(ctx context.Context, reason string) (Epoch, error) {
	for range createTries {
		number := k.next(reason)
		if number == 0 {
			return Epoch{}, fmt.Errorf("make epoch: not due any more: %w", ErrExists)
		}
		e, err := k.publish(ctx, number, reason)
		if !errors.Is(err, ErrExists) {
			return e, err
		}
		k.Reload()
		k.mu.Lock()
		theirs := k.epochs[number]
		if theirs == nil {
			// A file of that name that holds no good epoch.
			k.highest = max(k.highest, number)
		} else {
			k.taken++
		}
		k.mu.Unlock()
		if theirs != nil {
			return theirs.Epoch, fmt.Errorf("epoch %d: %w", number, ErrExists)
		}
	}
	return Epoch{}, errors.New("make epoch: other nodes, or files that hold no epoch, have taken every number that was tried")
}

// publish makes one epoch of a number.
func (k *Keeper) publish(ctx context.Context, number uint64, reason string) (Epoch, error) {
	secret, err := secmem.Random(schedule.DEKSize)
	if err != nil {
		return Epoch{}, fmt.Errorf("make epoch %d: %w", number, err)
	}
	given := false
	defer func() {
		if !given {
			secret.Release()
		}
	}()
	e, err := k.wrap(ctx, secret, number)
	if err != nil {
		return Epoch{}, fmt.Errorf("make epoch %d: %w", number, err)
	}
	k.storeLock.Lock()
	defer k.storeLock.Unlock()
	if err := k.opt.Store.CreateEpoch(e); err != nil {
		return Epoch{}, fmt.Errorf("publish epoch %d: %w", number, err)
	}
	k.log.Info("new epoch", "epoch", number, "reason", reason, "kek", e.KEK, "expires", e.Expires)
	k.mu.Lock()
	defer k.mu.Unlock()
	added := k.add(e, k.seen.Highest)
	if added.dek == nil {
		k.give(added, secret)
		given = true
	}
	k.counters.Rotations[reason]++
	k.opt.Journal.Add(audit.Record{Event: audit.EventCreated, Epoch: number, Outcome: "ok",
		Detail: reason})
	k.retarget()
	return e, nil
}

// wrap makes the object of an epoch.
func (k *Keeper) wrap(ctx context.Context, secret *secmem.Secret, number uint64) (Epoch, error) {
	ctx, cancel := context.WithTimeout(ctx, unwrapTime)
	defer cancel()
	e := Epoch{Number: number, KEK: k.opt.KEK.URL()}
	// Before the KMS is asked, since it binds them; the epoch is as much older as the KMS takes.
	e.Created = k.clock.Wall().UTC().Truncate(time.Millisecond)
	e.Expires = e.Created.Add(k.opt.HardTTL.Truncate(time.Millisecond))
	began := k.clock.Boot()
	err := secret.Use(func(dek []byte) (err error) {
		e.Wrapped, e.KEKVersion, err = k.opt.KEK.Wrap(ctx, dek, e.Binding(k.opt.Cluster))
		return err
	})
	k.opt.Journal.Add(audit.Record{Event: audit.EventWrapped, Epoch: number,
		Outcome: kek.Outcome(err), Detail: audit.Line(err), Latency: k.clock.Boot() - began})
	return e, err
}
