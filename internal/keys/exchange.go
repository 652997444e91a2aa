package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/sadb"
	"weft.dev/weft/internal/keys/schedule"
)

// exchangeDue begins the exchanges that are due, and returns when to look again.
func (p *peers) exchangeDue(ctx context.Context) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	target := p.epochs.Target()
	p.replan(target)
	now, next := p.clock.Boot(), p.clock.Boot()+tick
	var due []*peer
	for _, q := range p.byName {
		switch {
		case q.gone || q.running || !p.needs(q, target):
		case now < q.nextTry:
			next = min(next, q.nextTry)
		default:
			due = append(due, q)
		}
	}
	// Peers that do not answer keep a place for long: they come last, and get no more than half of
	// all.
	slices.SortFunc(due, func(a, b *peer) int { return cmp.Compare(a.failures, b.failures) })
	for _, q := range due {
		if p.inFlight >= p.opt.Parallel || (q.failures > 1 && p.inFlight >= (p.opt.Parallel+1)/2) {
			break // whoever ends wakes the loop
		}
		candidates := p.candidates(q)
		if len(candidates) == 0 {
			next = min(next, p.block(q, now))
			continue
		}
		q.running, q.lastTry, q.blocked = true, now, false
		p.inFlight++
		info := q.Peer
		p.work.Go(func() { p.exchange(ctx, info, candidates) })
	}
	return next
}

// block puts an exchange off that keys which are being drained stand in the way of, and returns
// until when. The caller holds mu.
func (p *peers) block(q *peer, now time.Duration) time.Duration {
	q.blocked = true
	q.nextTry = now + min(retryMin, p.opt.Drain/4+10*time.Millisecond)
	p.reread(p.table.Loaded() + max(p.opt.Drain/2, 10*time.Millisecond))
	return q.nextTry
}

// candidates are the epochs to meet a peer in, the best first. Behind the newest come
// older ones, in case the peer cannot read it; but none older than what works already.
// The caller holds mu.
func (p *peers) candidates(q *peer) []uint64 {
	tx, rx := p.table.Pair(q.Name)
	works := min(tx.Number, rx.Number)
	if q.rekey {
		works = 0
	}
	state, now := p.table.Of(q.Name), p.clock.Boot()
	var out, blocked []uint64
	for _, number := range p.epochs.Readable() {
		if number < works || (number == works && q.confirmed == works && !q.rekey) {
			break
		}
		if _, in := state.InTheWay(number, now, p.opt.Drain); in {
			blocked = append(blocked, number)
			continue
		}
		out = append(out, number)
	}
	if len(out) == 0 && works == 0 {
		return blocked // nothing works anyway
	}
	return out
}

// exchange meets a peer in the first epoch that it can use.
func (p *peers) exchange(ctx context.Context, info Peer, candidates []uint64) {
	target := handshake.Peer{Name: info.Name, Addresses: p.dialAddresses(info)}
	ctx, cancel := p.abortable(ctx)
	defer cancel()
	var first error
	for _, number := range candidates {
		result, err := p.client.Exchange(ctx, target, number)
		if ctx.Err() != nil {
			break
		}
		result.PeerNode = info.Name
		p.record(result, err, first)
		if err == nil ||
			!(errors.Is(err, handshake.ErrNoEpoch) || errors.Is(err, handshake.ErrInstall) ||
				errors.Is(err, handshake.ErrKeyMismatch)) {
			break
		}
		if first == nil {
			first = err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	if q := p.byName[info.Name]; q != nil {
		q.running = false
	}
	p.signal.Poke()
}

// served is told of each exchange that a peer dialled.
func (p *peers) served(result handshake.Result, err error) {
	if result.PeerNode == "" {
		p.mu.Lock()
		p.handshakes["served_"+kindOf(err)]++
		p.mu.Unlock()
		return
	}
	p.record(result, err, nil)
}

// record takes the outcome of an exchange over. first is why a better epoch could not be used.
func (p *peers) record(result handshake.Result, err, first error) {
	p.mu.Lock()
	p.handshakes[kindOf(err)]++
	q := p.byName[result.PeerNode]
	if q == nil {
		p.mu.Unlock()
		return
	}
	switch {
	case err != nil:
		p.failed(q, result, err)
	case q.session == result.Epoch:
		p.reached(q, result, first)
	default:
		// The next exchange with this peer, in another epoch, was faster to tell of itself.
	}
	p.signal.Poke()
	p.mu.Unlock()
	if err == nil {
		p.clean(result.PeerNode)
	}
}

// reached: both directions run on an epoch. The caller holds mu.
func (p *peers) reached(q *peer, result handshake.Result, first error) {
	now := p.clock.Boot()
	if q.lastErr != nil && first == nil {
		p.log.Info("exchange of keys works again", "peer", q.Name, "epoch", result.Epoch)
	}
	q.confirmed, q.rekey, q.expired, q.blocked, q.lastErr, q.exchanged = result.Epoch, false, false, false, first, p.clock.Wall()
	q.postQuantum, q.group, q.lanes = result.PostQuantum, result.Group, result.PeerLanes
	switch {
	case result.Epoch == p.epochs.Target():
		q.failures = 0
	case first != nil: // failed has set when to try the better one again
	default: // a newer epoch came up meanwhile
		q.nextTry = min(q.nextTry, now)
	}
	groups := p.table.Of(q.Name).Groups
	for g, h := range groups {
		if _, known := q.left[h.Number]; !g.Out && h.Number < result.Epoch && !known {
			q.left[h.Number] = now
		}
	}
	for number := range q.left {
		if g, ok := groups[sadb.Group{Wire: schedule.WireNumber(number)}]; !ok ||
			g.Number != number || number >= result.Epoch {
			delete(q.left, number)
		}
	}
	p.journal.Add(audit.Record{Event: audit.EventExchanged, Epoch: result.Epoch, Peer: q.Name,
		Outcome: "ok", Detail: describe(result), Switched: result.RekeyedTX})
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
func (p *peers) failed(q *peer, result handshake.Result, err error) {
	now := p.clock.Boot()
	if errors.Is(err, handshake.ErrBusy) {
		// The peer's own exchange does the same, or has done so already.
		q.nextTry = max(q.nextTry, now+busyPause+clock.Spread(busyPause))
		return
	}
	if result.Dialled { // else the peer tries again by itself, and so does this node
		if kind := kindOf(err); q.lastErr == nil || kindOf(q.lastErr) != kind {
			p.log.Warn("exchange of keys failed", "peer", q.Name, "epoch", result.Epoch, "kind",
				kind, "err", err)
		}
		q.failures++
		q.lastErr, q.tried = err, max(q.tried, result.Epoch)
		q.nextTry = now + clock.Backoff(q.failures, peerRetryMin, peerRetryMax)
	}
	p.journal.Add(audit.Record{Event: audit.EventExchanged, Epoch: result.Epoch, Peer: q.Name,
		Outcome: kindOf(err), Detail: audit.Line(err)})
	if !result.Dialled {
		p.log.Debug("exchange of keys failed", "peer", q.Name, "epoch", result.Epoch, "err", err)
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
