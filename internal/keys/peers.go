package keys

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/sadb"
)

// Peer is another node.
type Peer struct {
	Name      string
	Addresses []netip.Addr
	// Port is where it listens for exchanges; 0 is the same port as everywhere.
	Port uint16
}

func (p Peer) equal(q Peer) bool {
	return p.Name == q.Name && p.Port == q.Port && slices.Equal(p.Addresses, q.Addresses)
}

// peer is another node as this one knows it. Guarded by peers.mu.
type peer struct {
	Peer
	gone   bool
	goneAt time.Duration

	// confirmed is the epoch in which both directions were last found or put in order,
	// by this process.
	confirmed uint64
	// left is when, by Clock.Boot, the peer was known to have switched to a newer epoch than this.
	left map[uint64]time.Duration
	// session is the epoch of the exchange that began last.
	session   uint64
	sessionAt time.Duration

	running bool // an exchange that this node dialled
	// rekey: new keys were requested, since packets were dropped for want of one.
	rekey    bool
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
	// rekeyPause is the least time between two exchanges for packets without a key.
	rekeyPause = time.Second
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

// epochView is what peers move by: a *epochs.Keeper, but in tests.
type epochView interface {
	View() epochs.View
	Target() uint64
	Readable() []uint64
	Until(number uint64) (time.Duration, bool)
}

// peers owns who there is, how far each peer is, and the exchanges under way. It is safe for
// concurrent use; under its lock it asks the epochs and the SA table.
type peers struct {
	opt     *Options
	clock   clock.Clock
	log     *slog.Logger
	signal  *clock.Signal
	journal *audit.Journal
	table   *sadb.Table
	epochs  epochView
	client  client
	work    sync.WaitGroup
	// reread has the loop read the datapath again, no later than at a time.
	reread func(at time.Duration)

	// count is how many there are, and addresses are those of all: read without mu.
	count     atomic.Int64
	addresses atomic.Pointer[map[netip.Addr]bool]

	mu     sync.Mutex
	byName map[string]*peer
	known  bool // they were set once
	// planned is the epoch that exchanges were last planned for.
	planned    uint64
	inFlight   int // exchanges that this node dialled
	handshakes map[string]uint64
	rekeys     uint64
	// abort ends the exchanges under way that this node dialled.
	abort context.CancelFunc
	alive context.Context //nolint:containedctx // ended by abort
}

// set says which other nodes there are.
func (p *peers) set(list []Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Boot()
	want := map[string]bool{}
	for _, info := range list {
		if info.Name != p.opt.Node {
			want[info.Name] = true
			p.setOne(info, now)
		}
	}
	for name, q := range p.byName {
		if !want[name] && !q.gone {
			q.gone, q.goneAt = true, now
		}
	}
	addresses := map[netip.Addr]bool{}
	for _, q := range p.byName {
		for _, a := range q.Addresses {
			if !q.gone {
				addresses[a.Unmap()] = true
			}
		}
	}
	p.addresses.Store(&addresses)
	p.count.Store(int64(len(p.byName)))
	p.known = true
	p.signal.Poke()
}

// setOne says that a node is there. The caller holds mu.
func (p *peers) setOne(info Peer, now time.Duration) {
	q := p.byName[info.Name]
	if q == nil {
		q = newPeer(info, now)
		p.byName[info.Name] = q
		p.plan(q)
	}
	if q.gone {
		// The datapath may have forgotten its keys at once.
		q.gone, q.confirmed = false, 0
		p.reread(now)
		p.plan(q)
	}
	if !q.equal(info) {
		q.Peer, q.failures, q.nextTry = info, 0, now
	}
}

// requestRekey says that packets for a peer were dropped for want of a key.
func (p *peers) requestRekey(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.byName[node]
	if q == nil || q.gone || q.rekey {
		return
	}
	q.rekey = true
	p.rekeys++
	// What this process remembers of the datapath is in doubt.
	p.reread(p.table.Loaded() + rekeyPause)
	// Requests come as fast as packets do.
	q.nextTry = max(p.clock.Boot(), q.lastTry+rekeyPause)
	p.signal.Poke()
}

// forked has every peer met anew at once: the keys of before are gone.
func (p *peers) forked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Boot()
	for _, q := range p.byName {
		if !q.gone {
			q.confirmed, q.failures, q.nextTry, q.rekey = 0, 0, now, true
		}
	}
	p.signal.Poke()
}

// reloaded looks for keys that are gone without this process having removed them.
func (p *peers) reloaded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.byName {
		if q.confirmed == 0 || q.gone {
			continue
		}
		if tx, rx := p.table.Pair(q.Name); min(tx.Number, rx.Number) < q.confirmed {
			q.confirmed = 0
		}
	}
}

// plan sets when to dial a peer for a new epoch. So that not both dial at once, the
// larger name waits a little; a node without any key waits for nothing. The caller holds mu.
func (p *peers) plan(q *peer) {
	span := epochs.Span(p.opt.Spread, len(p.byName))
	wait := clock.Spread(span / 2)
	if p.opt.Node > q.Name {
		wait += deferDial + span
	}
	if tx, _ := p.table.Pair(q.Name); tx.ID == 0 {
		wait = 0
		if p.opt.Node > q.Name {
			wait = deferDial
		}
	}
	q.nextTry = p.clock.Boot() + wait
}

// replan plans anew when another epoch than before is to be moved to. The caller holds mu.
func (p *peers) replan(target uint64) {
	if target == p.planned {
		return
	}
	p.planned = target
	for _, q := range p.byName {
		q.failures = 0
		p.plan(q)
	}
}

// needs says whether an exchange with a peer is wanting, to move to an epoch. The caller holds mu.
func (p *peers) needs(q *peer, target uint64) bool {
	if target == 0 || q.rekey || q.confirmed == target {
		return target != 0 && q.rekey
	}
	// What runs on an epoch that was withdrawn since goes on until there is a newer one.
	tx, rx := p.table.Pair(q.Name)
	return min(tx.Number, rx.Number) <= target
}

// has says whether a peer may talk to this node.
func (p *peers) has(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.byName[name]
	return q != nil && !q.gone
}

// admit says whether a peer has an address: no other may connect, as no other's ESP is opened.
func (p *peers) admit(addr netip.Addr) bool {
	known := p.addresses.Load()
	return known != nil && (*known)[addr]
}

// Count implements epochs.Peers.
func (p *peers) Count() int { return int(p.count.Load()) }

// Confirmed implements epochs.Peers.
func (p *peers) Confirmed() map[uint64]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[uint64]bool{}
	for _, q := range p.byName {
		if !q.gone && q.confirmed > 0 {
			out[q.confirmed] = true
		}
	}
	return out
}

// OldestInUse implements epochs.Peers.
func (p *peers) OldestInUse() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	oldest := uint64(0)
	for name, q := range p.byName {
		if q.gone {
			continue
		}
		tx, rx := p.table.Pair(name)
		for _, n := range []uint64{q.confirmed, tx.Number, rx.Number} {
			if n != 0 && (oldest == 0 || n < oldest) {
				oldest = n
			}
		}
	}
	return oldest
}

var _ epochs.Peers = (*peers)(nil)

var _ handshake.Installer = installer{}
