package epochs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/schedule"
	"weft.dev/weft/internal/keys/secmem"
)

const (
	// keep is how many readable epochs a node holds the keys of: the newest, and the one before for
	// peers that are late.
	keep = 2
	// unwrapTime bounds one attempt at unwrapping, or at wrapping.
	unwrapTime = time.Minute
	// unwrapParallel bounds the attempts under way at once, of which those at unproven epochs are
	// keep at most.
	unwrapParallel = 2 * keep
	// unprovenTried is how many unproven epochs, the newest, are tried at all; after as many
	// failures in a row there is a pause before each.
	unprovenTried = 4
	unprovenPause = 5 * time.Second
)

// unwraps is how attempts at unwrapping go.
type unwraps struct {
	// running are under way, of which unproven are at epochs that nothing speaks for; failed is how
	// many of those have failed since one was good.
	running, unproven, failed int
	// nextUnproven is when the next of those may begin.
	nextUnproven time.Duration
}

// wanted are the live epochs whose keys this node should hold, the newest first: the two newest
// that can be read, and those that a peer still runs on, as confirmed says: without it, what is
// missing are epochs whose keys are held anyway. Epochs that are newer but cannot be read are
// wanted too. The caller holds mu.
func (k *Keeper) wanted(confirmed map[uint64]bool) []*epoch {
	var out []*epoch
	open := 0
	for _, e := range k.sorted() {
		if !k.live(e) || (open >= keep && !(e.dek != nil && confirmed[e.Number])) {
			continue
		}
		if e.dek != nil {
			open++
		}
		out = append(out, e)
	}
	return out
}

// proven says whether something beside the object in the store speaks for an epoch: this node has
// had its key, or seals with keys made of it. The caller holds mu.
func (k *Keeper) proven(e *epoch) bool {
	_, sealing := k.opt.SAs.Sent(e.Number)
	return sealing || !e.unwrapped.IsZero() || e.Number == k.seen.Opened
}

// tries are the epochs to unwrap, in this order: those that are proven, those that a peer asks for,
// and of the others, which whoever may write to the store can make thousands of, a few of the
// newest. The caller holds mu.
func (k *Keeper) tries() []*epoch {
	classes := make([][]*epoch, 3)
	unproven := map[bool]int{}
	for _, e := range k.wanted(nil) {
		switch {
		case e.dek != nil:
		case k.proven(e):
			classes[0] = append(classes[0], e)
		case e.asked:
			classes[1] = append(classes[1], e)
		default:
			far := k.seen.farAhead(e.Number)
			if unproven[far]++; unproven[far] <= unprovenTried {
				classes[2] = append(classes[2], e)
			}
		}
	}
	return slices.Concat(classes...)
}

// unreadable says whether an epoch's key was refused by the KMS, or is none: no outage ends that.
// The caller holds mu.
func (k *Keeper) unreadable(e *epoch) bool {
	return e.dek == nil &&
		(refused(e.err) || errors.Is(e.err, kek.ErrCorrupt) ||
			errors.Is(e.err, kek.ErrWrongBinding) || errors.Is(e.err, kek.ErrWrongKEK))
}

// unwrapDue begins to unwrap what is needed, forgets what is not, and returns when to look again.
func (k *Keeper) unwrapDue(ctx context.Context) time.Duration {
	confirmed := k.opt.Peers.Confirmed()
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock.Boot()
	wanted := k.wanted(confirmed)
	for _, e := range k.epochs {
		if e.dek != nil && !slices.Contains(wanted, e) {
			e.forget()
			k.opt.Journal.Add(audit.Record{Event: audit.EventForgotten, Epoch: e.Number})
		}
	}
	next := now + tick
	for _, e := range k.tries() {
		next = min(next, k.beginUnwrap(ctx, e, now))
	}
	newest := k.newest()
	for _, e := range wanted {
		if e == newest || e.Number == k.target {
			k.warnTTL(e, now)
		}
	}
	return next
}

// beginUnwrap begins an attempt if it is due and has a place, and returns when to look again. The
// caller holds mu.
func (k *Keeper) beginUnwrap(ctx context.Context, e *epoch, now time.Duration) time.Duration {
	unproven := !k.proven(e) && (!e.asked || e.err != nil) // peers can ask without end, too
	switch {
	case e.running:
		return now + tick
	case now < e.nextTry && !(e.asked && e.err == nil):
		return e.nextTry
	case k.unwraps.running >= unwrapParallel || unproven && k.unwraps.unproven >= keep:
		return now + tick // whoever ends wakes the loop
	case unproven && now < k.unwraps.nextUnproven:
		return k.unwraps.nextUnproven
	}
	e.running, e.asked = true, false
	k.unwraps.running++
	if unproven {
		k.unwraps.unproven++
		if k.unwraps.failed >= unprovenTried {
			k.unwraps.nextUnproven = now + unprovenPause
		}
	}
	k.work.Go(func() {
		k.unwrap(ctx, e)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.unwraps.running--
		if unproven {
			k.unwraps.unproven--
		}
		k.opt.Signal.Poke()
	})
	return now + tick
}

// unwrap makes one attempt.
func (k *Keeper) unwrap(ctx context.Context, e *epoch) {
	ctx, cancel := context.WithTimeout(ctx, unwrapTime)
	defer cancel()
	began := k.clock.Boot()
	k.mu.Lock()
	wrapped := e.Wrapped
	k.mu.Unlock()
	dek, err := k.opt.KEK.Unwrap(ctx, wrapped, e.Binding(k.opt.Cluster))
	if err == nil && len(dek) != schedule.DEKSize {
		clear(dek)
		err = fmt.Errorf("unwrapped to %d bytes: want %d: %w", len(dek), schedule.DEKSize,
			kek.ErrCorrupt)
	}
	var secret *secmem.Secret
	if err == nil {
		secret, err = secmem.Take(dek)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	e.running = false
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return
	}
	k.opt.Journal.Add(audit.Record{Event: audit.EventUnwrapped, Epoch: e.Number,
		Outcome: kek.Outcome(err), Detail: audit.Line(err), Latency: k.clock.Boot() - began})
	if err != nil && !bytes.Equal(wrapped, e.Wrapped) {
		e.nextTry = k.clock.Boot() // it was of a blob that is no longer there
		k.opt.Signal.Poke()
		return
	}
	if err != nil {
		e.err = err
		e.failures++
		if !k.proven(e) {
			k.unwraps.failed++
		}
		e.nextTry = k.clock.Boot() + clock.Backoff(e.failures, retryMin, 2*retryMax)
		k.counters.UnwrapErrors[kek.Outcome(err)]++
		k.log.Warn("cannot read an epoch's key", "epoch", e.Number, "err", err, "next",
			e.nextTry-k.clock.Boot())
		k.retarget()
		return
	}
	if e.withdrawn {
		secret.Release()
		return
	}
	k.give(e, secret)
	k.retarget()
}

// give hands an epoch its key. The caller holds mu.
func (k *Keeper) give(e *epoch, secret *secmem.Secret) {
	e.dek, e.err, e.failures, e.unwrapped = secret, nil, 0, k.clock.Wall()
	k.unwraps.failed = 0
	k.seen.opened(&e.Epoch)
	k.countHighest(e.Number)
	if err := secret.Locked(); err != nil {
		k.opt.Problem("memory", err)
	}
}
