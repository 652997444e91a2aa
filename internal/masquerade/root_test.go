package masquerade

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
)

// bed is a pod behind a node, and a host outside that tells from which address it was asked:
//
//	pod 10.1.0.2 --- 10.1.0.1 node 192.0.2.1 --- 192.0.2.9 outside, which also is 198.51.100.9
type bed struct{ node, pod, outside string }

func newBed(t *testing.T) bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces and nftables rules in them")
	}
	made := map[string]string{}
	for _, name := range []string{"node", "pod", "out"} {
		full := fmt.Sprintf("wt-masq-%d-%s", os.Getpid(), name)
		path, err := netns.Create(full)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { netns.Delete(full) })
		made[name] = path
	}
	b := bed{made["node"], made["pod"], made["out"]}
	b.wire(t, b.pod, "eth0", "pod0")
	b.wire(t, b.outside, "eth0", "wire0")
	b.do(t, b.pod, func() error {
		return errors.Join(up("lo"), address("eth0", "10.1.0.2/24", "fd00:1::2/64"), defaults("10.1.0.1", "fd00:1::1"))
	})
	b.do(t, b.outside, func() error {
		return errors.Join(up("lo"), address("eth0", "192.0.2.9/24", "2001:db8::9/64"), address("lo", "198.51.100.9/32", "2001:db8:1::9/128"),
			defaults("192.0.2.1", "2001:db8::1"))
	})
	b.do(t, b.node, func() error {
		return errors.Join(up("lo"), address("pod0", "10.1.0.1/24", "fd00:1::1/64"), address("wire0", "192.0.2.1/24", "2001:db8::1/64"),
			route("198.51.100.9/32", "192.0.2.9"), route("2001:db8:1::9/128", "2001:db8::9"),
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644), os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
	return b
}

func (b bed) do(t *testing.T, path string, fn func() error) {
	t.Helper()
	if err := netns.Do(path, fn); err != nil {
		t.Fatal(err)
	}
}

// wire joins the node's interface with one in another namespace.
func (b bed) wire(t *testing.T, other, otherIf, nodeIf string) {
	t.Helper()
	target, err := os.Open(other)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	b.do(t, b.node, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = nodeIf
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: otherIf, PeerNamespace: netlink.NsFd(int(target.Fd()))})
	})
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func address(name string, addrs ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, text := range addrs {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s: %w", text, err)
		}
	}
	return netlink.LinkSetUp(link)
}

func defaults(gateways ...string) error {
	for _, gateway := range gateways {
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}); err != nil {
			return fmt.Errorf("add default route by %s: %w", gateway, err)
		}
	}
	return nil
}

func route(to, gateway string) error {
	_, dst, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(gateway)})
}

// serve answers every datagram to an address of the outside host with the source that it saw.
func (b bed) serve(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	var conn *net.UDPConn
	b.do(t, b.outside, func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))
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
func (b bed) dial(t *testing.T, to netip.AddrPort) *net.UDPConn {
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
	b := newBed(t)
	base := Options{
		Instance: "test", Uplinks: []string{"wire0"}, PodCIDRs: prefixes("10.1.0.0/24", "fd00:1::/64"),
		Except: prefixes("198.51.100.0/24", "2001:db8:1::/64"),
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
		{"nothing to remove", func() error { return errors.Join(Remove("test"), Remove("")) }, map[string]string{"192.0.2.9": "10.1.0.2", "2001:db8::9": "fd00:1::2"}},
		{"masquerading", apply(same), map[string]string{
			"192.0.2.9": "192.0.2.1", "2001:db8::9": "2001:db8::1", "198.51.100.9": "10.1.0.2", "2001:db8:1::9": "fd00:1::2",
		}},
		{"a second time", apply(same), map[string]string{"192.0.2.9": "192.0.2.1", "2001:db8::9": "2001:db8::1", "198.51.100.9": "10.1.0.2"}},
		{"out of another interface", apply(func(o *Options) { o.Uplinks = []string{"wire1"} }), map[string]string{"192.0.2.9": "10.1.0.2", "2001:db8::9": "fd00:1::2"}},
		{"other pods", apply(func(o *Options) { o.PodCIDRs = prefixes("10.9.0.0/24") }), map[string]string{"192.0.2.9": "10.1.0.2", "2001:db8::9": "fd00:1::2"}},
		{"many nodes", apply(func(o *Options) { o.Except = manyNodes() }), map[string]string{"192.0.2.9": "192.0.2.1", "2001:db8::9": "2001:db8::1"}},
		{"another instance's rules stay alone", func() error { return Remove("") }, map[string]string{"192.0.2.9": "192.0.2.1"}},
		{"removed", func() error { return errors.Join(Remove("test"), Remove("test")) }, map[string]string{"192.0.2.9": "10.1.0.2", "2001:db8::9": "fd00:1::2"}},
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
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 + a, b, 0}), 25), netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16 + a, b, 1}), 32),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 1, a, b, 1}), 48), netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 2, a, b, 1}), 128))
	}
	return out
}

// A connection that is masqueraded stays so while the rules are replaced: not one answer
// comes for another address than the node's.
func TestReplaceUnderTraffic(t *testing.T) {
	b := newBed(t)
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
