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
	// found are the identities of selectors that were asked for.
	found map[string][]uint32
}

func newIndex(in Input) *index {
	ix := &index{
		identities: slices.Clone(in.Identities), byIdentity: map[uint32][]*Endpoint{},
		namespaces: map[string]labels.Set{}, found: map[string][]uint32{},
	}
	slices.SortFunc(ix.identities, func(a, b Identity) int { return cmp.Compare(a.Number, b.Number) })
	for i := range in.Endpoints {
		ix.endpoints = append(ix.endpoints, &in.Endpoints[i])
	}
	slices.SortStableFunc(ix.endpoints, func(a, b *Endpoint) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, e := range ix.endpoints {
		ix.byIdentity[e.Identity] = append(ix.byIdentity[e.Identity], e)
	}
	for name, set := range in.Namespaces {
		ix.namespaces[name] = namespaceLabels(name, set)
	}
	return ix
}

func namespaceLabels(name string, set map[string]string) labels.Set {
	out := labels.Set{}
	maps.Copy(out, set)
	out[NamespaceNameLabel] = name
	return out
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
	for _, i := range ix.identities {
		if i.Number == AnyPeer || i.Number >= ClassBase {
			continue
		}
		in := i.Namespace == p.own
		if p.namespaces != nil {
			in = p.namespaces.Matches(ix.namespace(i.Namespace))
		}
		if in && p.pods.Matches(labels.Set(i.Labels)) {
			list = append(list, i.Number)
		}
	}
	ix.found[key] = list
	return list
}

// gathering is one rule on its way into a draft.
type gathering struct {
	run   *run
	draft *draft
	rule  *rule
	value Value
}

func (g *gathering) add(who uint32, ports []portPrefix) {
	g.draft.parts = append(g.draft.parts, part{peer: who, block: -1, ports: ports, value: g.value})
}

func (g *gathering) addBlock(b *block, ports []portPrefix) {
	g.draft.parts = append(g.draft.parts, part{block: g.run.blocks.add(b), ports: ports, value: g.value})
}

// numbered adds the rule's ports that are the same whoever the peer is: those with numbers and,
// for ingress, the endpoint's own named ones.
func (g *gathering) numbered() {
	var ports []portPrefix
	if len(g.rule.ports) == 0 {
		ports = []portPrefix{{}}
	}
	for _, p := range g.rule.ports {
		switch {
		case p.name == "":
			ports = append(ports, split(p.protocol, p.from, p.to)...)
		case g.draft.direction == Ingress:
			ports = append(ports, exactly(p.protocol, g.draft.sample.numbers(p))...)
		}
	}
	if len(ports) == 0 {
		return
	}
	if g.rule.anyPeer {
		g.add(AnyPeer, ports)
	}
	for _, p := range g.rule.peers {
		if p.block != nil {
			g.addBlock(p.block, ports)
			continue
		}
		for _, who := range g.run.index.selected(p) {
			g.add(who, ports)
		}
	}
}

// named adds the rule's named ports of egress, which are what each peer has under that name.
func (g *gathering) named() {
	if g.draft.direction == Ingress {
		return
	}
	for _, p := range g.rule.ports {
		if p.name == "" {
			continue
		}
		if g.rule.anyPeer {
			for _, i := range g.run.index.identities {
				g.namedOf(i.Number, p)
			}
		}
		for _, who := range g.rule.peers {
			if who.block != nil {
				g.namedWithin(who.block, p)
				continue
			}
			for _, number := range g.run.index.selected(who) {
				g.namedOf(number, p)
			}
		}
	}
}

// namedOf adds a named port of an identity. Where its endpoints differ in it, the identity cannot
// tell them apart: the endpoints' addresses do.
func (g *gathering) namedOf(identity uint32, p port) {
	all := g.run.index.byIdentity[identity]
	if len(all) == 0 {
		return
	}
	first := all[0].numbers(p)
	if !slices.ContainsFunc(all[1:], func(e *Endpoint) bool { return !slices.Equal(e.numbers(p), first) }) {
		if len(first) > 0 {
			g.add(identity, exactly(p.protocol, first))
		}
		return
	}
	for _, e := range all {
		g.namedAt(e, p, func(netip.Addr) bool { return true })
	}
}

// namedWithin adds a named port of the endpoints with addresses in a block.
func (g *gathering) namedWithin(b *block, p port) {
	for _, e := range g.run.index.endpoints {
		g.namedAt(e, p, b.contains)
	}
}

func (g *gathering) namedAt(e *Endpoint, p port, wanted func(netip.Addr) bool) {
	numbers := e.numbers(p)
	if len(numbers) == 0 {
		return
	}
	for _, a := range e.Addresses {
		if wanted(a) {
			g.addBlock(single(a), exactly(p.protocol, numbers))
		}
	}
}

func exactly(protocol uint8, numbers []uint16) []portPrefix {
	var out []portPrefix
	for _, n := range numbers {
		out = append(out, portPrefix{protocol, n, 16})
	}
	return out
}
