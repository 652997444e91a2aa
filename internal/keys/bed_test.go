package keys

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
)

// testClock runs like a real one, can be put forward, and its wall clock set.
type testClock struct {
	start time.Time
	stop  chan struct{}

	mu      sync.Mutex
	skipped time.Duration
	shift   time.Duration
	waiting []waiter
}

type waiter struct {
	at time.Duration
	ch chan time.Time
}

func newTestClock(t *testing.T) *testClock {
	c := &testClock{start: time.Now(), stop: make(chan struct{})}
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-c.stop:
				return
			case <-tick.C:
				c.fire()
			}
		}
	}()
	t.Cleanup(func() { close(c.stop) })
	return c
}

func (c *testClock) Boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot()
}

func (c *testClock) boot() time.Duration { return time.Since(c.start) + c.skipped }

func (c *testClock) Wall() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(c.boot() + c.shift)
}

func (c *testClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := waiter{c.boot() + d, make(chan time.Time, 1)}
	c.waiting = append(c.waiting, w)
	return w.ch
}

func (c *testClock) fire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.boot()
	c.waiting = slices.DeleteFunc(c.waiting, func(w waiter) bool {
		if now >= w.at {
			w.ch <- time.Time{}
			return true
		}
		return false
	})
}

// skip puts the clock forward.
func (c *testClock) skip(d time.Duration) {
	c.mu.Lock()
	c.skipped += d
	c.mu.Unlock()
	c.fire()
}

// view is a clock whose wall clock may be wrong.
type view struct {
	*testClock
	mu    sync.Mutex
	shift time.Duration
}

func (v *view) Wall() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.testClock.Wall().Add(v.shift)
}

func (v *view) jump(d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shift += d
}

// memStore is an EpochStore in memory.
type memStore struct {
	mu      sync.Mutex
	epochs  map[uint64]Epoch
	down    bool
	changed func()
}

var errStoreDown = errors.New("the store is away")

func (s *memStore) Epochs() ([]Epoch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errStoreDown
	}
	return slices.SortedFunc(maps.Values(s.epochs), func(a, b Epoch) int { return int(a.Number) - int(b.Number) }), nil
}

func (s *memStore) CreateEpoch(e Epoch) error {
	s.mu.Lock()
	if s.down {
		s.mu.Unlock()
		return errStoreDown
	}
	if _, taken := s.epochs[e.Number]; taken {
		s.mu.Unlock()
		return ErrExists
	}
	s.epochs[e.Number] = e
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s *memStore) DeleteEpoch(number uint64) error {
	s.mu.Lock()
	if s.down {
		s.mu.Unlock()
		return errStoreDown
	}
	delete(s.epochs, number)
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s *memStore) setDown(down bool) {
	s.mu.Lock()
	s.down = down
	s.mu.Unlock()
	s.changed()
}

// nodeStore counts a node's steps in the store.
type nodeStore struct {
	EpochStore
	life *life
}

func (s nodeStore) CreateEpoch(e Epoch) error {
	return s.life.step("publish", func() error { return s.EpochStore.CreateEpoch(e) })
}

func (s nodeStore) DeleteEpoch(n uint64) error {
	return s.life.step("delete", func() error { return s.EpochStore.DeleteEpoch(n) })
}

// fakeKEK wraps by adding a hash of the binding; fail refuses.
type fakeKEK struct {
	mu      sync.Mutex
	fail    func(epoch uint64) error
	life    *life
	unwraps map[uint64]int
}

func pad(bind kek.Binding) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%s %d", bind.Cluster, bind.Epoch))
}

func (k *fakeKEK) do(what string, in []byte, bind kek.Binding) (out []byte, err error) {
	k.mu.Lock()
	fail, life := k.fail, k.life
	if what == "unwrap" {
		k.unwraps[bind.Epoch]++
	}
	k.mu.Unlock()
	if fail != nil {
		if err := fail(bind.Epoch); err != nil {
			return nil, err
		}
	}
	err = life.step(what, func() error {
		mask := pad(bind)
		for i, b := range in {
			out = append(out, b^mask[i%32])
		}
		return nil
	})
	return out, err
}

func (k *fakeKEK) Wrap(_ context.Context, dek []byte, bind kek.Binding) ([]byte, string, error) {
	blob, err := k.do("wrap", dek, bind)
	return blob, "1", err
}

func (k *fakeKEK) Unwrap(_ context.Context, blob []byte, bind kek.Binding) ([]byte, error) {
	return k.do("unwrap", blob, bind)
}

func (k *fakeKEK) URL() string { return "file:///test/kek" }

func (k *fakeKEK) refuse(fail func(uint64) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = fail
}

// office is what fakeLeaders fight for. With all set, everybody is elected.
type office struct {
	mu     sync.Mutex
	holder string
	all    bool
	closed map[string]bool
}

type fakeLeader struct {
	office *office
	node   string
}

func (l fakeLeader) Campaign(ctx context.Context, trouble func(error)) error {
	for {
		trouble(nil)
		l.office.mu.Lock()
		won := !l.office.closed[l.node] && (l.office.all || l.office.holder == "" || l.office.holder == l.node)
		if won {
			l.office.holder = l.node
		}
		l.office.mu.Unlock()
		if won {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (l fakeLeader) IsLeader() bool {
	l.office.mu.Lock()
	defer l.office.mu.Unlock()
	return l.office.all || l.office.holder == l.node
}

func (l fakeLeader) Resign() {
	l.office.mu.Lock()
	defer l.office.mu.Unlock()
	if l.office.holder == l.node {
		l.office.holder = ""
	}
}

func (l fakeLeader) Holder() string {
	l.office.mu.Lock()
	defer l.office.mu.Unlock()
	return l.office.holder
}

// bed is a cluster of managers with real handshakes on loopback.
type bed struct {
	t         *testing.T
	drain     time.Duration
	authority *nodeidtest.Authority
	clock     *testClock
	fabric    *fabric
	store     *memStore
	office    *office
	options   func(*Options)

	mu    sync.Mutex
	nodes map[string]*node
	order []string
}

type node struct {
	bed    *bed
	name   string
	port   uint16
	dp     *fakeDP
	kek    *fakeKEK
	clock  *view
	source *nodeidtest.Source
	peers  func() []Peer

	*Manager
	life   *life
	cancel context.CancelFunc
	done   chan struct{}
}

const testDrain = 60 * time.Millisecond

func newBed(t *testing.T) *bed {
	t.Helper()
	return newBedWithDrain(t, testDrain)
}

func newBedWithDrain(t *testing.T, drain time.Duration) *bed {
	t.Helper()
	clock := newTestClock(t)
	b := &bed{t: t, drain: drain, authority: nodeidtest.NewAuthority(t), clock: clock, fabric: newFabric(clock, drain),
		office: &office{closed: map[string]bool{}}, nodes: map[string]*node{}, options: func(*Options) {}}
	b.store = &memStore{epochs: map[uint64]Epoch{}, changed: b.storeChanged}
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

func (b *bed) storeChanged() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.nodes {
		if n.Manager != nil {
			n.StoreChanged()
		}
	}
}

// node makes a node with a port of its own; it does not run yet.
func (b *bed) node(name string) *node {
	b.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	listener.Close()
	n := &node{bed: b, name: name, port: port, dp: b.fabric.node(name, 2), clock: &view{testClock: b.clock},
		kek: &fakeKEK{unwraps: map[uint64]int{}}, source: b.authority.Source(b.authority.Node(b.t, name, nil))}
	n.dp.wall = n.clock.Wall
	b.mu.Lock()
	b.nodes[name], b.order = n, append(b.order, name)
	b.mu.Unlock()
	return n
}

func (b *bed) cluster(names ...string) []*node {
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
	return Peer{Name: n.name, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: n.port}
}

func (b *bed) allPeers() []Peer {
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
	b := n.bed
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
		KEK: n.kek, Store: nodeStore{b.store, life}, Leader: fakeLeader{b.office, n.name}, Datapath: handle{n.dp, life},
		MaxAge: 24 * time.Hour, HardTTL: 72 * time.Hour, Drain: b.drain, Spread: -1, Clock: n.clock,
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

const patience = 30 * time.Second

// until waits for something, with packets going round meanwhile.
func (b *bed) until(what string, is func() bool) {
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

func (b *bed) dump() string {
	out := ""
	for _, name := range b.order {
		s := b.nodes[name].Status()
		out += fmt.Sprintf("%s: epoch %d newest %d leader %v problems %v\n", name, s.Epoch, s.Newest, s.IsLeader, s.Problems)
		if len(s.Peers) > 10 {
			s.Peers = s.Peers[:10]
		}
		for _, p := range s.Peers {
			out += fmt.Sprintf("   %s %s tx %d rx %d %s\n", p.Name, p.State, p.EpochTX, p.EpochRX, p.LastError)
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
func (b *bed) up(epoch uint64, names ...string) {
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
				if slices.Contains(names, p.Name) && (p.EpochTX < epoch || p.EpochRX < epoch || (p.State != StateUp && p.State != StateDraining)) {
					return false
				}
			}
		}
		return true
	})
}

// sound is the end of every test: no packet lost, no nonce used twice.
func (b *bed) sound() {
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

func (b *bed) rotate(n *node) Epoch {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := n.Rotate(ctx)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.dump())
	}
	return e
}

func (b *bed) peer(n *node, name string) PeerStatus {
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

func (c *countingClient) Exchange(ctx context.Context, peer handshake.Peer, epoch uint64) (handshake.Result, error) {
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
