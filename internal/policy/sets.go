package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// cite calls for each rule of a policy in one direction.
func (p *Policy) cite(d Direction, rule func(Rule) uint32) {
	for i := range p.rules[d] {
		rule(p.rules[d][i].at)
	}
	if p.authorization != nil {
		for i := range p.authorization.rules {
			rule(p.authorization.rules[i].at)
		}
	}
	if p.cluster != nil && p.cluster.closed {
		rule(p.denial().at)
	}
}

// finished is a set, what it was made of, and what was wrong with it.
type finished struct {
	shares []*share
	// conjunction is what it was made of instead of shares.
	conjunction *conjunction

	classes  []uint32
	set      *Set
	problems []Problem
}

// finish makes a draft's entries, or takes those of the run before, if all that they are made of is
// the same.
func (r *run) finish(d *draft) {
	if d.refused != nil {
		r.result.Sets[d.number] = r.closed(d)
		r.result.Problems = append(r.result.Problems, *d.refused)
		return
	}
	if d.conjunction != nil {
		done := r.enter(d)
		r.finished[d.number] = done
		r.result.Sets[d.number] = done.set
		r.result.Problems = append(r.result.Problems, done.problems...)
		return
	}
	done := &finished{shares: d.shares, classes: r.classesOf(d)}
	before := r.compiler.finished[d.number]
	if before != nil && slices.Equal(before.shares, done.shares) &&
		slices.Equal(before.classes, done.classes) {
		done = before
	} else {
		r.entries(d, done)
	}
	r.finished[d.number] = done
	r.result.Sets[d.number] = done.set
	r.result.Problems = append(r.result.Problems, done.problems...)
}

// classesOf are the classes that a draft's blocks have, 0 after each block.
func (r *run) classesOf(d *draft) []uint32 {
	var out []uint32
	for _, one := range d.shares {
		for _, p := range one.parts {
			if p.block != nil {
				out = append(append(out, r.blocks.of(p.block)...), 0)
			}
		}
	}
	return out
}

func (r *run) entries(d *draft, done *finished) {
	set := &Set{Number: d.number, Direction: d.direction, Policies: objects(d.policies)}
	byPeer := map[uint32]map[portPrefix]Value{}
	for _, one := range d.shares {
		for _, p := range one.parts {
			for _, who := range r.peersOf(p) {
				p.into(byPeer, who)
			}
		}
	}
	for _, who := range slices.Sorted(maps.Keys(byPeer)) {
		key := Key{Set: d.number, Direction: d.direction, Peer: who}
		set.Entries = append(set.Entries, resolve(key, byPeer[who])...)
	}
	if limit := r.compiler.opts.MaxEntries; len(set.Entries) > limit {
		done.problems = exceeds(set, limit)
	}
	done.set = set
}

func (r *run) peersOf(p part) []uint32 {
	if p.block != nil {
		return r.blocks.of(p.block)
	}
	return []uint32{p.peer}
}

// closed is a set that denies all, but for what no policy can keep out.
func (r *run) closed(d *draft) *Set {
	set := &Set{Number: d.number, Direction: d.direction, Policies: objects(d.policies)}
	if d.direction == Ingress {
		node := r.node().parts[0]
		set.Entries = []Entry{{Key{Set: d.number, Direction: Ingress, Peer: node.peer}, node.value}}
	}
	return set
}

// exceeds has a set that is beyond its budget deny all, but for what no policy can keep out.
func exceeds(set *Set, limit int) []Problem {
	needed := len(set.Entries)
	set.Entries = slices.DeleteFunc(set.Entries,
		func(e Entry) bool { return e.Precedence != precedenceNode })
	return []Problem{{
		Object: strings.Join(set.Policies, ", "),
		Msg: fmt.Sprintf("%s would need %d entries for one pod, more than %d, so all of it is denied: "+
			"use fewer port ranges, wider ranges of addresses, or selectors that match fewer identities",
			set.Direction, needed, limit),
	}}
}
