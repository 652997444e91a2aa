package endpoint

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/nldump"
)

// hostIfPattern is the name of a host side that Weft makes; its first part is that of the
// endpoint's only or second interface.
var hostIfPattern = regexp.MustCompile("^wef[tx]([0-9a-f]{10})$")

// veth sets up the pair of one endpoint, with the addresses and routes of both ends. Everything but
// create may be repeated.
type veth struct {
	Info
	ns        *os.File
	host, pod *netlink.Handle
}

func openVeth(info Info, ns *os.File) (*veth, error) {
	host, err := netdev.Handle()
	if err != nil {
		return nil, err
	}
	pod, err := netdev.HandleAt(ns)
	if err != nil {
		host.Close()
		return nil, err
	}
	return &veth{Info: info, ns: ns, host: host, pod: pod}, nil
}

func (v *veth) close() {
	v.host.Close()
	v.pod.Close()
}

// create makes both ends.
func (v *veth) create() error {
	if err := netdev.Delete(v.host, v.HostIf); err != nil { // left by somebody whose record is lost
		return err
	}
	mac, err := net.ParseMAC(v.MAC)
	if err != nil {
		return fmt.Errorf("pod MAC: %w", err)
	}
	err = netdev.Veth.Make(v.host,
		netdev.Pair{Name: v.HostIf, Peer: v.PodIf, MTU: v.MTU, MAC: GatewayMAC, PeerMAC: mac,
			PeerNS: v.ns})
	if errors.Is(err, netdev.ErrExists) {
		return fmt.Errorf("%w: ifName: the pod already has an interface %s: remove it or choose another name", ErrInvalid, v.PodIf)
	}
	return err
}

// configureHost makes the host side a router's port without addresses. It does not set it up.
func (v *veth) configureHost() error {
	return netdev.ConfigureHost(v.host, v.HostIf,
		"weft "+v.Key())
}

// raiseHost sets the host side up, which must have its hooks by now, and leads the node's own
// packets to it.
func (v *veth) raiseHost() error {
	link, err := v.host.LinkByName(v.HostIf)
	if err != nil {
		return fmt.Errorf("find %s: %w", v.HostIf, err)
	}
	if err := v.host.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", v.HostIf, err)
	}
	return v.hostRoutes(link)
}

// hostRoutes leads the node's own packets to the pod: permanent neighbours, because the
// pod's hooks answer for the gateway only, and a route per address.
func (v *veth) hostRoutes(link netlink.Link) error {
	mac, err := net.ParseMAC(v.MAC)
	if err != nil {
		return fmt.Errorf("pod MAC: %w", err)
	}
	for _, a := range v.hostAddresses() {
		neigh := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: family(a),
			State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
		if err := v.host.NeighSet(neigh); err != nil {
			return fmt.Errorf("set neighbour %s on %s: %w", a, v.HostIf, err)
		}
		if err := v.host.RouteReplace(hostRoute(link, a)); err != nil {
			return fmt.Errorf("set route to %s on %s: %w", a, v.HostIf, err)
		}
	}
	return nil
}

// hostAddresses are those that the node's own stack reaches the pod by: it is in the cluster's
// network, and in another the same address may be somebody else's.
func (v *veth) hostAddresses() []netip.Addr {
	if v.NetworkID != 0 {
		return nil
	}
	return v.Addresses()
}

func hostRoute(link netlink.Link, a netip.Addr) *netlink.Route {
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: hostNet(a), Protocol: RouteProtocol}
	if a.Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	return r
}

// configurePod gives the pod's side its addresses and its way out. No duplicate address
// detection: the addresses are ours alone, and waiting for it costs a second.
func (v *veth) configurePod() error {
	link, err := v.pod.LinkByName(v.PodIf)
	if err != nil {
		return fmt.Errorf("find %s in pod: %w", v.PodIf, err)
	}
	if v.IPv6.IsValid() {
		err := inNetNS(v.ns, func() error { return netdev.AllowIPv6(v.PodIf) })
		if err != nil {
			return fmt.Errorf("in pod: %w", err)
		}
	}
	if err := v.pod.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up in pod: %w", v.PodIf, err)
	}
	for _, a := range v.Addresses() {
		addr := &netlink.Addr{IPNet: hostNet(a)}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := v.pod.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("set address %s on %s in pod: %w", a, v.PodIf, err)
		}
	}
	routes := v.podRoutes(link)
	if err := v.checkForeignRoutes(routes); err != nil {
		return err
	}
	for _, r := range routes {
		if err := v.pod.RouteReplace(r); err != nil {
			return fmt.Errorf("set route %s in pod: %w", describe(r), err)
		}
	}
	return v.settle()
}

// settle has the kernel act on the new carrier now. It does so when one is asked for (Linux
// 6.9), else up to a second later for a veth whose ends have the same index, and until
// then the ends count as down.
func (v *veth) settle() error {
	_, hostErr := netdev.Find(v.host, v.HostIf, "on the node")
	_, podErr := netdev.Find(v.pod, v.PodIf, "in the pod")
	return errors.Join(hostErr, podErr)
}

// podRoutes are the routes that lead everything to the gateway.
func (v *veth) podRoutes(link netlink.Link) []*netlink.Route {
	index := link.Attrs().Index
	var out []*netlink.Route
	if v.IPv4.IsValid() {
		out = append(out,
			&netlink.Route{LinkIndex: index, Dst: hostNet(GatewayIPv4), Scope: netlink.SCOPE_LINK},
			&netlink.Route{LinkIndex: index,
				Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
				Gw:  GatewayIPv4.AsSlice()})
	}
	if v.IPv6.IsValid() {
		out = append(out,
			&netlink.Route{LinkIndex: index, Dst: hostNet(GatewayIPv6)},
			&netlink.Route{LinkIndex: index,
				Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
				Gw:  GatewayIPv6.AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
	}
	return out
}

// checkForeignRoutes refuses to take over a route that another interface has: replacing
// a route does not look at the interface.
func (v *veth) checkForeignRoutes(routes []*netlink.Route) error {
	have, err := nldump.Whole(func() ([]netlink.Route, error) {
		return v.pod.RouteList(nil,
			netlink.FAMILY_ALL)
	})
	if err != nil {
		return fmt.Errorf("list routes in pod: %w", err)
	}
	for _, r := range routes {
		for _, other := range have {
			if prefixOf(other.Dst, other.Family) == prefixOf(r.Dst, 0) &&
				other.LinkIndex != r.LinkIndex && sameMetric(other) {
				return fmt.Errorf("%w: netns: the pod already has a route %s by another interface: weft-cni must make the pod's first",
					ErrInvalid, describe(&other))
			}
		}
	}
	return nil
}

// sameMetric tells whether a route has the metric that the kernel gives ours.
func sameMetric(r netlink.Route) bool {
	if r.Family == netlink.FAMILY_V6 {
		return r.Priority == 1024
	}
	return r.Priority == 0
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}
