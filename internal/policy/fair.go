package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Room is what all sets of a node share, 0 for no limit. Each namespace has the same right to it:
// one that needs less than its share leaves the rest to the others, and of one that needs more,
// while there is not room for all, some sets deny all.
type Room struct {
	// Entries is how many entries all sets may have.
	Entries int
	// Ranges is how many prefixes of addresses they may name.
	Ranges int
}

// tenant is who a set is charged to: its endpoints' namespace, "" for one that endpoints of several
// share, which is the administrators'.
func (d *draft) tenant() string {
	if d.shared {
		return ""
	}
	return d.sample.Namespace
}

// level is how much each may have at most so that all together have no more than room: who has
// less keeps it.
func level(demand map[string]float64, room float64) float64 {
	sizes := slices.Sorted(maps.Values(demand))
	for i, size := range sizes {
		each := room / float64(len(sizes)-i)
		if size > each {
			return each
		}
		room -= size
	}
	return room
}

// charges are what each draft costs.
type charges map[*draft]float64

// over finds what has to go so that the rest has room: the most expensive drafts of those who are
// above their share. all: everything that these have.
func (c charges) over(room int, all bool) (gone []*draft, share float64) {
	demand, total := map[string]float64{}, 0.0
	for d, cost := range c {
		demand[d.tenant()] += cost
		total += cost
	}
	if total <= float64(room) {
		return nil, 0
	}
	share = level(demand, float64(room))
	order := slices.SortedFunc(maps.Keys(c), func(a, b *draft) int {
		return cmp.Or(cmp.Compare(c[b], c[a]), cmp.Compare(a.key, b.key))
	})
	for _, d := range order {
		if who := d.tenant(); demand[who] > share && c[d] > 0 {
			gone = append(gone, d)
			if !all {
				demand[who] -= c[d]
			}
		}
	}
	return gone, share
}

// limitRanges refuses drafts that name more ranges of addresses than there is room for.
func (r *run) limitRanges(order []string) {
	room := r.compiler.opts.Room.Ranges
	if room == 0 {
		return
	}
	cost := charges{}
	for _, key := range order {
		d := r.drafts[key]
		if d.refused != nil {
			continue
		}
		cost[d] = 0
		for _, b := range d.blocks {
			cost[d] += float64(len(b.prefixes) + len(b.except))
		}
	}
	gone, share := cost.over(room, false)
	for _, d := range gone {
		r.refuse(d, fmt.Sprintf("names %.0f ranges of addresses, and the share of %s of the %d "+
			"that this node has room for is %.0f: name fewer or wider ones", cost[d], d.owner(),
			room, share))
	}
}

// rounds is how often what is too much is taken away by halves; then it is all.
const rounds = 8

// limitEntries refuses sets until the others have room, and says whether there were any: what they
// named divides nobody's addresses any more, and all is to be made again.
func (r *run) limitEntries(order []string, round int) bool {
	room := r.compiler.opts.Room.Entries
	if room == 0 {
		return false
	}
	total := 0
	for _, set := range r.result.Sets {
		total += len(set.Entries)
	}
	if total <= room {
		return false
	}
	cost := r.charge(order)
	gone, share := cost.over(room, round >= rounds)
	for _, d := range gone {
		r.refuse(d, fmt.Sprintf("costs %.0f of this node's %d entries, with what its ranges of "+
			"addresses cost other sets, and the share of %s is %.0f: use fewer port ranges, fewer "+
			"or wider ranges of addresses, or selectors that match fewer identities", cost[d], room,
			d.owner(), share))
	}
	return len(gone) > 0
}

func (d *draft) owner() string {
	if who := d.tenant(); who != "" {
		return "namespace " + who
	}
	return "policies of the whole cluster"
}

// refuse has a draft deny all.
func (r *run) refuse(d *draft, why string) {
	d.refused = &Problem{
		Object: strings.Join(objects(d.policies), ", "),
		Msg:    fmt.Sprintf("%s %s. Until then all of it is denied", d.direction, why),
	}
}

// charge says what each set costs. An entry that is there only because somebody else's range
// divides the addresses of a set's own is charged to that one.
func (r *run) charge(order []string) charges {
	cost, owners := charges{}, r.owners(order)
	for _, key := range order {
		d := r.drafts[key]
		if d.refused != nil {
			continue
		}
		foreign := r.foreign(d, owners)
		cost[d] += 0
		for _, e := range r.result.Sets[d.number].Entries {
			others := foreign[e.Peer]
			if len(others) == 0 {
				cost[d]++
			}
			for _, o := range others {
				cost[o] += 1 / float64(len(others))
			}
		}
	}
	return cost
}

// owners are the drafts that name each class's ranges.
func (r *run) owners(order []string) map[uint32][]*draft {
	out := map[uint32][]*draft{}
	for _, key := range order {
		d := r.drafts[key]
		if d.refused != nil {
			continue
		}
		mine := map[uint32]bool{}
		for _, b := range d.blocks {
			if b.common {
				continue
			}
			for _, class := range r.blocks.of(b) {
				if !mine[class] {
					mine[class], out[class] = true, append(out[class], d)
				}
			}
		}
	}
	return out
}

// foreign are, for the classes inside a draft's own ranges that are there because of others'
// ranges, the drafts that name these. Of the classes that its own ranges do not tell apart, one is
// its own.
func (r *run) foreign(d *draft, owners map[uint32][]*draft) map[uint32][]*draft {
	own := map[uint32]string{}
	for _, b := range d.blocks {
		for _, class := range r.blocks.of(b) {
			own[class] += " " + b.key
		}
	}
	out, paid := map[uint32][]*draft{}, map[string]bool{}
	classes := slices.Sorted(maps.Keys(own))
	for _, class := range classes {
		others := slices.DeleteFunc(slices.Clone(owners[class]),
			func(o *draft) bool { return o.tenant() == d.tenant() })
		if len(others) == 0 {
			paid[own[class]] = true
		} else {
			out[class] = others
		}
	}
	for _, class := range classes {
		if !paid[own[class]] {
			paid[own[class]] = true
			delete(out, class)
		}
	}
	return out
}

func objects(list []*Policy) []string {
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = p.Object()
	}
	return out
}
