package keys

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/secmem"
)

// epoch is an epoch as this node has it.
type epoch struct {
	Epoch
	// born and deadline are when it was made and when it ends, by Clock.Boot: they were
	// computed when it was first seen and do not move with the wall clock.
	born, deadline time.Duration
	// end is the deadline and Options.ExtendTTL: no keys in use are extended beyond it.
	end time.Duration
	// answer is what the KMS has said when it was asked last whether this node may have the key still, which was for
	// keys that end at askedOf.
	answer  error
	askedOf time.Duration
	// told is the end of extended keys that was last told of.
	told time.Duration
	// rotateAt is when it is old enough for the next, by Clock.Boot.
	rotateAt time.Duration

	// dek is nil until it was unwrapped.
	dek       *secmem.Secret
	unwrapped time.Time
	err       error
	// refused: it is not to be used, whatever the KMS would say.
	refused   error
	failures  int
	nextTry   time.Duration
	running   bool // it is being unwrapped
	asked     bool // a peer waits for it
	warned    int  // percent of the hard TTL that were warned of
	uninvited bool // withdrawn while it was being unwrapped
}

func (e *epoch) forget() {
	e.dek.Release()
	e.dek = nil
}

// anchor computes an epoch's times by Clock.Boot. An object from the future counts as
// made now, and none lives longer than it says, nor than this node's own hard TTL, from the moment it was first seen.
func (m *Manager) anchor(e *epoch) {
	now, wall := m.clock.Boot(), m.clock.Wall()
	first := wall
	if e.refused == nil {
		first = m.seen.first(e.Number, wall)
	}
	e.born = now - max(wall.Sub(e.Created), 0)
	e.deadline = now + min(e.Expires.Sub(wall), e.Expires.Sub(e.Created), m.opt.HardTTL-wall.Sub(first))
	e.end = e.deadline + m.opt.ExtendTTL
	// Some jitter, so that a node that takes over does not act in the same moment.
	e.rotateAt = e.born + m.opt.MaxAge - clock.Spread(m.opt.MaxAge/20)
}

// live says whether an epoch has not reached its hard TTL, or may go on beyond it. The caller holds mu.
func (m *Manager) live(e *epoch) bool {
	now := m.clock.Boot()
	if e.refused != nil {
		return false
	}
	return now < e.deadline || (now < e.end && m.mayExtend(e))
}

// sorted are the epochs, the newest first. The caller holds mu.
func (m *Manager) sorted() []*epoch {
	out := make([]*epoch, 0, len(m.epochs))
	for _, e := range m.epochs {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b *epoch) int { return cmp.Compare(b.Number, a.Number) })
	return out
}

// newest is the newest live epoch, whether it can be read here or not, unless it is far ahead. The caller holds mu.
func (m *Manager) newest() *epoch {
	for _, e := range m.sorted() {
		if m.live(e) && !m.seen.farAhead(e.Number) {
			return e
		}
	}
	return nil
}

// open is the newest live epoch whose key this node holds, nil if there is none. The caller holds mu.
func (m *Manager) open() *epoch {
	for _, e := range m.sorted() {
		if e.dek != nil && m.live(e) {
			return e
		}
	}
	return nil
}

// reload reads the store's epochs. When it does not answer, those known stay.
func (m *Manager) reload() {
	m.storeLock.Lock()
	list, err := m.opt.Store.Epochs()
	m.mu.Lock()
	now := m.clock.Boot()
	if err != nil {
		m.due.storeRetry = min(max(2*m.due.storeRetry, retryMin), retryMax)
		m.due.store = now + m.due.storeRetry
	} else {
		m.due.storeRetry = 0
		m.due.store = now + storeEvery + clock.Spread(storeEvery/4)
		m.merge(list)
	}
	m.mu.Unlock()
	m.storeLock.Unlock()
	if err != nil {
		err = fmt.Errorf("read epochs, those known stay in use: %w", err)
	}
	m.problem("store", err)
}

// merge takes a listing over. The caller holds mu.
func (m *Manager) merge(list []Epoch) {
	m.listed = true
	m.seen.keep(list, m.clock.Wall(), m.opt.HardTTL+m.opt.ExtendTTL)
	highest := m.seen.Highest
	there := map[uint64]bool{}
	for i := range list {
		there[list[i].Number] = true
		m.add(list[i], highest)
	}
	for number, e := range m.epochs {
		if !there[number] {
			m.drop(e)
		}
	}
	m.retarget()
}

// add takes one epoch over and returns it. highest is the highest number seen before. The caller holds mu.
func (m *Manager) add(e Epoch, highest uint64) *epoch {
	m.journal.WrappedBy(e.Number, e.KEK, e.KEKVersion, m.highest)
	if old := m.epochs[e.Number]; old != nil {
		if bytes.Equal(old.Wrapped, e.Wrapped) && old.Created.Equal(e.Created) && old.Expires.Equal(e.Expires) {
			return old
		}
		if old.Created.Equal(e.Created) && old.Expires.Equal(e.Expires) && old.KEK == e.KEK {
			m.rewrapped(old, e)
			return old
		}
		// Somebody put another key in its place: nothing of the old one may be made any more.
		m.drop(old)
	}
	added := &epoch{Epoch: e, refused: m.seen.refuse(&e, highest)}
	m.anchor(added)
	added.nextTry = m.clock.Boot()
	if m.target != 0 {
		added.nextTry += clock.Spread(m.span())
	}
	m.epochs[e.Number] = added
	if !m.seen.farAhead(e.Number) {
		m.seen.listed(e.Number)
		m.highest = max(m.highest, e.Number)
	}
	if added.refused != nil {
		m.refuseEpoch(added)
		return added
	}
	m.journal.Add(audit.Record{Event: audit.EventSeen, Epoch: e.Number})
	return added
}

// drop forgets an epoch that is no longer in the store. Keys made with it stay in the
// datapath until their pair has moved on. The caller holds mu.
func (m *Manager) drop(e *epoch) {
	e.uninvited = true
	e.forget()
	delete(m.epochs, e.Number)
	m.journal.Add(audit.Record{Event: audit.EventWithdrawn, Epoch: e.Number})
}

// retarget finds the newest epoch that can be read, and plans exchanges when it is
// another one than before. The caller holds mu.
func (m *Manager) retarget() {
	var target uint64
	if e := m.open(); e != nil {
		target = e.Number
	}
	if target != m.target {
		m.target = target
		for _, p := range m.peers {
			p.failures = 0
			m.plan(p)
		}
	}
	m.pokeLocked()
}

// warnings are the shares of the hard TTL, in percent, at which a lack of a newer epoch is told.
var warnings = []int{50, 80, 95}

// warnTTL tells, once for each share, that the epoch in use nears its end and that there is no way on: the next is
// overdue, or cannot be read here. The caller holds mu.
func (m *Manager) warnTTL(e *epoch, now time.Duration) {
	percent := m.percent(e)
	for _, w := range warnings {
		if percent < w || e.warned >= w || m.wayOn(e, now) {
			continue
		}
		e.warned = w
		detail := fmt.Sprintf("%d%% of the hard TTL are over, %s", w, m.lacks(e))
		m.journal.Add(audit.Record{Event: audit.EventTTL, Epoch: e.Number, Detail: detail})
		m.log.Warn("keys: an epoch nears its hard TTL", "epoch", e.Number, "percent", w, "left", e.deadline-now, "why", m.lacks(e))
	}
}

// percent is how much of an epoch's hard TTL is over.
func (m *Manager) percent(e *epoch) int {
	return int(min(100*(m.clock.Boot()-e.born)/max(e.deadline-e.born, 1), 100))
}

// wayOn says whether an epoch is not the one to worry about: it is not in use, or the next will come in time. The
// caller holds mu.
func (m *Manager) wayOn(e *epoch, now time.Duration) bool {
	newest := m.newest()
	switch {
	case newest == nil:
		return true
	case e == newest:
		return now < e.rotateAt
	}
	// Behind the newest: only if that cannot be read.
	return e.Number != m.target || newest.err == nil
}

// lacks says why there is no way on from an epoch. The caller holds mu.
func (m *Manager) lacks(e *epoch) string {
	newest := m.newest()
	switch {
	case newest == nil || newest == e:
		return "and there is no newer epoch"
	case newest.dek == nil:
		return fmt.Sprintf("and this node cannot read epoch %d (%s)", newest.Number, unwrapKind(newest.err))
	}
	return fmt.Sprintf("and not every peer moves to epoch %d", newest.Number)
}

// ttlProblem is the last warning that still holds, "" for none. The caller holds mu.
func (m *Manager) ttlProblem() string {
	if text := m.extendedProblem(); text != "" {
		return text
	}
	now := m.clock.Boot()
	for _, e := range m.sorted() {
		if now < e.deadline && e.warned > 0 && !m.wayOn(e, now) {
			return fmt.Sprintf("ttl: %d%% of epoch %d's hard TTL are over, %s; packets are dropped in %s%s", m.percent(e), e.Number, m.lacks(e), (e.deadline - now).Round(time.Second), m.prospect(e))
		}
	}
	return ""
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return line(err)
}

// unwrapKind is why an epoch's key cannot be read, in one word.
func unwrapKind(err error) string { return kek.Outcome(err) }
