package handshake

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// How many connections may be open in each stage. A full stage evicts one for who comes next; none
// is evicted for a connection of an earlier stage. Anybody may send from a peer's address whom that
// node masquerades, so the peer itself must get through.
//
// Before its ClientHello is there, the oldest of the same address is evicted, or the oldest of all:
// a peer sends it at once, so that connections that say nothing or little, however many, cost a
// peer only the time until then. After that the peer's answer takes a way back and forth, for which
// nobody can be blamed: chance decides who is evicted. Then neither who comes often nor who came
// early keeps all others out.
const (
	// silentMost have not sent a byte. They cost next to nothing.
	silentMost, silentPerAddress = 1024, 256
	// greetingMost have sent something, but no complete ClientHello.
	greetingMost, greetingPerAddress = 512, 256
	// shakingMost have sent a ClientHello, and have not shown a certificate. Each costs some memory
	// while it waits.
	shakingMost, shakingPerAddress = 512, 256
	// perPeer have shown the certificate of one node, which has one exchange at a time and may have
	// been restarted.
	perPeer = 4
	// firstByte is how long a connection may say nothing: a peer's first message follows its
	// connection at once.
	firstByte = 2 * time.Second
)

// Turned counts what was refused before a certificate was seen.
type Turned struct {
	// Filtered are opening packets, not connections: the kernel dropped them, by their address,
	// before there was one. A server does not count them itself.
	Filtered uint64 `json:"filtered"`
	// Unknown came from addresses that no other node has, where no filter kept them away;
	// LastUnknown is the last address of both.
	Unknown     uint64     `json:"unknownSources"`
	LastUnknown netip.Addr `json:"lastUnknownSource,omitzero"`
	// Silent said nothing in time.
	Silent uint64 `json:"silent"`
	// Evicted made room for newer ones.
	Evicted uint64 `json:"evicted"`
}

// connLimit bounds the connections that are served: most of all before authentication, where
// anybody can open them.
type connLimit struct {
	places chan struct{} // of those with a certificate

	mu                        sync.Mutex
	silent, greeting, shaking []*entry // oldest first
	known                     []*entry // with a certificate
	turned                    Turned
}

// entry is one connection under the limit. Guarded by connLimit.mu.
type entry struct {
	limit *connLimit
	conn  net.Conn
	addr  netip.Addr
	peer  string
	place bool
	// cancel ends the session.
	cancel context.CancelCauseFunc
}

func newConnLimit(sessions int) *connLimit {
	return &connLimit{places: make(chan struct{}, sessions)}
}

// addressOf is where a connection comes from.
func addressOf(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// refuse closes a connection from an address that no peer has. By a reset: nothing of it stays in
// the kernel.
func (c *connLimit) refuse(conn net.Conn, addr netip.Addr) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turned.Unknown++
	c.turned.LastUnknown = addr
}

// enter takes a connection in that has said nothing yet. It never waits.
func (c *connLimit) enter(conn net.Conn, addr netip.Addr, cancel context.CancelCauseFunc) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := &entry{limit: c, conn: conn, addr: addr, cancel: cancel}
	c.silent = c.admit(c.silent, g, silentMost, silentPerAddress, oldest)
	return g
}

// oldest and anyOf choose which of so many is evicted.
func oldest(int) int   { return 0 }
func anyOf(of int) int { return rand.N(of) }

// admit adds an entry to a stage, of which another is evicted if it is full. The caller holds mu.
func (c *connLimit) admit(stage []*entry, g *entry, most, perAddress int,
	choose func(of int) int) []*entry {
	var same []int
	for i, other := range stage {
		if other.addr == g.addr {
			same = append(same, i)
		}
	}
	var out int
	switch {
	case len(same) >= perAddress:
		out = same[choose(len(same))]
	case len(stage) >= most:
		out = choose(len(stage))
	default:
		return append(stage, g)
	}
	c.turned.Evicted++
	_ = stage[out].conn.Close()
	return append(slices.Delete(stage, out, out+1), g)
}

func without(stage []*entry, g *entry) []*entry {
	if i := slices.Index(stage, g); i >= 0 {
		return slices.Delete(stage, i, i+1)
	}
	return stage
}

// spoke notes that a connection's first byte is there.
func (g *entry) spoke() {
	c := g.limit
	g.advance(&c.silent, &c.greeting, greetingMost, greetingPerAddress, oldest)
}

// greeted notes that a connection's ClientHello is there.
func (g *entry) greeted() {
	c := g.limit
	g.advance(&c.greeting, &c.shaking, shakingMost, shakingPerAddress, anyOf)
}

// advance takes a connection from one stage into the next, unless it was evicted already.
func (g *entry) advance(from, to *[]*entry, most, perAddress int, choose func(of int) int) {
	g.limit.mu.Lock()
	defer g.limit.mu.Unlock()
	before := len(*from)
	if *from = without(*from, g); len(*from) < before {
		*to = g.limit.admit(*to, g, most, perAddress, choose)
	}
}

// quiet notes that a connection said nothing in time.
func (g *entry) quiet() {
	g.limit.mu.Lock()
	defer g.limit.mu.Unlock()
	if slices.Contains(g.limit.silent, g) {
		g.limit.turned.Silent++
	}
}

// named notes whose certificate a connection has shown, and waits for a place.
func (g *entry) named(ctx context.Context, peer string) error {
	c := g.limit
	c.mu.Lock()
	c.shaking = without(c.shaking, g)
	g.peer = peer
	same := 0
	for _, other := range c.known {
		if other.peer == peer {
			same++
		}
	}
	if same >= perPeer {
		i := slices.IndexFunc(c.known, func(other *entry) bool { return other.peer == peer })
		c.turned.Evicted++
		_ = c.known[i].conn.Close()
		c.known = slices.Delete(c.known, i, i+1)
	}
	c.known = append(c.known, g)
	c.mu.Unlock()
	select {
	case c.places <- struct{}{}:
		g.place = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave gives everything back.
func (g *entry) leave() {
	c := g.limit
	c.mu.Lock()
	c.silent, c.greeting, c.shaking, c.known = without(c.silent, g), without(c.greeting,
		g), without(c.shaking, g), without(c.known, g)
	c.mu.Unlock()
	if g.place {
		<-c.places
	}
}

// abort ends all sessions.
func (c *connLimit) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, stage := range [][]*entry{c.silent, c.greeting, c.shaking, c.known} {
		for _, g := range stage {
			g.cancel(ErrAborted)
		}
	}
}

func (c *connLimit) stats() Turned {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.turned
}

// begun is a connection whose first byte was read already.
type begun struct {
	net.Conn
	first []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 && len(p) > 0 {
		n := copy(p, b.first)
		b.first = b.first[n:]
		return n, nil
	}
	return b.Conn.Read(p)
}

// awaitFirst waits until a connection says something. Until then it has cost nothing but this.
func awaitFirst(conn net.Conn, wait time.Duration) (net.Conn, error) {
	if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	first := make([]byte, 1)
	if _, err := conn.Read(first); err != nil {
		return nil, err
	}
	return &begun{conn, first}, conn.SetReadDeadline(time.Time{})
}
