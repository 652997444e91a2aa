package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"weft.dev/weft/internal/netns"
)

// A bare node's gateway addresses, the same that Weft's own pods see.
var (
	bareGateway4 = netip.MustParseAddr("169.254.1.1")
	bareGateway6 = netip.MustParseAddr("fe80::1")
)

// podIndex is the index of a plain pod's interface, above all that a node's own reach; see
// firstIndex.
const podIndex = 100_000

// attachPlain attaches a pod of a bare node: a veth pair, host routes and the
// kernel's own forwarding. What benchmarks call plain routing.
func attachPlain(st *state, p PodSpec) (podRecord, error) {
	record, err := plainAddresses(st, p)
	if err != nil {
		return record, err
	}
	sum := sha256.Sum256([]byte(containerID(st.spec.Name, p.Node, p.Name)))
	record.HostIf = "bare" + hex.EncodeToString(sum[:5])
	nodeName, podName := nodeNS(st.spec.Name, p.Node), podNS(st.spec.Name, p.Node, p.Name)
	mtu := st.spec.mainWire(p.Node).MTU
	// The pod's end gets the chosen index: it is alone there.
	pod := vethEnd{ns: podName, name: PodIfName, index: podIndex}
	if err := vethPair(pod, vethEnd{ns: nodeName, name: record.HostIf}, mtu); err != nil {
		return record, err
	}
	var addrs []netip.Addr
	for _, a := range []netip.Addr{record.IPv4, record.IPv6} {
		if a.IsValid() {
			addrs = append(addrs, a)
		}
	}
	if err := netns.Do(netns.Path(nodeName),
		func() error { return plainHostSide(record.HostIf, addrs) }); err != nil {
		return record, err
	}
	err = netns.Do(netns.Path(podName), func() error {
		mac, err := plainPodSide(addrs)
		record.MAC = mac
		return err
	})
	if err != nil {
		return record, err
	}
	return record, netns.Do(netns.Path(nodeName),
		func() error { return waitCarrier(record.HostIf) })
}

// plainAddresses are the addresses asked for, or per family the next free ones of the node.
func plainAddresses(st *state, p PodSpec) (podRecord, error) {
	used := map[netip.Addr]bool{}
	for _, r := range st.Pods {
		used[r.IPv4], used[r.IPv6] = true, true
	}
	for _, other := range st.spec.Pods {
		for _, a := range other.Addresses {
			used[a] = true
		}
	}
	var r podRecord
	set := func(a netip.Addr) {
		if a.Is4() && !r.IPv4.IsValid() {
			r.IPv4 = a
		} else if a.Is6() && !r.IPv6.IsValid() {
			r.IPv6 = a
		}
	}
	for _, a := range p.Addresses {
		set(a)
	}
	for _, cidr := range st.spec.node(p.Node).PodCIDRs {
		// From .2 on: the first addresses of a range are often somebody's gateway.
		a := cidr.Addr().Next().Next()
		for cidr.Contains(a) && used[a] {
			a = a.Next()
		}
		if cidr.Contains(a) {
			set(a)
		}
	}
	if !r.IPv4.IsValid() && !r.IPv6.IsValid() {
		return r, errors.New("the node's podCIDRs have no free address")
	}
	return r, nil
}

func plainHostSide(ifName string, addrs []netip.Addr) error {
	link, err := netlink.LinkByName(ifName)
	if err != nil {
		return fmt.Errorf("find %s: %w", ifName, err)
	}
	gateways := []netip.Prefix{netip.PrefixFrom(bareGateway4, 32),
		netip.PrefixFrom(bareGateway6, 64)}
	if err := addAddresses(link, gateways); err != nil {
		return err
	}
	if err := linkUp(ifName); err != nil {
		return err
	}
	for _, a := range addrs {
		route := &netlink.Route{Dst: ipNet(netip.PrefixFrom(a, a.BitLen())),
			LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("route to %s: %w", a, err)
		}
	}
	return nil
}

// plainPodSide sets the pod's end up, in the current namespace, and returns its MAC.
func plainPodSide(addrs []netip.Addr) (string, error) {
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+PodIfName+"/accept_dad", []byte("0"),
		0o644); err != nil {
		return "", fmt.Errorf("pod: %w", err)
	}
	link, err := netlink.LinkByName(PodIfName)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", PodIfName, err)
	}
	var own []netip.Prefix
	for _, a := range addrs {
		own = append(own, netip.PrefixFrom(a, a.BitLen()))
	}
	if err := addAddresses(link, own); err != nil {
		return "", err
	}
	if err := linkUp(PodIfName); err != nil {
		return "", err
	}
	for _, a := range addrs {
		gw, all := bareGateway4, netip.MustParsePrefix("0.0.0.0/0")
		if a.Is6() {
			gw, all = bareGateway6, netip.MustParsePrefix("::/0")
		}
		route := &netlink.Route{Dst: ipNet(all), Gw: gw.AsSlice(), LinkIndex: link.Attrs().Index,
			Flags: unix.RTNH_F_ONLINK}
		if err := netlink.RouteReplace(route); err != nil {
			return "", fmt.Errorf("default route via %s: %w", gw, err)
		}
	}
	return link.Attrs().HardwareAddr.String(), waitCarrier(PodIfName)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
