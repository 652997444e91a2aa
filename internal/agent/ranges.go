package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/ranges"
	"weft.dev/weft/internal/store"
)

// openMemory reads what is remembered of the cluster, and tells the store which nodes were in use.
// Without encryption nothing is remembered: what has no route leaves by the default one then, as
// ever.
func (a *Agent) openMemory() {
	if !a.cfg.Encryption.On() {
		return
	}
	var err error
	a.memory, err = ranges.Open(a.cfg.StateDir())
	a.problem("memory", err)
	seeded, ok := a.store.(interface{ Seed([]*v1alpha1.Node) })
	if !ok {
		return
	}
	before := map[string]*v1alpha1.Node{}
	for _, e := range a.memory.InUse() {
		n := before[e.Node]
		if n == nil {
			n = &v1alpha1.Node{Metadata: v1alpha1.ObjectMeta{Name: e.Node}}
			before[e.Node] = n
		}
		switch e.Kind {
		case ranges.Address:
			n.Spec.Addresses = append(n.Spec.Addresses, e.Prefix.Addr())
		case ranges.Range:
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, e.Prefix)
		}
	}
	var nodes []*v1alpha1.Node
	for _, n := range before {
		nodes = append(nodes, n)
	}
	seeded.Seed(nodes)
}

// see makes a snapshot the one in use, with what was known before it. Everything is looked at anew.
func (a *Agent) see(snapshot *store.Snapshot) {
	a.seeing.Lock()
	defer a.seeing.Unlock()
	a.look(newIndex(snapshot))
}

// seeDelta takes the snapshot in use one step further.
func (a *Agent) seeDelta(d store.Delta) {
	a.seeing.Lock()
	defer a.seeing.Unlock()
	was := a.index.Load()
	now := was.with(d)
	if a.unlearned || a.teaches(d, was, now) {
		a.learn(now)
	}
	a.index.Store(now)
	a.owe(workOf(d, was, now))
}

// seeAgain looks at the snapshot in use again, for what has changed beside it.
func (a *Agent) seeAgain() {
	a.seeing.Lock()
	defer a.seeing.Unlock()
	a.look(newIndex(a.index.Load().snapshot))
}

// look makes an index the one in use, with a.seeing held.
func (a *Agent) look(ix *index) {
	a.learn(ix)
	a.index.Store(ix)
	a.owe(allWork)
}

// learn finds out what an index means with what was known before it, with a.seeing held.
func (a *Agent) learn(ix *index) {
	if a.memory == nil {
		return
	}
	in := ranges.Input{Snapshot: ix.snapshot, Self: a.cfg.Node, Cluster: a.cfg.ClusterCIDRs}
	if a.own != nil {
		in.Own = slices.Concat(addressRanges(a.own.Spec.Addresses), a.own.Spec.PodCIDRs,
			a.cfg.IPAM.Ranges)
	}
	in.Asking, in.Others = identity.Asking(ix.snapshot)
	view, err := a.memory.Learn(in)
	a.problem("cluster ranges", err)
	ix.view, a.unlearned = view, err != nil
}

// runWith notes what this node runs with, whatever becomes of its object.
func (a *Agent) runWith(own *v1alpha1.Node) {
	a.seeing.Lock()
	defer a.seeing.Unlock()
	a.own = own
	a.look(newIndex(a.index.Load().snapshot))
}

// adopt takes over what the datapath's maps still know when the agent's own memory is gone.
func (a *Agent) adopt(dp Datapath) {
	if a.memory == nil || !a.memory.Fresh() {
		return
	}
	var entries []ranges.Entry
	for _, old := range dp.Inherited() {
		kind := ranges.Range
		switch {
		case old.Host:
			kind = ranges.Address
		case old.Prefix.IsSingleIP():
			kind = ranges.Endpoint
		}
		entries = append(entries, ranges.Entry{Prefix: old.Prefix, Kind: kind})
	}
	a.memory.Adopt(entries)
	a.seeAgain()
}

func addressRanges(addrs []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// datapathNodes are the nodes as the datapath is to know them: the peers with the addresses that
// they publish outside their ranges, and what is the cluster's and nobody's.
func (a *Agent) datapathNodes(ix *index) []datapath.Node {
	others := peers(ix.snapshot.Nodes, a.cfg.Node)
	if ix.view == nil {
		return others
	}
	for i, n := range others {
		if more := ix.view.Published[n.Name]; len(more) > 0 {
			others[i].PodCIDRs = slices.Concat(n.PodCIDRs, more)
		}
	}
	lost := datapath.Node{Missing: true, PodCIDRs: slices.Clone(a.cfg.ClusterCIDRs)}
	for _, e := range ix.view.Lost {
		if e.Kind == ranges.Address {
			lost.Addresses = append(lost.Addresses, e.Prefix.Addr())
		} else {
			lost.PodCIDRs = append(lost.PodCIDRs, e.Prefix)
		}
	}
	if len(lost.Addresses) == 0 && len(lost.PodCIDRs) == 0 {
		return others
	}
	return append(others, lost)
}

// rangeProblems are what is the cluster's and nobody's, and what pods cannot have, for the status.
func (b *backend) rangeProblems(running *node) []string {
	ix := b.index.Load()
	if ix.view == nil {
		return nil
	}
	var out []string
	for _, e := range ix.view.Lost {
		hint := "what it names"
		if e.Node != "" {
			hint = "node " + e.Node
		}
		forget := e.Node
		if forget == "" || ix.snapshot.Nodes[e.Node] != nil {
			forget = e.Prefix.String()
		}
		out = append(out,
			fmt.Sprintf("no_node: %s: nothing goes there or is taken from there; restore %s, or `weft node forget %s`", e, hint, forget))
	}
	out = append(bounded(out), bounded(ix.view.Refused)...)
	return append(out, b.ipamProblems(ix, running)...)
}

// maxListed bounds how much of one trouble is listed.
const maxListed = 20

func bounded(list []string) []string {
	if more := len(list) - maxListed; more > 0 {
		return append(list[:maxListed:maxListed], fmt.Sprintf("and %d more like this", more))
	}
	return list
}

// ipamProblems say which addresses this node gives to pods although other nodes cannot know that
// they are its own.
func (b *backend) ipamProblems(ix *index, running *node) []string {
	var out []string
	for _, p := range b.cfg.IPAM.Ranges {
		inside := func(around netip.Prefix) bool { return around.Bits() <= p.Bits() && around.Contains(p.Addr()) }
		for _, n := range peers(ix.snapshot.Nodes, b.cfg.Node) {
			for _, q := range slices.Concat(n.PodCIDRs, addressRanges(n.Addresses)) {
				if p.Overlaps(q) {
					out = append(out,
						fmt.Sprintf("ipam.ranges: %s overlaps %s of node %s: other nodes refuse its pods; choose another range", p, q, n.Name))
				}
			}
		}
		if !slices.ContainsFunc(running.object.Spec.PodCIDRs, inside) &&
			!slices.ContainsFunc(b.cfg.ClusterCIDRs, inside) {
			if len(b.cfg.ClusterCIDRs) > 0 {
				out = append(out,
					fmt.Sprintf("ipam.ranges: %s is outside this node's podCIDRs and outside clusterCIDRs: other nodes refuse its addresses; add it to one of them, clusterCIDRs on every node", p))
				continue
			}
			out = append(out,
				fmt.Sprintf("ipam.ranges: %s is outside this node's podCIDRs: other nodes know only those of its addresses that have been published; add it to podCIDRs, or to clusterCIDRs on every node", p))
		}
	}
	return out
}

// noNode lists what is the cluster's and nobody's.
func (ix *index) noNode() []admin.NoNode {
	if ix.view == nil {
		return nil
	}
	var out []admin.NoNode
	for _, e := range ix.view.Lost {
		out = append(out,
			admin.NoNode{Prefix: e.Prefix, Kind: string(e.Kind), Node: e.Node, Since: e.Lost,
				Why: e.Why})
	}
	return out
}

// remembered are addresses that asked to be sealed and whose objects are gone.
func (ix *index) remembered() []netip.Addr {
	if ix.view == nil {
		return nil
	}
	return ix.view.Sealed
}

// ForgetNode implements admin.Backend.
func (b *backend) ForgetNode(_ context.Context, what string) ([]admin.NoNode, error) {
	if b.memory == nil {
		return nil, &admin.StatusError{Code: http.StatusConflict,
			Msg: "nothing is remembered of nodes: encryption.mode is off"}
	}
	gone, err := b.memory.Forget(what)
	if err != nil && len(gone) == 0 {
		code := http.StatusNotFound
		if errors.Is(err, ranges.ErrInUse) {
			code = http.StatusConflict
		}
		return nil, &admin.StatusError{Code: code, Msg: err.Error()}
	}
	out := []admin.NoNode{}
	for _, e := range gone {
		b.log.Info("forgotten: packets there are the world's from now on", "range", e.Prefix,
			"node", e.Node)
		out = append(out,
			admin.NoNode{Prefix: e.Prefix, Kind: string(e.Kind), Node: e.Node, Since: e.Lost,
				Why: e.Why})
	}
	b.seeAgain()
	return out, err
}
