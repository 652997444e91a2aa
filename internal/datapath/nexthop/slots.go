package nexthop

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/datapath/bpf"
)

// MaxNodeIndexes is how many nodes have a place in the maps; index 0 is this node.
const MaxNodeIndexes = 4096

// slotPlan is what one synchronisation knows about indexes when it looks for one. It is read when
// the first is looked for.
type slotPlan struct {
	taken map[uint32]bool   // of nodes that have theirs
	names map[uint32]string // whose keys are under an index
	held  map[uint32]bool   // with anything of a node under them
}

func (t *Table) planSlots() (*slotPlan, error) {
	plan := &slotPlan{taken: map[uint32]bool{0: true}}
	t.mu.Lock()
	for _, slot := range t.slots {
		plan.taken[slot] = true
	}
	t.mu.Unlock()
	if !t.opts.Sealing {
		return plan, nil
	}
	var err error
	if plan.names, err = t.host.SAs.PeerNames(); err != nil {
		return nil, err
	}
	plan.held, err = t.heldSlots()
	return plan, err
}

// heldSlots are the indexes under which the maps have keys, addresses or identities of a node.
func (t *Table) heldSlots() (map[uint32]bool, error) {
	held := map[uint32]bool{}
	if err := t.host.SAs.HeldPeers(held); err != nil {
		return nil, err
	}
	var slot uint32
	var addr bpf.Addr
	addrs := t.maps.PeerAddr.Iterate()
	for addrs.Next(&addr, &slot) {
		held[slot] = true
	}
	var id bpf.PeerId
	var handle uint16
	ids := t.maps.PeerIDs.Iterate()
	for ids.Next(&id, &handle) {
		held[id.Node] = true
	}
	if err := errors.Join(addrs.Err(), ids.Err()); err != nil {
		return nil, fmt.Errorf("read what is known of peers: %w", err)
	}
	return held, nil
}

// takeSlot finds a node's index: the one it has, the one that it had in a previous run, or a free
// one. It is cleared first unless the node's keys are under it by name: nobody inherits another
// node's keys, addresses, identities or next hops.
func (t *Table) takeSlot(n Node, r *round) (uint32, error) {
	if slot, ok := t.Index(n.Name); ok {
		return slot, nil
	}
	if r.plan == nil {
		plan, err := t.planSlots()
		if err != nil {
			return 0, err
		}
		r.plan = plan
	}
	slot, former, err := t.pickSlot(n, r.plan)
	if err != nil {
		return 0, err
	}
	// A range alone does not say that it is the same node. Where nothing is sealed there is only
	// the next hop, which the synchronisation writes: packets go on meanwhile.
	if !former || t.opts.Sealing && r.plan.names[slot] != n.Name {
		if err := t.clearSlot(slot, r.plan.held[slot]); err != nil {
			return 0, err
		}
	}
	t.Assign(n.Name, slot)
	return slot, nil
}

// pickSlot chooses an index for a node that has none, and says whether it was the node's in a
// previous run.
func (t *Table) pickSlot(n Node, plan *slotPlan) (slot uint32, former bool, err error) {
	slot, former = t.formerSlot(n, plan)
	if !former {
		var free bool
		if slot, free = t.freeSlot(plan); !free {
			return 0, false, fmt.Errorf("node %s: more than %d nodes", n.Name, MaxNodeIndexes-1)
		}
	}
	plan.taken[slot] = true
	return slot, former, nil
}

// formerSlot is the index under which the maps have the node's keys, else its ranges and nobody's
// keys.
func (t *Table) formerSlot(n Node, plan *slotPlan) (uint32, bool) {
	for slot, name := range plan.names {
		if name == n.Name && !plan.taken[slot] && !t.freed[slot] {
			return slot, true
		}
	}
	for _, prefix := range append(hostPrefixes(n), n.PodCIDRs...) {
		slot := t.was[bpf.RouteKeyOf(prefix)].Node
		if slot != 0 && !plan.taken[slot] && !t.freed[slot] && plan.names[slot] == "" {
			return slot, true
		}
	}
	return 0, false
}

// freeSlot is an index that no node has, nor had until just now: routes may still lead there.
func (t *Table) freeSlot(plan *slotPlan) (uint32, bool) {
	before := map[uint32]bool{}
	for _, route := range t.was {
		before[route.Node] = true
	}
	for slot := uint32(1); slot < MaxNodeIndexes; slot++ {
		if !plan.taken[slot] && !t.freed[slot] && !before[slot] && plan.names[slot] == "" {
			return slot, true
		}
	}
	return 0, false
}

// clearSlot takes away all that the maps have under an index.
func (t *Table) clearSlot(slot uint32, held bool) error {
	var failed error
	for _, index := range []uint32{slot * 2, slot*2 + 1} {
		_, err := t.putNextHop(index, bpf.Nexthop{})
		failed = errors.Join(failed, err)
	}
	if t.opts.Sealing {
		failed = errors.Join(failed, t.host.SAs.ClearTunnel(slot))
	}
	if !held {
		return failed
	}
	failed = errors.Join(failed, t.host.SAs.RemoveAllSAs(slot))
	failed = errors.Join(failed,
		bpf.DeleteWhere(t.maps.PeerAddr, func(_ bpf.Addr, of uint32) bool { return of == slot }))
	failed = errors.Join(failed,
		bpf.DeleteWhere(t.maps.PeerIDs,
			func(id bpf.PeerId, _ uint16) bool { return id.Node == slot }))
	if failed != nil {
		return fmt.Errorf("clear node index %d: %w", slot, failed)
	}
	return nil
}
