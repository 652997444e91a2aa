package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

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

// ownRangesBefore lists the own ranges in the routes. Callers hold d.mu, or are alone.
func (d *Datapath) ownRangesBefore() (map[bpf.RouteKey]bpf.Route, error) {
	before := map[bpf.RouteKey]bpf.Route{}
	var key bpf.RouteKey
	var r bpf.Route
	entries := d.maps.Routes.Iterate()
	for entries.Next(&key, &r) {
		if isOwn(r) && r.Flags&bpf.RouteHost == 0 {
			before[key] = r
		}
	}
	return before, entries.Err()
}

// staysClosed says whether a range that is about to become this node's own is refused until this run knows its endpoints: nothing
// from there was accepted so far, and this run may end before it knows them. The endpoints of before are in the map, or those hooks
// that look into it know them. Callers hold d.mu, or are alone.
func (d *Datapath) staysClosed(key bpf.RouteKey) (bool, error) {
	known := !d.maps.Created["weft_ep_addr"] || d.maps.Hooked
	if d.settled || d.hasChained() || !known {
		return false, nil
	}
	var was bpf.Route
	err := d.maps.Routes.Lookup(&key, &was) // the longest prefix around it: its own, or that of a larger range
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return was.Flags&bpf.RouteOpen == 0, err
}

// enterOwnRanges puts this node's pod ranges into the routes as node 0, open or closed. Those of another configuration
// are nobody's, where packets are sealed, until SetNodes says whose they are now. They are there at all times: nothing from
// the wire has such a source. Callers hold d.mu, or are alone, and void what is cached.
func (d *Datapath) enterOwnRanges() error {
	before, failed := d.ownRangesBefore()
	for _, prefix := range d.opts.PodCIDRs {
		var own bpf.Route
		key := bpf.RouteKeyOf(prefix)
		closed, err := d.staysClosed(key)
		if d.ownRangesOpen() && !closed {
			own.Flags = bpf.RouteOpen
		}
		if err = errors.Join(err, d.maps.Routes.Put(&key, &own)); err != nil {
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
