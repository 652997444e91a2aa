package datapath

import (
	"errors"
	"fmt"
	"net/netip"

	"weft.dev/weft/internal/datapath/bpf"
)

// setOwnRanges refuses from now on what is for an address of this node's pod ranges that no endpoint has: all endpoints are
// known. Not while an interface of another CNI plugin is attached: then others may own addresses in them.
func (d *Datapath) setOwnRanges() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setShares()
	d.settled = true
	return errors.Join(d.followOwnRanges(), d.changed())
}

// followOwnRanges opens or closes the own ranges as the endpoints have it. Callers hold d.mu and void what is cached.
func (d *Datapath) followOwnRanges() error {
	if err := d.enterOwnRanges(); err != nil || d.ownRangesOpen() {
		return err
	}
	return d.replaceUnreachable()
}

// ownRangesOpen says whether addresses of this node's ranges without an endpoint may be somebody's. Callers hold d.mu.
func (d *Datapath) ownRangesOpen() bool { return d.hasChained() || !d.settled }

func (d *Datapath) hasChained() bool {
	for _, ep := range d.eps {
		if ep.Chained {
			return true
		}
	}
	return false
}

// staysClosed says whether a range that is about to become this node's own is refused until this run knows its endpoints: what
// is in it, or around it, was refused as a source so far, and this run may end before it knows them. The endpoints of before are
// in the map, or those hooks that look into it know them. have is what the routes map holds. Callers hold d.mu, or are alone.
func (d *Datapath) staysClosed(prefix netip.Prefix, have map[bpf.RouteKey]bpf.Route) bool {
	known := !d.maps.Created["weft_ep_addr"] || d.maps.Hooked
	if d.settled || d.hasChained() || !known {
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

// enterOwnRanges puts this node's pod ranges into the routes as node 0, open or closed. Those of another configuration
// are nobody's, where packets are sealed, until SetNodes says whose they are now. They are there at all times: nothing from
// the wire has such a source. Callers hold d.mu, or are alone, and void what is cached.
func (d *Datapath) enterOwnRanges() error {
	have, failed := d.readRoutes()
	before := map[bpf.RouteKey]bool{}
	for key, r := range have {
		if isOwn(r) && !isOwnAddress(r) {
			before[key] = true
		}
	}
	for _, prefix := range d.opts.PodCIDRs {
		var own bpf.Route
		key := bpf.RouteKeyOf(prefix)
		if d.ownRangesOpen() && failed == nil && !d.staysClosed(prefix, have) {
			own.Flags = bpf.RouteOpen
		}
		if err := d.maps.Routes.Put(&key, &own); err != nil {
			failed = errors.Join(failed, fmt.Errorf("write route %s: %w", prefix, err))
		}
		delete(before, key)
	}
	for key := range before {
		if d.opts.Encrypt == nil {
			failed = errors.Join(failed, bpf.DeleteKey(d.maps.Routes, &key))
		} else {
			failed = errors.Join(failed, d.maps.Routes.Put(&key, &bpf.Route{Flags: bpf.RouteNoNode}))
		}
	}
	return failed
}
