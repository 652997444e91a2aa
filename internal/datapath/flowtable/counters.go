package flowtable

import (
	"fmt"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
)

// Counters reads the traffic of the endpoints of these slots and of the node itself (slot 0): per
// direction and verdict, and per reason for drops. Rows that are zero are left out.
func (t *Table) Counters(slots []uint16) ([]Counter, error) {
	var rows []Counter
	perCPU := make([]bpf.Counter, ebpf.MustPossibleCPU())
	for _, slot := range slots {
		for dir := range bpf.DirectionNames {
			for verdict := range bpf.VerdictNames[:bpf.VerdictDrop] {
				index := uint32(slot)<<4 | uint32(dir)<<3 | uint32(verdict)
				if err := t.maps.Counters.Lookup(index, &perCPU); err != nil {
					return nil, fmt.Errorf("read counters map: %w", err)
				}
				if t := sum(perCPU); t.Packets != 0 {
					rows = append(rows,
						Counter{Slot: slot, Direction: bpf.DirectionNames[dir],
							Verdict: bpf.VerdictNames[verdict], Traffic: t})
				}
			}
		}
	}
	var key bpf.DropKey
	entries := t.maps.Drops.Iterate()
	for entries.Next(&key, &perCPU) {
		rows = append(rows, Counter{
			Slot: key.Slot, Direction: bpf.DirectionNames.Of(key.Direction),
			Verdict: bpf.VerdictNames[bpf.VerdictDrop],
			Reason:  bpf.Reason(key.Reason).String(), Traffic: sum(perCPU),
		})
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read drops map: %w", err)
	}
	return rows, nil
}

func sum(perCPU []bpf.Counter) (t Traffic) {
	for _, c := range perCPU {
		t.Packets += c.Packets
		t.Bytes += c.Bytes
	}
	return t
}

// Clear zeroes a slot that is given up, so that its next owner starts at zero.
func (t *Table) Clear(slot uint16) error {
	if err := t.clearOwners(slot); err != nil {
		return err
	}
	zero := make([]bpf.Counter, ebpf.MustPossibleCPU())
	for i := range uint32(16) {
		if err := t.maps.Counters.Put(uint32(slot)<<4|i, zero); err != nil {
			return fmt.Errorf("clear counters: %w", err)
		}
	}
	var stale []bpf.DropKey
	var key bpf.DropKey
	for entries := t.maps.Drops.Iterate(); entries.Next(&key, &zero); {
		if key.Slot == slot {
			stale = append(stale, key)
		}
	}
	for _, k := range stale {
		if err := bpf.DeleteKey(t.maps.Drops, &k); err != nil {
			return err
		}
	}
	return nil
}

// EventStats says how many flow events were not written since the maps were made.
func (t *Table) EventStats() (EventStats, error) {
	perCPU := make([]bpf.EventStats, ebpf.MustPossibleCPU())
	if err := t.maps.EvStats.Lookup(uint32(0), &perCPU); err != nil {
		return EventStats{}, fmt.Errorf("read event statistics map: %w", err)
	}
	var total EventStats
	for _, s := range perCPU {
		total.Suppressed += s.Suppressed
		total.Lost += s.Lost
	}
	return total, nil
}
