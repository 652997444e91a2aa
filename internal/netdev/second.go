package netdev

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netns"
)

// A pod on the XDP datapath has a second pair. Its own interface has a native XDP program on the
// host side; the kernel then cuts GSO packets before they leave it. So what the pod's stack sends
// goes, by a TC program on the pod's own egress, out of the second pair, whose host side has the TC
// program. Nothing is ever delivered by the second pair and it has no address.

// SecondPodIf is the second interface's name in the pod.
const SecondPodIf = "weft-tx"

// SecondPrefix begins the name of every second pair's host side, and HostPrefix that of a first
// one's.
const (
	HostPrefix   = "weft"
	SecondPrefix = "wefx"
)

// SecondHostIf derives the second pair's host side from the first's: "weft…" becomes "wefx…".
func SecondHostIf(hostIf string) string {
	return SecondPrefix + strings.TrimPrefix(hostIf, HostPrefix)
}

// EnsureSecond makes the second pair of a pod whose first has a host side of this name, with its
// network namespace and the address that the pod sends to. It returns the index of the second one's
// host side, which is not up unless it was there already.
func EnsureSecond(hostIf, netNS string, gateway net.HardwareAddr, mtu int) (int, error) {
	name := SecondHostIf(hostIf)
	if existing, err := netlink.LinkByName(name); err == nil {
		if IsUp(existing) {
			return existing.Attrs().Index, nil
		}
		// It goes up when all else is done: an agent died before that. Its half-made pair goes.
		if err := netlink.LinkDel(existing); err != nil {
			return 0, fmt.Errorf("remove half-made %s: %w", name, err)
		}
	}
	if err := makeSecond(name, netNS, gateway, mtu); err != nil {
		return 0, err
	}
	if err := quiet(name); err != nil {
		return 0, err
	}
	if err := netns.Do(netNS, func() error { return withoutAddresses(SecondPodIf) }); err != nil {
		return 0, err
	}
	host, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", name, err)
	}
	return host.Attrs().Index, nil
}

func makeSecond(name, netNS string, gateway net.HardwareAddr, mtu int) error {
	ns, err := os.Open(netNS)
	if err != nil {
		return fmt.Errorf("open pod's network namespace: %w", err)
	}
	defer ns.Close()
	// Frames are addressed to the gateway: the stack must take them as its own.
	err = Veth.Make(&netlink.Handle{},
		Pair{Name: name, Peer: SecondPodIf, MTU: mtu, MAC: gateway, PeerNS: ns})
	if errors.Is(err, ErrExists) {
		return fmt.Errorf("create %s: the pod has an interface %s already: only one of its interfaces can have the XDP datapath", name, SecondPodIf)
	}
	return err
}

// withoutAddresses has an interface resolve nothing and say nothing by itself.
func withoutAddresses(name string) error {
	if err := silence(name); err != nil {
		return err
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetARPOff(l); err != nil {
		return fmt.Errorf("set %s noarp: %w", name, err)
	}
	return nil
}

// RemoveSecond removes the second pair, and returns the index that its host side had, 0 if there
// was none.
func RemoveSecond(hostIf string) (uint32, error) {
	name := SecondHostIf(hostIf)
	host, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return 0, nil
	}
	if err == nil {
		err = netlink.LinkDel(host)
	}
	if err != nil {
		return 0, fmt.Errorf("remove %s: %w", name, err)
	}
	return uint32(host.Attrs().Index), nil
}
