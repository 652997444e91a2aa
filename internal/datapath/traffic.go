package datapath

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/netdev"
)

// Flows reads at most limit rows of the flow table, in no order.
func (d *Datapath) Flows(limit int) ([]Flow, error) { return d.table.Flows(limit) }

// Events hands every flow event to handle, in order, until ctx ends. There must be one reader at a
// time.
func (d *Datapath) Events(ctx context.Context, handle func(FlowEvent)) error {
	return d.table.Events(ctx, handle)
}

// EventStats says how many flow events were not written since the maps were made.
func (d *Datapath) EventStats() (EventStats, error) { return d.table.EventStats() }

// Counters reads the traffic of every attached endpoint and of the node itself (slot 0).
func (d *Datapath) Counters() ([]Counter, error) {
	rows, err := d.table.Counters(d.slots())
	if err != nil || d.sealerIndex.Load() == 0 {
		return rows, err
	}
	row, err := sealerLosses()
	if err != nil {
		d.log.Warn("what the sealer's queue has lost is not counted", "err", err)
	} else if row.Packets > 0 {
		rows = append(rows, row)
	}
	return rows, nil
}

// sealerLosses are frames that no program sees again, in either direction: only the device counts
// them, from zero when it is made anew.
func sealerLosses() (Counter, error) {
	lost, err := netdev.SealerLost()
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return Counter{}, nil // between two taps
	}
	return Counter{
		Direction: bpf.DirectionNames[bpf.DirEgress], Verdict: bpf.VerdictNames[bpf.VerdictDrop],
		Reason: bpf.ReasonSealerQueueFull.String(), Traffic: Traffic{Packets: lost},
	}, err
}

// Budgets reads what every attached endpoint and the node itself (slot 0) hold of the shared tables
// and were refused.
func (d *Datapath) Budgets() ([]Budget, error) { return d.table.Budgets(d.slots()) }

// clearCounters zeroes a slot that is given up, so that its next owner starts at zero.
func (d *Datapath) clearCounters(slot uint16) error {
	return errors.Join(d.dropClaim(slot), d.table.Clear(slot))
}

// dropClaim forgets which link-local address the slot's endpoint has claimed.
func (d *Datapath) dropClaim(slot uint16) error {
	var claim bpf.Claim
	if err := d.maps.Claims.Lookup(uint32(slot), &claim); err != nil {
		return fmt.Errorf("read claims map: %w", err)
	}
	if claim.Born == 0 {
		return nil
	}
	err := bpf.DeleteKey(d.maps.Claimed, &claim.Addr)
	return errors.Join(err, d.maps.Claims.Put(uint32(slot), &bpf.Claim{}))
}

// setShares divides the flow table and the events among the endpoints that there are and the node,
// each with two owners, and returns the share of flows. Callers hold d.mu and call changed.
func (d *Datapath) setShares() uint32 {
	owners := uint32(2 * (len(d.eps) + 1))
	d.config.FlowShare = max(1, d.maps.Cells4.MaxEntries()/(owners+1))
	d.config.EventsShare = (d.opts.EventsPerSecond + owners - 1) / owners
	return d.config.FlowShare
}

// FlowShare is how many flows, per family, each endpoint and direction never loses to another.
func (d *Datapath) FlowShare() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config.FlowShare
}

// slots lists those of the attached endpoints and the node's own.
func (d *Datapath) slots() []uint16 {
	d.mu.Lock()
	defer d.mu.Unlock()
	slots := []uint16{0}
	for slot := range d.eps {
		slots = append(slots, slot)
	}
	return slots
}
