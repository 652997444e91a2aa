package nexthop

import (
	"errors"
	"fmt"
	stdmaps "maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
)

// round is what one synchronisation finds out.
type round struct {
	plan   *slotPlan
	kernel *snapshot
	// routes and kernelRoutes are those that there are to be.
	routes       map[bpf.RouteKey]bpf.Route
	kernelRoutes []*netlink.Route
	hops         map[netip.Addr][]uint32
	nextHops     map[uint32]bool // indexes of weft_nexthops
	nodes        map[uint32]bool // indexes of nodes
	problems     map[string]string
	changed      bool // what cached decisions go by
}

// SetNodes makes the given peers, and no others, the ones whose pods are reached over the wire: in
// the maps, as kernel routes for whatever takes the stack, and as neighbours that the kernel keeps
// fresh. A node that cannot be reached is no error: it is in NodeProblems, and nothing goes there.
// entered says that the maps hold all that is known of the nodes.
func (t *Table) SetNodes(nodes []Node) (entered bool, err error) {
	t.work.Lock()
	defer t.work.Unlock()
	t.list = slices.Clone(nodes)
	names := map[string]bool{}
	for _, n := range nodes {
		names[n.Name] = names[n.Name] || !n.Missing
	}
	for _, name := range t.names() {
		if !names[name] {
			t.leave(name)
		}
	}
	if err := t.step("nodes left"); err != nil {
		return false, err
	}
	return t.sync(false)
}

// Refresh does as SetNodes with the nodes of now, and follows this node's own addresses. Before the
// first SetNodes nothing is known: what a previous run left must stay.
func (t *Table) Refresh() error {
	t.work.Lock()
	defer t.work.Unlock()
	if t.list == nil {
		return nil
	}
	_, err := t.sync(true)
	return err
}

func (t *Table) names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(stdmaps.Keys(t.slots))
}

// leave takes a node's name from its index. Nobody gets that before all that leads there is gone.
func (t *Table) leave(name string) {
	t.mu.Lock()
	t.freed[t.slots[name]], t.settled = true, false
	delete(t.slots, name)
	t.mu.Unlock()
	t.host.SAs.LeavePeer(name)
}

// NodeProblem is why a node cannot be reached.
type NodeProblem struct {
	Node string `json:"node"`
	Text string `json:"text"`
}

// NodeProblems are those of the last synchronisation, by name.
func (t *Table) NodeProblems() []NodeProblem {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []NodeProblem
	for _, name := range slices.Sorted(stdmaps.Keys(t.problems)) {
		out = append(out, NodeProblem{name, t.problems[name]})
	}
	return out
}

// sync brings maps and kernel routes in line with the list. One bad node does not stop the others.
// What is under an index goes before the index is another node's, next hops go after the routes
// that lead there, and keys go last.
func (t *Table) sync(addresses bool) (entered bool, failed error) {
	kernel, err := t.snapshot(addresses)
	if err != nil {
		return false, err
	}
	r := &round{
		kernel: kernel, routes: map[bpf.RouteKey]bpf.Route{}, hops: map[netip.Addr][]uint32{},
		nextHops: map[uint32]bool{}, nodes: map[uint32]bool{}, problems: map[string]string{},
	}
	failed = t.syncNodes(r)
	t.finish(r)
	if err := t.step("next hops"); err != nil {
		return false, err
	}
	moved, err := t.syncRoutes(r, addresses)
	failed = errors.Join(failed, err)
	if err := t.step("routes"); err != nil {
		return false, err
	}
	cleared, err := t.clearNextHops(r)
	failed = errors.Join(failed, err)
	entered = failed == nil
	if err := t.step("next hops cleared"); err != nil {
		return false, err
	}
	failed = errors.Join(failed, t.syncKernelRoutes(t.notLeft(r.kernelRoutes)))
	if t.opts.Sealing {
		failed = errors.Join(failed, t.clearPeers(r.nodes))
	}
	if r.changed || moved || cleared {
		failed = errors.Join(failed, t.host.Void())
	}
	if err := t.step("peers cleared"); err != nil {
		return false, err
	}
	if failed == nil {
		t.settle()
	}
	return entered, failed
}

// settle says that all that led to nodes of before is gone: their indexes may be others' now.
func (t *Table) settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.freed)
	t.was, t.settled = nil, true
}

// syncNodes gives every node its index, its next hops and its tunnel, and collects its routes.
func (t *Table) syncNodes(r *round) (failed error) {
	for _, n := range t.list {
		r.kernelRoutes = append(r.kernelRoutes, t.lastResorts(n)...)
		if n.Missing {
			continue
		}
		slot, err := t.takeSlot(n, r)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		failed = errors.Join(failed, t.syncNode(r, n, slot))
		r.nodes[slot] = true
		t.wantNode(r.routes, n, slot)
	}
	for _, n := range t.list {
		if n.Missing {
			wantMissing(r.routes, n)
		}
	}
	return failed
}

// finish publishes what the nodes came to, and tells what problems are new.
func (t *Table) finish(r *round) {
	t.hops = r.hops
	t.mu.Lock()
	before := t.problems
	t.problems = r.problems
	t.mu.Unlock()
	for name, text := range r.problems {
		if before[name] != text {
			t.log.Warn("node cannot be reached", "node", name, "err", text)
		}
	}
}

// wantNode enters a node's ranges and, where packets are sealed, its own addresses.
func (t *Table) wantNode(want map[bpf.RouteKey]bpf.Route, n Node, slot uint32) {
	for _, prefix := range n.PodCIDRs {
		want[bpf.RouteKeyOf(prefix)] = bpf.Route{Node: slot}
	}
	if t.opts.Sealing {
		for _, prefix := range hostPrefixes(n) {
			want[bpf.RouteKeyOf(prefix)] = bpf.Route{Node: slot, Flags: bpf.RouteHost}
		}
	}
}

// wantMissing enters what is the cluster's and no known node's, after all that is some node's.
func wantMissing(want map[bpf.RouteKey]bpf.Route, n Node) {
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

// syncNode resolves a node's next hop per family, and enters its tunnel.
func (t *Table) syncNode(r *round, n Node, slot uint32) (failed error) {
	wireMTU := 0
	var problems []error
	var routes []*netlink.Route
	for _, addr := range t.reached(n) {
		hop, err := t.reach(r, addr)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", addr, err))
		}
		index := slot*2 + family(addr)
		r.nextHops[index] = true
		moved, err := t.putNextHop(index, hop.entry)
		failed = errors.Join(failed, err)
		r.changed = r.changed || moved
		if hop.addr.IsValid() {
			r.hops[hop.addr] = append(r.hops[hop.addr], index)
		}
		if hop.entry.Ifindex == 0 {
			continue
		}
		if mtu := int(hop.entry.Mtu); wireMTU == 0 || mtu < wireMTU {
			wireMTU = mtu
		}
		routes = append(routes, t.routesBy(n, addr, hop)...)
	}
	if t.opts.Sealing && wireMTU != 0 {
		moved, err := t.syncPeer(n, slot, wireMTU, routes)
		if errors.Is(err, errNoFamily) {
			problems = append(problems, err)
		} else {
			failed = errors.Join(failed, err)
		}
		r.changed = r.changed || moved
	}
	if len(problems) > 0 {
		r.problems[n.Name] = oneLine(problems)
	}
	r.kernelRoutes = append(r.kernelRoutes, routes...)
	return failed
}

// reached are the addresses that a node is reached by. Where packets are sealed, one of a family
// that this node has none of is not, if the node has another: packets of both families go there by
// that. It is the node's all the same.
func (t *Table) reached(n Node) []netip.Addr {
	if !t.opts.Sealing {
		return n.Addresses
	}
	foreign := func(addr netip.Addr) bool {
		return !slices.ContainsFunc(t.opts.HostAddrs,
			func(own netip.Addr) bool { return own.Is4() == addr.Is4() })
	}
	if usable := slices.DeleteFunc(slices.Clone(n.Addresses), foreign); len(usable) > 0 {
		return usable
	}
	return n.Addresses
}

func oneLine(problems []error) string {
	return strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; ")
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

// clearNextHops empties those that no node has any more: of nodes that left and of families that a
// node gave up. The next owner of the index must not inherit them.
func (t *Table) clearNextHops(r *round) (bool, error) {
	changed := false
	for index := range t.used {
		if r.nextHops[index] {
			continue
		}
		moved, err := t.putNextHop(index, bpf.Nexthop{})
		if err != nil {
			return changed, err
		}
		changed = changed || moved
	}
	t.used = r.nextHops
	return changed, nil
}

// putNextHop writes one entry if it differs.
func (t *Table) putNextHop(index uint32, entry bpf.Nexthop) (bool, error) {
	var now bpf.Nexthop
	if err := t.maps.Nexthops.Lookup(index, &now); err != nil {
		return false, fmt.Errorf("read map of next hops: %w", err)
	}
	if now == entry {
		return false, nil
	}
	if err := t.maps.Nexthops.Put(index, &entry); err != nil {
		return false, fmt.Errorf("write map of next hops: %w", err)
	}
	return true, nil
}
