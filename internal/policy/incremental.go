package policy

import (
	"maps"
	"slices"
)

// matched is what a peer's selectors select.
type matched struct {
	of      peer
	numbers []uint32
	// used: somebody has asked in this run.
	used bool
}

// changes are the numbers of the identities that are others than in another index, or whose
// namespaces have other labels. Of an index that has a number twice nobody knows.
func (ix *index) changes(o *index) (numbers map[uint32]bool, known bool) {
	if o == nil {
		return nil, false
	}
	now, before := ix.byNumber, o.byNumber
	if len(now) != len(ix.identities) || len(before) != len(o.identities) {
		return nil, false
	}
	relabelled := map[string]bool{}
	for _, pair := range [][2]*index{{ix, o}, {o, ix}} {
		for _, name := range slices.Collect(maps.Keys(pair[0].namespaces)) {
			if !maps.Equal(pair[0].namespace(name), pair[1].namespace(name)) {
				relabelled[name] = true
			}
		}
	}
	numbers = map[uint32]bool{}
	for n, a := range now {
		b := before[n]
		if b == nil || relabelled[a.Namespace] || a.TrustDomain != b.TrustDomain ||
			a.Namespace != b.Namespace || a.ServiceAccount != b.ServiceAccount ||
			!maps.Equal(a.Labels, b.Labels) {
			numbers[n] = true
		}
	}
	for n := range before {
		if now[n] == nil {
			numbers[n] = true
		}
	}
	return numbers, true
}

// carry takes over what selectors selected in the index before, but for the identities that have
// changed.
func (ix *index) carry(o *index, changed map[uint32]bool) {
	for key, s := range o.found {
		ix.found[key] = &matched{of: s.of, numbers: ix.patched(s, changed)}
	}
}

// patched is the same slice where none of the changed identities comes or goes.
func (ix *index) patched(s *matched, changed map[uint32]bool) []uint32 {
	var add []uint32
	same := true
	for n := range changed {
		_, was := slices.BinarySearch(s.numbers, n)
		now := ix.byNumber[n]
		is := now != nil && ix.selectsNamespace(s.of, now.Namespace) && selects(s.of, now)
		if is {
			add = append(add, n)
		}
		same = same && was == is
	}
	if same {
		return s.numbers
	}
	out := slices.DeleteFunc(slices.Clone(s.numbers), func(n uint32) bool { return changed[n] })
	out = append(out, add...)
	slices.Sort(out)
	return out
}

// identical says whether all that sets depend on besides policies is the same as in another index.
func (ix *index) identical(o *index) bool {
	return slices.EqualFunc(ix.endpoints, o.endpoints, func(a, b *Endpoint) bool {
		return a.Namespace == b.Namespace && a.Name == b.Name && a.Local == b.Local &&
			maps.Equal(a.Labels, b.Labels) && (!a.Local ||
			maps.Equal(ix.namespace(a.Namespace), o.namespace(a.Namespace)))
	})
}

// selections are what a rule's peers select.
func (r *run) selections(one *rule) [][]uint32 {
	var out [][]uint32
	for _, p := range one.peers {
		if p.block == nil {
			out = append(out, r.index.selected(p))
		}
	}
	return out
}

// sameSlice says whether two slices are one: selections that are equal are.
func sameSlice(a, b []uint32) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// again is the conjunction of the run before with those identities judged anew that have changed,
// the same one if that changes nothing; nil where it has to be made from the beginning.
func (r *run) again(d *draft) *conjunction {
	known := r.compiler.conjunctions[d.number]
	if known == nil || known.unlisted != nil || !r.known || !r.sameRanges && known.byIdentity() ||
		d.named() && (len(r.changed) > 0 || !r.sameEndpoints) {
		return nil
	}
	moved := !r.sameEndpoints && known.byAddress
	if len(r.changed) == 0 && !moved {
		r.cite(d, known)
		return known
	}
	c := *known
	c.rules, c.networks, c.denies, c.allows, c.admin, c.baseline = map[Rule]uint32{}, nil, nil, nil,
		nil, nil
	r.terms(d, &c)
	kinds, same := r.rekind(&c)
	switch {
	case kinds == nil:
		return nil
	case same && !moved:
		known.kindOf = kinds
		return known
	}
	c.kindOf, c.peers, c.addresses, c.byAddress = kinds, nil, nil, false
	c.blocks = slices.Clip(c.blocks[:c.dividing])
	r.peers(&c)
	return &c
}

// rekind finds the kinds of the identities that have changed, nil where one is of no kind that is
// known. same: none of these has entries of its own, nor had.
func (r *run) rekind(c *conjunction) (kinds map[uint32]string, same bool) {
	atoms := map[uint32]*peerAtom{}
	for _, who := range r.peerAtoms() {
		if r.changed[who.number] {
			atoms[who.number] = who
		}
	}
	cloned := false
	kinds, same = c.kindOf, true
	for n := range r.changed {
		now, there := "", atoms[n] != nil
		if there {
			now = c.signature(atoms[n])
			if c.kinds[now] == nil {
				return nil, false
			}
		}
		before, was := c.kindOf[n]
		if was == there && before == now {
			continue
		}
		if !cloned {
			kinds, cloned = maps.Clone(c.kindOf), true
		}
		same = same && (!was || c.kinds[before].usual) && (!there || c.kinds[now].usual)
		delete(kinds, n)
		if there {
			kinds[n] = now
		}
	}
	return kinds, same
}

// cite notes the rules of a conjunction, which may be at other lines now.
func (r *run) cite(d *draft, known *conjunction) {
	for at := range known.rules {
		r.rule(at)
	}
	for _, p := range d.policies {
		p.cite(d.direction, r.rule)
	}
}

// named says whether what a draft's rules are about depends on what peers call their ports.
func (d *draft) named() bool {
	return d.direction == Egress && slices.ContainsFunc(d.policies, func(p *Policy) bool {
		for i := range p.rules[Egress] {
			if p.rules[Egress][i].names() {
				return true
			}
		}
		return false
	})
}
