package keys

import (
	"context"
	"errors"
	"time"

	"weft.dev/weft/internal/keys/epochs"
)

// extendDue extends the keys of epochs that are in use still when their hard TTL comes: that
// alone says that there was no way on. The KMS is asked beforehand. It returns when to look again.
func (m *Manager) extendDue(ctx context.Context) time.Duration {
	now := m.clock.Boot()
	if m.opt.ExtendTTL == 0 {
		return now + tick
	}
	step := m.epochs.ExtendStep()
	ending, next := m.epochs.Ending(step)
	var failed error
	for _, e := range ending {
		if !e.Extendable {
			continue
		}
		until, due, again := m.nextEnd(ctx, e, m.peers.uses(e.Number, now), now)
		next = min(next, again)
		for _, u := range due {
			if !m.epochs.MayExtend(e.Number) {
				break // the KMS has said no meanwhile
			}
			failed = errors.Join(failed, m.table.Extend(u.peer, u.group, u.ID, until))
		}
	}
	m.problems.set("extend keys", failed)
	m.epochs.TellExtended(m.extensions())
	if failed != nil {
		next = min(next, now+retryMin)
	}
	return next
}

// nextEnd is the end that an epoch's keys in use are to get now, and which of them. All get the
// same, so that they are due together the next time. It returns when to look again.
func (m *Manager) nextEnd(ctx context.Context, e epochs.Ending, uses []use, now time.Duration) (
	until time.Duration, due []use, next time.Duration,
) {
	step, ahead, soonest := m.epochs.ExtendStep(), m.epochs.ExtendAhead(), e.End
	for _, u := range uses {
		soonest = min(soonest, u.Deadline)
	}
	asks, extends := soonest-step, soonest-ahead
	if now < asks || len(uses) == 0 {
		return 0, nil, max(asks, now+ahead)
	}
	m.epochs.Ask(ctx, e.Number, soonest)
	if now < extends {
		return 0, nil, extends
	}
	until = min(soonest+step, e.End)
	for _, u := range uses {
		if u.Deadline < until {
			due = append(due, u)
		}
	}
	return until, due, now + max(ahead, time.Millisecond)
}

// extensions say which epochs' keys are in use beyond their hard TTL.
func (m *Manager) extensions() map[uint64]epochs.Extension {
	if m.opt.ExtendTTL == 0 {
		return nil
	}
	now := m.clock.Boot()
	ending, _ := m.epochs.Ending(m.epochs.ExtendAhead())
	out := map[uint64]epochs.Extension{}
	for _, e := range ending {
		with, until := map[string]bool{}, time.Duration(0)
		for _, u := range m.peers.uses(e.Number, now) {
			if u.Deadline > e.Deadline {
				until, with[u.peer] = max(until, u.Deadline), true
			}
		}
		if until != 0 {
			out[e.Number] = epochs.Extension{Until: until, Peers: len(with)}
		}
	}
	return out
}
