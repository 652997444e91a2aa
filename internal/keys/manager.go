package keys

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/keys/handshake"
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

const (
	// tick is the longest time between two looks at everything.
	tick = 10 * time.Second
	// storeEvery is how often the store is read without being told of a change.
	storeEvery = 30 * time.Second
	retryMin   = time.Second
	retryMax   = 30 * time.Second
)

// Manager is one node's share in the cluster's keys. Its methods may be called at once.
type Manager struct {
	opt    Options
	clock  Clock
	log    *slog.Logger
	kernel *kernel
	client client
	server server

	wake chan struct{}
	work sync.WaitGroup
	// storeLock keeps a listing that began before an epoch was made from hiding it.
	storeLock sync.Mutex
	// making is held while an epoch is made.
	making sync.Mutex
	// filtering is held while the port's filter is told of new addresses.
	filtering sync.Mutex

	mu       sync.Mutex
	changed  chan struct{} // closed at every change
	peers    map[string]*peer
	peersSet bool
	ready    bool // the datapath was read
	epochs   map[uint64]*epoch
	highest  uint64            // number of any epoch ever seen
	listed   bool              // the store was read once
	sent     map[uint64]uint64 // highest counter of a lane, by epoch
	target   uint64            // the newest epoch that can be read here
	leader   bool
	failures int // to make an epoch, in a row
	inFlight int // exchanges that this node dialled
	unwraps  unwraps
	taken    int // numbers that others took before this node, in a row
	jumps    jumps
	due      duties
	loaded   time.Duration // when the datapath was read last
	problems map[string]string
	counters Counters
	history  [2][]Event // of epochs, of peers: many peers must not hide the epochs
	wrappers map[uint64]wrapper
	version  versions
	seen     *seen
	// addresses are those of all peers.
	addresses atomic.Pointer[map[netip.Addr]bool]
	// abort ends the exchanges under way that this node dialled.
	abort context.CancelFunc
	alive context.Context //nolint:containedctx // ended by abort
}

// duties is when, by Clock.Boot, what has to be done next.
type duties struct {
	store, storeRetry, create, kernel, version time.Duration
	// decide is until when an epoch that is due is put off for one that may turn out to be it, 0 for none.
	decide time.Duration
}

// New makes a Manager. It does nothing until Run; Status and SetPeers may be called before.
func New(opt Options) (*Manager, error) {
	if err := opt.complete(); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	m := &Manager{
		opt: opt, clock: opt.Clock, log: opt.Log, kernel: newKernel(opt.Datapath, opt.Clock),
		wake: make(chan struct{}, 1), changed: make(chan struct{}), peers: map[string]*peer{}, epochs: map[uint64]*epoch{},
		problems: map[string]string{}, wrappers: map[uint64]wrapper{},
		counters: Counters{Handshakes: map[string]uint64{}, UnwrapErrors: map[string]uint64{}, Rotations: map[string]uint64{}},
	}
	var err error
	if m.seen, err = openSeen(opt.SeenFile); err != nil {
		m.problem("first seen", err)
	}
	m.highest = m.seen.Opened
	m.client, m.server, err = opt.newExchanger(handshake.Config{
		Node: opt.Node, TrustDomain: opt.TrustDomain, Identity: opt.Identity, Known: m.known,
		DEK: m.dekCopy, Installer: installer{m}, Served: m.served, VMGeneration: opt.Datapath.VMGeneration, Admit: m.admit, Addresses: opt.Addresses,
		RequirePostQuantum: opt.RequirePostQuantum, Log: opt.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	return m, nil
}

func realExchanger(cfg handshake.Config) (client, server, error) {
	c, s, err := handshake.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	return c, s, nil
}

// Run does all the work until ctx ends. What the datapath holds stays; the keys that
// this process holds are destroyed.
func (m *Manager) Run(ctx context.Context) error {
	defer m.forget()
	defer m.work.Wait()
	for !m.loadKernel() {
		if !m.sleep(ctx, retryMin) {
			return nil
		}
	}
	m.mu.Lock()
	m.ready = true
	m.highest = max(m.highest, m.kernel.sum().highest)
	m.mu.Unlock()
	m.work.Go(func() { m.lead(ctx) })
	m.work.Go(func() { m.listen(ctx) })
	for {
		next := m.step(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-m.clock.After(next):
		}
	}
}

// step does what is due and returns how long nothing else will be.
func (m *Manager) step(ctx context.Context) time.Duration {
	m.lookAtClock()
	now := m.clock.Boot()
	m.mu.Lock()
	store, kernel := now >= m.due.store, now >= m.due.kernel
	m.mu.Unlock()
	if store {
		m.reload()
	}
	m.saveSeen()
	if kernel {
		m.loadKernel()
	}
	next := now + tick
	next = min(next, m.unwrapDue(ctx))
	next = min(next, m.createDue(ctx))
	next = min(next, m.versionDue(ctx))
	next = min(next, m.extendDue(ctx))
	next = min(next, m.cleanAll())
	next = min(next, m.exchangeDue(ctx))
	m.mu.Lock()
	next = min(next, m.due.store, m.due.kernel)
	m.mu.Unlock()
	return max(next-m.clock.Boot(), 10*time.Millisecond)
}

// SetPeers says which other nodes there are. One that is missing loses its keys after
// the drain, and may not talk to this node from now on.
func (m *Manager) SetPeers(peers []Peer) {
	m.setPeers(peers)
	m.filter()
}

func (m *Manager) setPeers(peers []Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Boot()
	want := map[string]bool{}
	for _, info := range peers {
		if info.Name == m.opt.Node {
			continue
		}
		want[info.Name] = true
		p := m.peers[info.Name]
		if p == nil {
			p = newPeer(info, now)
			m.peers[info.Name] = p
			m.plan(p)
		}
		if p.gone {
			// The datapath may have forgotten its keys at once.
			p.gone, p.confirmed = false, 0
			m.due.kernel = now
			m.plan(p)
		}
		if !p.equal(info) {
			p.Peer, p.failures, p.nextTry = info, 0, now
		}
	}
	for name, p := range m.peers {
		if !want[name] && !p.gone {
			p.gone, p.goneAt = true, now
		}
	}
	addresses := map[netip.Addr]bool{}
	for _, p := range m.peers {
		for _, a := range p.Addresses {
			if !p.gone {
				addresses[a.Unmap()] = true
			}
		}
	}
	m.addresses.Store(&addresses)
	m.peersSet = true
	m.pokeLocked()
}

// Kick says that packets for a peer were dropped for want of a key.
func (m *Manager) Kick(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[node]
	if p == nil || p.gone || p.kicked {
		return
	}
	p.kicked = true
	m.counters.Kicks++
	// What this process remembers of the datapath is in doubt.
	m.due.kernel = min(m.due.kernel, m.loaded+kickPause)
	// Kicks come as fast as packets do.
	p.nextTry = max(m.clock.Boot(), p.lastTry+kickPause)
	m.pokeLocked()
}

// StoreChanged says that the store's epochs may have changed.
func (m *Manager) StoreChanged() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.due.store = m.clock.Boot()
	m.pokeLocked()
}

func (m *Manager) loadKernel() bool {
	err := m.kernel.load()
	m.problem("datapath", err)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loaded = m.clock.Boot()
	m.due.kernel = m.loaded + tick
	if err != nil {
		m.due.kernel = m.loaded + retryMin
		return false
	}
	m.sent = m.kernel.sum().counter
	for _, p := range m.peers {
		// Keys that are gone without this process having removed them.
		if tx, rx := m.kernel.pair(p.Name); p.confirmed != 0 && !p.gone && min(tx.number, rx.number) < p.confirmed {
			p.confirmed = 0
		}
	}
	return true
}

// lookAtClock notices that the wall clock was set. Nothing that waits is measured by
// it; only an epoch that seemed to have ended is looked at anew.
func (m *Manager) lookAtClock() {
	m.mu.Lock()
	jump := m.jumps.look(m.clock)
	if jump != 0 {
		m.counters.ClockJumps++
		for _, e := range m.epochs {
			if !m.live(e) {
				m.anchor(e)
			}
		}
		m.retarget()
	}
	m.mu.Unlock()
	if jump != 0 {
		m.log.Warn("the wall clock jumped", "by", jump)
		m.event(Event{Event: EventClockJump, Detail: jump.String()})
		if jump > 0 && m.opt.ClockAhead != nil {
			m.opt.ClockAhead()
		}
	}
}

// forget destroys what is left in memory.
func (m *Manager) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.epochs {
		e.forget()
	}
}

// poke wakes the loop and whoever waits for a change.
func (m *Manager) poke() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pokeLocked()
}

func (m *Manager) pokeLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// problem keeps what does not work, by what it is about, until it does.
func (m *Manager) problem(what string, err error) {
	m.mu.Lock()
	old := m.problems[what]
	text := ""
	if err != nil {
		text = err.Error()
		m.problems[what] = text
	} else {
		delete(m.problems, what)
	}
	m.mu.Unlock()
	switch {
	case text == old:
	case text == "":
		m.log.Info("keys: works again", "what", what)
	default:
		m.log.Warn("keys: does not work", "what", what, "err", text)
	}
}

// backoff is how long to wait after a number of failures, with jitter.
func backoff(failures int, least, most time.Duration) time.Duration {
	d := least
	for range min(failures-1, 20) {
		if d = min(2*d, most); d == most {
			break
		}
	}
	return d/2 + rand.N(d/2+1)
}

// spread is a random part of a time, 0 of none.
// span is over how long the nodes spread what they all do at the same news: less than Options.Spread where
// there are few of them. The caller holds mu.
func (m *Manager) span() time.Duration {
	const perNode = 20 * time.Millisecond
	return min(m.opt.Spread, perNode*time.Duration(len(m.peers)+1))
}

func spread(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

func (m *Manager) dialAddresses(p Peer) []string {
	port := strconv.Itoa(int(cmp.Or(p.Port, m.opt.Port)))
	out := make([]string, len(p.Addresses))
	for i, a := range p.Addresses {
		out[i] = net.JoinHostPort(a.String(), port)
	}
	return out
}
