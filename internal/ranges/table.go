package ranges

import "net/netip"

// table finds the most specific of some ranges around another.
type table struct {
	by      map[netip.Prefix]string
	lengths [2][129]bool // of the prefixes in by, per family
}

func (t *table) add(p netip.Prefix, node string) {
	if t.by == nil {
		t.by = map[netip.Prefix]string{}
	}
	t.by[p.Masked()] = node
	t.lengths[family(p)][p.Bits()] = true
}

// find returns the most specific range that p is, or is inside of, and whose it is.
func (t *table) find(p netip.Prefix) (around netip.Prefix, node string, ok bool) {
	for bits := p.Bits(); bits >= 0; bits-- {
		if !t.lengths[family(p)][bits] {
			continue
		}
		around = netip.PrefixFrom(p.Addr(), bits).Masked()
		if node, ok = t.by[around]; ok {
			return around, node, true
		}
	}
	return netip.Prefix{}, "", false
}

func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}
