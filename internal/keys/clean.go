package keys

import (
	"errors"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/sadb"
)

// cleanAll removes from the datapath what no packet needs any more, and returns when
// to look again.
func (p *peers) cleanAll() (time.Duration, error) {
	next := p.clock.Boot() + tick
	var failed error
	for _, name := range p.names() {
		due, err := p.clean(name)
		next = min(next, due)
		failed = errors.Join(failed, err)
	}
	return next, failed
}

// names are all peers, with those that left while no agent ran.
func (p *peers) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known {
		now := p.clock.Boot()
		for _, name := range p.table.Peers() {
			if p.byName[name] == nil && name != p.opt.Node {
				q := newPeer(Peer{Name: name}, now)
				q.gone, q.goneAt = true, now
				p.byName[name] = q
			}
		}
		p.count.Store(int64(len(p.byName)))
	}
	out := make([]string, 0, len(p.byName))
	for name := range p.byName {
		out = append(out, name)
	}
	return out
}

// clean removes a peer's keys that are past their time. It returns when the next are.
func (p *peers) clean(name string) (time.Duration, error) {
	defer p.table.Lock(name)()
	now := p.clock.Boot()
	state := p.table.Of(name)
	p.mu.Lock()
	q := p.byName[name]
	if q == nil {
		p.mu.Unlock()
		return now + tick, nil
	}
	if q.gone {
		goneAt := q.goneAt
		p.mu.Unlock()
		return p.part(name, goneAt, state)
	}
	remove, next := p.past(q, state, now)
	p.mu.Unlock()
	var failed error
	for _, g := range remove {
		if g.Out && g.Wire == state.Sealing {
			failed = errors.Join(failed, p.table.Seal(name, 0))
		}
		failed = errors.Join(failed, p.table.Remove(name, g))
	}
	if failed != nil {
		next = now + retryMin
	}
	return next, failed
}

// past are a peer's keys that are past their time, and when the next will be. The caller holds mu.
func (p *peers) past(q *peer, state sadb.State,
	now time.Duration) (remove []sadb.Group, next time.Duration) {
	next = now + tick
	for g, h := range state.Groups {
		at, why := p.removeAt(q, g, h, state, now)
		if why == "" {
			continue
		}
		if now < at {
			next = min(next, at)
			continue
		}
		remove = append(remove, g)
		q.expired = q.expired || (now >= h.Deadline && h.Number >= q.confirmed)
		p.journal.Add(audit.Record{
			Event: audit.EventDestroyed, Epoch: h.Number, Peer: q.Name,
			Detail: direction(g.Out) + ": " + why,
		})
	}
	return remove, next
}

func direction(out bool) string {
	if out {
		return "for sending"
	}
	return "for receiving"
}

// sendDrain is how long keys for sending stay after the switch to newer ones: packets that have
// their number wait for the sealer, which loses no more than what its queue holds if it needs
// longer. The peer keeps its receive keys for its whole drain from the same moment on, so half of
// that is left for what is on its way.
const sendDrain = time.Second

func (p *peers) sendDrain() time.Duration { return min(sendDrain, p.opt.Drain/2) }

// removeAt says when keys may go and why, "" for not yet known. The caller holds mu.
func (p *peers) removeAt(q *peer, g sadb.Group, h sadb.Held, state sadb.State,
	now time.Duration) (time.Duration, string) {
	if now >= h.Deadline {
		return h.Deadline, "hard TTL"
	}
	if q.session == h.Number && h.Number != q.confirmed && now < q.sessionAt+sessionMax {
		return 0, "" // an exchange about them is under way
	}
	if g.Out {
		return p.removeSendAt(q, g, h, state)
	}
	if at, ok := state.Left(h); ok {
		return min(at, now) + p.opt.Drain, "drained"
	}
	left, ok := q.left[h.Number]
	if h.Number >= q.confirmed || !ok {
		return h.Deadline, "hard TTL"
	}
	return left + p.opt.Drain, "drained"
}

// removeSendAt is removeAt for keys for sending whose deadline is to come.
func (p *peers) removeSendAt(q *peer, g sadb.Group, h sadb.Held,
	state sadb.State) (time.Duration, string) {
	sealing, sends := state.Groups[sadb.Group{Out: true, Wire: state.Sealing}]
	// Those before the ones in use have no use any more, also while the peer cannot be met: the
	// agent before this one may have ended within the drain.
	former := sends && h.Number < sealing.Number
	if g.Wire == state.Sealing || (h.Number >= q.confirmed && !former) {
		return h.Deadline, "hard TTL"
	}
	switched := h.Replaced
	if switched == 0 { // at the latest with the keys that are sent with now
		switched = sealing.At
	}
	return min(switched+p.sendDrain(), h.Deadline), "a newer epoch is in use"
}

// part removes a peer that is no longer a node. The caller holds the peer's writer lock.
func (p *peers) part(name string, goneAt time.Duration, state sadb.State) (time.Duration, error) {
	now := p.clock.Boot()
	if until := goneAt + p.opt.Drain; now < until {
		return until, nil
	}
	var failed error
	if state.Sealing != 0 {
		failed = p.table.Seal(name, 0)
	}
	for g := range state.Groups {
		failed = errors.Join(failed, p.table.Remove(name, g))
	}
	if failed != nil {
		return now + retryMin, failed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.byName[name]; q != nil && q.gone { // it may have come back
		delete(p.byName, name)
		p.count.Store(int64(len(p.byName)))
		p.journal.Add(audit.Record{Event: audit.EventDestroyed, Peer: name,
			Detail: "the node is gone"})
	}
	return now + tick, nil
}

// use is the keys of one direction that packets pass with, as far as this node can tell.
type use struct {
	peer  string
	group sadb.Group
	sadb.Held
}

// uses finds the keys of an epoch that are in use: those for sending that are sent with, and
// those for receiving that nothing but their end would remove.
func (p *peers) uses(number uint64, now time.Duration) []use {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []use
	for name, q := range p.byName {
		if q.gone {
			continue
		}
		state := p.table.Of(name)
		for g, h := range state.Groups {
			if h.Number != number || h.Mixed || now >= h.Deadline ||
				(g.Out && g.Wire != state.Sealing) {
				continue
			}
			if _, why := p.removeAt(q, g, h, state, now); why != "drained" {
				out = append(out, use{name, g, h})
			}
		}
	}
	return out
}
