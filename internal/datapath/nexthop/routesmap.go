package nexthop

import (
	"cmp"
	"errors"
	"fmt"
	stdmaps "maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
)

// routesReserve are places of the routes map that are left for this node's own ranges and
// addresses, and for kernels that want a free place to replace an entry.
const routesReserve = 256

// isOwn says whether a route is one of this node's own.
func isOwn(r bpf.Route) bool { return r.Node == 0 && r.Flags&bpf.RouteNoNode == 0 }

// routesPlan is what one synchronisation of the routes map does, in this order.
type routesPlan struct {
	replace []bpf.RouteKey // entries that change hands in place
	first   []bpf.RouteKey // entries to delete that no new one overlaps: they make room
	add     []bpf.RouteKey
	last    []bpf.RouteKey // entries to delete once others cover what they covered
	left    []bpf.RouteKey // what does not fit
}

// readRoutes reads the whole routes map, once per synchronisation: it may hold 65536 entries.
// Callers hold mu, or are alone.
func (t *Table) readRoutes() (map[bpf.RouteKey]bpf.Route, error) {
	have := map[bpf.RouteKey]bpf.Route{}
	var key bpf.RouteKey
	var value bpf.Route
	entries := t.maps.Routes.Iterate()
	for entries.Next(&key, &value) {
		if key.Network == 0 { // other nodes are in the cluster's
			have[key] = value
		}
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read routes map: %w", err)
	}
	return have, nil
}

// syncRoutes brings the routes map in line with what a synchronisation wants.
func (t *Table) syncRoutes(r *round, addresses bool) (changed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, err := t.readRoutes()
	if err != nil {
		return false, err
	}
	if addresses {
		changed, err = t.syncOwnAddresses(have, r.kernel.addresses)
	}
	moved, routesErr := t.syncRoutesMap(have, r.routes)
	return changed || moved, errors.Join(err, routesErr)
}

// syncRoutesMap makes want, instead of have, the routes to what is not this node's own. A range
// that changes hands is never without an owner. What does not fit is named and noted: nothing is to
// be sent there by other ways. Single errors stop nothing else. Callers hold mu.
func (t *Table) syncRoutesMap(have, want map[bpf.RouteKey]bpf.Route) (bool, error) {
	plan := planRoutes(have, want, int(t.maps.Routes.MaxEntries())-routesReserve)
	put := func(keys []bpf.RouteKey) (failed []bpf.RouteKey, err error) {
		for _, k := range keys {
			route := want[k]
			if putErr := t.maps.Routes.Put(&k, &route); putErr != nil {
				failed, err = append(failed, k), fmt.Errorf("write routes map: %w", putErr)
			}
		}
		return failed, err
	}
	_, err := put(plan.replace)
	err = errors.Join(err, t.deleteRoutes(plan.first))
	again, _ := put(plan.add)
	err = errors.Join(err, t.deleteRoutes(plan.last))
	failed, putErr := put(again)
	t.noteLeft(append(plan.left, failed...))
	return len(plan.replace)+len(plan.first)+len(plan.add)+len(plan.last) > 0,
		errors.Join(err, putErr)
}

// deleteRoutes removes entries; of several errors it returns the last.
func (t *Table) deleteRoutes(keys []bpf.RouteKey) (failed error) {
	for _, k := range keys {
		if err := t.maps.Routes.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			failed = fmt.Errorf("delete from routes map: %w", err)
		}
	}
	return failed
}

// planRoutes says what makes have into want, in a map with room for so many entries besides some in
// reserve.
func planRoutes(have, want map[bpf.RouteKey]bpf.Route, room int) routesPlan {
	var plan routesPlan
	var order []bpf.RouteKey
	for _, route := range have {
		if isOwn(route) {
			room--
		}
	}
	for key := range want {
		if now, ok := have[key]; !ok || !isOwn(now) {
			order = append(order, key)
		}
	}
	slices.SortFunc(order, func(a, b bpf.RouteKey) int { return byRank(a, want[a], b, want[b]) })
	room = min(max(room, 0), len(order))
	fits := make(map[bpf.RouteKey]bool, room)
	for _, key := range order[:room] {
		fits[key] = true
		if now, ok := have[key]; !ok {
			plan.add = append(plan.add, key)
		} else if now != want[key] {
			plan.replace = append(plan.replace, key)
		}
	}
	plan.left = order[room:]
	added := newOverlaps(plan.add)
	for _, key := range slices.SortedFunc(stdmaps.Keys(have), compareKeys) {
		switch {
		case fits[key] || isOwn(have[key]):
		case added.with(key):
			plan.last = append(plan.last, key)
		default:
			plan.first = append(plan.first, key)
		}
	}
	return plan
}

// byRank is the order in which routes get their places: ranges of nodes, ranges that are nobody's,
// nodes' own addresses, and single addresses of pods last.
func byRank(a bpf.RouteKey, ra bpf.Route, b bpf.RouteKey, rb bpf.Route) int {
	return cmp.Or(cmp.Compare(rankOf(a, ra), rankOf(b, rb)), cmp.Compare(a.Prefixlen, b.Prefixlen),
		compareKeys(a, b))
}

func rankOf(key bpf.RouteKey, r bpf.Route) int {
	rank := 0
	switch {
	case r.Flags&bpf.RouteHost != 0:
		rank = 2
	case bpf.PrefixOf(key).IsSingleIP():
		rank = 4
	}
	if r.Flags&bpf.RouteNoNode != 0 {
		rank++
	}
	return rank
}

func compareKeys(a, b bpf.RouteKey) int { return bpf.PrefixOf(a).Compare(bpf.PrefixOf(b)) }

// overlaps finds whether a range overlaps some of a set.
type overlaps struct {
	set     map[bpf.RouteKey]bool
	ordered []netip.Prefix
}

func newOverlaps(keys []bpf.RouteKey) *overlaps {
	o := &overlaps{set: make(map[bpf.RouteKey]bool, len(keys))}
	for _, k := range keys {
		o.set[k] = true
		o.ordered = append(o.ordered, bpf.PrefixOf(k))
	}
	slices.SortFunc(o.ordered, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return o
}

func (o *overlaps) with(key bpf.RouteKey) bool {
	p := bpf.PrefixOf(key)
	for bits := p.Bits(); bits >= 0; bits-- {
		if o.set[bpf.RouteKeyOf(netip.PrefixFrom(p.Addr(), bits).Masked())] {
			return true
		}
	}
	at, _ := slices.BinarySearchFunc(o.ordered, p.Addr(),
		func(q netip.Prefix, a netip.Addr) int { return q.Addr().Compare(a) })
	return at < len(o.ordered) && p.Contains(o.ordered[at].Addr())
}

// noteLeft notes and names what could not be entered. Callers hold mu.
func (t *Table) noteLeft(keys []bpf.RouteKey) {
	t.left = map[string]bool{}
	text := ""
	for i, k := range keys {
		t.left[toIPNet(bpf.PrefixOf(k)).String()] = true
		if i == 0 {
			text = fmt.Sprintf("%d ranges and addresses of the cluster are not in the routes map, such as %s: it holds %d; nothing is routed there, and packets from there pass for the world's; `weft node forget` what is gone, or name ranges (podCIDRs, clusterCIDRs) instead of single addresses",
				len(keys), bpf.PrefixOf(k), int(t.maps.Routes.MaxEntries())-routesReserve)
			t.log.Warn(text)
		}
	}
	t.leftText = text
}

// Problem is what the routes map had no room for, "" if there is nothing.
func (t *Table) Problem() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leftText
}

// notLeft are the kernel's routes without gateways to what could not be entered: packets there
// would leave in cleartext. The last resorts stay.
func (t *Table) notLeft(routes []*netlink.Route) []*netlink.Route {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.opts.Sealing || len(t.left) == 0 {
		return routes
	}
	return slices.DeleteFunc(routes,
		func(r *netlink.Route) bool { return r.Gw != nil && t.left[r.Dst.String()] })
}
