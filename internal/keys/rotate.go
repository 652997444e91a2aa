package keys

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

// createDue makes an epoch if one is due, removes old ones, and returns when to look again.
func (m *Manager) createDue(ctx context.Context) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Boot()
	if !m.listed || now < m.due.create {
		return max(m.due.create, now+time.Millisecond)
	}
	reason, next := m.reason(now)
	if reason != "" {
		m.due.create = now + retryMin
		m.work.Go(func() { m.createFor(ctx, reason) })
		return m.due.create
	}
	if old := m.outdated(); m.leader && len(old) > 0 {
		m.due.create = now + retryMin
		m.work.Go(func() { m.removeEpochs(old) })
	}
	return next
}

// reason says why an epoch has to be made now, "" for not at all, and when to ask again. The caller holds mu.
func (m *Manager) reason(now time.Duration) (string, time.Duration) {
	reason, next := m.lacking(now)
	if reason == "" {
		m.taken = 0
	}
	if reason == "" || !m.undecided() {
		m.due.decide = 0
		return reason, next
	}
	if m.due.decide == 0 {
		m.due.decide = now + min(decideMost, (m.opt.HardTTL-m.opt.MaxAge)/4)
	}
	if now < m.due.decide {
		return "", min(m.due.decide, now+tick)
	}
	return reason, now
}

// decideMost is how long an epoch that is due is put off, at most, for others that may turn out to be it.
const decideMost = 10 * time.Minute

// undecided says whether there is an epoch newer than all that this node can read, and it may be readable yet. Another node
// has made it, then, or somebody who may write to the store and not wrap. The caller holds mu.
func (m *Manager) undecided() bool {
	var open uint64
	if e := m.open(); e != nil {
		open = e.Number
	}
	return slices.ContainsFunc(m.tries(), func(e *epoch) bool {
		return e.Number > open && !m.seen.farAhead(e.Number) && !m.unreadable(e)
	})
}

// lacking says why the epochs that there are do not do, "" if they do, and when to ask again. Age and packets are those of
// the newest that this node can read: what it cannot has a number, and proves nothing. The packet budget is every node's
// business, the rest the leader's. The caller holds mu.
func (m *Manager) lacking(now time.Duration) (string, time.Duration) {
	newest, open := m.newest(), m.open()
	if open != nil && m.spent(open.Number) {
		return ReasonPackets, now
	}
	switch {
	case m.onlyPast():
		// A leader that is new to the cluster may take them for good, and does not know which numbers were used.
		return ReasonRemoved, now
	case !m.leader:
		return "", now + tick
	case newest == nil, open == nil:
		return ReasonFirst, now
	case newest.Number < m.highest:
		return ReasonRemoved, now
	case now >= open.rotateAt:
		return ReasonAge, now
	}
	return "", min(open.rotateAt, now+tick)
}

// spent says whether a lane of this node has sent nearly as many packets as it may in
// an epoch. The caller holds mu.
func (m *Manager) spent(number uint64) bool {
	return m.sent[number] >= m.opt.MaxPackets-m.opt.MaxPackets/16
}

// createFor makes an epoch that is due, and backs off when it cannot.
func (m *Manager) createFor(ctx context.Context, reason string) {
	if !m.making.TryLock() {
		return
	}
	defer m.making.Unlock()
	_, err := m.create(ctx, reason)
	if ctx.Err() != nil {
		return
	}
	if errors.Is(err, ErrExists) {
		err = nil
	}
	m.problem("rotation", err)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.failures, m.due.create = 0, m.clock.Boot()
	} else {
		m.failures++
		m.due.create = m.clock.Boot() + clock.Backoff(m.failures, retryMin, retryMax)
	}
	m.pokeLocked()
}

// next is the number of the epoch to make, 0 if none is due any more: another node's may have come since it was found to be due,
// and of many nodes that want one each would make its own.
func (m *Manager) next(reason string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if reason != ReasonHand {
		if now, _ := m.reason(m.clock.Boot()); now == "" {
			return 0
		}
	}
	if m.taken == 0 {
		return m.unusedFrom(m.highest + 1)
	}
	// Whoever may write to the store can take the next number as soon as it is, but not all of them.
	return m.unusedFrom(m.highest + 1 + rand.Uint64N(1<<min(4*m.taken, 16)))
}

// unusedFrom is the first number from one on that no epoch in use stands for on the wire: peers could not go from one epoch
// to another of the same SPIs. Numbers that others took may have led there. The caller holds mu.
func (m *Manager) unusedFrom(number uint64) uint64 {
	used := map[uint8]bool{}
	for _, p := range m.peers {
		if !p.gone && p.confirmed > 0 {
			used[Nibble(p.confirmed)] = true
		}
	}
	for _, e := range m.epochs {
		if e.dek != nil && m.live(e) {
			used[Nibble(e.Number)] = true
		}
	}
	for range nibbles {
		if !used[Nibble(number)] {
			return number
		}
		number++
	}
	return number
}

// create makes and publishes the next epoch. Another node's that came first is as good,
// and is returned with ErrExists. The caller holds making.
func (m *Manager) create(ctx context.Context, reason string) (Epoch, error) {
	for range createTries {
		number := m.next(reason)
		if number == 0 {
			return Epoch{}, fmt.Errorf("make epoch: not due any more: %w", ErrExists)
		}
		e, err := m.publish(ctx, number, reason)
		if !errors.Is(err, ErrExists) {
			return e, err
		}
		m.reload()
		m.mu.Lock()
		theirs := m.epochs[number]
		if theirs == nil {
			// A file of that name that holds no good epoch.
			m.highest = max(m.highest, number)
		} else {
			m.taken++
		}
		m.mu.Unlock()
		if theirs != nil {
			return theirs.Epoch, fmt.Errorf("epoch %d: %w", number, ErrExists)
		}
	}
	return Epoch{}, errors.New("make epoch: other nodes, or files that hold no epoch, have taken every number that was tried")
}

// publish makes one epoch of a number.
func (m *Manager) publish(ctx context.Context, number uint64, reason string) (Epoch, error) {
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
	e, err := m.wrap(ctx, secret, number)
	if err != nil {
		return Epoch{}, fmt.Errorf("make epoch %d: %w", number, err)
	}
	m.storeLock.Lock()
	defer m.storeLock.Unlock()
	if err := m.opt.Store.CreateEpoch(e); err != nil {
		return Epoch{}, fmt.Errorf("publish epoch %d: %w", number, err)
	}
	m.log.Info("new epoch", "epoch", number, "reason", reason, "kek", e.KEK, "expires", e.Expires)
	m.mu.Lock()
	defer m.mu.Unlock()
	added := m.add(e, m.seen.Highest)
	if added.dek == nil {
		m.give(added, secret)
		given = true
	}
	m.counters.Rotations[reason]++
	m.journal.Add(audit.Record{Event: audit.EventCreated, Epoch: number, Outcome: "ok", Detail: reason})
	m.retarget()
	return e, nil
}

// wrap makes the object of an epoch.
func (m *Manager) wrap(ctx context.Context, secret *secmem.Secret, number uint64) (Epoch, error) {
	ctx, cancel := context.WithTimeout(ctx, unwrapTime)
	defer cancel()
	e := Epoch{Number: number, KEK: m.opt.KEK.URL()}
	// Before the KMS is asked, since it binds them; the epoch is as much older as the KMS takes.
	e.Created = m.clock.Wall().UTC().Truncate(time.Millisecond)
	e.Expires = e.Created.Add(m.opt.HardTTL.Truncate(time.Millisecond))
	began := m.clock.Boot()
	err := secret.Use(func(dek []byte) (err error) {
		e.Wrapped, e.KEKVersion, err = m.opt.KEK.Wrap(ctx, dek, e.binding(m.opt.Cluster))
		return err
	})
	m.journal.Add(audit.Record{Event: audit.EventWrapped, Epoch: number, Outcome: kek.Outcome(err), Detail: text(err), Latency: m.clock.Boot() - began})
	return e, err
}

// Rotate makes the next epoch now, on any node. An epoch that its peers are still
// taking into use is waited for, as long as ctx allows: no more than two are live.
func (m *Manager) Rotate(ctx context.Context) (Epoch, error) {
	// Another node may have made one already that this one has not heard of.
	m.reload()
	if err := m.Settled(ctx); err != nil {
		return Epoch{}, fmt.Errorf("rotate: the epoch before is still being taken into use: %w", err)
	}
	m.making.Lock()
	defer m.making.Unlock()
	m.reload()
	e, err := m.create(ctx, ReasonHand)
	if errors.Is(err, ErrExists) {
		err = nil
	}
	if err != nil {
		return Epoch{}, fmt.Errorf("rotate: %w", err)
	}
	m.poke()
	return e, nil
}

// Settled waits until every peer that can be talked to runs on the newest epoch in both directions.
func (m *Manager) Settled(ctx context.Context) error {
	for {
		m.mu.Lock()
		waits, changed := m.unsettled(), m.changed
		m.mu.Unlock()
		if waits == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", waits, ctx.Err())
		case <-changed:
		}
	}
}

// unsettled names what is not on the newest epoch and did not fail to get there either.
// The caller holds mu.
func (m *Manager) unsettled() string {
	if !m.ready || !m.listed {
		return "this node has not read datapath and store yet"
	}
	newest := m.newest()
	if newest == nil {
		return ""
	}
	if newest.dek == nil && newest.err == nil {
		return fmt.Sprintf("the key of epoch %d is not unwrapped yet", newest.Number)
	}
	for name, p := range m.peers {
		// A peer that could not be reached in the epoch before is not waited for.
		if !p.gone && m.needs(p) && p.tried != m.target && p.lastErr == nil {
			return fmt.Sprintf("peer %s is not on epoch %d yet", name, m.target)
		}
	}
	return ""
}

// outdated are the epochs to remove: past all that any node may extend them to, or behind two
// that this node can read and left by every peer. The caller holds mu.
func (m *Manager) outdated() []uint64 {
	var out []uint64
	now := m.clock.Boot()
	behind := 0
	for _, e := range m.sorted() {
		if now >= e.end || (behind >= keep && !m.behindOn(e.Number)) {
			out = append(out, e.Number)
		}
		if e.dek != nil {
			behind++
		}
	}
	return out
}

// behindOn says whether a peer runs on an epoch or an older one. The caller holds mu.
func (m *Manager) behindOn(number uint64) bool {
	for name, p := range m.peers {
		if p.gone {
			continue
		}
		tx, rx := m.kernel.pair(name)
		for _, n := range []uint64{p.confirmed, tx.number, rx.number} {
			if n != 0 && n <= number {
				return true
			}
		}
	}
	return false
}

func (m *Manager) removeEpochs(numbers []uint64) {
	var failed error
	for _, number := range numbers {
		m.storeLock.Lock()
		err := m.opt.Store.DeleteEpoch(number)
		m.mu.Lock()
		if e := m.epochs[number]; e != nil && err == nil {
			m.drop(e)
		}
		m.mu.Unlock()
		m.storeLock.Unlock()
		m.journal.Add(audit.Record{Event: audit.EventDeleted, Epoch: number, Outcome: outcome(err), Detail: text(err)})
		failed = errors.Join(failed, err)
	}
	m.problem("old epochs", failed)
	m.mu.Lock()
	defer m.mu.Unlock()
	if failed == nil {
		m.due.create = m.clock.Boot()
	}
	m.pokeLocked()
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return "failed"
}
