package epochs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/kek"
)

// extendMost is the longest step by which keys in use are extended. The datapath holds no later end
// than the last step's, so they outlive an agent that is gone by one and a half of them at most.
const extendMost = 10 * time.Minute

// ExtendStep is by how much keys in use are extended at once: often enough that each step can be
// told, and with room for a drain when the next epoch comes. 0 if Options.ExtendTTL is.
func (k *Keeper) ExtendStep() time.Duration {
	return min(max(min(k.opt.ExtendTTL/8, extendMost), 2*k.opt.Drain), k.opt.ExtendTTL)
}

// ExtendAhead is how long before their end keys in use are extended.
func (k *Keeper) ExtendAhead() time.Duration { return k.ExtendStep() / 2 }

// mayExtend says whether an epoch may go on past its hard TTL here. Not if the KMS has refused this
// node its key: an answer is no outage, and whoever has withdrawn the KEK is obeyed. The caller
// holds mu.
func (k *Keeper) mayExtend(e *epoch) bool {
	return k.opt.ExtendTTL > 0 && !refused(e.err) && !refused(e.answer)
}

// refused says whether a KMS has answered, and the answer is no.
func refused(err error) bool {
	return errors.Is(err, kek.ErrDenied) || errors.Is(err, kek.ErrDisabled) ||
		errors.Is(err, kek.ErrNotFound)
}

// Ending is an epoch whose hard TTL is near, or over.
type Ending struct {
	Number uint64
	// Deadline is the hard TTL, End until when its keys may be extended at most, by Clock.Boot.
	Deadline, End time.Duration
	// Extendable: its keys may go on past the hard TTL here.
	Extendable bool
}

// Ending are the epochs whose hard TTL is within a time from now, or over, and when, by
// Clock.Boot, the next one's will be.
func (k *Keeper) Ending(within time.Duration) (list []Ending, next time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock.Boot()
	next = now + tick
	for _, e := range k.epochs {
		if begin := e.deadline - within; now < begin {
			next = min(next, begin)
			continue
		}
		list = append(list, Ending{e.Number, e.deadline, e.end, k.live(e) && k.mayExtend(e)})
	}
	return list, next
}

// MayExtend says whether keys of an epoch may go on past its hard TTL here, as far as is known now:
// the KMS may refuse at any time.
func (k *Keeper) MayExtend(number uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.epochs[number]
	return e != nil && k.live(e) && k.mayExtend(e)
}

// Extension is until when, by Clock.Boot, keys of an epoch are in use beyond its hard TTL, and
// with how many peers.
type Extension struct {
	Until time.Duration
	Peers int
}

// Ask has the KMS say whether this node may still have the key of an epoch, once for keys that
// end at a time. An epoch whose key this node lacks is being asked for anyway.
func (k *Keeper) Ask(ctx context.Context, number uint64, end time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.epochs[number]
	if e == nil || e.dek == nil || e.askedOf == end {
		return
	}
	e.askedOf = end
	k.work.Go(func() { k.ask(ctx, e) })
}

// ask has the KMS say whether this node may still have the key of an epoch, which it holds. Not all
// nodes at once.
func (k *Keeper) ask(ctx context.Context, e *epoch) {
	if !clock.Sleep(ctx, k.clock, clock.Spread(k.ExtendAhead()/4)) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, unwrapTime)
	defer cancel()
	k.mu.Lock()
	wrapped := e.Wrapped
	k.mu.Unlock()
	began := k.clock.Boot()
	dek, err := k.opt.KEK.Unwrap(ctx, wrapped, e.Binding(k.opt.Cluster))
	clear(dek)
	k.mu.Lock()
	defer k.mu.Unlock()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return
	}
	e.answer = err
	k.opt.Journal.Add(audit.Record{Event: audit.EventUnwrapped, Epoch: e.Number,
		Outcome: kek.Outcome(err), Detail: audit.Line(err), Latency: k.clock.Boot() - began})
	if err != nil {
		k.counters.UnwrapErrors[kek.Outcome(err)]++
	}
	if refused(err) {
		k.log.Error("keys: the KMS refuses the key of an epoch, which is not extended", "epoch",
			e.Number, "err", err)
	}
	k.retarget()
}

// until is when keys of an epoch expire that are installed now, by Clock.Boot. The caller holds mu.
func (k *Keeper) until(e *epoch) time.Duration {
	now := k.clock.Boot()
	if now < e.deadline-k.ExtendAhead() || !k.mayExtend(e) {
		return e.deadline
	}
	return min(max(now, e.deadline)+k.ExtendStep(), e.end)
}

// most is until when keys of an epoch may live that are extended to until. The caller holds mu.
func (k *Keeper) most(e *epoch, until time.Duration) time.Duration {
	if k.mayExtend(e) {
		return e.end
	}
	return until
}

// prospect says what follows an epoch's hard TTL, "" for nothing. The caller holds mu.
func (k *Keeper) prospect(e *epoch) string {
	switch {
	case k.opt.ExtendTTL == 0:
		return ""
	case k.mayExtend(e):
		return fmt.Sprintf(", unless keys.extendTTL carries on for %s", k.opt.ExtendTTL)
	}
	no := e.answer
	if refused(e.err) {
		no = e.err
	}
	return fmt.Sprintf(", since the KMS refuses its key (%s), and keys.extendTTL is for outages",
		unwrapKind(no))
}

// TellExtended raises the alarm, anew at every step, and calls it off.
func (k *Keeper) TellExtended(extended map[uint64]Extension) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.epochs {
		until, peers := extended[e.Number].Until, extended[e.Number].Peers
		if until == 0 && e.told != 0 {
			e.told = 0
			k.log.Warn("keys: an epoch is no longer in use beyond its hard TTL", "epoch", e.Number,
				"recovered", k.target > e.Number)
		}
		if until <= e.told {
			continue
		}
		e.told = until
		detail := fmt.Sprintf("past the hard TTL, to %s, with %d peers, %s; at most to %s",
			k.wall(until).UTC().Format(time.RFC3339), peers, k.lacks(e),
			k.wall(k.most(e, until)).UTC().Format(time.RFC3339))
		k.opt.Journal.Add(audit.Record{Event: audit.EventExtended, Epoch: e.Number, Detail: detail})
		k.log.Error("keys: AN EPOCH IS EXTENDED BEYOND ITS HARD TTL", "epoch", e.Number, "peers",
			peers, "until", k.wall(until), "most", k.wall(k.most(e, until)), "why", k.lacks(e))
	}
}

// extendedProblem says which epoch is extended, "" for none. The caller holds mu.
func (k *Keeper) extendedProblem(extended map[uint64]Extension) string {
	now := k.clock.Boot()
	for _, e := range k.sorted() {
		if x := extended[e.Number]; x.Until != 0 {
			return fmt.Sprintf("ttl: EXTENDED: epoch %d is in use with %d peers beyond its hard TTL, %s; packets are dropped in %s at the latest", e.Number, x.Peers, k.lacks(e), (k.most(e, x.Until) - now).Round(time.Second))
		}
	}
	return ""
}
