package keys

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weft.dev/weft/internal/keys/kek"
)

// extendMost is the longest step by which keys in use are extended. The datapath holds no later end than the last
// step's, so they outlive an agent that is gone by one and a half of them at most.
const extendMost = 10 * time.Minute

// extendStep is by how much keys in use are extended at once: often enough that each step can be told, and with room
// for a drain when the next epoch comes. 0 if Options.ExtendTTL is.
func (m *Manager) extendStep() time.Duration {
	return min(max(min(m.opt.ExtendTTL/8, extendMost), 2*m.opt.Drain), m.opt.ExtendTTL)
}

// extendAhead is how long before their end keys in use are extended.
func (m *Manager) extendAhead() time.Duration { return m.extendStep() / 2 }

// mayExtend says whether an epoch may go on past its hard TTL here. Not if the KMS has refused this node its key: an
// answer is no outage, and whoever has withdrawn the KEK is obeyed. The caller holds mu.
func (m *Manager) mayExtend(e *epoch) bool {
	return m.opt.ExtendTTL > 0 && !refused(e.err) && !refused(e.answer)
}

// refused says whether a KMS has answered, and the answer is no.
func refused(err error) bool {
	return errors.Is(err, kek.ErrDenied) || errors.Is(err, kek.ErrDisabled) || errors.Is(err, kek.ErrNotFound)
}

// ask has the KMS say whether this node may still have the key of an epoch, which it holds. Not all nodes at once.
func (m *Manager) ask(ctx context.Context, e *epoch) {
	if !m.sleep(ctx, spread(m.extendAhead()/4)) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, unwrapTime)
	defer cancel()
	m.mu.Lock()
	wrapped := e.Wrapped
	m.mu.Unlock()
	began := m.clock.Boot()
	dek, err := m.opt.KEK.Unwrap(ctx, wrapped, e.binding(m.opt.Cluster))
	clear(dek)
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return
	}
	e.answer = err
	m.recordLocked(Event{Event: EventUnwrapped, Epoch: e.Number, Outcome: kek.Outcome(err), Detail: text(err), Took: m.clock.Boot() - began})
	if err != nil {
		m.counters.UnwrapErrors[kek.Outcome(err)]++
	}
	if refused(err) {
		m.log.Error("keys: the KMS refuses the key of an epoch, which is not extended", "epoch", e.Number, "err", err)
	}
	m.retarget()
}

// until is when keys of an epoch expire that are installed now, by Clock.Boot. The caller holds mu.
func (m *Manager) until(e *epoch) time.Duration {
	now := m.clock.Boot()
	if now < e.deadline-m.extendAhead() || !m.mayExtend(e) {
		return e.deadline
	}
	return min(max(now, e.deadline)+m.extendStep(), e.end)
}

// use is the keys of one direction that packets pass with, as far as this node can tell.
type use struct {
	peer string
	group
	held
}

// uses finds the keys of an epoch that are in use: those for sending that are sent with, and those for receiving that
// nothing but their end would remove. The caller holds mu.
func (m *Manager) uses(e *epoch, now time.Duration) []use {
	var out []use
	for name, p := range m.peers {
		if p.gone {
			continue
		}
		groups, sealing := m.kernel.of(name)
		for _, g := range []group{{true, Nibble(e.Number)}, {false, Nibble(e.Number)}} {
			h, ok := groups[g]
			if !ok || h.number != e.Number || h.mixed || now >= h.deadline || (g.out && g.nibble != sealing) {
				continue
			}
			if _, why := m.removeAt(p, g, h, groups, sealing, now); why != "drained" {
				out = append(out, use{name, g, h})
			}
		}
	}
	return out
}

// extendDue extends the keys of epochs that are in use still when their hard TTL comes: that alone says that there
// was no way on. The KMS is asked beforehand. It returns when to look again.
func (m *Manager) extendDue(ctx context.Context) time.Duration {
	now := m.clock.Boot()
	next := now + tick
	if m.opt.ExtendTTL == 0 {
		return next
	}
	m.mu.Lock()
	due := map[time.Duration][]use{}
	for _, e := range m.epochs {
		if begin := e.deadline - m.extendStep(); now < begin {
			next = min(next, begin)
		} else if m.live(e) && m.mayExtend(e) {
			until, uses, again := m.nextEnd(ctx, e, now)
			next = min(next, again)
			due[until] = append(due[until], uses...)
		}
	}
	m.mu.Unlock()
	var failed error
	for until, uses := range due {
		for _, u := range uses {
			failed = errors.Join(failed, m.extend(u, until))
		}
	}
	m.problem("extend keys", failed)
	m.tellExtended()
	if failed != nil {
		next = min(next, now+retryMin)
	}
	return next
}

// nextEnd is the end that keys of an epoch are to get now, and which of them. All get the same, so that they are due
// together the next time. The caller holds mu.
func (m *Manager) nextEnd(ctx context.Context, e *epoch, now time.Duration) (until time.Duration, due []use, next time.Duration) {
	uses, soonest := m.uses(e, now), e.end
	for _, u := range uses {
		soonest = min(soonest, u.deadline)
	}
	asks, extends := soonest-m.extendStep(), soonest-m.extendAhead()
	if now < asks || len(uses) == 0 {
		return 0, nil, max(asks, now+m.extendAhead())
	}
	if e.dek != nil && e.askedOf != soonest { // without its key, it is being asked for anyway
		e.askedOf = soonest
		m.work.Go(func() { m.ask(ctx, e) })
	}
	if now < extends {
		return 0, nil, extends
	}
	until = min(soonest+m.extendStep(), e.end)
	for _, u := range uses {
		if u.deadline < until {
			due = append(due, u)
		}
	}
	return until, due, now + max(m.extendAhead(), time.Millisecond)
}

// extend moves the end of one direction's keys, unless they were replaced meanwhile.
func (m *Manager) extend(u use, until time.Duration) error {
	defer m.kernel.lock(u.peer)()
	groups, _ := m.kernel.of(u.peer)
	if h, ok := groups[u.group]; !ok || h.id != u.id || h.deadline >= until {
		return nil
	}
	return m.kernel.extend(u.peer, u.group, until)
}

// extended is until when, by Clock.Boot, keys of an epoch are in use beyond its hard TTL, and with how many peers; 0 if
// none are. The caller holds mu.
func (m *Manager) extended(e *epoch) (until time.Duration, peers int) {
	now := m.clock.Boot()
	if m.opt.ExtendTTL == 0 || now < e.deadline-m.extendAhead() {
		return 0, 0
	}
	with := map[string]bool{}
	for _, u := range m.uses(e, now) {
		if u.deadline > e.deadline {
			until, with[u.peer] = max(until, u.deadline), true
		}
	}
	return until, len(with)
}

// most is until when keys of an epoch may live that are extended to until. The caller holds mu.
func (m *Manager) most(e *epoch, until time.Duration) time.Duration {
	if m.mayExtend(e) {
		return e.end
	}
	return until
}

// prospect says what follows an epoch's hard TTL, "" for nothing. The caller holds mu.
func (m *Manager) prospect(e *epoch) string {
	switch {
	case m.opt.ExtendTTL == 0:
		return ""
	case m.mayExtend(e):
		return fmt.Sprintf(", unless keys.extendTTL carries on for %s", m.opt.ExtendTTL)
	}
	no := e.answer
	if refused(e.err) {
		no = e.err
	}
	return fmt.Sprintf(", since the KMS refuses its key (%s), and keys.extendTTL is for outages", unwrapKind(no))
}

// tellExtended raises the alarm, anew at every step, and calls it off.
func (m *Manager) tellExtended() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.epochs {
		until, peers := m.extended(e)
		if until == 0 && e.told != 0 {
			e.told = 0
			m.log.Warn("keys: an epoch is no longer in use beyond its hard TTL", "epoch", e.Number, "recovered", m.target > e.Number)
		}
		if until <= e.told {
			continue
		}
		e.told = until
		detail := fmt.Sprintf("past the hard TTL, to %s, with %d peers, %s; at most to %s",
			m.wall(until).UTC().Format(time.RFC3339), peers, m.lacks(e), m.wall(m.most(e, until)).UTC().Format(time.RFC3339))
		m.recordLocked(Event{Event: EventExtended, Epoch: e.Number, Detail: detail})
		m.log.Error("keys: AN EPOCH IS EXTENDED BEYOND ITS HARD TTL", "epoch", e.Number, "peers", peers, "until", m.wall(until), "most", m.wall(m.most(e, until)), "why", m.lacks(e))
	}
}

// extendedProblem says which epoch is extended, "" for none. The caller holds mu.
func (m *Manager) extendedProblem() string {
	now := m.clock.Boot()
	for _, e := range m.sorted() {
		if until, peers := m.extended(e); until != 0 {
			return fmt.Sprintf("ttl: EXTENDED: epoch %d is in use with %d peers beyond its hard TTL, %s; packets are dropped in %s at the latest", e.Number, peers, m.lacks(e), (m.most(e, until) - now).Round(time.Second))
		}
	}
	return ""
}
