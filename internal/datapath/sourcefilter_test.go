package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
)

// filteredPort is a listening socket with a source filter, in a namespace of its own whose loopback
// has many addresses.
type filteredPort struct {
	*SourceFilter
	t        *testing.T
	ns       string
	listener net.Listener
	server   netip.Addr // where clients dial
}

func newFilteredPort(t *testing.T, listen string, server netip.Addr) *filteredPort {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads a BPF program and makes a network namespace")
	}
	p := &filteredPort{t: t, server: server}
	var err error
	if p.SourceFilter, err = OpenSourceFilter(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, p.Close()) })
	bpffsCount++
	name := fmt.Sprintf("wt-source-filter-%d-%d", os.Getpid(), bpffsCount)
	if p.ns, err = netns.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, netns.Delete(name)) })
	must(t, netns.Do(p.ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		for i := 1; i <= 3; i++ {
			addr, err := netlink.ParseAddr(fmt.Sprintf("fd77::%d/128", i))
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD // of use at once
			if err := netlink.AddrAdd(lo, addr); err != nil {
				return err
			}
			if err := isLocal(addr.IP); err != nil {
				return err
			}
		}
		config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
			var attached error
			return errors.Join(conn.Control(func(fd uintptr) { attached = p.Attach(fd) }), attached)
		}}
		config.SetMultipathTCP(false)
		p.listener, err = config.Listen(t.Context(), "tcp", listen)
		return err
	}))
	t.Cleanup(func() { _ = p.listener.Close() })
	return p
}

// isLocal waits until the kernel takes packets for an address of this host: it enters an IPv6 route
// a moment after the address.
func isLocal(ip net.IP) error {
	for range 30000 {
		routes, err := netlink.RouteGet(ip)
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("%s does not become an address of this host", ip)
}

func (p *filteredPort) dial(ctx context.Context, from string) (conn net.Conn, err error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	port := p.listener.Addr().(*net.TCPAddr).AddrPort().Port()
	err = netns.Do(p.ns, func() error {
		var err error
		conn, err = dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(p.server, port).String())
		return err
	})
	return conn, err
}

// refused is how many packets were dropped.
func (p *filteredPort) refused() uint64 {
	packets, _, err := p.Refused()
	must(p.t, err)
	return packets
}

// connects opens a connection, and returns both ends.
func (p *filteredPort) connects(from string) (client, server net.Conn) {
	p.t.Helper()
	client, err := p.dial(p.t.Context(), from)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = client.Close() })
	if server, err = p.listener.Accept(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = server.Close() })
	return client, server
}

// unanswered dials until the kernel has dropped the opening packet: no connection, and no reset
// either.
func (p *filteredPort) unanswered(from string) {
	p.t.Helper()
	before := p.refused()
	ctx, cancel := context.WithCancel(p.t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for packets := before; packets == before && ctx.Err() == nil; time.Sleep(time.Millisecond) {
			packets, _, _ = p.Refused()
		}
		cancel()
	})
	conn, err := p.dial(ctx, from)
	cancel()
	watching.Wait()
	if err == nil {
		_ = conn.Close()
		p.t.Fatalf("%s was let in", from)
	}
	if !errors.Is(err, context.Canceled) {
		p.t.Errorf("%s was answered: %v", from, err)
	}
	if _, last, err := p.Refused(); err != nil || last != netip.MustParseAddr(from) {
		p.t.Errorf("the last refused is %s (%v), want %s", last, err, from)
	}
}

func talk(t *testing.T, from, to net.Conn) {
	t.Helper()
	must(t, to.SetReadDeadline(time.Now().Add(30*time.Second)))
	got := make([]byte, 5)
	if _, err := from.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(to, got); err != nil || string(got) != "hello" {
		t.Fatalf("read %q, %v", got, err)
	}
}

// TestSourceFilterDrops: who is not allowed is dropped before there is a connection, and counted;
// who is added gets in; who is removed does not, but keeps what stands.
func TestSourceFilterDrops(t *testing.T) {
	for name, c := range map[string]struct{ listen, server, one, other string }{
		"IPv4":                       {"127.0.0.1:0", "127.0.0.1", "127.0.0.2", "127.0.0.3"},
		"IPv6":                       {"[fd77::1]:0", "fd77::1", "fd77::2", "fd77::3"},
		"IPv4 on a socket of either": {":0", "127.0.0.1", "127.0.0.2", "127.0.0.3"},
		"IPv6 on a socket of either": {":0", "fd77::1", "fd77::2", "fd77::3"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFilteredPort(t, c.listen, netip.MustParseAddr(c.server))
			allow := func(addr string) { must(t, p.Allow(map[netip.Addr]bool{netip.MustParseAddr(addr): true})) }
			p.unanswered(c.one) // nobody is known yet
			allow(c.one)
			client, server := p.connects(c.one)
			p.unanswered(c.other)
			allow(c.other)
			p.connects(c.other)
			dropped := p.refused()
			talk(t, client, server)
			talk(t, server, client)
			if now := p.refused(); now != dropped {
				t.Errorf("%d packets of a connection that stands were dropped", now-dropped)
			}
			p.unanswered(c.one)
			must(t, p.Allow(nil))
			p.unanswered(c.other)
		})
	}
}

// TestSourceFilterFull: more addresses than fit are an error, never more than asked for, and the
// next call puts it right.
func TestSourceFilterFull(t *testing.T) {
	p := newFilteredPort(t, "127.0.0.1:0", netip.MustParseAddr("127.0.0.1"))
	many := map[netip.Addr]bool{}
	for i := range 2*4096 + 1 {
		many[netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})] = true
	}
	for range 2 { // it is no success the second time
		if err := p.Allow(many); err == nil {
			t.Error("more addresses than fit are no error")
		}
	}
	p.unanswered("127.0.0.2")
	must(t,
		p.Allow(map[netip.Addr]bool{netip.MustParseAddr("127.0.0.2"): true,
			netip.MustParseAddr("127.0.0.3"): false}))
	p.connects("127.0.0.2")
	p.unanswered("127.0.0.3")
}
