package handshake

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
	"weft.dev/weft/internal/keys/schedule"
)

// fixture is a set of nodes on loopback, each with a datapath of its own that watches over what
// must hold.
type fixture struct {
	t         testing.TB
	authority *nodeidtest.Authority
	mu        sync.Mutex
	nodes     map[string]*testNode
	// lost collects moments in which packets would have been lost.
	lost []string
}

type sa struct {
	id    uint64
	lanes map[uint8][36]byte
}

// testNode is a node with both roles and a datapath in memory.
type testNode struct {
	*Client
	fixture *fixture
	name    string
	lanes   int
	source  *nodeidtest.Source
	server  *Server
	addr    string
	config  Config

	mu     sync.Mutex
	tx, rx map[string]*sa // by peer and epoch
	dek    map[uint64][]byte
	served []error
	// onState, onRX and onTX may fail a call, before or after its work.
	onState          func() error
	onRX, onTX       func() error
	afterRX, afterTX func() error
	given            []*schedule.Direction
}

func newFixture(t testing.TB) *fixture {
	return &fixture{t: t, authority: nodeidtest.NewAuthority(t), nodes: map[string]*testNode{}}
}

func dekOf(epoch uint64) []byte { return bytes.Repeat([]byte{byte(epoch), 7}, 16) }

// node adds a node; change may alter its configuration. It does not listen yet.
func (b *fixture) node(name string, lanes int, change func(*Config)) *testNode {
	b.t.Helper()
	n := &testNode{fixture: b, name: name, lanes: lanes, tx: map[string]*sa{}, rx: map[string]*sa{},
		dek:    map[uint64][]byte{1: dekOf(1), 2: dekOf(2)},
		source: b.authority.Source(b.authority.Node(b.t, name, nil))}
	n.config = Config{
		Node: name, TrustDomain: nodeidtest.TrustDomain, Identity: n.source, Installer: n,
		Timeout: 30 * time.Second,
		Known:   func(name string) bool { b.mu.Lock(); defer b.mu.Unlock(); return b.nodes[name] != nil },
		DEK: func(_ context.Context, epoch uint64) ([]byte, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.dek[epoch] == nil {
				return nil, errors.New("KMS says no to secret-path")
			}
			return slices.Clone(n.dek[epoch]), nil
		},
		Served: func(_ Result, err error) { n.mu.Lock(); defer n.mu.Unlock(); n.served = append(n.served, err) },
	}
	if change != nil {
		change(&n.config)
	}
	n.restart()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes[name] = n
	return n
}

// restart makes new roles, as a restarted agent does: what ran is forgotten, the datapath stays.
func (n *testNode) restart() {
	n.fixture.t.Helper()
	var err error
	if n.Client, n.server, err = New(n.config); err != nil {
		n.fixture.t.Fatal(err)
	}
}

// listen serves on loopback until the returned function is called.
func (n *testNode) listen() (stop func()) { return n.listenBy(&net.ListenConfig{}) }

func (n *testNode) listenBy(config *net.ListenConfig) (stop func()) {
	n.fixture.t.Helper()
	listener, err := config.Listen(n.fixture.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		n.fixture.t.Fatal(err)
	}
	n.addr = listener.Addr().String()
	ctx, cancel := context.WithCancel(n.fixture.t.Context())
	ended := make(chan struct{})
	server := n.server
	go func() {
		defer close(ended)
		if err := server.Serve(ctx, listener); err != nil {
			n.fixture.t.Errorf("serve of %s: %v", n.name, err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	n.fixture.t.Cleanup(stop)
	return stop
}

func (n *testNode) peer() Peer { return Peer{Name: n.name, Addresses: []string{n.addr}} }

func (n *testNode) errors() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.served)
}

func key(peer string, epoch uint64) string { return fmt.Sprintf("%s/%d", peer, epoch) }

func idOf(s *sa) uint64 {
	if s == nil {
		return 0
	}
	return s.id
}

// get reads what a node has towards a peer.
func (n *testNode) get(out bool, peer string, epoch uint64) *sa {
	n.mu.Lock()
	defer n.mu.Unlock()
	if out {
		return n.tx[key(peer, epoch)]
	}
	return n.rx[key(peer, epoch)]
}

func (n *testNode) State(peer string, epoch uint64) (State, error) {
	if n.onState != nil {
		if err := n.onState(); err != nil {
			return State{}, err
		}
	}
	return State{TX: idOf(n.get(true, peer, epoch)), RX: idOf(n.get(false, peer, epoch)),
		Lanes: n.lanes}, nil
}

func (n *testNode) InstallRX(peer string, keys *schedule.Direction) error {
	if keys.From != peer || keys.To != n.name {
		return fmt.Errorf("keys %v for receiving from %s", keys, peer)
	}
	if n.onRX != nil {
		if err := n.onRX(); err != nil {
			return err
		}
	}
	// Who replaces keys that the peer sends with loses packets.
	other := n.fixture.find(peer)
	if old := n.get(false, peer, keys.Number); other != nil && old != nil &&
		idOf(other.get(true, n.name, keys.Number)) == old.id {
		n.fixture.lose("%s replaced the keys with which %s sends", n.name, peer)
	}
	n.put(n.rx, peer, keys)
	if n.afterRX != nil {
		return n.afterRX()
	}
	return nil
}

func (n *testNode) InstallTX(peer string, keys *schedule.Direction) error {
	if keys.From != n.name || keys.To != peer {
		return fmt.Errorf("keys %v for sending to %s", keys, peer)
	}
	if n.onTX != nil {
		if err := n.onTX(); err != nil {
			return err
		}
	}
	other := n.fixture.find(peer)
	if other != nil {
		if held := other.get(false, n.name, keys.Number); idOf(held) != keys.ID ||
			len(held.lanes) != len(keys.Lanes) {
			n.fixture.lose("%s switched before %s could receive", n.name, peer)
		}
		if old := n.get(true, peer, keys.Number); old != nil &&
			idOf(other.get(false, n.name, keys.Number)) == old.id {
			n.fixture.lose("%s replaced keys that were in order", n.name)
		}
	}
	n.put(n.tx, peer, keys)
	if n.afterTX != nil {
		return n.afterTX()
	}
	return nil
}

func (n *testNode) put(where map[string]*sa, peer string, keys *schedule.Direction) {
	got := &sa{id: keys.ID, lanes: map[uint8][36]byte{}}
	for _, lane := range keys.Lanes {
		got.lanes[lane.Lane] = [36]byte(append(lane.Key[:], lane.Salt[:]...))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	where[key(peer, keys.Number)] = got
	n.given = append(n.given, keys)
}

func (b *fixture) find(name string) *testNode {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.nodes[name]
}

func (b *fixture) lose(format string, values ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = append(b.lost, fmt.Sprintf(format, values...))
}

// inOrder checks that a direction's two ends have the same keys on all of the sender's lanes.
func (b *fixture) inOrder(from, to *testNode, epoch uint64) error {
	tx, rx := from.get(true, to.name, epoch), to.get(false, from.name, epoch)
	if tx == nil || rx == nil || tx.id == 0 || tx.id != rx.id {
		return fmt.Errorf("%s→%s epoch %d: sends with %x, receives %x", from.name, to.name, epoch,
			idOf(tx), idOf(rx))
	}
	if len(tx.lanes) != from.lanes || len(rx.lanes) != from.lanes {
		return fmt.Errorf("%s→%s: %d and %d lanes, want %d", from.name, to.name, len(tx.lanes),
			len(rx.lanes), from.lanes)
	}
	for lane, key := range tx.lanes {
		if rx.lanes[lane] != key {
			return fmt.Errorf("%s→%s lane %d: keys differ", from.name, to.name, lane)
		}
	}
	return nil
}

// settled checks both directions, and that nothing would have been lost on the way.
func (b *fixture) settled(x, y *testNode, epoch uint64) {
	b.t.Helper()
	for _, err := range []error{b.inOrder(x, y, epoch), b.inOrder(y, x, epoch)} {
		if err != nil {
			b.t.Error(err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.lost {
		b.t.Error(text)
	}
}

// exchange runs one exchange that must work. The end that answers is still busy for a moment after
// the other is done.
func (b *fixture) exchange(from, to *testNode, epoch uint64) Result {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	result, err := until(ctx, from, to, epoch)
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// dialTLS opens a session by hand, for a peer that does not keep to the protocol.
func (n *testNode) dialTLS(to *testNode, change func(*tls.Config)) (*tls.Conn, error) {
	config, err := n.Client.cfg.tlsConfig(n.fixture.t.Context(), 2, to.name, func(string) {})
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(config)
	}
	raw, err := net.Dial("tcp", to.addr)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	n.fixture.t.Cleanup(func() { _ = conn.Close() })
	return conn, conn.Handshake()
}

func onlyX25519(config *tls.Config) { config.CurvePreferences = []tls.CurveID{tls.X25519} }
