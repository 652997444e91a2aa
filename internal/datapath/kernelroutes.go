package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/nldump"
)

// unreachable is a last-resort route: what no other route leads to is answered here instead of leaving by the
// default route.
func unreachable(prefix netip.Prefix) *netlink.Route {
	route := &netlink.Route{
		Dst: toIPNet(prefix), Type: unix.RTN_UNREACHABLE, Protocol: RouteProtocol, Priority: unreachableMetric,
	}
	if prefix.Addr().Is6() {
		// The kernel wants a device even for routes that lead nowhere.
		route.LinkIndex = 1
	}
	return route
}

// routesOfWeft lists the kernel's routes of Weft's protocol, those to this node's pods included.
func (d *Datapath) routesOfWeft() ([]netlink.Route, error) {
	list := d.listRoutes
	if list == nil {
		list = listRoutes
	}
	return nldump.Whole(list)
}

func listRoutes() ([]netlink.Route, error) {
	return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
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
func (d *Datapath) syncKernelRoutes(want []*netlink.Route) error {
	have, err := d.routesOfWeft()
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
		if err := replaceRoute(r); err != nil && (r.Gw != nil || !errors.Is(err, unix.EAFNOSUPPORT)) {
			failed = errors.Join(failed, fmt.Errorf("add route %s: %w", r.Dst, err))
		}
	}
	for _, prefix := range d.opts.PodCIDRs {
		wanted[kernelRouteOf(unreachable(prefix))] = true // setOwnRanges makes these
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
