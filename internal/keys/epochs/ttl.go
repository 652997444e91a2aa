package epochs

import (
	"fmt"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/kek"
)

// warnings are the shares of the hard TTL, in percent, at which a lack of a newer epoch is told.
var warnings = []int{50, 80, 95}

// warnTTL tells, once for each share, that the epoch in use nears its end and that there is no way
// on: the next is overdue, or cannot be read here. The caller holds mu.
func (k *Keeper) warnTTL(e *epoch, now time.Duration) {
	percent := k.percent(e)
	for _, w := range warnings {
		if percent < w || e.warned >= w || k.wayOn(e, now) {
			continue
		}
		e.warned = w
		detail := fmt.Sprintf("%d%% of the hard TTL are over, %s", w, k.lacks(e))
		k.opt.Journal.Add(audit.Record{Event: audit.EventTTL, Epoch: e.Number, Detail: detail})
		k.log.Warn("keys: an epoch nears its hard TTL", "epoch", e.Number, "percent", w, "left",
			e.deadline-now, "why", k.lacks(e))
	}
}

// percent is how much of an epoch's hard TTL is over.
func (k *Keeper) percent(e *epoch) int {
	return int(min(100*(k.clock.Boot()-e.born)/max(e.deadline-e.born, 1), 100))
}

// wayOn says whether an epoch is not the one to worry about: it is not in use, or the next will
// come in time. The caller holds mu.
func (k *Keeper) wayOn(e *epoch, now time.Duration) bool {
	newest := k.newest()
	switch {
	case newest == nil:
		return true
	case e == newest:
		return now < e.rotateAt
	}
	// Behind the newest: only if that cannot be read.
	return e.Number != k.target || newest.err == nil
}

// lacks says why there is no way on from an epoch. The caller holds mu.
func (k *Keeper) lacks(e *epoch) string {
	newest := k.newest()
	switch {
	case newest == nil || newest == e:
		return "and there is no newer epoch"
	case newest.dek == nil:
		return fmt.Sprintf("and this node cannot read epoch %d (%s)", newest.Number,
			unwrapKind(newest.err))
	}
	return fmt.Sprintf("and not every peer moves to epoch %d", newest.Number)
}

// ttlProblem is the last warning that still holds, "" for none. The caller holds mu.
func (k *Keeper) ttlProblem(extended map[uint64]Extension) string {
	if text := k.extendedProblem(extended); text != "" {
		return text
	}
	now := k.clock.Boot()
	for _, e := range k.sorted() {
		if now < e.deadline && e.warned > 0 && !k.wayOn(e, now) {
			return fmt.Sprintf("ttl: %d%% of epoch %d's hard TTL are over, %s; packets are dropped in %s%s", k.percent(e), e.Number, k.lacks(e), (e.deadline - now).Round(time.Second), k.prospect(e))
		}
	}
	return ""
}

// unwrapKind is why an epoch's key cannot be read, in one word.
func unwrapKind(err error) string { return kek.Outcome(err) }
