package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/datapath/bpf"
)

// restore reads what a previous run wrote, so that each node keeps its index and the maps
// are right all the time while the agent catches up.
func (t *nodeTable) restore(m *bpf.Maps) error {
	*t = nodeTable{slots: map[string]uint32{}, was: map[bpf.RouteKey]bpf.Route{}, hops: map[netip.Addr][]uint32{}, used: map[uint32]bool{}, freed: map[uint32]bool{}}
	var key bpf.RouteKey
	var value bpf.Route
	entries := m.Routes.Iterate()
	for entries.Next(&key, &value) {
		if value.Node != 0 || value.Flags&bpf.RouteNoNode != 0 {
			t.was[key] = value
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read routes map: %w", err)
	}
	for _, route := range t.was {
		if route.Node != 0 {
			t.used[route.Node*2], t.used[route.Node*2+1] = true, true
		}
	}
	return nil
}

// Inherited is a range, or with Host a node's own address, that a previous run had in the routes map as another node's.
type Inherited struct {
	Prefix netip.Prefix
	Host   bool
}

// Inherited lists what a previous run knew as the cluster's beside this node's own ranges. It says nothing once SetNodes
// has succeeded.
func (d *Datapath) Inherited() []Inherited {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Inherited
	for key, route := range d.nodes.was {
		out = append(out, Inherited{bpf.PrefixOf(key), route.Flags&bpf.RouteHost != 0})
	}
	slices.SortFunc(out, func(a, b Inherited) int { return a.Prefix.Compare(b.Prefix) })
	return out
}

// slotPlan is what one synchronisation knows about indexes when it looks for one. It is read when the first is looked for.
type slotPlan struct {
	taken map[uint32]bool   // of nodes that have theirs
	names map[uint32]string // whose keys are under an index
	held  map[uint32]bool   // with anything of a node under them
}

func (d *Datapath) planSlots() (*slotPlan, error) {
	plan := &slotPlan{taken: map[uint32]bool{0: true}}
	for _, slot := range d.nodes.slots {
		plan.taken[slot] = true
	}
	if d.opts.Encrypt == nil {
		return plan, nil
	}
	var err error
	if plan.names, err = d.PeerNames(); err != nil {
		return nil, err
	}
	plan.held, err = d.heldSlots()
	return plan, err
}

// heldSlots are the indexes under which the maps have keys, addresses or identities of a node.
func (d *Datapath) heldSlots() (map[uint32]bool, error) {
	held := map[uint32]bool{}
	if err := d.HeldPeers(held); err != nil {
		return nil, err
	}
	var slot uint32
	var addr bpf.Addr
	addrs := d.maps.PeerAddr.Iterate()
	for addrs.Next(&addr, &slot) {
		held[slot] = true
	}
	var id bpf.PeerId
	var handle uint16
	ids := d.maps.PeerIDs.Iterate()
	for ids.Next(&id, &handle) {
		held[id.Node] = true
	}
	if err := errors.Join(addrs.Err(), ids.Err()); err != nil {
		return nil, fmt.Errorf("read what is known of peers: %w", err)
	}
	return held, nil
}

// takeSlot finds a node's index: the one it has, the one that it had in a previous run, or a free one. It is cleared first
// unless the node's keys are under it by name: nobody inherits another node's keys, addresses, identities or next hops.
func (d *Datapath) takeSlot(n Node, known **slotPlan) (uint32, error) {
	if slot, ok := d.nodes.slots[n.Name]; ok {
		return slot, nil
	}
	if *known == nil {
		plan, err := d.planSlots()
		if err != nil {
			return 0, err
		}
		*known = plan
	}
	plan := *known
	slot, former, err := d.nodes.pickSlot(n, plan)
	if err != nil {
		return 0, err
	}
	// A range alone does not say that it is the same node. Where nothing is sealed there is only the next hop, which
	// the synchronisation writes: packets go on meanwhile.
	if !former || d.opts.Encrypt != nil && plan.names[slot] != n.Name {
		if err := d.clearSlot(slot, plan.held[slot]); err != nil {
			return 0, err
		}
	}
	d.nodes.slots[n.Name] = slot
	d.EnterPeer(n.Name, slot)
	return slot, nil
}

// pickSlot chooses an index for a node that has none, and says whether it was the node's in a previous run.
func (t *nodeTable) pickSlot(n Node, plan *slotPlan) (slot uint32, former bool, err error) {
	slot, former = t.formerSlot(n, plan)
	if !former {
		var free bool
		if slot, free = t.freeSlot(plan); !free {
			return 0, false, fmt.Errorf("node %s: more than %d nodes", n.Name, maxNodes-1)
		}
	}
	plan.taken[slot] = true
	return slot, former, nil
}

// formerSlot is the index under which the maps have the node's keys, else its ranges and nobody's keys.
func (t *nodeTable) formerSlot(n Node, plan *slotPlan) (uint32, bool) {
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
func (t *nodeTable) freeSlot(plan *slotPlan) (uint32, bool) {
	before := map[uint32]bool{}
	for _, route := range t.was {
		before[route.Node] = true
	}
	for slot := uint32(1); slot < maxNodes; slot++ {
		if !plan.taken[slot] && !t.freed[slot] && !before[slot] && plan.names[slot] == "" {
			return slot, true
		}
	}
	return 0, false
}

// clearSlot takes away all that the maps have under an index.
func (d *Datapath) clearSlot(slot uint32, held bool) error {
	var failed error
	for _, index := range []uint32{slot * 2, slot*2 + 1} {
		_, err := d.putNode(index, bpf.Nexthop{})
		failed = errors.Join(failed, err)
	}
	if d.opts.Encrypt != nil {
		failed = errors.Join(failed, d.ClearTunnel(slot))
	}
	if !held {
		return failed
	}
	failed = errors.Join(failed, d.RemoveAllSAs(slot))
	failed = errors.Join(failed, bpf.DeleteWhere(d.maps.PeerAddr, func(_ bpf.Addr, of uint32) bool { return of == slot }))
	failed = errors.Join(failed, bpf.DeleteWhere(d.maps.PeerIDs, func(id bpf.PeerId, _ uint16) bool { return id.Node == slot }))
	if failed != nil {
		return fmt.Errorf("clear node index %d: %w", slot, failed)
	}
	return nil
}
