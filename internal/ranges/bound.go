package ranges

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// maxLost bounds what is remembered of nodes that are gone: the routes map must have room for the
// nodes that are there.
const maxLost = 16384

// boundLost keeps what was lost from growing without end. Neighbouring ranges become one; what
// configured ranges guard goes first then, then single addresses of the nodes that lost most, those
// gone longest, then ranges of such nodes.
func (l *lesson) boundLost() {
	lost := l.lost()
	if len(lost) < maxLost {
		return
	}
	l.aggregate(lost)
	lost = l.lost()
	if len(lost) < maxLost {
		return
	}
	sharer, count := l.sharers(), map[string]int{}
	for _, e := range lost {
		count[sharer(e)]++
	}
	l.refuse("%d ranges and addresses or more are nobody's, most of them of %s: beyond these, those of the nodes that have lost most are no longer guarded, single addresses gone longest first; `weft node forget` what is gone, or name a range around them in clusterCIDRs",
		maxLost, most(count))
	for _, e := range l.byWorth(lost, sharer)[maxLost:] {
		delete(l.entries, e.Prefix)
	}
}

// most names who has the most.
func most(count map[string]int) string {
	var node string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if count[name] > count[node] {
			node = name
		}
	}
	switch node {
	case "":
		return "no known node"
	case unheard:
		return "nodes without an object"
	}
	return "node " + node
}

// lost are the entries without a node in use, in order.
func (l *lesson) lost() []Entry {
	var out []Entry
	for _, e := range l.entries {
		if !e.Lost.IsZero() {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, byPrefix)
	return out
}

// aggregate merges lost ranges that are halves of another, exactly: no address is guarded more or
// less than before. From the longest prefixes to the shortest, since what is merged may be a half
// again.
func (l *lesson) aggregate(lost []Entry) {
	var byBits [129][]Entry
	for _, e := range lost {
		if e.Kind == Range {
			byBits[e.Prefix.Bits()] = append(byBits[e.Prefix.Bits()], e)
		}
	}
	for bits := 128; bits > 0; bits-- {
		for _, e := range byBits[bits] {
			if merged, ok := l.mergeWithSibling(e); ok {
				byBits[bits-1] = append(byBits[bits-1], merged)
			}
		}
	}
	l.dropGuarded()
}

// mergeWithSibling replaces a lost range and its other half, if that was lost too, by the whole. ok
// says that the whole is new.
func (l *lesson) mergeWithSibling(e Entry) (merged Entry, ok bool) {
	if l.entries[e.Prefix] != e {
		return merged, false
	}
	other, there := l.entries[sibling(e.Prefix)]
	if !there || other.Kind != Range || other.Lost.IsZero() {
		return merged, false
	}
	whole := netip.PrefixFrom(e.Prefix.Addr(), e.Prefix.Bits()-1).Masked()
	before, taken := l.entries[whole]
	if taken && before.Lost.IsZero() {
		return merged, false
	}
	delete(l.entries, e.Prefix)
	delete(l.entries, other.Prefix)
	if taken {
		return merged, false
	}
	merged = merge(e, other, whole)
	l.entries[whole] = merged
	return merged, true
}

// dropGuarded forgets what a configured or another lost range guards.
func (l *lesson) dropGuarded() {
	var ranges table
	for _, e := range l.lost() {
		if e.Kind == Range {
			ranges.add(e.Prefix, "")
		}
	}
	for _, e := range l.lost() {
		_, _, guarded := l.cluster.find(e.Prefix)
		around, _, inside := ranges.find(e.Prefix)
		if e.Kind != Address && (guarded || inside && around != e.Prefix) {
			delete(l.entries, e.Prefix)
		}
	}
}

// sibling is the other half of the range that p is half of.
func sibling(p netip.Prefix) netip.Prefix {
	bytes := p.Addr().AsSlice()
	bit := p.Bits() - 1
	bytes[bit/8] ^= 1 << (7 - bit%8)
	a, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(a, p.Bits())
}

func merge(a, b Entry, whole netip.Prefix) Entry {
	merged := Entry{Prefix: whole, Kind: Range, Node: a.Node, Lost: a.Lost, Why: a.Why}
	if b.Lost.Before(a.Lost) {
		merged.Lost = b.Lost
	}
	if a.Node != b.Node {
		merged.Node = ""
	}
	if a.Why != b.Why || a.Node != b.Node {
		merged.Why = "several ranges that were lost"
	}
	return merged
}

// byWorth has those first that are to be guarded longest. A node that changes its ranges, or whose
// pods come and go, again and again pushes out its own, not those of others; and what was not known
// before pushes out nothing that was.
func (l *lesson) byWorth(lost []Entry, sharer func(Entry) string) []Entry {
	slices.SortFunc(lost, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(asInt(l.strange[a.Prefix]), asInt(l.strange[b.Prefix])),
			b.Lost.Compare(a.Lost), byPrefix(a, b))
	})
	type ranked struct {
		class, rank int
		entry       Entry
	}
	var of [3]map[string]int
	for class := range of {
		of[class] = map[string]int{}
	}
	list := make([]ranked, 0, len(lost))
	for _, e := range lost {
		class, share := 2, sharer(e)
		switch {
		case e.Kind == Range && !e.Prefix.IsSingleIP():
			class = 0
		case e.Kind == Address:
			class = 1
		}
		list = append(list, ranked{class: class, rank: of[class][share], entry: e})
		of[class][share]++
	}
	slices.SortStableFunc(list,
		func(a,
			b ranked) int {
			return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.rank, b.rank))
		})
	for i, r := range list {
		lost[i] = r.entry
	}
	return lost
}
