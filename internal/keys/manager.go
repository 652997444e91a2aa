package keys

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/sadb"
)

const (
	// tick is the longest time between two looks at everything.
	tick     = 10 * time.Second
	retryMin = time.Second
	retryMax = 30 * time.Second
)

// Manager is one node's share in the cluster's keys: it gives each of the three owners its turn.
// It is safe for concurrent use.
type Manager struct {
	opt    Options
	clock  clock.Clock
	log    *slog.Logger
	server server

	epochs *epochs.Keeper
	peers  *peers
	table  *sadb.Table

	journal  *audit.Journal
	signal   *clock.Signal
	problems *problems
	work     sync.WaitGroup
	jumps    clock.Jumps // the loop's alone
	// filtering is held while the port's filter is told of new addresses.
	filtering sync.Mutex

	// mu guards what follows, and is held over no call.
	mu         sync.Mutex
	ready      bool          // the datapath was read
	readDue    time.Duration // when the datapath has to be read again, by Clock.Boot
	readPause  time.Duration // not before this, since the last reading failed, by Clock.Boot
	clockJumps uint64
	vmForks    uint64
}

// New makes a Manager. It does nothing until Run; Status and SetPeers may be called before.
func New(opt Options) (*Manager, error) {
	if err := opt.complete(); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	m := &Manager{
		opt: opt, clock: opt.Clock, log: opt.Log,
		table:   sadb.New(opt.Datapath, opt.Clock, opt.MaxPackets),
		journal: audit.NewJournal(opt.Clock.Wall, opt.Audit), signal: clock.NewSignal(),
		problems: newProblems(opt.Log),
	}
	m.peers = &peers{
		opt: &m.opt, clock: m.clock, log: m.log, signal: m.signal, journal: m.journal,
		table: m.table, reread: m.reread,
		byName: map[string]*peer{}, handshakes: map[string]uint64{},
	}
	m.epochs = epochs.New(epochs.Options{
		Cluster: opt.Cluster, KEK: opt.KEK, Store: opt.Store, Leader: opt.Leader, Peers: m.peers,
		SAs:    m.table,
		MaxAge: opt.MaxAge, HardTTL: opt.HardTTL, ExtendTTL: opt.ExtendTTL, Drain: opt.Drain,
		Spread:       opt.Spread,
		VersionEvery: opt.VersionEvery, MaxPackets: opt.MaxPackets, SeenFile: opt.SeenFile,
		Clock: m.clock, Signal: m.signal, Journal: m.journal, Problem: m.problems.set, Log: m.log,
	})
	m.peers.epochs = m.epochs
	var err error
	m.peers.client, m.server, err = opt.newExchanger(handshake.Config{
		Node: opt.Node, TrustDomain: opt.TrustDomain, Identity: opt.Identity, Known: m.peers.has,
		DEK: m.epochs.DEK, Installer: installer{m.peers}, Served: m.peers.served,
		VMGeneration: opt.Datapath.VMGeneration, Admit: m.peers.admit, Addresses: opt.Addresses,
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
	defer m.epochs.Close()
	defer m.peers.work.Wait()
	defer m.work.Wait()
	for !m.load() {
		if !clock.Sleep(ctx, m.clock, retryMin) {
			return nil
		}
	}
	m.epochs.Begin()
	m.mu.Lock()
	m.ready = true
	m.mu.Unlock()
	m.work.Go(func() { m.epochs.Lead(ctx) })
	m.work.Go(func() { m.listen(ctx) })
	for {
		next := m.step(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-m.signal.Wake():
		case <-m.clock.After(next):
		}
	}
}

// step does what is due and returns how long nothing else will be.
func (m *Manager) step(ctx context.Context) time.Duration {
	m.lookAtClock()
	if m.clock.Boot() >= m.nextRead() {
		m.load()
	}
	next := min(m.epochs.Step(ctx), m.extendDue(ctx))
	cleaned, err := m.peers.cleanAll()
	m.problems.set("clean up", err)
	next = min(next, cleaned, m.peers.exchangeDue(ctx), m.nextRead())
	return max(next-m.clock.Boot(), 10*time.Millisecond)
}

// SetPeers says which other nodes there are. One that is missing loses its keys after
// the drain, and may not talk to this node from now on.
func (m *Manager) SetPeers(list []Peer) {
	m.peers.set(list)
	m.filter()
}

// RequestRekey says that packets for a peer were dropped for want of a key.
func (m *Manager) RequestRekey(node string) { m.peers.requestRekey(node) }

// StoreChanged says that the store's epochs may have changed.
func (m *Manager) StoreChanged() { m.epochs.StoreChanged() }

// Rotate makes the next epoch now, on any node. An epoch that its peers are still
// taking into use is waited for, as long as ctx allows: no more than two are live.
func (m *Manager) Rotate(ctx context.Context) (epochs.Epoch, error) {
	// Another node may have made one already that this one has not heard of.
	m.epochs.Reload()
	if err := m.Settled(ctx); err != nil {
		return epochs.Epoch{}, fmt.Errorf("rotate: the epoch before is still being taken into use: %w", err)
	}
	e, err := m.epochs.Make(ctx)
	if err != nil {
		return epochs.Epoch{}, fmt.Errorf("rotate: %w", err)
	}
	m.signal.Poke()
	return e, nil
}

// Settled waits until every peer that can be talked to runs on the newest epoch in both directions.
func (m *Manager) Settled(ctx context.Context) error {
	for {
		changed := m.signal.Changed()
		waits := m.unsettled()
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
func (m *Manager) unsettled() string {
	m.mu.Lock()
	ready := m.ready
	m.mu.Unlock()
	m.peers.mu.Lock()
	defer m.peers.mu.Unlock()
	v := m.epochs.View()
	switch {
	case !ready || !v.Listed:
		return "this node has not read datapath and store yet"
	case v.Newest == 0:
		return ""
	case !v.Readable && v.Err == nil:
		return fmt.Sprintf("the key of epoch %d is not unwrapped yet", v.Newest)
	}
	for name, q := range m.peers.byName {
		// A peer that could not be reached in the epoch before is not waited for.
		if !q.gone && m.peers.needs(q, v.Target) && q.tried != v.Target && q.lastErr == nil {
			return fmt.Sprintf("peer %s is not on epoch %d yet", name, v.Target)
		}
	}
	return ""
}

// load reads what the datapath holds.
func (m *Manager) load() bool {
	err := m.table.Load()
	m.problems.set("datapath", err)
	m.mu.Lock()
	now := m.clock.Boot()
	if m.readDue, m.readPause = now+tick, now; err != nil {
		m.readDue, m.readPause = now+retryMin, now+retryMin
	}
	m.mu.Unlock()
	if err != nil {
		return false
	}
	m.peers.reloaded()
	return true
}

// reread has the datapath read again, no later than at a time, unless it could not be read just
// now.
func (m *Manager) reread(at time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readDue = min(m.readDue, max(at, m.readPause))
}

func (m *Manager) nextRead() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.readDue
}

// lookAtClock notices that the wall clock was set. Nothing that waits is measured by
// it; only an epoch that seemed to have ended is looked at anew.
func (m *Manager) lookAtClock() {
	jump := m.jumps.Look(m.clock)
	if jump == 0 {
		return
	}
	m.epochs.ClockJumped()
	m.mu.Lock()
	m.clockJumps++
	m.mu.Unlock()
	m.log.Warn("the wall clock jumped", "by", jump)
	m.journal.Add(audit.Record{Event: audit.EventClockJump, Detail: jump.String()})
	if jump > 0 && m.opt.ClockAhead != nil {
		m.opt.ClockAhead()
	}
}

// History is what happened lately, the oldest first. It begins with this process.
func (m *Manager) History() []audit.Record { return m.journal.Recent() }

func (p *peers) dialAddresses(of Peer) []string {
	port := strconv.Itoa(int(cmp.Or(of.Port, p.opt.Port)))
	out := make([]string, len(of.Addresses))
	for i, a := range of.Addresses {
		out[i] = net.JoinHostPort(a.String(), port)
	}
	return out
}
