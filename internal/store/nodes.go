package store

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"weft.dev/weft/api/v1alpha1"
)

// claim is an address (as a range of one) or a range of a node.
type claim struct {
	prefix  netip.Prefix
	address bool
	field   string
	node    string
}

func claimsOf(n *v1alpha1.Node) []claim {
	var out []claim
	for i, a := range n.Spec.Addresses {
		out = append(out, claim{netip.PrefixFrom(a, a.BitLen()), true, fmt.Sprintf("spec.addresses[%d]", i), n.Metadata.Name})
	}
	for i, p := range n.Spec.PodCIDRs {
		out = append(out, claim{p, false, fmt.Sprintf("spec.podCIDRs[%d]", i), n.Metadata.Name})
	}
	return out
}

// against says how c collides with other.
func (c claim) against(other claim) string {
	switch {
	case c.address && other.address:
		return fmt.Sprintf("%s is also the address of node %q", c.prefix.Addr(), other.node)
	case c.address:
		return fmt.Sprintf("%s is inside %s, a range of node %q", c.prefix.Addr(), other.prefix, other.node)
	case other.address:
		return fmt.Sprintf("%s contains %s, the address of node %q", c.prefix, other.prefix.Addr(), other.node)
	}
	return fmt.Sprintf("%s overlaps %s of node %q", c.prefix, other.prefix, other.node)
}

// claims finds overlaps without comparing all with all, which would be felt from
// some hundred nodes on.
type claims struct {
	by      map[netip.Prefix]claim
	lengths [2][129]bool // of the prefixes in by, per family
	sorted  []netip.Prefix
}

func (cs *claims) add(c claim) {
	if cs.by == nil {
		cs.by = map[netip.Prefix]claim{}
	}
	cs.by[c.prefix] = c
	cs.lengths[family(c.prefix)][c.prefix.Bits()] = true
	i, _ := slices.BinarySearchFunc(cs.sorted, c.prefix, byAddress)
	cs.sorted = slices.Insert(cs.sorted, i, c.prefix)
}

func byAddress(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// overlapping finds a claim that p overlaps: one around it, else one inside it.
func (cs *claims) overlapping(p netip.Prefix) (claim, bool) {
	for bits, used := range cs.lengths[family(p)][:p.Bits()+1] {
		if !used {
			continue
		}
		if c, ok := cs.by[netip.PrefixFrom(p.Addr(), bits).Masked()]; ok {
			return c, true
		}
	}
	// What is inside p begins at its first address or after, before all that is not.
	i, _ := slices.BinarySearchFunc(cs.sorted, p.Addr(), func(q netip.Prefix, a netip.Addr) int { return q.Addr().Compare(a) })
	if i < len(cs.sorted) && p.Contains(cs.sorted[i].Addr()) {
		return cs.by[cs.sorted[i]], true
	}
	return claim{}, false
}

func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

// addNodes takes the nodes that were in use before with the same addresses and ranges, then the others, each in the order
// of their names, so that every reader with the same past refuses the same ones.
func (a *assembly) addNodes(nodes []Declared) {
	newcomer := make(map[string]int, len(nodes))
	for _, d := range nodes {
		if n := d.Object.(*v1alpha1.Node); !a.history.wasNode(n) {
			newcomer[n.Metadata.Name] = 1
		}
	}
	slices.SortFunc(nodes, func(x, y Declared) int {
		first, second := x.Object.Meta().Name, y.Object.Meta().Name
		return cmp.Or(cmp.Compare(newcomer[first], newcomer[second]), cmp.Compare(first, second))
	})
	var taken claims
	for _, d := range nodes {
		if !a.fits(d, &taken, newcomer) {
			n := d.Object
			a.snapshot.Unused = append(a.snapshot.Unused, n)
			before, ok := a.history.last[refOf(n)]
			if !ok || !free(&taken, before.Object.(*v1alpha1.Node)) {
				continue
			}
			d = before // it was changed into one that collides
		}
		n := d.Object.(*v1alpha1.Node)
		for _, c := range claimsOf(n) {
			taken.add(c)
		}
		a.snapshot.put(n)
		a.used = append(a.used, d)
	}
}

// fits says whether a node collides with none of those that are in use already, and names each collision.
func (a *assembly) fits(d Declared, taken *claims, newcomer map[string]int) bool {
	n, good := d.Object.(*v1alpha1.Node), true
	for _, c := range claimsOf(n) {
		other, ok := taken.overlapping(c.prefix)
		if !ok {
			continue
		}
		good = false
		why := "whose name comes first"
		if newcomer[n.Metadata.Name] > newcomer[other.node] {
			why = "which was there first"
		}
		a.snapshot.fail(d, c.field, "%s, %s, so node %q is not used: correct one of them", c.against(other), why, n.Metadata.Name)
	}
	return good
}

func free(taken *claims, n *v1alpha1.Node) bool {
	for _, c := range claimsOf(n) {
		if _, ok := taken.overlapping(c.prefix); ok {
			return false
		}
	}
	return true
}
