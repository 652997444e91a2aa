package lab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"weft.dev/weft/internal/netns"
)

// offloads are the features that a wire without offload turns off at every end.
var offloads = []string{
	"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation",
	"tx-tcp-mangleid-segmentation",
	"tx-tcp-accecn-segmentation", "tx-udp-segmentation", "tx-generic-segmentation", "tx-gso-list",
	"tx-checksum-ip-generic", "tx-checksum-sctp", "tx-sctp-segmentation",
}

// buildWire connects the nodes of a wire.
func buildWire(s *Spec, w WireSpec, number int) error {
	if !w.bridged() {
		a := vethEnd{ns: nodeNS(s.Name, w.Nodes[0]), name: w.Name, index: firstIndex + number}
		if err := vethPair(a, vethEnd{ns: nodeNS(s.Name, w.Nodes[1]), name: w.Name},
			w.MTU); err != nil {
			return err
		}
	} else if err := buildBridge(s, w); err != nil {
		return err
	}
	for _, n := range w.Nodes {
		if err := netns.Do(netns.Path(nodeNS(s.Name, n)),
			func() error { return setUpEnd(w.Name, w, s.wireAddresses(w, n)) }); err != nil {
			return fmt.Errorf("wire %s at node %s: %w", w.Name, n, err)
		}
	}
	for _, n := range w.Nodes {
		if err := netns.Do(netns.Path(nodeNS(s.Name, n)),
			func() error { return waitCarrier(w.Name) }); err != nil {
			return fmt.Errorf("wire %s at node %s: %w", w.Name, n, err)
		}
	}
	return nil
}

// wireAddresses are the addresses that a node has on a wire.
func (s *Spec) wireAddresses(w WireSpec, node string) []netip.Prefix {
	var out []netip.Prefix
	if main := s.mainWire(node); main != nil && main.Name == w.Name {
		out = append(out, s.node(node).Addresses...)
	}
	return append(out, w.Addresses[node]...)
}

// buildBridge makes the wire's own namespace with a bridge and a port per node.
func buildBridge(s *Spec, w WireSpec) error {
	ns := wireNS(s.Name, w.Name)
	path, err := netns.Create(ns)
	if err != nil {
		return err
	}
	err = netns.Do(path, func() error {
		// The bridge is a cable: no address, no IPv6 chatter of its own.
		if err := setSysctls(map[string]string{"net/ipv6/conf/all/disable_ipv6": "1",
			"net/ipv6/conf/default/disable_ipv6": "1"}); err != nil {
			return err
		}
		snooping := false
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", MTU: w.MTU},
			MulticastSnooping: &snooping}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("create bridge: %w", err)
		}
		return linkUp("br0")
	})
	if err != nil {
		return fmt.Errorf("wire %s: %w", w.Name, err)
	}
	for i, n := range w.Nodes {
		port := fmt.Sprintf("p%d", i)
		end := vethEnd{ns: ns, name: port, index: firstIndex + i}
		if err := vethPair(end, vethEnd{ns: nodeNS(s.Name, n), name: w.Name}, w.MTU); err != nil {
			return err
		}
		if err := netns.Do(path, func() error { return setUpPort(port, w) }); err != nil {
			return fmt.Errorf("wire %s to node %s: %w", w.Name, n, err)
		}
	}
	return nil
}

func setUpPort(port string, w WireSpec) error {
	bridge, err := netlink.LinkByName("br0")
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	link, err := netlink.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find %s: %w", port, err)
	}
	if err := netlink.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("put %s on the bridge: %w", port, err)
	}
	return setUpEnd(port, w, nil)
}

// firstIndex is where the interface indexes begin that the lab chooses. A veth whose two
// ends have the same index in their namespaces passes for a physical device, whose
// carrier the kernel believes only after up to a second: so one end gets an index that
// the kernel does not give by itself.
const firstIndex = 100

// vethEnd is one end of a pair; index 0 is the kernel's choice.
type vethEnd struct {
	ns, name string
	index    int
}

// vethPair makes a pair between two namespaces, never touching the caller's.
func vethPair(a, b vethEnd, mtu int) error {
	peer, err := os.Open(netns.Path(b.ns))
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer peer.Close()
	return netns.Do(netns.Path(a.ns), func() error {
		err := netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: a.name, MTU: mtu, Index: a.index},
			PeerName:  b.name, PeerNamespace: netlink.NsFd(int(peer.Fd())), PeerMTU: uint32(mtu),
		})
		if err != nil {
			return fmt.Errorf("create veth %s in %s to %s in %s: %w", a.name, a.ns, b.name, b.ns,
				err)
		}
		return nil
	})
}

// waitCarrier waits until an interface whose two ends are up is usable.
func waitCarrier(ifName string) error {
	const most = 30 * time.Second
	for begin := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		link, err := netlink.LinkByName(ifName)
		if err != nil {
			return fmt.Errorf("find %s: %w", ifName, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Since(begin) > most {
			return fmt.Errorf("%s has no carrier after %s: it is %s", ifName, most,
				link.Attrs().OperState)
		}
	}
}

// setUpEnd makes one end of a wire ready, in the current namespace.
func setUpEnd(ifName string, w WireSpec, addresses []netip.Prefix) error {
	link, err := netlink.LinkByName(ifName)
	if err != nil {
		return fmt.Errorf("find %s: %w", ifName, err)
	}
	if err := addAddresses(link, addresses); err != nil {
		return err
	}
	// Up before GRO: a veth that gets GRO while down does not tell its peer that it takes XDP
	// frames.
	if err := linkUp(ifName); err != nil {
		return err
	}
	return setFeatures(ifName, w.offload())
}

// addAddresses gives an interface its addresses, usable at once: nodad.
func addAddresses(link netlink.Link, addresses []netip.Prefix) error {
	for _, p := range addresses {
		addr, err := netlink.ParseAddr(p.String())
		if err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add address %s to %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}

// setFeatures turns GRO on, because a packet that XDP redirects into a veth arrives
// only when the far end has NAPI, and without offload turns the rest off.
func setFeatures(ifName string, offload bool) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer tool.Close()
	names, err := tool.FeatureNames(ifName)
	if err != nil {
		return fmt.Errorf("read features of %s: %w", ifName, err)
	}
	// A VLAN tag is in the frame, as on a cable: an accelerated one would pass XDP unseen.
	change := map[string]bool{"rx-gro": true, "tx-vlan-hw-insert": false,
		"tx-vlan-stag-hw-insert": false}
	if !offload {
		for _, f := range offloads {
			if _, known := names[f]; known {
				change[f] = false
			}
		}
	}
	if err := tool.Change(ifName, change); err != nil {
		return fmt.Errorf("set features of %s: %w", ifName, err)
	}
	return nil
}

func linkUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// setSysctls writes /proc/sys values of the current network namespace, in order of name.
func setSysctls(values map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		path := filepath.Join("/proc/sys", key)
		if err := os.WriteFile(path, []byte(values[key]), 0o644); err != nil {
			return fmt.Errorf("set %s: %w", key, err)
		}
	}
	return nil
}
