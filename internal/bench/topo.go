package bench

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

// topoCount numbers the topologies of this process.
var topoCount atomic.Uint32

// topo is a set of network namespaces of our own.
type topo struct {
	prefix string
	names  []string
}

func newTopo() *topo {
	return &topo{prefix: fmt.Sprintf("%s%d-%d-", namePrefix, os.Getpid(), topoCount.Add(1))}
}

// add makes a namespace with loopback up, IPv6 off and the sysctls of a lab's, and returns its
// path.
func (t *topo) add(short string) (string, error) {
	name := t.prefix + short
	path, err := netns.Create(name)
	if err != nil {
		return "", err
	}
	t.names = append(t.names, name)
	if err := netns.Do(path,
		func() error { return lab.SetSysctls(lab.SysctlsDistribution) }); err != nil {
		return "", err
	}
	if err := sysctl(path, "net/ipv6/conf/all/disable_ipv6", "1"); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return path, inNS(path, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback: %w", err)
		}
		return h.LinkSetUp(lo)
	})
}

// close deletes the namespaces and with them every interface inside.
func (t *topo) close() error {
	var errs []error
	for _, name := range t.names {
		errs = append(errs, netns.Delete(name))
	}
	t.names = nil
	return errors.Join(errs...)
}

// inNS runs fn with a netlink handle of the namespace at path.
func inNS(path string, fn func(*netlink.Handle) error) error {
	ns, err := vnetns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", path, err)
	}
	defer h.Close()
	return fn(h)
}

// veth makes a pair of interfaces, up, one end in each namespace.
func veth(a, b port) error {
	peerNS, err := vnetns.GetFromPath(b.NS)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", b.NS, err)
	}
	defer peerNS.Close()
	err = inNS(a.NS, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = a.If
		return h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: b.If,
			PeerNamespace: netlink.NsFd(int(peerNS))})
	})
	if err != nil {
		return fmt.Errorf("make veth %s-%s: %w", a.If, b.If, err)
	}
	for _, p := range []port{a, b} {
		if err := onLink(p,
			func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetUp(l) }); err != nil {
			return err
		}
	}
	return nil
}

// onLink runs fn on one interface.
func onLink(p port, fn func(*netlink.Handle, netlink.Link) error) error {
	return inNS(p.NS, func(h *netlink.Handle) error {
		l, err := h.LinkByName(p.If)
		if err != nil {
			return fmt.Errorf("find interface %s: %w", p.If, err)
		}
		if err := fn(h, l); err != nil {
			return fmt.Errorf("set up interface %s: %w", p.If, err)
		}
		return nil
	})
}

// hardwareAddr returns an interface's MAC address.
func hardwareAddr(p port) (mac net.HardwareAddr, err error) {
	err = onLink(p, func(_ *netlink.Handle, l netlink.Link) error {
		mac = l.Attrs().HardwareAddr
		return nil
	})
	return mac, err
}

// addAddress gives an interface an address.
func addAddress(p port, prefix netip.Prefix) error {
	return onLink(p, func(h *netlink.Handle, l netlink.Link) error {
		return h.AddrAdd(l, &netlink.Addr{IPNet: ipNet(prefix)})
	})
}

// addRoute routes dst through an interface; via may be invalid for a direct route.
func addRoute(p port, dst netip.Prefix, via netip.Addr) error {
	return onLink(p, func(h *netlink.Handle, l netlink.Link) error {
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(dst)}
		if via.IsValid() {
			r.Gw = via.AsSlice()
			r.SetFlag(netlink.FLAG_ONLINK)
		} else {
			r.Scope = netlink.SCOPE_LINK
		}
		return h.RouteAdd(r)
	})
}

// addNeighbour sets a permanent neighbour.
func addNeighbour(p port, ip netip.Addr, mac net.HardwareAddr) error {
	return onLink(p, func(h *netlink.Handle, l netlink.Link) error {
		return h.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, IP: ip.AsSlice(), HardwareAddr: mac,
			State: netlink.NUD_PERMANENT,
		})
	})
}

// ipNet converts to the type that netlink takes.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// sysctl writes one setting of a namespace; name is a path below /proc/sys.
func sysctl(ns, name, value string) error {
	return netns.Do(ns, func() error {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set sysctl: %w", err)
		}
		return nil
	})
}

// segmentation names the features that let packets larger than the MTU onto a wire.
var segmentation = []string{
	"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation",
	"tx-tcp-mangleid-segmentation", "tx-generic-segmentation", "tx-udp-segmentation",
}

// setFeatures switches offloads of an interface and returns those that it changed;
// features that the interface does not have are left out.
func setFeatures(p port, on bool, features ...string) (changed []string, err error) {
	err = netns.Do(p.NS, func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("open ethtool: %w", err)
		}
		defer e.Close()
		have, err := e.Features(p.If)
		if err != nil {
			return fmt.Errorf("read features of %s: %w", p.If, err)
		}
		change := map[string]bool{}
		for _, name := range features {
			if now, ok := have[name]; ok && now != on {
				change[name] = on
				changed = append(changed, name)
			}
		}
		if len(change) == 0 {
			return nil
		}
		if err := e.Change(p.If, change); err != nil {
			return fmt.Errorf("change features of %s: %w", p.If, err)
		}
		return nil
	})
	return changed, err
}
