package handshake

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath"
)

var unknownAddresses = []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"}

// filtered makes a configuration for listening whose sockets let only one address in.
func filtered(t testing.TB, only string) (*datapath.SourceFilter, *net.ListenConfig) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads a BPF program and sends from a raw socket")
	}
	filter, err := datapath.OpenSourceFilter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = filter.Close() })
	if err := filter.Allow(map[netip.Addr]bool{netip.MustParseAddr(only): true}); err != nil {
		t.Fatal(err)
	}
	config := &net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var attached error
		return errors.Join(conn.Control(func(fd uintptr) { attached = filter.Attach(fd) }),
			attached)
	}}
	config.SetMultipathTCP(false)
	return filter, config
}

// burstMost is how many are sent at once at most. What a busy machine did not let a flood send in
// time is not made up for: it would be another flood.
const burstMost = 200

// bursts calls send for 0, 1, 2 and so on from one thread, so many times a second at most, a
// hundredth of a second's at once, until stop is called.
func bursts(t testing.TB, perSecond int, send func(n int) error) (sent *atomic.Int64, stop func()) {
	t.Helper()
	sent = &atomic.Int64{}
	var ended atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for last := time.Now(); !ended.Load(); time.Sleep(10 * time.Millisecond) {
			now := time.Now()
			due := min(now.Sub(last).Seconds()*float64(perSecond), burstMost)
			last = now
			for ; due >= 1 && !ended.Load(); due-- {
				if err := send(int(sent.Load())); err != nil {
					t.Errorf("the flood ends: %v", err)
					return
				}
				sent.Add(1)
			}
		}
	})
	stop = sync.OnceFunc(func() { ended.Store(true); running.Wait() })
	t.Cleanup(stop)
	return sent, stop
}

// synFlood sends opening packets from a raw socket. Nobody answers what comes back.
func synFlood(t testing.TB, to string, from []string,
	perSecond int) (sent *atomic.Int64, stop func()) {
	t.Helper()
	target := netip.MustParseAddrPort(to)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	packets := make([][]byte, 4096)
	for i := range packets {
		ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: layers.IPProtocolTCP,
			SrcIP: net.ParseIP(from[i%len(from)]), DstIP: target.Addr().AsSlice()}
		tcp := &layers.TCP{SrcPort: layers.TCPPort(20000 + i),
			DstPort: layers.TCPPort(target.Port()), Seq: uint32(i), SYN: true, Window: 65535}
		if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		buffer := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(buffer,
			gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip,
			tcp); err != nil {
			t.Fatal(err)
		}
		packets[i] = buffer.Bytes()
	}
	addr := &unix.SockaddrInet4{Addr: target.Addr().As4()}
	return bursts(t, perSecond,
		func(n int) error { return unix.Sendto(fd, packets[n%len(packets)], 0, addr) })
}

// connectFlood begins connections, without waiting for any, and resets each when 300 younger ones
// are there.
func connectFlood(t testing.TB, to string, from []string,
	perSecond int) (begun *atomic.Int64, stop func()) {
	t.Helper()
	target := netip.MustParseAddrPort(to)
	addr := &unix.SockaddrInet4{Addr: target.Addr().As4(), Port: int(target.Port())}
	var kept [300]int
	t.Cleanup(func() {
		for _, fd := range kept {
			if fd != 0 {
				_ = unix.Close(fd)
			}
		}
	})
	return bursts(t, perSecond, func(n int) error {
		at := n % len(kept)
		if kept[at] != 0 {
			_ = unix.Close(kept[at])
			kept[at] = 0
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
			0)
		if err != nil {
			return err
		}
		kept[at] = fd
		if err := errors.Join(
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
			unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(from[n%len(from)]).As4()}),
		); err != nil {
			return err
		}
		_ = unix.Connect(fd, addr)
		return nil
	})
}

// again forgets x's keys, as after a reboot.
func (n *testNode) again() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.tx)
	clear(n.rx)
}

// TestFloodThatIsFiltered: 10 000 opening packets a second come from unknown addresses. Exchanges
// complete, and nothing of the flood reaches the server.
func TestFloodThatIsFiltered(t *testing.T) {
	filter, config := filtered(t, "127.0.0.1")
	for name, flood := range map[string]func(testing.TB, string, []string, int) (*atomic.Int64, func()){
		"packets": synFlood, "connections": connectFlood,
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			x, y := b.node("x", 1, nil), b.node("y", 1, admitOnly("127.0.0.1"))
			y.listenBy(config)
			before, _, _ := filter.Refused()
			sent, stop := flood(t, y.addr, unknownAddresses, 10000)
			for refused := before; refused < before+5000; refused, _, _ = filter.Refused() {
				x.again()
				b.exchange(x, y, 1)
				b.settled(x, y, 1)
				if t.Failed() {
					return
				}
			}
			stop()
			if refused, last, err := filter.Refused(); err != nil ||
				!slices.Contains(unknownAddresses, last.String()) {
				t.Errorf("%d were sent, %d refused, the last from %s: %v", sent.Load(),
					refused-before, last, err)
			}
			if turned := y.server.Turned(); turned != (Turned{}) {
				t.Errorf("the server had to turn away %+v", turned)
			}
			for _, err := range y.errors() {
				if err != nil && !errors.Is(err, ErrBusy) {
					t.Errorf("served: %v", err)
				}
			}
		})
	}
}

// TestSilentAddress: an address that answers nothing, as where the peer does not know this node
// yet, takes a turn and not all the time there is, and the next one is tried.
func TestSilentAddress(t *testing.T) {
	_, config := filtered(t, "127.0.0.9")
	silent, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	b := newFixture(t)
	x, y := b.node("x", 1, func(c *Config) { c.Timeout = time.Hour }), b.node("y", 1, nil)
	y.listen()
	peer := y.peer()
	peer.Addresses = []string{silent.Addr().String(), y.addr}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := x.Exchange(ctx, peer, 1); err != nil {
		t.Errorf("the second of two addresses answers: %v", err)
	}
}

// BenchmarkExchangeUnderFlood is one exchange with new keys in both directions: quiet, and while 10
// 000 a second come from unknown addresses: connections of the kernel, or opening packets that
// nobody goes on with; with the filter and without. At last connections from the peer's own host,
// which no filter keeps away: where the CPUs have other work, exchanges fail then. The generator is
// on the same CPUs. Run it many times with -count 1, for the medians.
func BenchmarkExchangeUnderFlood(bench *testing.B) {
	for _, c := range []struct {
		name   string
		filter bool
		flood  func(testing.TB, string, []string, int) (*atomic.Int64, func())
		from   []string
	}{
		{"quiet", false, nil, nil},
		{"quiet, filter", true, nil, nil},
		{"connections", false, connectFlood, unknownAddresses},
		{"connections, filter", true, connectFlood, unknownAddresses},
		{"packets", false, synFlood, unknownAddresses},
		{"packets, filter", true, synFlood, unknownAddresses},
		{"peer's host", true, connectFlood, []string{"127.0.0.1"}},
	} {
		bench.Run(c.name, func(bench *testing.B) {
			b := newFixture(bench)
			x, y := b.node("x", 1, nil), b.node("y", 1, admitOnly("127.0.0.1"))
			_, config := filtered(bench, "127.0.0.1")
			if !c.filter {
				config = &net.ListenConfig{}
			}
			y.listenBy(config)
			sent, stop := &atomic.Int64{}, func() {}
			if c.flood != nil {
				sent, stop = c.flood(bench, y.addr, c.from, 10000)
			}
			defer stop()
			began, failed := time.Now(), 0
			for bench.Loop() {
				x.again()
				for { // as an agent does, which waits between
					if _, err := until(bench.Context(), x, y, 1); err == nil {
						break
					}
					failed++
				}
			}
			bench.ReportMetric(float64(sent.Load())/time.Since(began).Seconds(), "floods/s")
			bench.ReportMetric(float64(failed)/float64(bench.N), "failures/op")
		})
	}
}
