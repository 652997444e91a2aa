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
	identities []Identity
	endpoints  []*Endpoint
	// byIdentity are the endpoints of each identity.
	byIdentity map[uint32][]*Endpoint
	namespaces map[string]labels.Set
	// within are the identities of each namespace, in the order of their numbers.
	within map[string][]Identity
	// found are the identities of selectors that were asked for.
	found  map[string][]uint32
	ranges []netip.Prefix
	// claims are the identities of addresses, AnyPeer for those of several. nil: not asked for yet.
	claims map[netip.Addr]uint32
}

func newIndex(in Input) *index {
	ix := &index{
		identities: slices.Clone(in.Identities), byIdentity: map[uint32][]*Endpoint{},
		namespaces: map[string]labels.Set{}, found: map[string][]uint32{},
		within: map[string][]Identity{}, ranges: sortedRanges(in.Ranges),
	}
	slices.SortFunc(ix.identities,
		func(a, b Identity) int { return cmp.Compare(a.Number, b.Number) })
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
	for _, i := range ix.identities {
		ix.within[i.Namespace] = append(ix.within[i.Namespace], i)
	}
	for name, set := range in.Namespaces {
		ix.namespaces[name] = namespaceLabels(name, set)
	}
	return ix
}

func sortedRanges(list []netip.Prefix) []netip.Prefix {
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

// same says whether the identities, with their namespaces, and the endpoints are those of another
// index: nil for none.
func (ix *index) same(o *index) (identities, endpoints bool) {
	if o == nil {
		return false, false
	}
	identities = slices.EqualFunc(ix.identities, o.identities, func(a, b Identity) bool {
		return a.Number == b.Number && a.TrustDomain == b.TrustDomain &&
			a.Namespace == b.Namespace &&
			a.ServiceAccount == b.ServiceAccount && maps.Equal(a.Labels, b.Labels)
	})
	for _, pair := range [][2]*index{{ix, o}, {o, ix}} {
		for _, name := range slices.Collect(maps.Keys(pair[0].namespaces)) {
			identities = identities && maps.Equal(pair[0].namespace(name), pair[1].namespace(name))
		}
	}
	endpoints = slices.EqualFunc(ix.endpoints, o.endpoints, func(a, b *Endpoint) bool {
		return a.Identity == b.Identity && slices.Equal(a.Ports, b.Ports) &&
			slices.Equal(a.Addresses, b.Addresses)
	})
	return identities, endpoints
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
	list, known := ix.found[key]
	if known {
		return list
	}
	if p.namespaces == nil {
		list = matching(list, ix.within[p.own], p.pods)
	} else {
		for name, there := range ix.within {
			if p.namespaces.Matches(ix.namespace(name)) {
				list = matching(list, there, p.pods)
			}
		}
		slices.Sort(list)
	}
	ix.found[key] = list
	return list
}

// matching adds the numbers of those identities that a selector selects.
func matching(list []uint32, of []Identity, pods labels.Selector) []uint32 {
	for _, i := range of {
		// Another number would be everybody's, or some addresses'.
		if i.Number != AnyPeer && i.Number < ClassBase && pods.Matches(labels.Set(i.Labels)) {
			list = append(list, i.Number)
		}
	}
	return list
}
