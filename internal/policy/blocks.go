package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// block is the addresses of some prefixes without those of some others.
type block struct {
	prefixes, except []netip.Prefix
	// key tells blocks apart: those of several rules may be the same.
	key string
	// common: it is of no policy, as all addresses, and those of pods, are.
	common bool
}

func (b *block) contains(a netip.Addr) bool {
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(b.prefixes, in) && !slices.ContainsFunc(b.except, in)
}

func newBlock(prefix netip.Prefix, except ...netip.Prefix) *block {
	slices.SortFunc(except, comparePrefixes)
	b := &block{prefixes: []netip.Prefix{prefix}, except: slices.Compact(except),
		key: prefix.String()}
	for _, e := range b.except {
		b.key += "-" + e.String()
	}
	return b
}

// single is the block of one address.
func single(a netip.Addr) *block { return newBlock(netip.PrefixFrom(a, a.BitLen())) }

func (r *reader) block(field string, in *networkingv1.IPBlock) *block {
	prefix, ok := r.prefix(field+".cidr", in.CIDR)
	if !ok {
		return nil
	}
	var excepts []netip.Prefix
	for i, text := range in.Except {
		at := fmt.Sprintf("%s.except[%d]", field, i)
		except, ok := r.prefix(at, text)
		switch {
		case !ok:
			return nil
		case !within(except, prefix) || except == prefix:
			r.fail(at, "%s is not a part of cidr %s: correct one of them", except, prefix)
			return nil
		}
		excepts = append(excepts, except)
	}
	return newBlock(prefix, excepts...)
}

// prefix reads a CIDR. As in Kubernetes, bits after the prefix do not count.
func (r *reader) prefix(field, text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		r.fail(field,
			"%q is not a range of addresses: want for instance 10.1.0.0/16 or fd00:1::/64", text)
	case p.Addr().Is4In6():
		r.fail(field, "%s is an IPv4 range written as IPv6: write it as IPv4", text)
	default:
		return p.Masked(), true
	}
	return p, false
}

// within says whether all of inner is in outer.
func within(inner, outer netip.Prefix) bool {
	return inner.Bits() >= outer.Bits() && outer.Contains(inner.Addr())
}

// comparePrefixes puts every prefix behind those that contain it.
func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// blocks are those that some set needs, and the classes that they make.
type blocks struct {
	index map[string]int
	list  []*block
	// classes are, by block, those inside it.
	classes [][]uint32
}

func (b *blocks) add(one *block) {
	if _, known := b.index[one.key]; !known {
		b.index[one.key], b.list = len(b.list), append(b.list, one)
	}
}

// of are the classes inside a block that was added.
func (b *blocks) of(one *block) []uint32 { return b.classes[b.index[one.key]] }

// classify gives each set of blocks that addresses can be in together a class, and each prefix the
// class of its addresses. A class's number is the same as long as number remembers it.
func (b *blocks) classify(number func(key string) uint32) []Class {
	b.classes = make([][]uint32, len(b.list))
	starts, all := map[netip.Prefix][]int{}, map[netip.Prefix]bool{}
	for i, one := range b.list {
		for _, p := range one.prefixes {
			starts[p] = append(starts[p], i)
		}
		for _, p := range slices.Concat(one.prefixes, one.except) {
			all[p] = true
		}
	}
	var out []Class
	var outer []nested
	seen := map[uint32]bool{0: true}
	for _, p := range sortedPrefixes(all) {
		for len(outer) > 0 && !within(p, outer[len(outer)-1].prefix) {
			outer = outer[:len(outer)-1]
		}
		this := nested{prefix: p}
		if len(outer) > 0 {
			above := outer[len(outer)-1]
			this.in = slices.DeleteFunc(slices.Clone(above.in),
				func(i int) bool { return slices.Contains(b.list[i].except, p) })
			this.above = above.class
		}
		this.in = append(this.in, starts[p]...)
		slices.SortFunc(this.in,
			func(i, j int) int { return cmp.Compare(b.list[i].key, b.list[j].key) })
		this.in = slices.Compact(this.in) // a block may have a prefix inside another of its own
		if len(this.in) > 0 {
			this.class = number(b.together(this.in))
		}
		if !seen[this.class] {
			seen[this.class] = true
			for _, i := range this.in {
				b.classes[i] = append(b.classes[i], this.class)
			}
		}
		if this.class != this.above {
			out = append(out, Class{p, this.class})
		}
		outer = append(outer, this)
	}
	return out
}

// nested is a prefix, the blocks that its addresses are in, and the class of the prefix around it.
type nested struct {
	prefix       netip.Prefix
	in           []int
	class, above uint32
}

func (b *blocks) together(in []int) string {
	parts := make([]string, len(in))
	for n, i := range in {
		parts[n] = b.list[i].key
	}
	return strings.Join(parts, " ")
}

func sortedPrefixes(set map[netip.Prefix]bool) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(set))
	for p := range set {
		out = append(out, p)
	}
	slices.SortFunc(out, comparePrefixes)
	return out
}
