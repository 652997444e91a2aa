package datapath

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netns"
)

// In hybrid mode a pod has a second veth pair. Its own interface has a native XDP program on the host side;
// the kernel then cuts GSO packets before they leave it. So what the pod's stack sends goes, by a TC
// program on the pod's own egress, out of the second pair, whose host side has the TC
// program. Nothing is ever delivered by the second pair and it has no address.

// secondPodIf is the second interface's name in the pod.
const secondPodIf = "weft-tx"

const secondPrefix = "wefx"

// secondHostIf derives the second pair's host side from the first's: "weft…" becomes "wefx…".
func secondHostIf(hostIf string) string {
	return secondPrefix + strings.TrimPrefix(hostIf, "weft")
}

// ensureSecondInterface makes the pair, up on both sides, and returns its host side's index.
func (d *Datapath) ensureSecondInterface(ep Endpoint, first netlink.Link) (int, error) {
	name := secondHostIf(ep.HostIf)
	if existing, err := netlink.LinkByName(name); err == nil {
		if existing.Attrs().Flags&net.FlagUp != 0 {
			return existing.Attrs().Index, nil
		}
		// Up is the last step below: an agent died before it. Its half-made pair goes.
		if err := netlink.LinkDel(existing); err != nil {
			return 0, fmt.Errorf("remove half-made %s: %w", name, err)
		}
	}
	target, err := os.Open(ep.NetNS)
	if err != nil {
		return 0, fmt.Errorf("open pod's network namespace: %w", err)
	}
	defer target.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, first.Attrs().MTU
	attrs.HardwareAddr = ep.GatewayMAC // frames are addressed to the gateway: the stack must take them as its own
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: secondPodIf, PeerNamespace: netlink.NsFd(int(target.Fd()))}
	if err := netlink.LinkAdd(pair); err != nil {
		return 0, fmt.Errorf("create %s: %w", name, err)
	}
	if err := quietInterface(name); err != nil {
		return 0, err
	}
	err = netns.Do(ep.NetNS, func() error {
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
		return netlink.LinkSetUp(peer)
	})
	if err != nil {
		return 0, err
	}
	host, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", name, err)
	}
	return host.Attrs().Index, netlink.LinkSetUp(host)
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

// openSecondInterface hooks the second pair's host side and then sends the pod's packets there.
func (d *Datapath) openSecondInterface(ep Endpoint, ifindex int) error {
	fromPod := hook{"from_pod", kindTCIngress, d.progs.FromPodTC}
	if err := d.ensureLink(fromPod, secondHostIf(ep.HostIf), ifindex); err != nil {
		return err
	}
	return netns.Do(ep.NetNS, func() error {
		podIf, err := net.InterfaceByName(ep.PodIf)
		if err != nil {
			return fmt.Errorf("find %s in the pod: %w", ep.PodIf, err)
		}
		second, err := net.InterfaceByName(secondPodIf)
		if err != nil {
			return fmt.Errorf("find %s in the pod: %w", secondPodIf, err)
		}
		return d.ensurePodOut(ep, podIf.Index, uint32(second.Index))
	})
}

// ensurePodOut attaches pod_out to the pod's own interface.
func (d *Datapath) ensurePodOut(ep Endpoint, ifindex int, target uint32) error {
	program, err := d.progs.podOut(d.maps, target)
	if err != nil {
		return err
	}
	return d.ensureLink(hook{"pod_out", kindTCEgress, program}, ep.HostIf, ifindex)
}

// removeSecondInterface undoes hybrid mode for one endpoint: first the redirect, then the pair.
func (d *Datapath) removeSecondInterface(ep Endpoint) error {
	path := linkPath(d.opts.BPFDir, "pod_out", kindTCEgress, ep.HostIf)
	name := secondHostIf(ep.HostIf)
	err := errors.Join(detach(path), d.dropLinks(name))
	if host, findErr := netlink.LinkByName(name); findErr == nil {
		err = errors.Join(err, netlink.LinkDel(host))
	}
	return err
}
