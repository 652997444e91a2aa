package ranges

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// claim is an address that one node publishes outside its ranges.
type claim struct {
	prefix netip.Prefix
	node   string
	// had: the node has the address already.
	had bool
	// rank is how many of the node's claims come before this one.
	rank int
}

// owned finds whose each published address is. What is no running node's is lost.
func (l *lesson) owned(claims map[netip.Prefix][]string) []claim {
	var out []claim
	for _, p := range slices.SortedFunc(maps.Keys(claims), netip.Prefix.Compare) {
		owner, ok := l.owner(p, claims[p])
		if !ok {
			continue
		}
		if _, running := l.in.Snapshot.Nodes[owner]; !running && owner != l.in.Self {
			if _, _, guarded := l.former.find(p); !guarded {
				l.lose(Entry{Prefix: p, Kind: Endpoint, Node: owner},
					"its node's object is missing")
			}
			continue
		}
		before := l.entries[p]
		out = append(out,
			claim{prefix: p, node: owner, had: before.Node == owner && before.Lost.IsZero()})
	}
	return out
}

// owner is the one node that publishes an address, or the one that had it.
func (l *lesson) owner(p netip.Prefix, nodes []string) (string, bool) {
	if len(nodes) == 1 {
		return nodes[0], true
	}
	l.refuse("%s is published as a pod's address by nodes %s", p.Addr(),
		strings.Join(nodes, " and "))
	before, known := l.entries[p]
	if !known || !before.Lost.IsZero() || !slices.Contains(nodes, before.Node) {
		l.lose(Entry{Prefix: p, Kind: Endpoint}, "published by several nodes")
		return "", false
	}
	return before.Node, true
}

// divide gives the addresses to their nodes as far as there is room. What has no room is nobody's,
// not the world's.
func (l *lesson) divide(claims []claim) {
	count := rank(claims)
	room, over := maxEndpoints, map[string][]netip.Prefix{}
	for _, c := range claims {
		if c.node != l.in.Self { // whose own need no route
			if room == 0 {
				over[c.node] = append(over[c.node], c.prefix)
				continue
			}
			room--
			l.view.Published[c.node] = append(l.view.Published[c.node], c.prefix)
		}
		l.entries[c.prefix] = Entry{Prefix: c.prefix, Kind: Endpoint, Node: c.node}
		l.held[c.prefix] = true
	}
	for _, addrs := range l.view.Published {
		slices.SortFunc(addrs, netip.Prefix.Compare)
	}
	for _, node := range slices.Sorted(maps.Keys(over)) {
		l.refuse("node %s publishes %d addresses outside its podCIDRs, and there is no room for %d of them, such as %s: those are nobody's (no_node); name a range with them in podCIDRs or clusterCIDRs",
			node, count[node], len(over[node]), over[node][0].Addr())
		for _, p := range over[node] {
			l.lose(Entry{Prefix: p, Kind: Endpoint, Node: node},
				"its node publishes more than there is room for,")
		}
	}
}

// rank puts claims in the order in which they get room, and counts them by node. Each node has an
// equal part, what it had before first, and what others leave of theirs: so nobody's addresses are
// pushed out by those that another publishes.
func rank(claims []claim) map[string]int {
	slices.SortStableFunc(claims,
		func(a, b claim) int { return cmp.Compare(asInt(b.had), asInt(a.had)) })
	count := map[string]int{}
	for i, c := range claims {
		claims[i].rank = count[c.node]
		count[c.node]++
	}
	slices.SortFunc(claims,
		func(a,
			b claim) int {
			return cmp.Or(cmp.Compare(a.rank, b.rank), a.prefix.Compare(b.prefix))
		})
	return count
}

func asInt(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// unheard stands for all nodes that never had an object: anybody could publish in the name of any
// number of them.
const unheard = "?"

// sharers finds whose part of the room a lost entry takes.
func (l *lesson) sharers() func(Entry) string {
	heard := map[string]bool{"": true, l.in.Self: true}
	for name := range l.in.Snapshot.Nodes {
		heard[name] = true
	}
	for _, e := range l.entries {
		if e.Kind != Endpoint {
			heard[e.Node] = true
		}
	}
	return func(e Entry) string {
		if !heard[e.Node] {
			return unheard
		}
		return e.Node
	}
}
