package keys

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
)

// fixture is a cluster of managers with real handshakes on loopback.
type fixture struct {
	t         *testing.T
	drain     time.Duration
	authority *nodeidtest.Authority
	clock     *testClock
	fabric    *fabric
	store     *memStore
	election  *election
	options   func(*Options)

	mu    sync.Mutex
	nodes map[string]*node
	order []string
}

type node struct {
	fixture *fixture
	name    string
	port    uint16
	dp      *fakeDP
	kek     *fakeKEK
	clock   *view
	source  *nodeidtest.Source
	peers   func() []Peer

	*Manager
	life   *life
	cancel context.CancelFunc
	done   chan struct{}
}

const testDrain = 60 * time.Millisecond

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureWithDrain(t, testDrain)
}

func newFixtureWithDrain(t *testing.T, drain time.Duration) *fixture {
	t.Helper()
	clock := newTestClock(t)
	b := &fixture{t: t, drain: drain, authority: nodeidtest.NewAuthority(t), clock: clock,
		fabric:   newFabric(clock, drain),
		election: &election{closed: map[string]bool{}}, nodes: map[string]*node{},
		options: func(*Options) {}}
	b.store = &memStore{epochs: map[uint64]epochs.Epoch{}, changed: b.storeChanged}
	t.Cleanup(func() {
		b.mu.Lock()
		nodes := slices.Collect(maps.Values(b.nodes))
		b.mu.Unlock()
		for _, n := range nodes {
			n.stop()
		}
	})
	return b
}

func (b *fixture) storeChanged() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.nodes {
		if n.Manager != nil {
			n.StoreChanged()
		}
	}
}

// node makes a node with a port of its own; it does not run yet.
func (b *fixture) node(name string) *node {
	b.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	listener.Close()
	n := &node{fixture: b, name: name, port: port, dp: b.fabric.node(name, 2),
		clock:  &view{testClock: b.clock},
		kek:    &fakeKEK{unwraps: map[uint64]int{}},
		source: b.authority.Source(b.authority.Node(b.t, name, nil))}
	n.dp.wall = n.clock.Wall
	b.mu.Lock()
	b.nodes[name], b.order = n, append(b.order, name)
	b.mu.Unlock()
	return n
}

func (b *fixture) cluster(names ...string) []*node {
	b.t.Helper()
	var out []*node
	for _, name := range names {
		out = append(out, b.node(name))
	}
	for _, n := range out {
		n.start()
	}
	return out
}

func (n *node) info() Peer {
	return Peer{Name: n.name, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		Port: n.port}
}

func (b *fixture) allPeers() []Peer {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []Peer
	for _, name := range b.order {
		out = append(out, b.nodes[name].info())
	}
	return out
}

// start runs a new manager on what is in the node's maps.
func (n *node) start() {
	b := n.fixture
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	life := &life{die: cancel}
	n.kek.mu.Lock()
	n.kek.life = life
	n.kek.mu.Unlock()
	options := Options{
		Node: n.name, TrustDomain: nodeidtest.TrustDomain, Cluster: "test", Identity: n.source,
		Listen: func(ctx context.Context) (net.Listener, error) {
			return (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", n.port))
		},
		KEK: n.kek, Store: nodeStore{b.store, life}, Leader: fakeLeader{b.election, n.name},
		Datapath: handle{n.dp, life},
		MaxAge:   24 * time.Hour, HardTTL: 72 * time.Hour, Drain: b.drain, Spread: -1,
		Clock: n.clock,
	}
	b.options(&options)
	m, err := New(options)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	n.Manager, n.life, n.cancel, n.done = m, life, cancel, make(chan struct{})
	done := n.done
	b.mu.Unlock()
	if n.peers != nil {
		m.SetPeers(n.peers())
	} else {
		m.SetPeers(b.allPeers())
	}
	go func() {
		defer close(done)
		m.Run(ctx) //nolint:errcheck // never fails
	}()
}

// stop is a process that ends, or is killed: the datapath stays.
func (n *node) stop() {
	if n.cancel == nil {
		return
	}
	n.life.mu.Lock()
	n.life.dead = true
	n.life.mu.Unlock()
	n.cancel()
	<-n.done
}

const patience = 2 * time.Minute

// until waits for something, with packets going round meanwhile.
func (b *fixture) until(what string, is func() bool) {
	b.t.Helper()
	end := time.Now().Add(patience)
	for !is() {
		b.fabric.pump()
		if time.Now().After(end) {
			b.t.Fatalf("%s: not within %s\n%s", what, patience, b.dump())
		}
		time.Sleep(time.Millisecond)
	}
}

func (b *fixture) dump() string {
	out := ""
	for _, name := range b.order {
		s := b.nodes[name].Status()
		out += fmt.Sprintf("%s: epoch %d newest %d leader %v problems %v\n", name, s.Epoch,
			s.Newest, s.IsLeader, s.Problems)
		if len(s.Peers) > 10 {
			s.Peers = s.Peers[:10]
		}
		for _, p := range s.Peers {
			out += fmt.Sprintf("   %s %s tx %d rx %d %s\n", p.Name, p.State, p.EpochTX, p.EpochRX,
				p.LastError)
		}
		for _, e := range s.Epochs {
			out += fmt.Sprintf("   epoch %d %s %s\n", e.Number, e.DEK, e.Error)
		}
	}
	b.fabric.mu.Lock()
	defer b.fabric.mu.Unlock()
	return out + fmt.Sprintf("lost: %v\n", b.fabric.lost)
}

// up waits until the nodes agree on an epoch of at least this number.
func (b *fixture) up(epoch uint64, names ...string) {
	b.t.Helper()
	if len(names) == 0 {
		names = b.order
	}
	b.until(fmt.Sprintf("%v on epoch %d", names, epoch), func() bool {
		for _, name := range names {
			s := b.nodes[name].Status()
			if s.Epoch < epoch {
				return false
			}
			for _, p := range s.Peers {
				if slices.Contains(names, p.Name) &&
					(p.EpochTX < epoch || p.EpochRX < epoch ||
						(p.State != StateUp && p.State != StateDraining)) {
					return false
				}
			}
		}
		return true
	})
}

// sound is the end of every test: no packet lost, no nonce used twice.
func (b *fixture) sound() {
	b.t.Helper()
	b.fabric.pump()
	b.fabric.mu.Lock()
	defer b.fabric.mu.Unlock()
	for _, lost := range b.fabric.lost {
		b.t.Errorf("lost: %s", lost)
	}
	for _, r := range b.fabric.repeated {
		b.t.Errorf("nonce used twice: %s", r)
	}
	b.t.Logf("%d packets sent, %d lost", b.fabric.sent, len(b.fabric.lost))
}

func (b *fixture) rotate(n *node) epochs.Epoch {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := n.Rotate(ctx)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.dump())
	}
	return e
}

func (b *fixture) peer(n *node, name string) PeerStatus {
	b.t.Helper()
	for _, p := range n.Status().Peers {
		if p.Name == name {
			return p
		}
	}
	return PeerStatus{}
}

// countingClient counts exchanges under way at once.
type countingClient struct {
	client
	mu        sync.Mutex
	now, most int
}

func (c *countingClient) Exchange(ctx context.Context, peer handshake.Peer,
	epoch uint64) (handshake.Result, error) {
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now--
	}()
	return c.client.Exchange(ctx, peer, epoch)
}
