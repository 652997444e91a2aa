package datapath

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netns"
)

// A pod on the XDP road has a second veth pair. Its own interface has a native XDP program on the host side;
// the kernel then cuts GSO packets before they leave it. So what the pod's stack sends goes, by a TC
// program on the pod's own egress, out of the second pair, whose host side has the TC
// program. Nothing is ever delivered by the second pair and it has no address.

// secondPodIf is the second interface's name in the pod.
const secondPodIf = "weft-tx"

const secondPrefix = "wefx"

// SecondHostIf derives the second pair's host side from the first's: "weft…" becomes "wefx…".
func SecondHostIf(hostIf string) string {
	return secondPrefix + strings.TrimPrefix(hostIf, "weft")
}

// ensureSecondInterface makes the pair, which openSecondInterface sets up, and returns its host side's index.
func (d *Datapath) ensureSecondInterface(ep Endpoint, first netlink.Link) (int, error) {
	name := SecondHostIf(ep.HostIf)
	if existing, err := netlink.LinkByName(name); err == nil {
		if existing.Attrs().Flags&net.FlagUp != 0 {
			return existing.Attrs().Index, nil
		}
		// It goes up when all else is done: an agent died before that. Its half-made pair goes.
		if err := netlink.LinkDel(existing); err != nil {
			return 0, fmt.Errorf("remove half-made %s: %w", name, err)
		}
	}
	if err := makeSecondPair(ep, name, first.Attrs().MTU); err != nil {
		return 0, err
	}
	if err := quietInterface(name); err != nil {
		return 0, err
	}
	err := netns.Do(ep.NetNS, func() error {
		// Nothing may speak from this interface by itself: no link-local address, no MLD.
		if err := writeSysctl("ipv6/conf/"+secondPodIf+"/disable_ipv6", "1"); err != nil {
			return err
		}
		peer, err := netlink.LinkByName(secondPodIf)
		if err != nil {
			return fmt.Errorf("find %s: %w", secondPodIf, err)
		}
		if err := netlink.LinkSetARPOff(peer); err != nil {
			return fmt.Errorf("set %s noarp: %w", secondPodIf, err)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	host, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", name, err)
	}
	return host.Attrs().Index, nil
}

func makeSecondPair(ep Endpoint, name string, mtu int) error {
	target, err := os.Open(ep.NetNS)
	if err != nil {
		return fmt.Errorf("open pod's network namespace: %w", err)
	}
	defer target.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	attrs.HardwareAddr = ep.GatewayMAC // frames are addressed to the gateway: the stack must take them as its own
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: secondPodIf, PeerNamespace: netlink.NsFd(int(target.Fd()))}
	err = netlink.LinkAdd(pair)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create %s: the pod has an interface %s already: only one of its interfaces can have the XDP road", name, secondPodIf)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	return nil
}

// quietInterface keeps the kernel from giving an interface addresses or checking the way back
// of what arrives on it: that way is the first pair.
func quietInterface(name string) error {
	for file, value := range map[string]string{
		"ipv4/conf/" + name + "/rp_filter":     "0",
		"ipv4/conf/" + name + "/forwarding":    "1",
		"ipv6/conf/" + name + "/addr_gen_mode": "1",
		"ipv6/conf/" + name + "/forwarding":    "1",
		"ipv6/conf/" + name + "/accept_ra":     "0",
	} {
		if err := writeSysctl(file, value); err != nil {
			return err
		}
	}
	return nil
}

// writeSysctl sets a value below /proc/sys/net, if there is such a setting: IPv6 may be missing.
func writeSysctl(name, value string) error {
	err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("set sysctl net/%s: %w", name, err)
	}
	return nil
}

// openSecondInterface hooks the second pair's host side, sets the pair up, and then sends the pod's packets there.
func (d *Datapath) openSecondInterface(ep Endpoint, ifindex int) error {
	name := SecondHostIf(ep.HostIf)
	fromPod, err := d.progs.Second()
	if err != nil {
		return err
	}
	if err := d.links().EnsureOne(fromPod, name, ifindex); err != nil {
		return err
	}
	if err := d.step("second hook"); err != nil {
		return err
	}
	if _, err := setUp(name); err != nil {
		return err
	}
	return netns.Do(ep.NetNS, func() error {
		second, err := setUp(secondPodIf)
		if err != nil {
			return err
		}
		podIf, err := net.InterfaceByName(ep.PodIf)
		if err != nil {
			return fmt.Errorf("find %s in the pod: %w", ep.PodIf, err)
		}
		return d.ensurePodOut(ep, podIf.Index, uint32(second.Attrs().Index))
	})
}

// setUp sets an interface up and looks at it again: the kernel acts on a new carrier when it is
// asked for it, else up to a second later, and until then it drops what is sent.
func setUp(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return nil, fmt.Errorf("set %s up: %w", name, err)
	}
	return netlink.LinkByName(name)
}

// ensurePodOut attaches pod_out to the pod's own interface.
func (d *Datapath) ensurePodOut(ep Endpoint, ifindex int, target uint32) error {
	podOut, err := d.progs.PodOut(target)
	if err != nil {
		return err
	}
	return d.links().EnsureOne(podOut, ep.HostIf, ifindex)
}

// removeSecondInterface takes an endpoint off the XDP road: first the redirect, then the pair. The
// pair's hook goes with it: what is still on its way there is checked to the last.
func (d *Datapath) removeSecondInterface(ep Endpoint) error {
	name := SecondHostIf(ep.HostIf)
	for _, a := range d.progs.At(hook.PodOwn, hook.ByXDP) {
		if err := hook.Detach(hook.Path(d.opts.BPFDir, a.Name, a.Kind, ep.HostIf)); err != nil {
			return err
		}
	}
	host, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return d.links().Drop(name)
	}
	if err == nil {
		err = netlink.LinkDel(host)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	ifindex := uint32(host.Attrs().Index)
	return errors.Join(bpf.DeleteKey(d.maps.EpIf, &ifindex), d.links().Drop(name))
}
