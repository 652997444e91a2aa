package datapath

import (
	"context"
	"errors"
	"fmt"
	stdmaps "maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/inet"
)

// maxNodes is the size of the nodes map; index 0 is this node.
const maxNodes = 4096

// nodeTable is what the agent knows about its peers. Guarded by Datapath.mu.
type nodeTable struct {
	list  []Node
	slots map[string]uint32          // node name to index
	freed map[uint32]bool            // indexes whose nodes have left, until all that leads there is gone
	was   map[bpf.RouteKey]bpf.Route // what a previous run left in the routes map, until the first synchronisation
	hops  map[netip.Addr][]uint32    // next hop to the weft_nexthops indexes that use it
	used  map[uint32]bool            // weft_nexthops indexes that may hold a next hop
	// current are those of the synchronisation that runs.
	current map[uint32]bool
	// settled says that nothing of nodes that have left is in the maps.
	settled bool
	// entered says that the maps hold all of the list.
	entered bool
	// left are the ranges that the routes map had no room for.
	left map[string]bool
	// problems are why nodes cannot be reached, by name.
	problems map[string]string
}

// SetNodes makes the given peers, and no others, the ones whose pods are reached over the wire:
// in the maps, as kernel routes for whatever takes the stack, and as neighbours that the kernel
// keeps fresh. A node that cannot be reached is no error: it is in NodeProblems, and nothing goes there.
func (d *Datapath) SetNodes(_ context.Context, nodes []Node) error {
	entered, err := d.setNodes(nodes)
	if entered {
		err = errors.Join(err, d.endHold(func(h *hold) { h.routes = true }))
	}
	return err
}

// setNodes also says whether the maps hold all that is known of the nodes.
func (d *Datapath) setNodes(nodes []Node) (entered bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes.list = slices.Clone(nodes)
	if d.nodes.freed == nil {
		d.nodes.freed = map[uint32]bool{}
	}
	names := map[string]bool{}
	for _, n := range nodes {
		names[n.Name] = names[n.Name] || !n.Missing
	}
	for name, slot := range d.nodes.slots {
		if !names[name] {
			d.nodes.freed[slot], d.nodes.settled = true, false
			delete(d.nodes.slots, name)
			d.LeavePeer(name)
		}
	}
	have, err := d.readRoutes()
	if err != nil {
		return false, err
	}
	err = d.syncNodes(have)
	return d.nodes.entered, err
}

// NodeProblem is why a node cannot be reached.
type NodeProblem struct {
	Node string `json:"node"`
	Text string `json:"text"`
}

// NodeProblems are those of now, by name.
func (d *Datapath) NodeProblems() []NodeProblem {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []NodeProblem
	for _, name := range slices.Sorted(stdmaps.Keys(d.nodes.problems)) {
		out = append(out, NodeProblem{name, d.nodes.problems[name]})
	}
	return out
}

// syncNodes brings maps and kernel routes in line with the list. One bad node does not stop the others. have is what the
// routes map holds.
func (d *Datapath) syncNodes(have map[bpf.RouteKey]bpf.Route) error {
	var failed error
	var plan *slotPlan
	var wantKernel []*netlink.Route
	changed, wantRoutes, current, before := false, map[bpf.RouteKey]bpf.Route{}, map[uint32]bool{}, d.nodes.problems
	d.nodes.hops, d.nodes.current, d.nodes.problems = map[netip.Addr][]uint32{}, map[uint32]bool{}, map[string]string{}
	for _, n := range d.nodes.list {
		wantKernel = append(wantKernel, d.lastResorts(n)...)
		if n.Missing {
			continue
		}
		slot, err := d.takeSlot(n, &plan)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		routes, moved, err := d.syncNode(n, slot)
		failed = errors.Join(failed, err)
		changed = changed || moved
		wantKernel = append(wantKernel, routes...)
		current[slot] = true
		d.wantNode(wantRoutes, n, slot)
	}
	for _, n := range d.nodes.list {
		if n.Missing {
			d.wantMissing(wantRoutes, n)
		}
	}
	moved, err := d.syncRoutesMap(have, wantRoutes)
	cleared, clearErr := d.clearNodes()
	failed = errors.Join(failed, err, clearErr)
	d.nodes.entered = failed == nil
	failed = errors.Join(failed, d.syncKernelRoutes(d.notLeft(wantKernel)))
	if d.opts.Encrypt != nil {
		failed = errors.Join(failed, d.clearPeers(current))
	}
	if changed || moved || cleared {
		failed = errors.Join(failed, d.changed())
	}
	if failed == nil {
		d.nodes.freed, d.nodes.was, d.nodes.settled = nil, nil, true
	}
	d.logProblems(before)
	return failed
}

// logProblems tells what is new.
func (d *Datapath) logProblems(before map[string]string) {
	for name, text := range d.nodes.problems {
		if before[name] != text {
			d.log.Warn("node cannot be reached", "node", name, "err", text)
		}
	}
}

// wantNode enters a node's ranges and, where packets are sealed, its own addresses.
func (d *Datapath) wantNode(want map[bpf.RouteKey]bpf.Route, n Node, slot uint32) {
	for _, prefix := range n.PodCIDRs {
		want[bpf.RouteKeyOf(prefix)] = bpf.Route{Node: slot}
	}
	if d.opts.Encrypt != nil {
		for _, prefix := range hostPrefixes(n) {
			want[bpf.RouteKeyOf(prefix)] = bpf.Route{Node: slot, Flags: bpf.RouteHost}
		}
	}
}

// wantMissing enters what is the cluster's and no known node's, after all that is some node's.
func (d *Datapath) wantMissing(want map[bpf.RouteKey]bpf.Route, n Node) {
	enter := func(prefix netip.Prefix, flags uint32) {
		if _, known := want[bpf.RouteKeyOf(prefix)]; !known {
			want[bpf.RouteKeyOf(prefix)] = bpf.Route{Flags: bpf.RouteNoNode | flags}
		}
	}
	for _, prefix := range n.PodCIDRs {
		enter(prefix, 0)
	}
	for _, prefix := range hostPrefixes(n) {
		enter(prefix, bpf.RouteHost)
	}
}

// lastResorts keep what is for a node's pods from leaving by the default route where there is no other route to
// them: no next hop, an interface that is down, no node. Nodes' own addresses are reached as ever.
func (d *Datapath) lastResorts(n Node) []*netlink.Route {
	if d.opts.Encrypt == nil {
		return nil
	}
	var out []*netlink.Route
	for _, prefix := range n.PodCIDRs {
		out = append(out, unreachable(prefix))
	}
	return out
}

// syncNode resolves a node's next hop per family and returns the kernel routes to its pods.
func (d *Datapath) syncNode(n Node, slot uint32) (routes []*netlink.Route, changed bool, failed error) {
	wireMTU := 0
	var problems []error
	for _, addr := range d.reached(n) {
		index := slot*2 + family(addr)
		hop, err := d.resolve(addr)
		if d.opts.GenericXDP {
			hop.entry.Flags |= bpf.NexthopXdpOut // generic XDP redirects through the interface's ordinary transmit
		}
		if hop.unmanaged {
			err = errors.Join(err, d.manageNeighbor(hop.addr, int(hop.entry.Ifindex)))
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", addr, err))
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
		routes = append(routes, d.routesBy(n, addr, hop)...)
	}
	if d.opts.Encrypt != nil && wireMTU != 0 {
		moved, err := d.syncPeer(n, slot, wireMTU)
		if errors.Is(err, errNoFamily) {
			problems = append(problems, err)
		} else {
			failed = errors.Join(failed, err)
		}
		changed = changed || moved
		_, remote, _ := d.outerAddrs(n)
		for _, r := range routes {
			// What the host's own stack sends is sealed on its way out, and must fit then.
			r.MTU = inet.SealedMTU(wireMTU, remote.Is6())
		}
	}
	if len(problems) > 0 {
		d.nodes.problems[n.Name] = oneLine(problems)
	}
	return routes, changed, failed
}

// reached are the addresses that a node is reached by. Where packets are sealed, one of a family that this node has none of
// is not, if the node has another: packets of both families go there by that. It is the node's all the same.
func (d *Datapath) reached(n Node) []netip.Addr {
	if d.opts.Encrypt == nil {
		return n.Addresses
	}
	foreign := func(addr netip.Addr) bool {
		return !slices.ContainsFunc(d.opts.HostAddrs, func(own netip.Addr) bool { return own.Is4() == addr.Is4() })
	}
	if usable := slices.DeleteFunc(slices.Clone(n.Addresses), foreign); len(usable) > 0 {
		return usable
	}
	return n.Addresses
}

func oneLine(problems []error) string {
	return strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; ")
}

// routesBy are the kernel routes to a node's pods by one of its addresses. What this host sends there comes from an
// address that the node knows as this one's, unless a socket is bound to another.
func (d *Datapath) routesBy(n Node, addr netip.Addr, hop nextHop) []*netlink.Route {
	var routes []*netlink.Route
	var src net.IP
	if at := slices.IndexFunc(d.opts.HostAddrs, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }); at >= 0 && d.opts.Encrypt != nil {
		src = d.opts.HostAddrs[at].AsSlice()
	}
	for _, prefix := range n.PodCIDRs {
		if prefix.Addr().Is4() == addr.Is4() {
			routes = append(routes, &netlink.Route{
				Dst: toIPNet(prefix), Gw: hop.addr.AsSlice(), LinkIndex: int(hop.entry.Ifindex), Protocol: RouteProtocol, Src: src,
			})
		}
	}
	return routes
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
		moved, err := d.putNode(index, bpf.Nexthop{})
		if err != nil {
			return changed, err
		}
		changed = changed || moved
	}
	d.nodes.used = d.nodes.current
	return changed, nil
}

// putNode writes one entry if it differs.
func (d *Datapath) putNode(index uint32, entry bpf.Nexthop) (bool, error) {
	var now bpf.Nexthop
	if err := d.maps.Nexthops.Lookup(index, &now); err != nil {
		return false, fmt.Errorf("read map of next hops: %w", err)
	}
	if now == entry {
		return false, nil
	}
	if err := d.maps.Nexthops.Put(index, &entry); err != nil {
		return false, fmt.Errorf("write map of next hops: %w", err)
	}
	return true, nil
}
