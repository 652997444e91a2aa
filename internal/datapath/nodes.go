package datapath

import (
	"context"
	"errors"

	"weft.dev/weft/internal/datapath/nexthop"
)

// openNextHops takes over what a previous run knew of other nodes.
func (d *Datapath) openNextHops() (err error) {
	d.hops, err = nexthop.Open(nexthop.Host{
		Maps: d.maps, SAs: d.sas, Undo: d.undo, Kernel: &d.kernel, Void: d.void, Step: d.step,
		Log: d.log,
	}, nexthop.Options{
		Uplinks: d.opts.Uplinks, HostAddrs: d.opts.HostAddrs, PodCIDRs: d.opts.PodCIDRs,
		Sealing: d.opts.Encrypt != nil, GenericXDP: d.opts.GenericXDP,
	})
	return err
}

// SetNodes makes the given peers, and no others, the ones whose pods are reached over the wire:
// in the maps, as kernel routes for whatever takes the stack, and as neighbours that the kernel
// keeps fresh. A node that cannot be reached is no error: it is in NodeProblems, and nothing goes
// there.
func (d *Datapath) SetNodes(_ context.Context, nodes []Node) error {
	entered, err := d.hops.SetNodes(nodes)
	if entered {
		err = errors.Join(err, d.endHold(func(h *hold) { h.routes = true }))
	}
	return err
}

// NodeProblems are those of the last synchronisation, by name.
func (d *Datapath) NodeProblems() []NodeProblem { return d.hops.NodeProblems() }

// Inherited lists what a previous run knew as the cluster's beside this node's own ranges. It says
// nothing once SetNodes has succeeded.
func (d *Datapath) Inherited() []Inherited { return d.hops.Inherited() }

// setOwnRanges refuses from now on what is for an address of this node's pod ranges that no
// endpoint has: all endpoints are known. Not while an interface of another CNI plugin is attached:
// then others may own addresses in them.
func (d *Datapath) setOwnRanges() error {
	if err := d.knowEndpoints(); err != nil {
		return err
	}
	return d.closeOwnRanges()
}

func (d *Datapath) knowEndpoints() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setShares()
	d.settled = true
	d.unpolice()
	return errors.Join(d.enterOwnRanges(), d.changed())
}

// closeOwnRanges answers what is for nobody in the own ranges, if they are closed.
func (d *Datapath) closeOwnRanges() error {
	d.mu.Lock()
	open := d.ownRanges().Open()
	d.mu.Unlock()
	if open {
		return nil
	}
	return d.hops.LastResorts()
}

// enterOwnRanges opens or closes the own ranges in the maps as the endpoints have it. Callers hold
// d.mu, or are alone, and void what is cached.
func (d *Datapath) enterOwnRanges() error { return d.hops.EnterOwnRanges(d.ownRanges()) }

func (d *Datapath) ownRanges() nexthop.OwnRanges {
	own := nexthop.OwnRanges{Known: d.settled}
	for _, ep := range d.eps {
		own.Shared = own.Shared || ep.Chained
	}
	return own
}
