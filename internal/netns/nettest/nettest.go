// Package nettest makes network namespaces, and wires between them, that go with a test.
package nettest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
)

// made counts the namespaces of this process, so that tests side by side have names of their own.
var made atomic.Int32

// New makes a network namespace, named wt-AREA-PID-NUMBER, and returns its path. It skips the test
// where it is not root's.
func New(t testing.TB, area string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	name := fmt.Sprintf("wt-%s-%d-%d", area, os.Getpid(), made.Add(1))
	path, err := netns.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(name); err != nil {
			t.Error(err)
		}
	})
	return path
}

// Do runs fn in a namespace.
func Do(t testing.TB, path string, fn func() error) {
	t.Helper()
	if err := netns.Do(path, fn); err != nil {
		t.Fatal(err)
	}
}

// End is an end of a wire.
type End struct {
	NetNS string
	Name  string
	Index int      // any if 0
	MTU   int      // the kernel's if 0
	Addrs []string // with the length of their prefix
}

// Wire joins two namespaces by a veth. When it returns, both ends are up and have their addresses.
func Wire(t testing.TB, a, b End) {
	t.Helper()
	peer, err := os.Open(b.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	Do(t, a.NetNS, func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: a.Name, Index: a.Index, MTU: a.MTU, TxQLen: -1},
			PeerName:  b.Name, PeerMTU: uint32(b.MTU), PeerNamespace: netlink.NsFd(int(peer.Fd())),
		})
	})
	for _, e := range []End{a, b} {
		Do(t, e.NetNS, func() error { return Up(e.Name, e.Addrs...) })
	}
	for _, e := range []End{a, b} {
		Do(t, e.NetNS, func() error { return carrier(e.Name) })
	}
}

// Up gives an interface of the current namespace addresses, to be used at once, and sets it up.
func Up(name string, addrs ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, text := range addrs {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("address %s: %w", text, err)
		}
	}
	return netlink.LinkSetUp(l)
}

// carrier waits until an interface of the current namespace can be used.
func carrier(name string) error {
	for range 300 {
		l, err := netlink.LinkByName(name)
		if err != nil || l.Attrs().OperState == netlink.OperUp {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New(name + " has no carrier")
}

// DefaultRoutes adds default routes by gateways to the current namespace.
func DefaultRoutes(gateways ...string) error {
	for _, gateway := range gateways {
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}); err != nil {
			return fmt.Errorf("default route by %s: %w", gateway, err)
		}
	}
	return nil
}

// Forward has the current namespace forward both families.
func Forward() error {
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
}
