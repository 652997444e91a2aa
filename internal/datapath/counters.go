package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

var (
	verdictNames   = []string{"local", "remote", "stack", "answered", "absorbed", "drop"}
	directionNames = []string{"egress", "ingress"}
	hookNames      = []string{"from_pod", "from_wire", "to_pod", "to_wire", "from_host", "post_routing", "pre_routing"}
	stateNames     = []string{"new", "replied", "syn_sent", "syn_received", "established", "closing", "closed"}
)

func nameOf(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("unknown_%d", i)
}

// Verdicts lists the names of all verdicts; the last is "drop".
func Verdicts() []string { return verdictNames }

// Counters reads the traffic of every attached endpoint and of the node itself (slot 0): per
// direction and verdict, and per reason for drops. Rows that are zero are left out.
func (d *Datapath) Counters() ([]Counter, error) {
	slots := d.slots()
	var rows []Counter
	perCPU := make([]bpfCounter, ebpf.MustPossibleCPU())
	for _, slot := range slots {
		for dir := range directionNames {
			for verdict := range verdictNames[:bpfVerdictDrop] {
				index := uint32(slot)<<4 | uint32(dir)<<3 | uint32(verdict)
				if err := d.maps.Counters.Lookup(index, &perCPU); err != nil {
					return nil, fmt.Errorf("read counters map: %w", err)
				}
				if t := sum(perCPU); t.Packets != 0 {
					rows = append(rows, Counter{Slot: slot, Direction: directionNames[dir], Verdict: verdictNames[verdict], Traffic: t})
				}
			}
		}
	}
	var key bpfDropKey
	entries := d.maps.Drops.Iterate()
	for entries.Next(&key, &perCPU) {
		rows = append(rows, Counter{
			Slot: key.Slot, Direction: nameOf(directionNames, key.Direction), Verdict: verdictNames[bpfVerdictDrop],
			Reason: Reason(key.Reason).String(), Traffic: sum(perCPU),
		})
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read drops map: %w", err)
	}
	return rows, nil
}

func sum(perCPU []bpfCounter) (t Traffic) {
	for _, c := range perCPU {
		t.Packets += c.Packets
		t.Bytes += c.Bytes
	}
	return t
}

// clearCounters zeroes a slot that is given up, so that its next owner starts at zero.
func (d *Datapath) clearCounters(slot uint16) error {
	if err := errors.Join(d.table.clear(slot), d.dropClaim(slot)); err != nil {
		return err
	}
	zero := make([]bpfCounter, ebpf.MustPossibleCPU())
	for i := range uint32(16) {
		if err := d.maps.Counters.Put(uint32(slot)<<4|i, zero); err != nil {
			return fmt.Errorf("clear counters: %w", err)
		}
	}
	var stale []bpfDropKey
	var key bpfDropKey
	for entries := d.maps.Drops.Iterate(); entries.Next(&key, &zero); {
		if key.Slot == slot {
			stale = append(stale, key)
		}
	}
	for _, k := range stale {
		if err := deleteKey(d.maps.Drops, &k); err != nil {
			return err
		}
	}
	return nil
}

// EventStats says how many flow events were not written since the maps were made.
func (d *Datapath) EventStats() (EventStats, error) {
	perCPU := make([]bpfEventStats, ebpf.MustPossibleCPU())
	if err := d.maps.EvStats.Lookup(uint32(0), &perCPU); err != nil {
		return EventStats{}, fmt.Errorf("read event statistics map: %w", err)
	}
	var total EventStats
	for _, s := range perCPU {
		total.Suppressed += s.Suppressed
		total.Lost += s.Lost
	}
	return total, nil
}
