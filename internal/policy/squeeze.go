package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// identityCosts are how many entries identities have, by number.
type identityCosts map[uint32]float64

func (c identityCosts) sum() (total float64) {
	for _, cost := range c {
		total += cost
	}
	return total
}

func (c identityCosts) add(o identityCosts) {
	for who, cost := range o {
		c[who] += cost
	}
}

// identitiesOfOthers are what the identities of other namespaces than a draft's own cost it. Sets
// that pods of several namespaces share are of none.
func (r *run) identitiesOfOthers(d *draft, said content) identityCosts {
	out := identityCosts{}
	for who, list := range said {
		if i := r.index.byNumber[who]; i != nil && i.Namespace != d.tenant() {
			out[who] = float64(len(list))
		}
	}
	return out
}

// squeeze finds which identities have to be left out so that the rest has room: of each namespace
// that has more than its share those with the highest numbers, which are the newest.
func (r *run) squeeze(costs identityCosts, room float64) map[uint32]bool {
	demand := map[string]float64{}
	for who, cost := range costs {
		demand[r.index.owner(who)] += cost
	}
	share, unlisted := level(demand, room), map[uint32]bool{}
	kept := map[string]float64{}
	for _, who := range slices.Sorted(maps.Keys(costs)) {
		of := r.index.owner(who)
		if kept[of] += costs[who]; demand[of] > share && kept[of] > share {
			unlisted[who] = true
		}
	}
	return unlisted
}

// said is a draft's content within the budget of one set, and what that leaves out: identities of
// other namespaces first, and where that is not enough, all. Those that are left out are treated as
// somebody unknown is, so nothing that is about identities allows them anything.
func (r *run) said(d *draft) (content, []Problem) {
	said, limit := r.content(d), r.compiler.opts.MaxEntries
	var left []uint32
	if d.conjunction != nil {
		left = append(left, d.conjunction.unlisted...)
	}
	leave := func(unlisted map[uint32]bool) {
		for who := range unlisted {
			if _, there := said[who]; there {
				left = append(left, who)
				delete(said, who)
			}
		}
	}
	leave(d.unlisted)
	if needed := said.entries(); needed > limit {
		others := r.identitiesOfOthers(d, said)
		own := float64(needed) - others.sum()
		if own > float64(limit) {
			return r.nobody(d.direction), []Problem{exceeds(d, needed, limit)}
		}
		leave(r.squeeze(others, float64(limit)-own))
	}
	if len(left) == 0 {
		return said, nil
	}
	return said, []Problem{r.leftOut(d, left)}
}

// leftOut says which identities a set does not know.
func (r *run) leftOut(d *draft, list []uint32) Problem {
	count := map[string]int{}
	for _, who := range list {
		count[r.index.owner(who)]++
	}
	var texts []string
	for _, of := range slices.Sorted(maps.Keys(count)) {
		texts = append(texts, fmt.Sprintf("%d of namespace %s", count[of], of))
	}
	return Problem{
		Object: strings.Join(objects(d.policies), ", "), Warning: true,
		Msg: fmt.Sprintf("%s has no room for all identities that it is about, and takes the newest "+
			"for unknown ones: %s: use fewer port ranges, or selectors that match fewer identities",
			d.direction, strings.Join(texts, ", ")),
	}
}

// fewerKinds leaves the identities of some kinds out, so that there are no more than most: those of
// other namespaces with most kinds. A kind is charged to that of its namespaces which has the
// fewest, and to none if the draft's own has it. nil where the own ones are too many already.
func (r *run) fewerKinds(d *draft, c *conjunction, most int) (unlisted []uint32) {
	kinds := map[string]map[string]bool{} // of each namespace
	numbers := slices.Sorted(maps.Keys(c.kindOf))
	for _, who := range numbers {
		of := r.index.owner(who)
		if kinds[of] == nil {
			kinds[of] = map[string]bool{}
		}
		kinds[of][c.kindOf[who]] = true
	}
	own, charged := kinds[d.tenant()], map[string]uint32{}
	for _, who := range numbers {
		kind := c.kindOf[who]
		by, there := charged[kind]
		fewer := len(kinds[r.index.owner(who)]) < len(kinds[r.index.owner(by)])
		if !own[kind] && (!there || fewer) {
			charged[kind] = who
		}
	}
	if len(own) > most {
		return nil
	}
	costs := identityCosts{}
	for _, who := range charged {
		costs[who] = 1
	}
	gone := r.squeeze(costs, float64(most-len(own)))
	for who, kind := range c.kindOf {
		if gone[charged[kind]] {
			unlisted = append(unlisted, who)
		}
	}
	return unlisted
}
