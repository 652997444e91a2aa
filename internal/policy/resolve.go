package policy

import (
	"cmp"
	"maps"
	"slices"
)

// resolve is what is said of one peer. Of several prefixes of ports that match, the map finds the
// longest and none else, so each says what the best of all says that cover it; one that
// says the same as the next shorter is left out.
func resolve(values map[portPrefix]Value) []portValue {
	order := slices.SortedFunc(maps.Keys(values), func(a, b portPrefix) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.bits, b.bits),
			cmp.Compare(a.port, b.port))
	})
	resolved := make(map[portPrefix]Value, len(values))
	var out []portValue
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
		out = append(out, portValue{p, best})
	}
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
