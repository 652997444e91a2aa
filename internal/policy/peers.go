package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// NamespaceNameLabel is the label that every namespace has: its name.
const NamespaceNameLabel = "kubernetes.io/metadata.name"

// index is the input of a compilation, ordered.
type index struct {
	// identities are those that some endpoint has. An object alone makes none: whoever comes under
	// a number that is not here is somebody unknown, as before its endpoint is.
	identities []Identity
	endpoints  []*Endpoint
	// byIdentity are the endpoints of each identity.
	byIdentity map[uint32][]*Endpoint
	namespaces map[string]labels.Set
	// within are the identities of each namespace, in the order of their numbers.
	within   map[string][]Identity
	byNumber map[uint32]*Identity
	// found are the identities of selectors that were asked for.
	found  map[string]*matched
	ranges []netip.Prefix
	// claims are the identities of addresses, AnyPeer for those of several. nil: not asked for yet.
	claims map[netip.Addr]uint32
}

func newIndex(in Input) *index {
	ix := &index{
		byIdentity: map[uint32][]*Endpoint{}, namespaces: map[string]labels.Set{},
		found: map[string]*matched{}, within: map[string][]Identity{}, ranges: sortedRanges(in),
		byNumber: map[uint32]*Identity{},
	}
	endpoints := slices.Clone(in.Endpoints) // kept for the next run, the caller's may change
	for i := range endpoints {
		ix.endpoints = append(ix.endpoints, &endpoints[i])
	}
	slices.SortStableFunc(ix.endpoints, func(a, b *Endpoint) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, e := range ix.endpoints {
		ix.byIdentity[e.Identity] = append(ix.byIdentity[e.Identity], e)
	}
	for _, i := range in.Identities {
		if len(ix.byIdentity[i.Number]) > 0 {
			ix.identities = append(ix.identities, i)
		}
	}
	slices.SortStableFunc(ix.identities,
		func(a, b Identity) int { return cmp.Compare(a.Number, b.Number) })
	for n := range ix.identities {
		i := &ix.identities[n]
		ix.byNumber[i.Number] = i
		ix.within[i.Namespace] = append(ix.within[i.Namespace], *i)
	}
	for name, set := range in.Namespaces {
		ix.namespaces[name] = namespaceLabels(name, set)
	}
	return ix
}

// sortedRanges are those of pods, with the addresses of endpoints that are in none of them: one
// whose identity a set does not know must be taken there, too, for somebody who may be anybody.
func sortedRanges(in Input) []netip.Prefix {
	list, outer := sortPrefixes(in.Ranges), outermost(in.Ranges)
	for _, e := range in.Endpoints {
		for _, a := range e.Addresses {
			if !containsAddr(outer, a) {
				list = append(list, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return sortPrefixes(list)
}

// outermost are, in order, the prefixes that are in no other: none overlap. There may be several
// for each node, and each compilation looks for every address of every pod in them.
func outermost(list []netip.Prefix) []netip.Prefix {
	masked := make([]netip.Prefix, len(list))
	for i, p := range list {
		masked[i] = p.Masked()
	}
	slices.SortFunc(masked, comparePrefixes)
	out := masked[:0]
	for _, p := range masked {
		if p.IsValid() && (len(out) == 0 || !within(p, out[len(out)-1])) {
			out = append(out, p)
		}
	}
	return out
}

// containsAddr says whether one of outermost prefixes contains an address: only the last that
// begins at it or before can.
func containsAddr(outer []netip.Prefix, a netip.Addr) bool {
	n, found := slices.BinarySearchFunc(outer, a,
		func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	if found {
		n++
	}
	return n > 0 && outer[n-1].Contains(a)
}

// owner is the namespace of an identity, "" for none of a workload that is known.
func (ix *index) owner(number uint32) string {
	if i := ix.byNumber[number]; i != nil {
		return i.Namespace
	}
	return ""
}

func sortPrefixes(list []netip.Prefix) []netip.Prefix {
	list = slices.Clone(list)
	slices.SortFunc(list, comparePrefixes)
	return slices.Compact(list)
}

func namespaceLabels(name string, set map[string]string) labels.Set {
	out := labels.Set{}
	maps.Copy(out, set)
	out[NamespaceNameLabel] = name
	return out
}

// sameEndpoints says whether the endpoints are, as peers, those of another index: nil for none.
func (ix *index) sameEndpoints(o *index) bool {
	return o != nil && slices.EqualFunc(ix.endpoints, o.endpoints, func(a, b *Endpoint) bool {
		return a.Identity == b.Identity && slices.Equal(a.Ports, b.Ports) &&
			slices.Equal(a.Addresses, b.Addresses)
	})
}

// namespace is the labels of a namespace, which has its name even where nothing declares it.
func (ix *index) namespace(name string) labels.Set {
	known, ok := ix.namespaces[name]
	if !ok {
		known = namespaceLabels(name, nil)
		ix.namespaces[name] = known
	}
	return known
}

// selected are the identities that a peer's selectors select, in the order of their numbers.
func (ix *index) selected(p peer) []uint32 {
	key := p.own + "|" + p.pods.String()
	if p.namespaces != nil {
		key = "|" + p.namespaces.String() + "|" + p.pods.String()
	}
	s := ix.found[key]
	if s == nil {
		s = &matched{of: p}
		for name, list := range ix.within {
			if !ix.selectsNamespace(p, name) {
				continue
			}
			for i := range list {
				if selects(p, &list[i]) {
					s.numbers = append(s.numbers, list[i].Number)
				}
			}
		}
		slices.Sort(s.numbers)
		ix.found[key] = s
	}
	s.used = true
	return s.numbers
}

// selectsNamespace says whether a peer's selectors are about identities of a namespace.
func (ix *index) selectsNamespace(p peer, name string) bool {
	if p.namespaces == nil {
		return name == p.own
	}
	return p.namespaces.Matches(ix.namespace(name))
}

// selects says whether an identity of such a namespace is selected. One with another number would
// be everybody's, or some addresses'.
func selects(p peer, i *Identity) bool {
	return i.Number != AnyPeer && i.Number < ClassBase && p.pods.Matches(labels.Set(i.Labels))
}
