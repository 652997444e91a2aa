package keys

import (
	"errors"
	"time"

	"weft.dev/weft/internal/keys/audit"
)

// cleanAll removes from the datapath what no packet needs any more, and returns when
// to look again.
func (m *Manager) cleanAll() time.Duration {
	m.mu.Lock()
	var names []string
	if m.peersSet {
		now := m.clock.Boot()
		for _, name := range m.kernel.nodes() {
			if m.peers[name] == nil && name != m.opt.Node {
				// It left while no agent ran.
				p := newPeer(Peer{Name: name}, now)
				p.gone, p.goneAt = true, now
				m.peers[name] = p
			}
		}
	}
	for name := range m.peers {
		names = append(names, name)
	}
	m.mu.Unlock()
	next := m.clock.Boot() + tick
	var failed error
	for _, name := range names {
		due, err := m.clean(name)
		next = min(next, due)
		failed = errors.Join(failed, err)
	}
	m.problem("clean up", failed)
	return next
}

// clean removes a peer's keys that are past their time. It returns when the next are.
func (m *Manager) clean(name string) (time.Duration, error) {
	defer m.kernel.lock(name)()
	now := m.clock.Boot()
	next := now + tick
	groups, sealing := m.kernel.of(name)
	m.mu.Lock()
	p := m.peers[name]
	if p == nil {
		m.mu.Unlock()
		return next, nil
	}
	if p.gone {
		m.mu.Unlock()
		return m.part(p, groups, sealing)
	}
	var remove []group
	for g, h := range groups {
		at, why := m.removeAt(p, g, h, groups, sealing, now)
		if why == "" {
			continue
		}
		if now < at {
			next = min(next, at)
			continue
		}
		remove = append(remove, g)
		p.expired = p.expired || (now >= h.deadline && h.number >= p.confirmed)
		m.journal.Add(audit.Record{Event: audit.EventDestroyed, Epoch: h.number, Peer: name, Detail: direction(g.out) + ": " + why})
	}
	m.mu.Unlock()
	var failed error
	for _, g := range remove {
		if g.out && g.nibble == sealing {
			failed = errors.Join(failed, m.kernel.seal(name, 0))
		}
		failed = errors.Join(failed, m.kernel.remove(name, g))
	}
	if failed != nil {
		next = now + retryMin
	}
	return next, failed
}

func direction(out bool) string {
	if out {
		return "for sending"
	}
	return "for receiving"
}

// removeAt says when keys may go and why, "" for not yet known. The caller holds mu.
func (m *Manager) removeAt(p *peer, g group, h held, groups map[group]held, sealing uint8, now time.Duration) (time.Duration, string) {
	if now >= h.deadline {
		return h.deadline, "hard TTL"
	}
	if p.session == h.number && h.number != p.confirmed && now < p.sessionAt+sessionMax {
		return 0, "" // an exchange about them is under way
	}
	if at, ok := leftAt(h, groups); ok && !g.out {
		return min(at, now) + m.opt.Drain, "drained"
	}
	switch {
	case h.number >= p.confirmed:
		return h.deadline, "hard TTL"
	case g.out && g.nibble != sealing:
		return now, "a newer epoch is in use"
	case g.out:
		return h.deadline, "hard TTL"
	}
	left, ok := p.left[h.number]
	if !ok {
		return h.deadline, "hard TTL"
	}
	return left + m.opt.Drain, "drained"
}

// part removes a peer that is no longer a node. The caller holds the peer's lock.
func (m *Manager) part(p *peer, groups map[group]held, sealing uint8) (time.Duration, error) {
	now := m.clock.Boot()
	if until := p.goneAt + m.opt.Drain; now < until {
		return until, nil
	}
	var failed error
	if sealing != 0 {
		failed = m.kernel.seal(p.Name, 0)
	}
	for g := range groups {
		failed = errors.Join(failed, m.kernel.remove(p.Name, g))
	}
	if failed != nil {
		return now + retryMin, failed
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.gone { // it may have come back
		delete(m.peers, p.Name)
		m.journal.Add(audit.Record{Event: audit.EventDestroyed, Peer: p.Name, Detail: "the node is gone"})
	}
	return now + tick, nil
}
