package masquerade

import (
	"net/netip"
	"slices"
)

// addrRange is a run of addresses, both ends included.
type addrRange struct{ first, last netip.Addr }

func (r addrRange) String() string { return r.first.String() + "-" + r.last.String() }

// merge sorts prefixes of one family into ranges that neither overlap nor touch: that is
// what an nftables set of intervals takes, and adjoining nodes' ranges become one.
func merge(prefixes []netip.Prefix) []addrRange {
	var ranges []addrRange
	for _, prefix := range prefixes {
		ranges = append(ranges, addrRange{prefix.Masked().Addr(), lastOf(prefix)})
	}
	slices.SortFunc(ranges, func(a, b addrRange) int { return a.first.Compare(b.first) })
	var merged []addrRange
	for _, r := range ranges {
		if n := len(merged) - 1; n >= 0 && touches(merged[n], r) {
			if merged[n].last.Less(r.last) {
				merged[n].last = r.last
			}
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// touches tells whether b, which does not begin before a, overlaps a or follows it at once.
func touches(a, b addrRange) bool {
	behind := a.last.Next()
	return !behind.IsValid() || !behind.Less(b.first)
}

// lastOf is the last address of a prefix.
func lastOf(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Masked().Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}
