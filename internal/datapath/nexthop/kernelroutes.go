package nexthop

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/nldump"
)

// RouteProtocol marks the kernel routes that Weft makes (rtnetlink's rtm_protocol; 77 is free).
const RouteProtocol = 77

// unreachableMetric puts the unreachable routes behind every other route to the same range.
const unreachableMetric = 0xff00

// unreachable is a last-resort route: what no other route leads to is answered here instead of
// leaving by the default route.
func unreachable(prefix netip.Prefix) *netlink.Route {
	route := &netlink.Route{
		Dst: toIPNet(prefix), Type: unix.RTN_UNREACHABLE, Protocol: RouteProtocol,
		Priority: unreachableMetric,
	}
	if prefix.Addr().Is6() {
		// The kernel wants a device even for routes that lead nowhere.
		route.LinkIndex = 1
	}
	return route
}

// routesOfWeft lists the kernel's routes of Weft's protocol, those to this node's pods included.
func (t *Table) routesOfWeft() ([]netlink.Route, error) {
	list := t.host.Kernel.Routes
	if list == nil {
		list = ListRoutes
	}
	return nldump.Whole(list)
}

// ListRoutes asks the kernel for its routes of Weft's protocol. The list may be interrupted.
func ListRoutes() ([]netlink.Route, error) {
	return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: RouteProtocol},
		netlink.RT_FILTER_PROTOCOL)
}

// lastResorts keep what is for a node's pods from leaving by the default route where there is no
// other route to them: no next hop, an interface that is down, no node. Nodes' own addresses are
// reached as ever.
func (t *Table) lastResorts(n Node) []*netlink.Route {
	if !t.opts.Sealing {
		return nil
	}
	var out []*netlink.Route
	for _, prefix := range n.PodCIDRs {
		out = append(out, unreachable(prefix))
	}
	return out
}

// routesBy are the kernel routes to a node's pods by one of its addresses. What this host sends
// there comes from an address that the node knows as this one's, unless a socket is bound to
// another.
func (t *Table) routesBy(n Node, addr netip.Addr, hop nextHop) []*netlink.Route {
	var routes []*netlink.Route
	var src net.IP
	if at := slices.IndexFunc(t.opts.HostAddrs,
		func(a netip.Addr) bool { return a.Is4() == addr.Is4() }); at >= 0 && t.opts.Sealing {
		src = t.opts.HostAddrs[at].AsSlice()
	}
	for _, prefix := range n.PodCIDRs {
		if prefix.Addr().Is4() == addr.Is4() {
			routes = append(routes, &netlink.Route{
				Dst: toIPNet(prefix), Gw: hop.addr.AsSlice(), LinkIndex: int(hop.entry.Ifindex),
				Protocol: RouteProtocol, Src: src,
			})
		}
	}
	return routes
}

// kernelRoute is what two routes to the same range may differ in for syncKernelRoutes.
type kernelRoute struct {
	dst         string
	unreachable bool
}

func kernelRouteOf(r *netlink.Route) kernelRoute {
	return kernelRoute{r.Dst.String(), r.Type == unix.RTN_UNREACHABLE}
}

// syncKernelRoutes makes want the only routes of ours to ranges that are not this node's own.
func (t *Table) syncKernelRoutes(want []*netlink.Route) error {
	have, err := t.routesOfWeft()
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	have = slices.DeleteFunc(have, func(r netlink.Route) bool {
		return r.Dst == nil || r.Gw == nil && r.Type != unix.RTN_UNREACHABLE // pods of this node
	})
	there := make(map[kernelRoute]*netlink.Route, len(have))
	for i := range have {
		there[kernelRouteOf(&have[i])] = &have[i]
	}
	var failed error
	wanted := map[kernelRoute]bool{}
	for _, r := range want {
		wanted[kernelRouteOf(r)] = true
		if now := there[kernelRouteOf(r)]; now != nil && sameRoute(now, r) {
			continue
		}
		if err := replaceRoute(r); err != nil &&
			(r.Gw != nil || !errors.Is(err, unix.EAFNOSUPPORT)) {
			failed = errors.Join(failed, fmt.Errorf("add route %s: %w", r.Dst, err))
		}
	}
	for _, prefix := range t.opts.PodCIDRs {
		wanted[kernelRouteOf(unreachable(prefix))] = true // LastResorts makes these
	}
	for _, r := range have {
		if wanted[kernelRouteOf(&r)] {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = errors.Join(failed, fmt.Errorf("remove route %s: %w", r.Dst, err))
		}
	}
	return failed
}

// replaceRoute sets a route, without the source address that it prefers if that is not there yet.
func replaceRoute(r *netlink.Route) error {
	err := netlink.RouteReplace(r)
	if errors.Is(err, unix.EINVAL) && r.Src != nil {
		anySource := *r
		anySource.Src = nil
		return netlink.RouteReplace(&anySource)
	}
	return err
}

func sameRoute(a, b *netlink.Route) bool {
	if a.Type == unix.RTN_UNREACHABLE {
		return a.Priority == b.Priority
	}
	return a.Gw.Equal(b.Gw) && a.LinkIndex == b.LinkIndex && a.MTU == b.MTU && a.Src.Equal(b.Src)
}

// LastResorts gives this node's own ranges their last-resort routes, so that packets for pods that
// do not exist are answered here instead of leaving by the default route.
func (t *Table) LastResorts() error {
	t.mu.Lock()
	t.unreachable = true
	t.mu.Unlock()
	for _, prefix := range t.opts.PodCIDRs {
		if err := netlink.RouteReplace(unreachable(prefix)); err != nil &&
			!errors.Is(err, unix.EAFNOSUPPORT) {
			return fmt.Errorf("add unreachable route %s: %w", prefix, err)
		}
	}
	return nil
}

// Restore puts back routes and neighbours that are missing. It returns the routes among them, and
// those of lost that another look has put back already, by RouteName.
func (t *Table) Restore(lost map[string]bool) (back []string, err error) {
	before, err := t.madeRoutes()
	if refreshErr := t.Refresh(); refreshErr != nil {
		t.log.Warn("peers", "err", refreshErr)
	}
	t.mu.Lock()
	unreachable := t.unreachable
	t.mu.Unlock()
	if unreachable {
		if err := t.LastResorts(); err != nil {
			t.log.Warn("put back routes", "err", err)
		}
	}
	after, afterErr := t.madeRoutes()
	if err = errors.Join(err, afterErr); err != nil { // then nobody knows what was gone
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for route := range after {
		if !before[route] || lost[route] {
			back = append(back, route)
		}
	}
	slices.Sort(back)
	return back, nil
}

// madeRoutes are the kernel's routes of Weft's through a gateway or to nowhere, by RouteName.
func (t *Table) madeRoutes() (map[string]bool, error) {
	list, err := t.routesOfWeft()
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, r := range list {
		if r.Dst != nil && (r.Gw != nil || r.Type == unix.RTN_UNREACHABLE) {
			out[RouteName(r)] = true
		}
	}
	return out, nil
}

// RouteName says where a kernel route leads.
func RouteName(r netlink.Route) string {
	if r.Gw == nil {
		return fmt.Sprintf("unreachable %s", r.Dst)
	}
	return fmt.Sprintf("%s via %s", r.Dst, r.Gw)
}

func toIPNet(prefix netip.Prefix) *net.IPNet {
	prefix = prefix.Masked()
	return &net.IPNet{IP: prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}
