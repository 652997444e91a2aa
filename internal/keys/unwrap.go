package keys

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/schedule"
	"weft.dev/weft/internal/keys/secmem"
)

const (
	// keep is how many readable epochs a node holds the keys of: the newest, and the one before for peers that are late.
	keep = 2
	// unwrapTime bounds one attempt at unwrapping, or at wrapping.
	unwrapTime = time.Minute
	// unwrapParallel bounds the attempts under way at once, of which those at strangers are keep at most.
	unwrapParallel = 2 * keep
	// strangersTried is how many strangers, the newest, are tried at all; after as many failures in a row there is a
	// pause before each.
	strangersTried = 4
	strangersPause = 5 * time.Second
)

// unwraps is how attempts at unwrapping go.
type unwraps struct {
	// running are under way, of which strangers are at epochs that nothing speaks for; failed is how many of those have
	// failed since one was good.
	running, strangers, failed int
	// nextStranger is when the next of those may begin.
	nextStranger time.Duration
}

// wanted are the live epochs whose keys this node should hold, the newest first: the two newest that can be read, and those
// that a peer still runs on. Epochs that are newer but cannot be read are wanted too. The caller holds mu.
func (m *Manager) wanted() []*epoch {
	var out []*epoch
	open := 0
	for _, e := range m.sorted() {
		if !m.live(e) || (open >= keep && !(e.dek != nil && m.inUse(e.Number))) {
			continue
		}
		if e.dek != nil {
			open++
		}
		out = append(out, e)
	}
	return out
}

// proven says whether something beside the object in the store speaks for an epoch: this node has had its key, or seals
// with keys made of it. The caller holds mu.
func (m *Manager) proven(e *epoch) bool {
	_, sealing := m.sent[e.Number]
	return sealing || !e.unwrapped.IsZero() || e.Number == m.seen.Opened
}

// tries are the epochs to unwrap, in this order: those that are proven, those that a peer asks for, and of the others, which
// whoever may write to the store can make thousands of, a few of the newest. The caller holds mu.
func (m *Manager) tries() []*epoch {
	classes := make([][]*epoch, 3)
	strangers := map[bool]int{}
	for _, e := range m.wanted() {
		switch {
		case e.dek != nil:
		case m.proven(e):
			classes[0] = append(classes[0], e)
		case e.asked:
			classes[1] = append(classes[1], e)
		default:
			far := m.seen.farAhead(e.Number)
			if strangers[far]++; strangers[far] <= strangersTried {
				classes[2] = append(classes[2], e)
			}
		}
	}
	return slices.Concat(classes...)
}

// unreadable says whether an epoch's key was refused by the KMS, or is none: no outage ends that. The caller holds mu.
func (m *Manager) unreadable(e *epoch) bool {
	return e.dek == nil && (refused(e.err) || errors.Is(e.err, kek.ErrCorrupt) || errors.Is(e.err, kek.ErrWrongBinding) || errors.Is(e.err, kek.ErrWrongKEK))
}

// unwrapDue begins to unwrap what is needed, forgets what is not, and returns when to look again.
func (m *Manager) unwrapDue(ctx context.Context) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Boot()
	wanted := m.wanted()
	for _, e := range m.epochs {
		if e.dek != nil && !slices.Contains(wanted, e) {
			e.forget()
			m.recordLocked(Event{Event: EventForgotten, Epoch: e.Number})
		}
	}
	next := now + tick
	for _, e := range m.tries() {
		next = min(next, m.beginUnwrap(ctx, e, now))
	}
	newest := m.newest()
	for _, e := range wanted {
		if e == newest || e.Number == m.target {
			m.warnTTL(e, now)
		}
	}
	return next
}

// beginUnwrap begins an attempt if it is due and has a place, and returns when to look again. The caller holds mu.
func (m *Manager) beginUnwrap(ctx context.Context, e *epoch, now time.Duration) time.Duration {
	stranger := !m.proven(e) && (!e.asked || e.err != nil) // peers can ask without end, too
	switch {
	case e.running:
		return now + tick
	case now < e.nextTry && !(e.asked && e.err == nil):
		return e.nextTry
	case m.unwraps.running >= unwrapParallel || stranger && m.unwraps.strangers >= keep:
		return now + tick // whoever ends wakes the loop
	case stranger && now < m.unwraps.nextStranger:
		return m.unwraps.nextStranger
	}
	e.running, e.asked = true, false
	m.unwraps.running++
	if stranger {
		m.unwraps.strangers++
		if m.unwraps.failed >= strangersTried {
			m.unwraps.nextStranger = now + strangersPause
		}
	}
	m.work.Go(func() {
		m.unwrap(ctx, e)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.unwraps.running--
		if stranger {
			m.unwraps.strangers--
		}
		m.pokeLocked()
	})
	return now + tick
}

// inUse says whether a peer still runs on an epoch. The caller holds mu.
func (m *Manager) inUse(number uint64) bool {
	for _, p := range m.peers {
		if !p.gone && p.confirmed == number {
			return true
		}
	}
	return false
}

// unwrap makes one attempt.
func (m *Manager) unwrap(ctx context.Context, e *epoch) {
	ctx, cancel := context.WithTimeout(ctx, unwrapTime)
	defer cancel()
	began := m.clock.Boot()
	m.mu.Lock()
	wrapped := e.Wrapped
	m.mu.Unlock()
	dek, err := m.opt.KEK.Unwrap(ctx, wrapped, e.binding(m.opt.Cluster))
	if err == nil && len(dek) != schedule.DEKSize {
		clear(dek)
		err = fmt.Errorf("unwrapped to %d bytes: want %d: %w", len(dek), schedule.DEKSize, kek.ErrCorrupt)
	}
	var secret *secmem.Secret
	if err == nil {
		secret, err = secmem.Take(dek)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e.running = false
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return
	}
	m.recordLocked(Event{Event: EventUnwrapped, Epoch: e.Number, Outcome: kek.Outcome(err), Detail: text(err), Took: m.clock.Boot() - began})
	if err != nil && !bytes.Equal(wrapped, e.Wrapped) {
		e.nextTry = m.clock.Boot() // it was of a blob that is no longer there
		m.pokeLocked()
		return
	}
	if err != nil {
		e.err = err
		e.failures++
		if !m.proven(e) {
			m.unwraps.failed++
		}
		e.nextTry = m.clock.Boot() + backoff(e.failures, retryMin, 2*retryMax)
		m.counters.UnwrapErrors[kek.Outcome(err)]++
		m.log.Warn("cannot read an epoch's key", "epoch", e.Number, "err", err, "next", e.nextTry-m.clock.Boot())
		m.retarget()
		return
	}
	if e.uninvited {
		secret.Release()
		return
	}
	m.give(e, secret)
	m.retarget()
}

// give hands an epoch its key. The caller holds mu.
func (m *Manager) give(e *epoch, secret *secmem.Secret) {
	e.dek, e.err, e.failures, e.unwrapped = secret, nil, 0, m.clock.Wall()
	m.unwraps.failed = 0
	m.seen.opened(&e.Epoch)
	m.countHighest(e.Number)
	if err := secret.Locked(); err != nil {
		m.problems["memory"] = err.Error()
	}
}
