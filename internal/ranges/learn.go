package ranges

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/api/v1alpha1"
)

// lesson is one look at a snapshot.
type lesson struct {
	*Memory
	in   Input
	view *View
	// used are the claims of nodes in use, cluster the configured ranges, former the ranges of all
	// nodes there ever were. held are the entries that are right as they are.
	used, cluster, former table
	held                  map[netip.Prefix]bool
	// strange are lost entries that were not known before this look.
	strange map[netip.Prefix]bool
}

func one(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// eachClaim visits a node's addresses and ranges.
func eachClaim(n *v1alpha1.Node, visit func(netip.Prefix, Kind)) {
	for _, a := range n.Spec.Addresses {
		visit(one(a), Address)
	}
	for _, p := range n.Spec.PodCIDRs {
		visit(p, Range)
	}
}

// learnNodes enters what nodes in use claim.
func (l *lesson) learnNodes() {
	for _, p := range l.in.Cluster {
		l.cluster.add(p, "")
	}
	for p, e := range l.entries {
		if e.Kind == Range {
			l.former.add(p, e.Node)
		}
	}
	for _, p := range l.in.Own {
		l.used.add(p, l.in.Self)
		l.held[p] = true
	}
	for name, n := range l.in.Snapshot.Nodes {
		eachClaim(n, func(p netip.Prefix, kind Kind) {
			if name == l.in.Self && len(l.in.Own) > 0 && !slices.Contains(l.in.Own, p) {
				return // learnOwnChange
			}
			l.used.add(p, name)
			l.held[p] = true
			l.entries[p] = Entry{Prefix: p, Kind: kind, Node: name}
		})
	}
}

// learnUnused enters what objects claim that nobody uses: their ranges are the cluster's all the
// same.
func (l *lesson) learnUnused() {
	for _, o := range l.in.Snapshot.Unused {
		n, ok := o.(*v1alpha1.Node)
		if !ok {
			continue
		}
		eachClaim(n, func(p netip.Prefix, kind Kind) {
			if _, _, covered := l.used.find(p); covered {
				return
			}
			e, known := l.entries[p]
			if !known {
				e = Entry{Prefix: p, Kind: kind, Node: n.Metadata.Name}
			}
			l.lose(e, "its object is there and not used, see its errors,")
		})
	}
}

// learnOwnChange enters what this node's object claims and its agent does not run with until it is
// restarted: until then it is nobody's, for who had it before has given it up.
func (l *lesson) learnOwnChange() {
	n := l.in.Snapshot.Nodes[l.in.Self]
	if n == nil {
		return
	}
	eachClaim(n, func(p netip.Prefix, kind Kind) {
		if _, _, covered := l.used.find(p); !covered {
			l.lose(Entry{Prefix: p, Kind: kind, Node: l.in.Self},
				"its object has changed, restart its agent,")
		}
	})
}

// learnEndpoints enters published addresses outside the ranges of their nodes.
func (l *lesson) learnEndpoints() {
	claims := map[netip.Prefix][]string{}
	for _, key := range slices.Sorted(maps.Keys(l.in.Snapshot.Endpoints)) {
		ep := l.in.Snapshot.Endpoints[key]
		for _, a := range ep.Spec.Addresses {
			p := one(a)
			around, node, covered := l.used.find(p)
			switch {
			case covered && (node != ep.Spec.NodeName || l.entries[around].Kind == Address):
				l.refuse("endpoint %s of node %s has the address %s, which is in %s of node %s",
					key, ep.Spec.NodeName, a, around, node)
			case covered:
			case l.foreign(a) != "":
				l.refuse("endpoint %s of node %s has the address %s, %s", key, ep.Spec.NodeName, a,
					l.foreign(a))
				l.disown(p, ep.Spec.NodeName)
			case !slices.Contains(claims[p], ep.Spec.NodeName):
				claims[p] = append(claims[p], ep.Spec.NodeName)
			}
		}
	}
	l.divide(l.owned(claims))
}

// lose notes that an entry is nobody's, from now on unless it was so before.
func (l *lesson) lose(e Entry, why string) {
	if _, _, guarded := l.cluster.find(e.Prefix); guarded && e.Kind == Endpoint {
		delete(l.entries, e.Prefix)
		return
	}
	if before, ok := l.entries[e.Prefix]; ok && !before.Lost.IsZero() {
		before.Why = why
		l.entries[e.Prefix] = before
		l.held[e.Prefix] = true
		return
	}
	if _, known := l.entries[e.Prefix]; !known {
		l.strange[e.Prefix] = true
	}
	e.Lost, e.Why = l.now(), why
	l.entries[e.Prefix] = e
	l.held[e.Prefix] = true
}

// settle finds what was lost. What lies in a range of a node in use is not.
func (l *lesson) settle() {
	for p, e := range l.entries {
		switch _, _, covered := l.used.find(p); {
		case !l.held[p] && covered:
			delete(l.entries, p)
		case !l.held[p] && e.Lost.IsZero():
			why := "object missing"
			if _, there := l.in.Snapshot.Nodes[e.Node]; there {
				why = "no longer in its object"
			}
			if e.Kind == Endpoint {
				why = "endpoint gone"
			}
			l.lose(e, why)
		}
	}
	l.boundLost()
	l.view.Lost = l.lost()
}

func (l *lesson) refuse(format string, args ...any) {
	l.view.Refused = append(l.view.Refused, fmt.Sprintf(format, args...))
}
