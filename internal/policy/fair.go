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

// demand is what each tenant's drafts cost, and in total.
func (c charges) demand() (each map[string]float64, total float64) {
	each = map[string]float64{}
	for d, cost := range c {
		each[d.tenant()] += cost
		total += cost
	}
	return each, total
}

// over finds what has to go so that the rest has room: the most expensive drafts of those who are
// above their share. all: everything that these have.
func (c charges) over(demand map[string]float64, share float64, all bool) (gone []*draft) {
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
	return gone
}

// limitRanges refuses drafts that name more ranges of addresses than there is room for.
func (r *run) limitRanges(order []string) {
	room := r.compiler.opts.Room.Ranges
	if room == 0 {
		return
	}
	cost, common := charges{}, map[string]*block{}
	for _, key := range order {
		d := r.drafts[key]
		if d.refused != nil {
			continue
		}
		cost[d] = 0
		for _, b := range d.blocks {
			if b.common { // nobody's
				common[b.key] = b
			} else {
				cost[d] += float64(len(b.prefixes) + len(b.except))
			}
		}
	}
	for _, b := range common {
		room -= len(b.prefixes)
	}
	demand, total := cost.demand()
	if total <= float64(room) {
		return
	}
	share := level(demand, float64(room))
	for _, d := range cost.over(demand, share, false) {
		r.refuse(d, fmt.Sprintf("names %.0f ranges of addresses, and the share of %s of the %d "+
			"that this node has room for is %.0f: name fewer or wider ones", cost[d], d.owner(),
			room, share))
	}
}

// rounds is how often what is too much is taken away by halves; then it is all.
const rounds = 8

// limitEntries has sets say less until there is room for all, and says whether there were any: what
// those named that are refused divides nobody's addresses any more, and all is to be made again.
//
// What a namespace has above its share for the identities of others goes first. Each of these has
// an equal part of what the namespace's own leaves: who makes many identities fills no set of
// somebody else's, and who selects many identities in many ways costs these nothing elsewhere.
func (r *run) limitEntries(order []string, needed, round int) bool {
	room := r.compiler.opts.Room.Entries
	if room == 0 || needed <= room {
		return false
	}
	cost, foreign := r.charge(order)
	demand, total := cost.demand()
	if total <= float64(room) { // what is beyond it are sets that are refused already
		return r.refuseUnmade(order)
	}
	share := level(demand, float64(room))
	var squeezed []*draft
	if round < rounds {
		squeezed = r.squeezeTenants(order, demand, foreign, share)
	}
	gone := cost.over(demand, share, round >= rounds)
	for _, d := range gone {
		r.refuse(d, fmt.Sprintf("costs %.0f of this node's %d entries, with what its ranges of "+
			"addresses cost other sets, and the share of %s is %.0f: use fewer port ranges, fewer "+
			"or wider ranges of addresses, or selectors that match fewer identities", cost[d], room,
			d.owner(), share))
	}
	return len(gone)+len(squeezed) > 0 || r.refuseUnmade(order)
}

// refuseUnmade refuses the sets that were only counted.
func (r *run) refuseUnmade(order []string) (some bool) {
	for _, key := range order {
		if d := r.drafts[key]; d.refused == nil && r.result.Sets[d.number] == nil {
			r.refuse(d, "finds no room among this node's entries: use fewer policies or pods")
			some = true
		}
	}
	return some
}

// squeezeTenants has the sets of those who are above their share, and would not be by their own
// entries, leave identities of others out. They are within their share then.
func (r *run) squeezeTenants(order []string, demand map[string]float64,
	foreign map[string]identityCosts, share float64) (out []*draft) {
	for who, needs := range demand {
		own := needs - foreign[who].sum()
		if needs <= share || own > share {
			continue
		}
		unlisted := r.squeeze(foreign[who], share-own)
		for _, key := range order {
			if d := r.drafts[key]; d.tenant() == who && d.refused == nil {
				d.unlisted = union(d.unlisted, unlisted)
				out = append(out, d)
			}
		}
		demand[who] = share
	}
	return out
}

func union(a, b map[uint32]bool) map[uint32]bool {
	out := maps.Clone(b)
	maps.Copy(out, a)
	return out
}

func (d *draft) owner() string {
	if who := d.tenant(); who != "" {
		return "namespace " + who
	}
	return "policies of the whole cluster"
}

// refuse has a draft deny all.
func (r *run) refuse(d *draft, why string) {
	delete(r.finished, d.number)
	d.refused = &Problem{
		Object: strings.Join(objects(d.policies), ", "),
		Msg:    fmt.Sprintf("%s %s. Until then all of it is denied", d.direction, why),
	}
}

// charge says what each set costs, and of that, by tenants, what identities of others do. An entry
// that is there only because somebody else's range divides the addresses of a set's own is charged
// to that one.
func (r *run) charge(order []string) (charges, map[string]identityCosts) {
	cost, owners, identities := charges{}, r.owners(order), map[string]identityCosts{}
	for _, key := range order {
		d := r.drafts[key]
		if d.refused != nil {
			continue
		}
		foreign := r.foreign(d, owners)
		cost[d] += 0
		said, _ := r.said(d)
		for who, list := range said {
			others, entries := foreign[who], float64(len(list))
			if len(others) == 0 {
				cost[d] += entries
			}
			for _, o := range others {
				cost[o] += entries / float64(len(others))
			}
		}
		if identities[d.tenant()] == nil {
			identities[d.tenant()] = identityCosts{}
		}
		identities[d.tenant()].add(r.identitiesOfOthers(d, said))
	}
	return cost, identities
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
