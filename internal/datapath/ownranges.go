package datapath

import (
	"errors"
	"fmt"
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

// ownRangesBefore lists the own ranges in the routes. Callers hold d.mu, or are alone.
func (d *Datapath) ownRangesBefore() (map[bpfRouteKey]bpfRoute, error) {
	before := map[bpfRouteKey]bpfRoute{}
	var key bpfRouteKey
	var r bpfRoute
	entries := d.maps.Routes.Iterate()
	for entries.Next(&key, &r) {
		if isOwn(r) && r.Flags&bpfRouteHost == 0 {
			before[key] = r
		}
	}
	return before, entries.Err()
}

// staysClosed says whether ranges that the run before had closed stay so while this run does not know its endpoints yet: those of
// before are in the map, or those hooks that look into it know them, and this run may end before it does. Callers hold d.mu, or
// are alone.
func (d *Datapath) staysClosed() bool {
	known := !d.maps.created["weft_ep_addr"] || d.maps.hooked
	return !d.settled && !d.hasChained() && known
}

// enterOwnRanges puts this node's pod ranges into the routes as node 0, open or closed. Those of another configuration
// are nobody's, where packets are sealed, until SetNodes says whose they are now. They are there at all times: nothing from the wire has such a source. Callers hold d.mu, or are
// alone, and void what is cached.
func (d *Datapath) enterOwnRanges() error {
	var own bpfRoute
	if d.ownRangesOpen() {
		own.Flags = bpfRouteOpen
	}
	before, failed := d.ownRangesBefore()
	for _, prefix := range d.opts.PodCIDRs {
		key := routeKey(prefix)
		if was, there := before[key]; there && was.Flags == 0 && d.staysClosed() {
			continue
		}
		if err := d.maps.Routes.Put(&key, &own); err != nil {
			failed = errors.Join(failed, fmt.Errorf("write route %s: %w", prefix, err))
		}
	}
	for _, prefix := range d.opts.PodCIDRs {
		delete(before, routeKey(prefix))
	}
	for key := range before {
		if d.opts.Encrypt == nil {
			failed = errors.Join(failed, deleteKey(d.maps.Routes, &key))
		} else {
			failed = errors.Join(failed, d.maps.Routes.Put(&key, &bpfRoute{Flags: bpfRouteNoNode}))
		}
	}
	return failed
}
