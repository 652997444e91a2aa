package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
)

// maxNodes is the size of the nodes map; index 0 is this node.
const maxNodes = 4096

// nodeTable is what the agent knows about its peers. Guarded by Datapath.mu.
type nodeTable struct {
	list  []Node
	slots map[string]uint32       // node name to index
	was   map[bpfRouteKey]uint32  // what a previous run left in the routes map
	hops  map[netip.Addr][]uint32 // next hop to the weft_nodes indexes that use it
	used  map[uint32]bool         // weft_nodes indexes that may hold a next hop
	// current are those of the synchronisation that runs.
	current map[uint32]bool
}

// restore reads what a previous run wrote, so that each node keeps its index and the maps
// are right all the time while the agent catches up.
func (t *nodeTable) restore(m *maps) error {
	t.slots, t.was, t.hops = map[string]uint32{}, map[bpfRouteKey]uint32{}, map[netip.Addr][]uint32{}
	var key bpfRouteKey
	var value bpfRoute
	entries := m.Routes.Iterate()
	for entries.Next(&key, &value) {
		t.was[key] = value.Node
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read routes map: %w", err)
	}
	t.used = map[uint32]bool{}
	for _, slot := range t.was {
		t.used[slot*2], t.used[slot*2+1] = true, true
	}
	return nil
}

// slotFor finds a node's index: the one it has, the one its ranges had in a previous run, or a free one.
func (t *nodeTable) slotFor(n Node) (uint32, error) {
	if slot, ok := t.slots[n.Name]; ok {
		return slot, nil
	}
	used := map[uint32]bool{0: true}
	for _, slot := range t.slots {
		used[slot] = true
	}
	for _, prefix := range append(hostPrefixes(n), n.PodCIDRs...) {
		if slot := t.was[routeKey(prefix)]; slot != 0 && !used[slot] {
			t.slots[n.Name] = slot
			return slot, nil
		}
	}
	for _, slot := range t.was {
		used[slot] = true
	}
	for slot := uint32(1); slot < maxNodes; slot++ {
		if !used[slot] {
			t.slots[n.Name] = slot
			return slot, nil
		}
	}
	return 0, fmt.Errorf("node %s: more than %d nodes", n.Name, maxNodes-1)
}

// SetNodes makes the given peers, and no others, the ones whose pods are reached over the wire:
// in the maps, as kernel routes for whatever takes the stack, and as neighbours that the kernel
// keeps fresh.
func (d *Datapath) SetNodes(_ context.Context, nodes []Node) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes.list = slices.Clone(nodes)
	names := map[string]bool{}
	for _, n := range nodes {
		names[n.Name] = true
	}
	for name := range d.nodes.slots {
		if !names[name] {
			delete(d.nodes.slots, name)
		}
	}
	return d.syncNodes()
}

// syncNodes brings maps and kernel routes in line with the list. One bad node does not stop the others.
func (d *Datapath) syncNodes() error {
	var failed error
	changed := false
	wantRoutes := map[bpfRouteKey]bpfRoute{}
	current := map[uint32]bool{}
	var wantKernel []*netlink.Route
	d.nodes.hops, d.nodes.current = map[netip.Addr][]uint32{}, map[uint32]bool{}
	for _, n := range d.nodes.list {
		slot, err := d.nodes.slotFor(n)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		routes, moved, err := d.syncNode(n, slot)
		failed = errors.Join(failed, err)
		changed = changed || moved
		wantKernel = append(wantKernel, routes...)
		current[slot] = true
		for _, prefix := range n.PodCIDRs {
			wantRoutes[routeKey(prefix)] = bpfRoute{Node: slot}
		}
		if d.opts.Encrypt != nil {
			for _, prefix := range hostPrefixes(n) {
				wantRoutes[routeKey(prefix)] = bpfRoute{Node: slot, Flags: bpfRouteHost}
			}
		}
	}
	moved, err := d.syncRoutesMap(wantRoutes)
	cleared, clearErr := d.clearNodes()
	failed = errors.Join(failed, err, clearErr, syncKernelRoutes(wantKernel))
	if d.opts.Encrypt != nil {
		failed = errors.Join(failed, d.clearPeers(current))
	}
	if changed || moved || cleared {
		failed = errors.Join(failed, d.changed())
	}
	return failed
}

// syncNode resolves a node's next hop per family and returns the kernel routes to its pods.
func (d *Datapath) syncNode(n Node, slot uint32) (routes []*netlink.Route, changed bool, failed error) {
	wireMTU := 0
	for _, addr := range n.Addresses {
		index := slot*2 + family(addr)
		hop, err := resolve(addr)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("node %s at %s: %w", n.Name, addr, err))
		}
		if d.opts.GenericXDP {
			hop.entry.Flags |= bpfNodeXdpOut // generic XDP redirects through the interface's ordinary transmit
		}
		if hop.unmanaged {
			failed = errors.Join(failed, d.manageNeighbor(hop.addr, int(hop.entry.Ifindex)))
		}
		d.nodes.current[index] = true
		moved, err := d.putNode(index, hop.entry)
		failed = errors.Join(failed, err)
		changed = changed || moved
		if hop.addr.IsValid() {
			d.nodes.hops[hop.addr] = append(d.nodes.hops[hop.addr], index)
		}
		if hop.entry.Ifindex == 0 {
			continue
		}
		if mtu := int(hop.entry.Mtu); wireMTU == 0 || mtu < wireMTU {
			wireMTU = mtu
		}
		for _, prefix := range n.PodCIDRs {
			if prefix.Addr().Is4() == addr.Is4() {
				routes = append(routes, &netlink.Route{
					Dst: toIPNet(prefix), Gw: hop.addr.AsSlice(), LinkIndex: int(hop.entry.Ifindex), Protocol: RouteProtocol,
				})
			}
		}
	}
	if d.opts.Encrypt == nil || wireMTU == 0 {
		return routes, changed, failed
	}
	moved, err := d.syncPeer(n, slot, wireMTU)
	_, remote, _ := d.outerAddrs(n)
	for _, r := range routes {
		// What the host's own stack sends is sealed on its way out, and must fit then.
		r.MTU = inet.SealedMTU(wireMTU, remote.Is6())
	}
	return routes, changed || moved, errors.Join(failed, err)
}

// hostPrefixes are a node's own addresses, as ranges of one.
func hostPrefixes(n Node) []netip.Prefix {
	var list []netip.Prefix
	for _, a := range n.Addresses {
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	return list
}

func family(a netip.Addr) uint32 {
	if a.Is6() {
		return 1
	}
	return 0
}

// clearNodes empties the next hops that no node has any more: of nodes that left and of families that a
// node gave up. The next owner of the index must not inherit them.
func (d *Datapath) clearNodes() (bool, error) {
	changed := false
	for index := range d.nodes.used {
		if d.nodes.current[index] {
			continue
		}
		moved, err := d.putNode(index, bpfNode{})
		if err != nil {
			return changed, err
		}
		changed = changed || moved
	}
	d.nodes.used = d.nodes.current
	return changed, nil
}

// putNode writes one entry if it differs.
func (d *Datapath) putNode(index uint32, entry bpfNode) (bool, error) {
	var now bpfNode
	if err := d.maps.Nodes.Lookup(index, &now); err != nil {
		return false, fmt.Errorf("read nodes map: %w", err)
	}
	if now == entry {
		return false, nil
	}
	if err := d.maps.Nodes.Put(index, &entry); err != nil {
		return false, fmt.Errorf("write nodes map: %w", err)
	}
	return true, nil
}

// syncRoutesMap adds what is wanted before it removes what is not, so that a range which changes hands
// is never without an owner. This node's own ranges (index 0) are not touched.
func (d *Datapath) syncRoutesMap(want map[bpfRouteKey]bpfRoute) (bool, error) {
	have := map[bpfRouteKey]bpfRoute{}
	var key bpfRouteKey
	var value bpfRoute
	for entries := d.maps.Routes.Iterate(); entries.Next(&key, &value); {
		have[key] = value
	}
	changed := false
	for key, route := range want {
		if now, ok := have[key]; ok && now == route {
			continue
		}
		if err := d.maps.Routes.Put(&key, &route); err != nil {
			return changed, fmt.Errorf("write routes map: %w", err)
		}
		changed = true
	}
	for key, route := range have {
		if _, wanted := want[key]; wanted || route.Node == 0 {
			continue
		}
		if err := d.maps.Routes.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return changed, fmt.Errorf("delete from routes map: %w", err)
		}
		changed = true
	}
	return changed, nil
}

// syncKernelRoutes makes want the only routes of ours that lead through a gateway.
func syncKernelRoutes(want []*netlink.Route) error {
	var failed error
	wanted := map[string]bool{}
	for _, r := range want {
		wanted[r.Dst.String()] = true
		if err := netlink.RouteReplace(r); err != nil {
			failed = errors.Join(failed, fmt.Errorf("add route %s: %w", r.Dst, err))
		}
	}
	have, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return errors.Join(failed, fmt.Errorf("list routes: %w", err))
	}
	for _, r := range have {
		if r.Gw == nil || r.Dst == nil || wanted[r.Dst.String()] {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = errors.Join(failed, fmt.Errorf("remove route %s: %w", r.Dst, err))
		}
	}
	return failed
}
