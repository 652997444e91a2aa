package epochs

import (
	"errors"
	"slices"

	"weft.dev/weft/internal/keys/audit"
)

// outdated are the epochs to remove, the newest first: past all that any node may extend them
// to, or behind two that this node can read and left by every peer.
func (k *Keeper) outdated() []uint64 {
	ended, behind := k.overdue()
	if len(behind) > 0 {
		oldest := k.opt.Peers.OldestInUse()
		for _, number := range behind {
			if oldest == 0 || oldest > number {
				ended = append(ended, number)
			}
		}
	}
	slices.Sort(ended)
	slices.Reverse(ended)
	return ended
}

// overdue are the epochs past all that any node may extend them to, and those behind two that
// this node can read.
func (k *Keeper) overdue() (ended, late []uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock.Boot()
	behind := 0
	for _, e := range k.sorted() {
		switch {
		case now >= e.end:
			ended = append(ended, e.Number)
		case behind >= keep:
			late = append(late, e.Number)
		}
		if e.dek != nil {
			behind++
		}
	}
	return ended, late
}

func (k *Keeper) removeEpochs(numbers []uint64) {
	var failed error
	for _, number := range numbers {
		k.storeLock.Lock()
		err := k.opt.Store.DeleteEpoch(number)
		k.mu.Lock()
		if e := k.epochs[number]; e != nil && err == nil {
			k.drop(e)
		}
		k.mu.Unlock()
		k.storeLock.Unlock()
		k.opt.Journal.Add(audit.Record{Event: audit.EventDeleted, Epoch: number,
			Outcome: outcome(err), Detail: audit.Line(err)})
		failed = errors.Join(failed, err)
	}
	k.opt.Problem("old epochs", failed)
	k.mu.Lock()
	defer k.mu.Unlock()
	if failed == nil {
		k.due.create = k.clock.Boot()
	}
	k.opt.Signal.Poke()
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return "failed"
}
