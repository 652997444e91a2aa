package policy

import (
	"cmp"
	"maps"
	"slices"
)

// resolve makes the entries of one peer. Of several prefixes of ports that match, the map finds the
// longest and none else, so each entry says what the best of all says that cover it; one that
// says the same as the next shorter is left out.
func resolve(key Key, values map[portPrefix]Value) []Entry {
	order := slices.SortedFunc(maps.Keys(values), func(a, b portPrefix) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.bits, b.bits),
			cmp.Compare(a.port, b.port))
	})
	resolved := make(map[portPrefix]Value, len(values))
	var out []Entry
	for _, p := range order {
		best := values[p]
		if above, covered := covering(resolved, p); covered {
			if above.better(best) {
				best = above
			}
			if best.Verdict == above.Verdict && best.Precedence == above.Precedence {
				continue
			}
		}
		resolved[p] = best
		k := key
		k.Protocol, k.Port, k.PortBits = p.protocol, p.port, p.bits
		out = append(out, Entry{k, best})
	}
	slices.SortFunc(out, func(a, b Entry) int { return compareKeys(a.Key, b.Key) })
	return out
}

// covering is what the next shorter prefix says.
func covering(resolved map[portPrefix]Value, p portPrefix) (Value, bool) {
	for {
		var ok bool
		if p, ok = p.parent(); !ok {
			return Value{}, false
		}
		if v, there := resolved[p]; there {
			return v, true
		}
	}
}
