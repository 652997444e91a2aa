package store

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
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
		out = append(out,
			claim{netip.PrefixFrom(a, a.BitLen()), true, fmt.Sprintf("spec.addresses[%d]", i),
				n.Metadata.Name})
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
		return fmt.Sprintf("%s is inside %s, a range of node %q", c.prefix.Addr(), other.prefix,
			other.node)
	case other.address:
		return fmt.Sprintf("%s contains %s, the address of node %q", c.prefix, other.prefix.Addr(),
			other.node)
	}
	return fmt.Sprintf("%s overlaps %s of node %q", c.prefix, other.prefix, other.node)
}

// claims finds overlaps without comparing all with all, which would be felt from
// some hundred nodes on. Several nodes may claim the same.
type claims struct {
	by      map[netip.Prefix][]claim
	lengths [2][129]int // how many prefixes in by have them, per family
	sorted  []netip.Prefix
}

func (cs *claims) add(c claim) {
	if cs.by == nil {
		cs.by = map[netip.Prefix][]claim{}
	}
	cs.by[c.prefix] = append(cs.by[c.prefix], c)
	if len(cs.by[c.prefix]) > 1 {
		return
	}
	cs.lengths[family(c.prefix)][c.prefix.Bits()]++
	i, _ := slices.BinarySearchFunc(cs.sorted, c.prefix, byAddress)
	cs.sorted = slices.Insert(cs.sorted, i, c.prefix)
}

func (cs *claims) remove(c claim) {
	setOrDelete(cs.by, c.prefix,
		slices.DeleteFunc(cs.by[c.prefix], func(o claim) bool { return o == c }))
	if len(cs.by[c.prefix]) > 0 {
		return
	}
	cs.lengths[family(c.prefix)][c.prefix.Bits()]--
	if i, found := slices.BinarySearchFunc(cs.sorted, c.prefix, byAddress); found {
		cs.sorted = slices.Delete(cs.sorted, i, i+1)
	}
}

func byAddress(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// overlapping finds a claim that p overlaps: one around it, else one inside it.
func (cs *claims) overlapping(p netip.Prefix) (claim, bool) {
	for c := range cs.allOverlapping(p) {
		return c, true
	}
	return claim{}, false
}

// allOverlapping visits the claims that p overlaps: those around it, the widest first, and those
// inside it.
func (cs *claims) allOverlapping(p netip.Prefix) iter.Seq[claim] {
	return func(visit func(claim) bool) {
		for bits, used := range cs.lengths[family(p)][:p.Bits()+1] {
			if used == 0 {
				continue
			}
			for _, c := range cs.by[netip.PrefixFrom(p.Addr(), bits).Masked()] {
				if !visit(c) {
					return
				}
			}
		}
		// What is inside p begins at its first address or after, before all that is not.
		i, _ := slices.BinarySearchFunc(cs.sorted, p.Addr(),
			func(q netip.Prefix, a netip.Addr) int { return q.Addr().Compare(a) })
		for ; i < len(cs.sorted) && p.Contains(cs.sorted[i].Addr()); i++ {
			if cs.sorted[i].Bits() <= p.Bits() {
				continue // it is p, or around it
			}
			for _, c := range cs.by[cs.sorted[i]] {
				if !visit(c) {
					return
				}
			}
		}
	}
}

func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

// settleNodes judges nodes anew, with all those that they collide with or did, and those that these
// collide with: no others can fare differently.
func (h *History) settleNodes(dirty map[string]bool, told *pending) {
	before, group := map[string]bool{}, map[string]bool{}
	for name := range dirty {
		h.gather(name, before)
	}
	for name := range dirty {
		h.claim(name)
	}
	for name := range before {
		h.gather(name, group)
	}
	h.judgeNodes(group, told)
	for name := range group {
		h.claim(name)
	}
}

// gather finds all nodes whose claims overlap a node's, and so on.
func (h *History) gather(name string, group map[string]bool) {
	for queue := []string{name}; len(queue) > 0; queue = queue[1:] {
		if group[queue[0]] {
			continue
		}
		group[queue[0]] = true
		for _, c := range h.claimed[queue[0]] {
			for other := range h.claims.allOverlapping(c.prefix) {
				if !group[other.node] {
					queue = append(queue, other.node)
				}
			}
		}
	}
}

// claim enters what a node claims now, in the version that is declared and in the one in use.
func (h *History) claim(name string) {
	r := ref{v1alpha1.KindNode, name}
	for _, c := range h.claimed[name] {
		h.claims.remove(c)
	}
	var now []claim
	for _, d := range []*Declared{h.judge(r).used, h.last(r)} {
		if d == nil {
			continue
		}
		for _, c := range claimsOf(d.Object.(*v1alpha1.Node)) {
			c.field, c.address = "", false
			if !slices.Contains(now, c) {
				now = append(now, c)
				h.claims.add(c)
			}
		}
	}
	setOrDelete(h.claimed, name, now)
}

// judgeNodes takes the nodes that were in use before with the same addresses and ranges, then the
// others, each in the order of their names, so that every reader with the same past refuses the
// same ones.
func (h *History) judgeNodes(group map[string]bool, told *pending) {
	verdicts, newcomer := map[string]verdict{}, map[string]int{}
	for name := range group {
		v := h.judge(ref{v1alpha1.KindNode, name})
		verdicts[name] = v
		if v.used != nil && !h.wasNode(v.used.Object.(*v1alpha1.Node)) {
			newcomer[name] = 1
		}
	}
	var taken claims
	for _, name := range slices.SortedFunc(maps.Keys(group), func(a, b string) int {
		return cmp.Or(cmp.Compare(newcomer[a], newcomer[b]), cmp.Compare(a, b))
	}) {
		r, v := ref{v1alpha1.KindNode, name}, verdicts[name]
		if v.used != nil && !v.fits(&taken, newcomer) {
			v.unused = append(v.unused, v.used.Object)
			// It may have been changed into one that collides.
			if v.used = h.last(r); v.used != nil && !free(&taken, v.used.Object.(*v1alpha1.Node)) {
				v.used = nil
			}
		}
		if v.used != nil {
			for _, c := range claimsOf(v.used.Object.(*v1alpha1.Node)) {
				taken.add(c)
			}
		}
		h.settle(r, v, told)
	}
}

// fits says whether a node collides with none of those that are in use already, and names each
// collision.
func (v *verdict) fits(taken *claims, newcomer map[string]int) bool {
	d, good := *v.used, true
	n := d.Object.(*v1alpha1.Node)
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
		v.fail(d, c.field, "%s, %s, so node %q is not used: correct one of them", c.against(other),
			why, n.Metadata.Name)
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

// wasNode says whether a node was in use with the same addresses and ranges.
func (h *History) wasNode(n *v1alpha1.Node) bool {
	if d := h.last(refOf(n)); d != nil {
		return sameClaims(d.Object.(*v1alpha1.Node), n)
	}
	before := h.first[n.Metadata.Name]
	return before != nil && sameClaims(before, n)
}

// sameClaims says whether two versions of a node have the same addresses and ranges, in whatever
// order.
func sameClaims(a, b *v1alpha1.Node) bool {
	return slices.Equal(sortedClaims(a), sortedClaims(b))
}

func sortedClaims(n *v1alpha1.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, c := range claimsOf(n) {
		out = append(out, c.prefix)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}
