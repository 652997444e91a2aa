package nexthop

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/nldump"
)

// OwnRanges say who may be in this node's own ranges.
type OwnRanges struct {
	// Known says that every endpoint of this node is known.
	Known bool
	// Shared says that interfaces of other CNI plugins are attached: others may own addresses in
	// the ranges.
	Shared bool
}

// Open says whether addresses of the ranges without an endpoint may be somebody's.
func (o OwnRanges) Open() bool { return o.Shared || !o.Known }

// EnterOwnRanges puts this node's pod ranges into the routes as node 0, open or closed. Those of
// another configuration are nobody's, where packets are sealed, until SetNodes says whose they are
// now. They are there at all times: nothing from the wire has such a source. Callers void what is
// cached.
func (t *Table) EnterOwnRanges(own OwnRanges) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, failed := t.readRoutes()
	before := map[bpf.RouteKey]bool{}
	for key, r := range have {
		if isOwn(r) && !isOwnAddress(r) {
			before[key] = true
		}
	}
	for _, prefix := range t.opts.PodCIDRs {
		var route bpf.Route
		key := bpf.RouteKeyOf(prefix)
		if own.Open() && failed == nil && !t.staysClosed(own, prefix, have) {
			route.Flags = bpf.RouteOpen
		}
		if err := t.maps.Routes.Put(&key, &route); err != nil {
			failed = errors.Join(failed, fmt.Errorf("write route %s: %w", prefix, err))
		}
		delete(before, key)
	}
	for key := range before {
		if !t.opts.Sealing {
			failed = errors.Join(failed, bpf.DeleteKey(t.maps.Routes, &key))
		} else {
			failed = errors.Join(failed,
				t.maps.Routes.Put(&key, &bpf.Route{Flags: bpf.RouteNoNode}))
		}
	}
	return failed
}

// staysClosed says whether a range that is about to become this node's own is refused until this
// run knows its endpoints: what is in it, or around it, was refused as a source so far, and this
// run may end before it knows them. The endpoints of before are in the map, or those hooks that
// look into it know them. have is what the routes map holds.
func (t *Table) staysClosed(own OwnRanges, prefix netip.Prefix,
	have map[bpf.RouteKey]bpf.Route) bool {
	entered := !t.maps.Created["weft_ep_addr"] || t.maps.Hooked
	if own.Known || own.Shared || !entered {
		return false
	}
	refused := func(r bpf.Route) bool { return r.Flags&bpf.RouteOpen == 0 }
	if was, there := have[bpf.RouteKeyOf(prefix)]; there {
		return refused(was)
	}
	for key, r := range have {
		other := bpf.PrefixOf(key)
		if other.Overlaps(prefix) && refused(r) && !isOwnAddress(r) {
			return true
		}
	}
	return false
}

// EnterOwnAddresses puts this node's own addresses into the routes, as node 0: nobody else may send
// from them.
func (t *Table) EnterOwnAddresses() error {
	unlisted, err := t.unlistedAddresses()
	if err != nil {
		return err
	}
	t.work.Lock()
	defer t.work.Unlock()
	changed, err := t.enterOwnAddresses(unlisted)
	if changed {
		err = errors.Join(err, t.host.Void())
	}
	return err
}

func (t *Table) enterOwnAddresses(unlisted []netip.Addr) (changed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, err := t.readRoutes()
	if err != nil {
		return false, err
	}
	return t.syncOwnAddresses(have, unlisted)
}

// syncOwnAddresses enters the addresses that the Node object lists and those that the node has
// besides (another card's, a bridge's, a virtual one's), which others do not know as its. An
// address of another node's is left to that. have is what the routes map holds, and is kept so.
// Callers hold mu.
func (t *Table) syncOwnAddresses(have map[bpf.RouteKey]bpf.Route,
	unlisted []netip.Addr) (changed bool, err error) {
	want := map[bpf.RouteKey]bpf.Route{}
	for _, a := range unlisted {
		want[bpf.RouteKeyOf(netip.PrefixFrom(a,
			a.BitLen()))] = bpf.Route{Flags: bpf.RouteHost | bpf.RouteUnlisted}
	}
	for _, a := range t.opts.HostAddrs {
		want[bpf.RouteKeyOf(netip.PrefixFrom(a, a.BitLen()))] = bpf.Route{Flags: bpf.RouteHost}
	}
	var stale []bpf.RouteKey
	for key, value := range have {
		_, wanted := want[key]
		switch {
		case value == want[key] || wanted && !isOwnAddress(value):
			delete(want, key)
		case isOwnAddress(value) && !wanted:
			stale = append(stale, key)
		}
	}
	for key, route := range want {
		if putErr := t.maps.Routes.Put(&key, &route); putErr != nil {
			err = errors.Join(err, fmt.Errorf("write route of an own address: %w", putErr))
			continue
		}
		have[key] = route
	}
	for _, k := range stale {
		err = errors.Join(err, bpf.DeleteKey(t.maps.Routes, &k))
		delete(have, k)
	}
	return len(want)+len(stale) > 0, err
}

func isOwnAddress(r bpf.Route) bool { return isOwn(r) && r.Flags&bpf.RouteHost != 0 }

// unlistedAddresses are those of this node's interfaces that its Node object does not list. Those
// of a loopback or of a link are nobody's on a wire.
func (t *Table) unlistedAddresses() ([]netip.Addr, error) {
	list, err := nldump.Whole(func() ([]netlink.Addr, error) {
		return netlink.AddrList(nil,
			netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, fmt.Errorf("list this node's addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); ok && ip.IsGlobalUnicast() && !slices.Contains(t.opts.HostAddrs, ip) {
			out = append(out, ip)
		}
	}
	return out, nil
}
