package policy

import (
	"encoding/binary"
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
	// partial: some identities were left out, which depends on more than what it was made of.
	partial bool
}

// finish makes a draft's set, or takes one that was made before, if all that it is made of is the
// same. It is only counted where it has more entries than room, so that memory is bounded by what
// can be in force.
func (r *run) finish(d *draft, room int) (entries int) {
	if d.refused != nil {
		set := r.closed(d)
		r.result.Sets[d.number] = set
		r.result.Problems = append(r.result.Problems, *d.refused)
		return len(set.Entries)
	}
	now := &finished{shares: d.shares, conjunction: d.conjunction, classes: r.classesOf(d)}
	done := r.alike(d, now)
	if done == nil {
		said, problems := r.said(d)
		if entries = said.entries(); entries > room {
			return entries
		}
		done = now
		done.set, done.problems, done.partial = said.set(d), problems, len(problems) > 0
	}
	r.finished[d.number] = done
	r.result.Sets[d.number] = done.set
	r.result.Problems = append(r.result.Problems, done.problems...)
	return len(done.set.Entries)
}

// alike is a set that was made of the same in this run, or in the one before, nil without one.
func (r *run) alike(d *draft, now *finished) *finished {
	if d.unlisted != nil {
		return nil
	}
	for _, made := range []map[uint32]*finished{r.finished, r.compiler.finished} {
		if one := made[d.number]; one != nil && !one.partial &&
			one.conjunction == now.conjunction && slices.Equal(one.shares, now.shares) &&
			slices.Equal(one.classes, now.classes) {
			return one
		}
	}
	return nil
}

// classesOf are the classes that a draft's entries depend on, 0 after each block.
func (r *run) classesOf(d *draft) []uint32 {
	if c := d.conjunction; c != nil {
		_, alike := c.outside()
		return r.classesIn(c, alike)
	}
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

// content is what a set says of each peer. Of those of whom the same is said it is one slice.
type content map[uint32][]portValue

func (c content) entries() (n int) {
	for _, said := range c {
		n += len(said)
	}
	return n
}

func (c content) set(d *draft) *Set {
	set := &Set{Number: d.number, Direction: d.direction, Policies: objects(d.policies)}
	set.Entries = make([]Entry, 0, c.entries())
	for _, who := range slices.Sorted(maps.Keys(c)) {
		for _, v := range c[who] {
			set.Entries = append(set.Entries, Entry{Key{d.number, d.direction, who, v.at.protocol,
				v.at.port, v.at.bits}, v.value})
		}
	}
	slices.SortFunc(set.Entries, func(a, b Entry) int { return compareKeys(a.Key, b.Key) })
	return set
}

// content is what a draft says of each peer.
func (r *run) content(d *draft) content {
	var said content
	if d.conjunction != nil {
		said = r.contentOf(d.direction, d.conjunction)
	} else {
		said = r.contentOfShares(d)
	}
	if len(d.unauthenticated) > 0 {
		said[Unauthenticated] = d.unauthenticated
	}
	return said
}

// contentOfShares is what rules say one by one.
func (r *run) contentOfShares(d *draft) content {
	var parts []part
	about := map[uint32][]byte{} // who to the numbers of the parts that speak of him
	for _, one := range d.shares {
		for _, p := range one.parts {
			for _, who := range r.peersOf(p) {
				about[who] = binary.LittleEndian.AppendUint32(about[who], uint32(len(parts)))
			}
			parts = append(parts, p)
		}
	}
	out, known := make(content, len(about)), map[string][]portValue{}
	for who, list := range about {
		said, there := known[string(list)]
		if !there {
			said = together(parts, list)
			known[string(list)] = said
		}
		if len(said) > 0 {
			out[who] = said
		}
	}
	return out
}

// together is what the parts of a list say.
func together(parts []part, list []byte) []portValue {
	values := map[portPrefix]Value{}
	for ; len(list) > 0; list = list[4:] {
		p := parts[binary.LittleEndian.Uint32(list)]
		for _, port := range p.ports {
			if known, there := values[port]; !there || p.value.better(known) {
				values[port] = p.value
			}
		}
	}
	return resolve(values)
}

func (r *run) peersOf(p part) []uint32 {
	if p.block != nil {
		return r.blocks.of(p.block)
	}
	return p.peers
}

// closed is a set that denies all, but for what no policy can keep out.
func (r *run) closed(d *draft) *Set {
	return r.nobody(d.direction).set(d)
}

func (r *run) nobody(d Direction) content {
	if d == Egress {
		return content{}
	}
	node := r.node().parts[0]
	return content{node.peers[0]: {{portPrefix{}, node.value}}}
}

// exceeds says why a set that is beyond its budget denies all.
func exceeds(d *draft, needed, limit int) Problem {
	return Problem{
		Object: strings.Join(objects(d.policies), ", "),
		Msg: fmt.Sprintf("%s would need %d entries for one pod, more than %d, so all of it is denied: "+
			"use fewer port ranges, wider ranges of addresses, or selectors that match fewer identities",
			d.direction, needed, limit),
	}
}
