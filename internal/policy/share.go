package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weft.dev/weft/api/v1alpha1"
)

// share is what one rule adds to a set: the same for all sets that it is part of, as long as the
// ports that it names are. It does not change any more.
type share struct {
	parts []part
	// selected are the identities of the rule's selectors.
	selected [][]uint32
}

// part is a rule for some peers, or for one block of addresses.
type part struct {
	// peers are a selection, which rules share, or a few.
	peers []uint32
	block *block // nil: for peers
	ports []portPrefix
	value Value
}

func (p part) equal(o part) bool {
	sameBlock := p.block == o.block || p.block != nil && o.block != nil &&
		p.block.key == o.block.key
	return sameBlock && p.value == o.value && slices.Equal(p.peers, o.peers) &&
		slices.Equal(p.ports, o.ports)
}

// shareKey is what a share depends on besides the cluster.
type shareKey struct {
	rule *rule
	// ports are the numbers of the ports that the rule names, for ingress.
	ports string
}

// share is a rule's, from this run, or from the one before if nothing it depends on has changed.
// One that comes out as before is the one before, so that sets need not be made again.
func (r *run) share(d *draft, one *rule) *share {
	value := one.value
	value.Rule = r.rule(one.at)
	key := shareKey{rule: one}
	if d.direction == Ingress {
		key.ports = namedPorts(one, d.sample)
	}
	if known := r.shares[key]; known != nil {
		return known
	}
	out := r.compiler.shares[key]
	selected, unchanged := r.selections(one), r.known && len(r.changed) == 0 && r.sameEndpoints
	if out == nil || !slices.EqualFunc(out.selected, selected, sameSlice) ||
		!unchanged && d.direction == Egress && one.names() {
		g := gathering{run: r, direction: d.direction, sample: d.sample, rule: one, value: value,
			share: &share{}}
		g.numbered()
		g.named()
		if out == nil || !slices.EqualFunc(out.parts, g.share.parts, part.equal) {
			out = g.share
		}
		out.selected = selected
	}
	r.shares[key] = out
	return out
}

// node is the share of a pod's own node, which is in every set of ingress.
func (r *run) node() *share {
	value := Value{Verdict: Allow, Precedence: precedenceNode,
		Rule: r.rule(Rule{Field: "the pod's own node"})}
	for _, known := range []map[shareKey]*share{r.shares, r.compiler.shares} {
		if one := known[shareKey{}]; one != nil {
			r.shares[shareKey{}] = one
			return one
		}
	}
	one := &share{parts: []part{{peers: []uint32{v1alpha1.IdentityHost}, ports: []portPrefix{{}}, value: value}}}
	r.shares[shareKey{}] = one
	return one
}

// names says whether a rule has named ports.
func (one *rule) names() bool {
	return slices.ContainsFunc(one.ports, func(p port) bool { return p.name != "" })
}

// namedPorts is the same for endpoints that have the same numbers for a rule's named ports.
func namedPorts(one *rule, e *Endpoint) string {
	if !one.names() {
		return ""
	}
	var s strings.Builder
	for _, p := range one.ports {
		if p.name != "" {
			fmt.Fprintf(&s, " %s=%d", p.name, e.numbers(p))
		}
	}
	return s.String()
}

// gathering is one rule on its way into a share.
type gathering struct {
	run       *run
	direction Direction
	sample    *Endpoint
	rule      *rule
	value     Value
	share     *share
}

func (g *gathering) add(who []uint32, ports []portPrefix) {
	g.share.parts = append(g.share.parts, part{peers: who, ports: ports, value: g.value})
}

func (g *gathering) addBlock(b *block, ports []portPrefix) {
	g.share.parts = append(g.share.parts, part{block: b, ports: ports, value: g.value})
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
		case g.direction == Ingress:
			ports = append(ports, exactly(p.protocol, g.sample.numbers(p))...)
		}
	}
	if len(ports) == 0 {
		return
	}
	if g.rule.anyPeer {
		g.add([]uint32{AnyPeer}, ports)
	}
	for _, p := range g.rule.peers {
		if p.block != nil {
			g.addBlock(p.block, ports)
			continue
		}
		g.add(g.run.index.selected(p), ports)
	}
}

// named adds the rule's named ports of egress, which are what each peer has under that name.
func (g *gathering) named() {
	if g.direction == Ingress {
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
	if !slices.ContainsFunc(all[1:],
		func(e *Endpoint) bool { return !slices.Equal(e.numbers(p), first) }) {
		if len(first) > 0 {
			g.add([]uint32{identity}, exactly(p.protocol, first))
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
