package handshake

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// flood opens connections that say nothing, from several source addresses in turn, and keeps the
// last ones open, until stop is called. At most so many a second; 0: as fast as it can.
func flood(t testing.TB, to string, from []string,
	perSecond int) (opened *atomic.Int64, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	opened = &atomic.Int64{}
	var running sync.WaitGroup
	for _, source := range from {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: time.Second}
		running.Go(func() {
			var kept []net.Conn
			defer func() {
				for _, conn := range kept {
					_ = conn.Close()
				}
			}()
			for began, n := time.Now(), 0; ctx.Err() == nil; n++ {
				if perSecond > 0 {
					due := began.Add(time.Duration(n) * time.Second * time.Duration(len(from)) / time.Duration(perSecond))
					select {
					case <-ctx.Done():
						return
					case <-time.After(time.Until(due)):
					}
				}
				conn, err := dialer.DialContext(ctx, "tcp", to)
				if err != nil {
					continue
				}
				_ = conn.(*net.TCPConn).SetLinger(0) // its port is free at once
				opened.Add(1)
				if kept = append(kept, conn); len(kept) > 300 {
					_ = kept[0].Close()
					kept = kept[1:]
				}
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return opened, stop
}

func admitOnly(addrs ...string) func(*Config) {
	return func(c *Config) {
		c.Admit = func(a netip.Addr) bool {
			for _, known := range addrs {
				if a == netip.MustParseAddr(known) {
					return true
				}
			}
			return false
		}
	}
}

// TestFloodOfSilentConnections: two nodes exchange keys, again and again, while connections that
// say nothing come from unknown addresses, and from the peer's own (a process on its host without a
// certificate). Every exchange completes.
func TestFloodOfSilentConnections(t *testing.T) {
	for name, c := range map[string]struct {
		from   []string
		shares bool // its address with the peer
		check  func(Turned) error
	}{
		"from unknown addresses": {[]string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"},
			false, func(turned Turned) error {
				if turned.Unknown < 1000 || turned.Evicted != 0 ||
					!strings.HasPrefix(turned.LastUnknown.String(), "127.0.0.") {
					return fmt.Errorf("counted %+v: want unknown addresses only", turned)
				}
				return nil
			}},
		"from the peer's own host": {[]string{"127.0.0.1", "127.0.0.1"}, true,
			func(turned Turned) error {
				if turned.Unknown != 0 || turned.Evicted < 100 {
					return fmt.Errorf("counted %+v: want that some were evicted", turned)
				}
				return nil
			}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			x, y := b.node("x", 1, nil), b.node("y", 1, admitOnly("127.0.0.1"))
			y.listen()
			opened, stop := flood(t, y.addr, c.from, 0)
			for opened.Load() < 500 {
				time.Sleep(time.Millisecond)
			}
			for epoch := uint64(1); epoch <= 2 || opened.Load() < 3000; epoch++ {
				if epoch > 2 {
					// The same again, as after a reboot of x.
					x.mu.Lock()
					clear(x.tx)
					clear(x.rx)
					x.mu.Unlock()
					epoch = 2
				}
				result, err := x.Exchange(t.Context(), y.peer(), epoch)
				// The other end is done a moment later. And where the machine is so busy that a
				// stage's share of newer connections comes before x's ClientHello does, x's is
				// evicted, and the owner of peers tries again.
				for tries := 0; errors.Is(err, ErrBusy) || c.shares && err != nil &&
					tries < 100; tries++ {
					result, err = x.Exchange(t.Context(), y.peer(), epoch)
				}
				if err != nil {
					t.Fatalf("epoch %d: %+v, %v", epoch, result, err)
				}
				b.settled(x, y, epoch)
			}
			stop()
			if err := c.check(y.server.Turned()); err != nil {
				t.Error(err)
			}
			for _, err := range y.errors() {
				// What is evicted in the middle of its handshake reads from a closed connection.
				evicted := c.shares && errors.Is(err, net.ErrClosed)
				if err != nil && !errors.Is(err, ErrBusy) && !evicted {
					t.Errorf("served: %v", err)
				}
			}
		})
	}
}

// TestFloodInMidHandshake: between a peer's ClientHello and its certificate come connections from
// its own address that send a byte each, as from a container that its node masquerades: many more
// than may be open. The exchange completes.
func TestFloodInMidHandshake(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, admitOnly("127.0.0.1"))
	y.listen()
	const senders = greetingPerAddress + 2*silentPerAddress
	peer := y.peer()
	peer.Addresses = []string{pauseAfterClientHello(t, y.addr,
		func() { sendOneByteEach(t, y, senders) })}
	result, err := x.Exchange(t.Context(), peer, 1)
	if err != nil {
		t.Fatalf("%+v, %v", result, err)
	}
	b.settled(x, y, 1)
}

// sendOneByteEach opens connections that send one byte, and returns when as many of them were
// evicted as have no place.
func sendOneByteEach(t *testing.T, to *testNode, senders int) {
	for range senders {
		conn, err := net.Dial("tcp", to.addr)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = conn.Write([]byte{22})
	}
	for range 30000 {
		if to.server.Turned().Evicted >= uint64(senders-greetingPerAddress) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("counted %+v of %d senders", to.server.Turned(), senders)
}

// pauseAfterClientHello relays one connection, and calls between before it hands the server's first
// answer on.
func pauseAfterClientHello(t *testing.T, to string, between func()) (addr string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	running.Go(func() {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		server, err := net.Dial("tcp", to)
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		running.Go(func() {
			defer server.Close()
			_, _ = io.Copy(server, client)
		})
		first := make([]byte, 1)
		if _, err := io.ReadFull(server, first); err != nil {
			t.Error(err)
			return
		}
		between()
		if _, err := client.Write(first); err == nil {
			_, _ = io.Copy(client, server)
		}
	})
	return listener.Addr().String()
}

// TestUnknownAddressesAreRefused: an address that no peer has is not even listened to, with a good
// certificate or without.
func TestUnknownAddressesAreRefused(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, admitOnly("127.0.0.9"))
	y.listen()
	if _, err := x.Exchange(t.Context(), y.peer(), 1); err == nil {
		t.Error("served")
	}
	if turned := y.server.Turned(); turned.Unknown != 1 ||
		turned.LastUnknown != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("counted %+v", turned)
	}
	// A node with several addresses dials from the one that its peers know.
	z := b.node("z", 1, func(c *Config) {
		c.Addresses = []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.9")}
	})
	b.exchange(z, y, 1)
	b.settled(z, y, 1)
}

// TestSilence ends a connection that says nothing, and counts it.
func TestSilence(t *testing.T) {
	b := newFixture(t)
	y := b.node("y", 1, func(c *Config) { c.Timeout = 50 * time.Millisecond })
	y.listen()
	conn, err := net.Dial("tcp", y.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil ||
		errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	for range 30000 {
		if y.server.Turned().Silent == 1 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("counted %+v", y.server.Turned())
}

// TestConnectionLimit holds the stages to their limits: the newest comes in, the oldest of its
// address is evicted, and only if none of its own is there the oldest of all.
func TestConnectionLimit(t *testing.T) {
	c := newConnLimit(2)
	enter := func(addr string) (*entry, *closing) {
		conn := &closing{}
		return c.enter(conn, netip.MustParseAddr(addr), func(error) {}), conn
	}
	_, other := enter("10.0.0.1")
	_, first := enter("10.0.0.2")
	for range silentPerAddress - 1 {
		enter("10.0.0.2")
	}
	if first.closed || c.stats().Evicted != 0 {
		t.Fatal("somebody was evicted too early")
	}
	if enter("10.0.0.2"); !first.closed || other.closed {
		t.Errorf("over an address's limit: its oldest closed %t, another's %t", first.closed,
			other.closed)
	}
	for i := 0; len(c.silent) < silentMost; i++ {
		enter(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String())
	}
	if other.closed {
		t.Fatal("somebody was evicted too early")
	}
	entry, conn := enter("10.0.0.3")
	if !other.closed || conn.closed || len(c.silent) != silentMost {
		t.Errorf("over the limit of all: the oldest closed %t, the newest %t", other.closed,
			conn.closed)
	}
	entry.spoke()
	entry.greeted()
	if len(c.silent) != silentMost-1 || len(c.greeting) != 0 || len(c.shaking) != 1 {
		t.Errorf("%d are silent, %d greet, %d shake hands", len(c.silent), len(c.greeting),
			len(c.shaking))
	}
	for range greetingPerAddress + 10 { // nobody is evicted for who is not as far
		late, _ := enter("10.0.0.3")
		late.spoke()
	}
	if conn.closed || len(c.greeting) != greetingPerAddress {
		t.Errorf("%d greet, and who had come further closed %t", len(c.greeting), conn.closed)
	}
	for range shakingPerAddress + 10 {
		late, _ := enter("10.0.0.3")
		late.spoke()
		late.greeted()
	}
	if len(c.shaking) != shakingPerAddress {
		t.Errorf("%d shake hands", len(c.shaking))
	}
	entry.leave()
	entry.leave()
	if slices.Contains(c.shaking, entry) {
		t.Error("it has left and shakes hands still")
	}
	// One node's certificate takes a few places, never all.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var held []*closing
	for range perPeer + 1 {
		entry, conn := enter("10.0.0.4")
		entry.spoke()
		entry.greeted()
		_ = entry.named(ctx, "n")
		held = append(held, conn)
	}
	if !held[0].closed || held[1].closed || len(c.known) != perPeer {
		t.Errorf("of one node %d are left, the first closed %t, the second %t", len(c.known),
			held[0].closed, held[1].closed)
	}
}

type closing struct {
	net.Conn
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// TestRequirePostQuantum refuses a peer that has X25519 alone, in either role, by its name, before
// anything of an epoch is said; one that has X25519MLKEM768 is served.
func TestRequirePostQuantum(t *testing.T) {
	b := newFixture(t)
	strict := func(c *Config) { c.RequirePostQuantum = true }
	x, y := b.node("x", 1, strict), b.node("y", 1, strict)
	y.listen()
	conn, err := x.dialTLS(y, func(c *tls.Config) { onlyX25519(c); c.VerifyConnection = nil })
	if err == nil {
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err = conn.Read(make([]byte, 1)); err == nil {
			t.Error("the server went on")
		}
	}
	if err := y.waitServed(1); !errors.Is(err, ErrNotPostQuantum) ||
		!strings.Contains(err.Error(), "node x") {
		t.Errorf("the server says %v", err)
	}
	_, err = x.Exchange(t.Context(), b.fakeServer(y, onlyX25519, nil), 1)
	if !errors.Is(err, ErrNotPostQuantum) || !strings.Contains(err.Error(), "node y") {
		t.Errorf("the client says %v", err)
	}
	if len(x.given)+len(y.given) != 0 {
		t.Error("keys were installed")
	}
	if result := b.exchange(x, y, 1); !result.PostQuantum {
		t.Errorf("%+v", result)
	}
	b.settled(x, y, 1)
}
