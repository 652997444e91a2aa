package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/nodeid"
)

// peer is another node as this one knows it.
type peer struct {
	Peer
	gone   bool
	goneAt time.Duration

	// confirmed is the epoch in which both directions were last found or put in order,
	// by this process.
	confirmed uint64
	// left is when, by Clock.Boot, the peer was seen to send with a newer epoch than this.
	left map[uint64]time.Duration
	// session is the epoch of the exchange that began last.
	session   uint64
	sessionAt time.Duration

	running  bool // an exchange that this node dialled
	kicked   bool
	failures int
	nextTry  time.Duration
	lastTry  time.Duration
	lastErr  error
	// tried is the newest epoch for which an exchange that this node dialled has failed.
	tried uint64
	// blocked: older keys that drain have the same number on the wire as the epoch to move to.
	blocked bool
	// expired: its keys reached the hard TTL.
	expired bool

	postQuantum bool
	group       string
	lanes       int
	exchanged   time.Time

	state string
	since time.Time
}

const (
	// kickPause is the least time between two exchanges for packets without a key.
	kickPause = time.Second
	// deferDial is how long the node with the larger name leaves dialling to the other.
	deferDial = 100 * time.Millisecond
	// busyPause is how long to wait when the peer has an exchange with this node under way.
	busyPause = 50 * time.Millisecond
	// peerRetryMax is the longest time between two attempts at a peer.
	peerRetryMax = 30 * time.Second
	peerRetryMin = 500 * time.Millisecond
)

func newPeer(info Peer, now time.Duration) *peer {
	return &peer{Peer: info, left: map[uint64]time.Duration{}, nextTry: now}
}

// plan sets when to dial a peer for a new epoch. So that not both dial at once, the
// larger name waits a little; a node without any key waits for nothing. The caller holds mu.
func (m *Manager) plan(p *peer) {
	wait := spread(m.span() / 2)
	if m.opt.Node > p.Name {
		wait += deferDial + m.span()
	}
	if tx, _ := m.kernel.pair(p.Name); tx.id == 0 {
		wait = 0
		if m.opt.Node > p.Name {
			wait = deferDial
		}
	}
	p.nextTry = m.clock.Boot() + wait
}

// needs says whether an exchange with a peer is wanting. The caller holds mu.
func (m *Manager) needs(p *peer) bool {
	if m.target == 0 || p.kicked || p.confirmed == m.target {
		return m.target != 0 && p.kicked
	}
	// What runs on an epoch that was withdrawn since goes on until there is a newer one.
	tx, rx := m.kernel.pair(p.Name)
	return min(tx.number, rx.number) <= m.target
}

// exchangeDue begins the exchanges that are due, and returns when to look again.
func (m *Manager) exchangeDue(ctx context.Context) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, next := m.clock.Boot(), m.clock.Boot()+tick
	var due []*peer
	for _, p := range m.peers {
		switch {
		case p.gone || p.running || !m.needs(p):
		case now < p.nextTry:
			next = min(next, p.nextTry)
		default:
			due = append(due, p)
		}
	}
	// Peers that do not answer keep a place for long: they come last, and get no more than half of all.
	slices.SortFunc(due, func(a, b *peer) int { return cmp.Compare(a.failures, b.failures) })
	for _, p := range due {
		if m.inFlight >= m.opt.Parallel || (p.failures > 1 && m.inFlight >= (m.opt.Parallel+1)/2) {
			break // whoever ends wakes the loop
		}
		candidates := m.candidates(p)
		if len(candidates) == 0 {
			// Keys that are being drained stand in the way.
			p.blocked = true
			p.nextTry = now + min(retryMin, m.opt.Drain/4+10*time.Millisecond)
			m.due.kernel = min(m.due.kernel, m.loaded+max(m.opt.Drain/2, 10*time.Millisecond))
			next = min(next, p.nextTry)
			continue
		}
		p.running, p.lastTry, p.blocked = true, now, false
		m.inFlight++
		info := p.Peer
		m.work.Go(func() { m.exchange(ctx, info, candidates) })
	}
	return next
}

// candidates are the epochs to meet a peer in, the best first. Behind the newest come
// older ones, in case the peer cannot read it; but none older than what works already.
// The caller holds mu.
func (m *Manager) candidates(p *peer) []uint64 {
	tx, rx := m.kernel.pair(p.Name)
	works := min(tx.number, rx.number)
	if p.kicked {
		works = 0
	}
	groups, sealing := m.kernel.of(p.Name)
	var out, blocked []uint64
	for _, e := range m.sorted() {
		if e.dek == nil || !m.live(e) {
			continue
		}
		if e.Number < works || (e.Number == works && p.confirmed == works && !p.kicked) {
			break
		}
		if _, in := m.inTheWay(p.Name, e.Number, groups, sealing); in {
			blocked = append(blocked, e.Number)
			continue
		}
		out = append(out, e.Number)
	}
	if len(out) == 0 && works == 0 {
		return blocked // nothing works anyway
	}
	return out
}

// exchange meets a peer in the first epoch that it can use.
func (m *Manager) exchange(ctx context.Context, info Peer, candidates []uint64) {
	target := handshake.Peer{Name: info.Name, Addresses: m.dialAddresses(info)}
	ctx, cancel := m.abortable(ctx)
	defer cancel()
	var first error
	for _, number := range candidates {
		result, err := m.client.Exchange(ctx, target, number)
		if ctx.Err() != nil {
			break
		}
		result.PeerNode = info.Name
		m.record(result, err, first)
		if err == nil || !(errors.Is(err, handshake.ErrNoEpoch) || errors.Is(err, handshake.ErrInstall) || errors.Is(err, handshake.ErrKeyMismatch)) {
			break
		}
		if first == nil {
			first = err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight--
	if p := m.peers[info.Name]; p != nil {
		p.running = false
	}
	m.pokeLocked()
}

// served is told of each exchange that a peer dialled.
func (m *Manager) served(result handshake.Result, err error) {
	if result.PeerNode == "" {
		m.mu.Lock()
		m.counters.Handshakes["served_"+kindOf(err)]++
		m.mu.Unlock()
		return
	}
	m.record(result, err, nil)
}

// record takes the outcome of an exchange over. first is why a better epoch could not be used.
func (m *Manager) record(result handshake.Result, err, first error) {
	m.mu.Lock()
	m.counters.Handshakes[kindOf(err)]++
	p := m.peers[result.PeerNode]
	if p == nil {
		m.mu.Unlock()
		return
	}
	switch {
	case err != nil:
		m.failed(p, result, err)
	case p.session == result.Epoch:
		m.reached(p, result, first)
	default:
		// The next exchange with this peer, in another epoch, was faster to tell of itself.
	}
	m.pokeLocked()
	m.mu.Unlock()
	if err == nil {
		m.clean(result.PeerNode)
	}
}

// reached: both directions run on an epoch. The caller holds mu.
func (m *Manager) reached(p *peer, result handshake.Result, first error) {
	now := m.clock.Boot()
	if p.lastErr != nil && first == nil {
		m.log.Info("exchange of keys works again", "peer", p.Name, "epoch", result.Epoch)
	}
	p.confirmed, p.kicked, p.expired, p.blocked, p.lastErr, p.exchanged = result.Epoch, false, false, false, first, m.clock.Wall()
	p.postQuantum, p.group, p.lanes = result.PostQuantum, result.Group, result.PeerLanes
	switch {
	case result.Epoch == m.target:
		p.failures = 0
	case first != nil: // failed has set when to try the better one again
	default: // a newer epoch came up meanwhile
		p.nextTry = min(p.nextTry, now)
	}
	groups, _ := m.kernel.of(p.Name)
	for g, h := range groups {
		if _, known := p.left[h.number]; !g.out && h.number < result.Epoch && !known {
			p.left[h.number] = now
		}
	}
	for number := range p.left {
		if g, ok := groups[group{false, Nibble(number)}]; !ok || g.number != number || number >= result.Epoch {
			delete(p.left, number)
		}
	}
	m.recordLocked(Event{Event: EventExchanged, Epoch: result.Epoch, Peer: p.Name, Outcome: "ok", Detail: describe(result), Switched: result.RekeyedTX})
}

func describe(r handshake.Result) string {
	who, what := "served", "both directions were in order"
	if r.Dialled {
		who = "dialled"
	}
	switch {
	case r.RekeyedTX && r.RekeyedRX:
		what = "new keys in both directions"
	case r.RekeyedTX:
		what = "new keys for sending"
	case r.RekeyedRX:
		what = "new keys for receiving"
	}
	return fmt.Sprintf("%s, %s, %s", who, what, r.Group)
}

// failed backs off. The caller holds mu.
func (m *Manager) failed(p *peer, result handshake.Result, err error) {
	now := m.clock.Boot()
	if errors.Is(err, handshake.ErrBusy) {
		// The peer's own exchange does the same, or has done so already.
		p.nextTry = max(p.nextTry, now+busyPause+spread(busyPause))
		return
	}
	if result.Dialled { // else the peer tries again by itself, and so does this node
		if kind := kindOf(err); p.lastErr == nil || kindOf(p.lastErr) != kind {
			m.log.Warn("exchange of keys failed", "peer", p.Name, "epoch", result.Epoch, "kind", kind, "err", err)
		}
		p.failures++
		p.lastErr, p.tried = err, max(p.tried, result.Epoch)
		p.nextTry = now + backoff(p.failures, peerRetryMin, peerRetryMax)
	}
	m.recordLocked(Event{Event: EventExchanged, Epoch: result.Epoch, Peer: p.Name, Outcome: kindOf(err), Detail: line(err)})
	if !result.Dialled {
		m.log.Debug("exchange of keys failed", "peer", p.Name, "epoch", result.Epoch, "err", err)
	}
}

// kinds are the names of errors of exchanges, for status and metrics.
var kinds = []struct {
	err  error
	name string
}{
	{handshake.ErrBusy, "busy"},
	{handshake.ErrAborted, "aborted"},
	{handshake.ErrNoEpoch, "no_epoch"},
	{handshake.ErrKeyMismatch, "key_mismatch"},
	{handshake.ErrUnknownNode, "unknown_node"},
	{handshake.ErrInstall, "install"},
	{handshake.ErrNotPostQuantum, "not_post_quantum"},
	{handshake.ErrUnreachable, "unreachable"},
	{handshake.ErrProtocol, "protocol"},
	{context.DeadlineExceeded, "timeout"},
	{handshake.ErrRefused, "refused"},
}

// line is an error on one line.
func line(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// kindOf is the name of an exchange's outcome.
func kindOf(err error) string {
	if err == nil {
		return "ok"
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	if kind := nodeid.Kind(err); kind != "" {
		return kind
	}
	return "failed"
}
