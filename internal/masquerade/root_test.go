package masquerade

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

// harness is a pod behind a node, and a host outside that tells from which address it was asked:
//
//	pod 10.1.0.2 --- 10.1.0.1 node 192.0.2.1 --- 192.0.2.9 outside, which also is 198.51.100.9
type harness struct{ node, pod, outside string }

func newHarness(t *testing.T) harness {
	t.Helper()
	b := harness{nettest.New(t, "masq-node"), nettest.New(t, "masq-pod"),
		nettest.New(t, "masq-out")}
	nettest.Wire(t,
		nettest.End{NetNS: b.node, Name: "pod0", Addrs: []string{"10.1.0.1/24", "fd00:1::1/64"}},
		nettest.End{NetNS: b.pod, Name: "eth0", Addrs: []string{"10.1.0.2/24", "fd00:1::2/64"}})
	nettest.Wire(t,
		nettest.End{NetNS: b.node, Name: "wire0",
			Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}},
		nettest.End{NetNS: b.outside, Name: "eth0",
			Addrs: []string{"192.0.2.9/24", "2001:db8::9/64"}})
	b.do(t, b.pod, func() error {
		return errors.Join(nettest.Up("lo"), nettest.DefaultRoutes("10.1.0.1", "fd00:1::1"))
	})
	b.do(t, b.outside, func() error {
		return errors.Join(nettest.Up("lo", "198.51.100.9/32", "2001:db8:1::9/128"),
			nettest.DefaultRoutes("192.0.2.1", "2001:db8::1"))
	})
	b.do(t, b.node, func() error {
		return errors.Join(nettest.Up("lo"), nettest.Forward(),
			route("198.51.100.9/32", "192.0.2.9"), route("2001:db8:1::9/128", "2001:db8::9"))
	})
	return b
}

func (b harness) do(t *testing.T, path string, fn func() error) {
	t.Helper()
	nettest.Do(t, path, fn)
}

func route(to, gateway string) error {
	_, dst, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(gateway)})
}

// serve answers every datagram to an address of the outside host with the source that it saw.
func (b harness) serve(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	var conn *net.UDPConn
	b.do(t, b.outside, func() (err error) {
		conn, err = net.ListenUDP("udp",
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))
		return err
	})
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 64)
		for {
			_, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			conn.WriteToUDPAddrPort([]byte(from.Addr().Unmap().String()), from)
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// dial opens a socket in the pod.
func (b harness) dial(t *testing.T, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	b.do(t, b.pod, func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	t.Cleanup(func() { conn.Close() })
	return conn
}

// ask sends a datagram and returns what the answer says.
func ask(conn *net.UDPConn) (string, error) {
	buffer := make([]byte, 64)
	for tries := 0; ; tries++ {
		if _, err := conn.Write([]byte("who am I")); err != nil && tries == 9 {
			return "", err
		}
		conn.SetReadDeadline(time.Now().Add(time.Second))
		n, err := conn.Read(buffer)
		if err == nil {
			return string(buffer[:n]), nil
		}
		if tries == 9 {
			return "", err
		}
	}
}

func TestPodLeavesWithNodeAddress(t *testing.T) {
	b := newHarness(t)
	base := Options{
		Instance: "test", Uplinks: []string{"wire0"},
		PodCIDRs: prefixes("10.1.0.0/24", "fd00:1::/64"),
		Except:   prefixes("198.51.100.0/24", "2001:db8:1::/64"),
	}
	servers := map[string]netip.AddrPort{}
	for _, addr := range []string{"192.0.2.9", "2001:db8::9", "198.51.100.9", "2001:db8:1::9"} {
		servers[addr] = b.serve(t, addr)
	}
	apply := func(change func(*Options)) func() error {
		return func() error {
			options := base
			change(&options)
			return Apply(options)
		}
	}
	same := func(*Options) {}
	for _, test := range []struct {
		what string
		do   func() error
		want map[string]string // destination to the source that it sees
	}{
		{"nothing to remove", func() error { return errors.Join(Remove("test"), Remove("")) },
			map[string]string{"192.0.2.9": "10.1.0.2", "2001:db8::9": "fd00:1::2"}},
		{"masquerading", apply(same), map[string]string{
			"192.0.2.9": "192.0.2.1", "2001:db8::9": "2001:db8::1", "198.51.100.9": "10.1.0.2",
			"2001:db8:1::9": "fd00:1::2",
		}},
		{"a second time", apply(same),
			map[string]string{"192.0.2.9": "192.0.2.1", "2001:db8::9": "2001:db8::1",
				"198.51.100.9": "10.1.0.2"}},
		{"out of another interface", apply(func(o *Options) { o.Uplinks = []string{"wire1"} }),
			map[string]string{"192.0.2.9": "10.1.0.2", "2001:db8::9": "fd00:1::2"}},
		{"other pods", apply(func(o *Options) { o.PodCIDRs = prefixes("10.9.0.0/24") }),
			map[string]string{"192.0.2.9": "10.1.0.2", "2001:db8::9": "fd00:1::2"}},
		{"many nodes", apply(func(o *Options) { o.Except = manyNodes() }),
			map[string]string{"192.0.2.9": "192.0.2.1", "2001:db8::9": "2001:db8::1"}},
		{"another instance's rules stay alone", func() error { return Remove("") },
			map[string]string{"192.0.2.9": "192.0.2.1"}},
		{"removed", func() error { return errors.Join(Remove("test"), Remove("test")) },
			map[string]string{"192.0.2.9": "10.1.0.2", "2001:db8::9": "fd00:1::2"}},
	} {
		b.do(t, b.node, test.do)
		for to, want := range test.want {
			if got, err := ask(b.dial(t, servers[to])); err != nil || got != want {
				t.Errorf("%s: %s sees %q, want %s (%v)", test.what, to, got, want, err)
			}
		}
	}
}

// manyNodes are the ranges and addresses of 4096 nodes, none next to another.
func manyNodes() []netip.Prefix {
	var out []netip.Prefix
	for i := range 4096 {
		a, b := byte(i>>8), byte(i)
		out = append(out,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 + a, b, 0}), 25),
			netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16 + a, b, 1}), 32),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 1, a, b, 1}), 48),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 2, a, b, 1}), 128))
	}
	return out
}

// A connection that is masqueraded stays so while the rules are replaced: not one answer
// comes for another address than the node's.
func TestReplaceUnderTraffic(t *testing.T) {
	b := newHarness(t)
	options := Options{Uplinks: []string{"wire0"}, PodCIDRs: prefixes("10.1.0.0/24")}
	b.do(t, b.node, func() error { return Apply(options) })
	server := b.serve(t, "192.0.2.9")
	stop, replaced := make(chan struct{}), make(chan error, 1)
	go func() {
		replaced <- netns.Do(b.node, func() error {
			for round := 0; ; round++ {
				select {
				case <-stop:
					return nil
				default:
				}
				options.Except = prefixes(fmt.Sprintf("10.7.%d.0/24", round%256))
				if err := Apply(options); err != nil {
					return err
				}
			}
		})
	}()
	conn := b.dial(t, server)
	for i := range 2000 {
		if i%100 == 0 {
			conn = b.dial(t, server) // new connections, too
		}
		if got, err := ask(conn); err != nil || got != "192.0.2.1" {
			t.Errorf("datagram %d: the outside sees %q (%v)", i, got, err)
			break
		}
	}
	close(stop)
	if err := <-replaced; err != nil {
		t.Error(err)
	}
}
