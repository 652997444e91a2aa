package policy

import (
	"fmt"
	"net/netip"
	"slices"
)

// tierRule is a rule of a ClusterNetworkPolicy.
type tierRule struct {
	term
	does action
}

// tiers takes the rules of a draft's ClusterNetworkPolicies, in the order in which they are asked.
func (r *run) tiers(d *draft, c *conjunction) {
	list := slices.DeleteFunc(slices.Clone(d.policies),
		func(p *Policy) bool { return p.cluster == nil })
	slices.SortStableFunc(list, byPriority)
	for _, p := range list {
		if p.cluster.closed || r.mute[p] {
			c.denies = append(c.denies, p.denial())
			continue
		}
		for i := range p.rules[d.direction] {
			one := &p.rules[d.direction][i]
			rule := tierRule{r.termOf(d, one), one.action}
			if p.cluster.baseline {
				c.baseline = append(c.baseline, rule)
			} else {
				c.admin = append(c.admin, rule)
			}
		}
	}
}

// tier asks the rules of one tier. Of what may be about a peer who is not known, that counts which
// denies.
func (c *conjunction) tier(rules []tierRule, of connection, next func() decided) decided {
	for i := range rules {
		about := rules[i].holds(of)
		switch {
		case about == no, about == maybe && rules[i].does == accept:
		case rules[i].does == deny:
			return decided{Deny, c.rules[rules[i].at]}
		case rules[i].does == accept:
			return decided{Allow, c.rules[rules[i].at]}
		default:
			if passed := next(); about == yes || passed.verdict == Deny {
				return passed
			}
		}
	}
	return next()
}

// termOf is a rule of Kubernetes' policies as a term.
func (r *run) termOf(d *draft, one *rule) term {
	out := term{at: one.at}
	if !one.anyPeer {
		out.clauses = append(out.clauses, r.peersOfRule(one))
	}
	if len(one.ports) == 0 {
		return out
	}
	ports := condition{about: destinationPort}
	var named []match
	for _, p := range one.ports {
		switch {
		case p.name == "":
			ports.ports = append(ports.ports, span{p.protocol, p.from, p.to})
		case d.direction == Ingress:
			ports.ports = append(ports.ports, spans(p.protocol, d.sample.numbers(p))...)
		default:
			named = append(named, r.namedByPeer(p)...)
		}
	}
	out.clauses = append(out.clauses, append(named, match{ports}))
	return out
}

// peersOfRule are whom a rule is about: one of some identities, or of some addresses.
func (r *run) peersOfRule(one *rule) []match {
	out := []match{}
	addresses, numbers := condition{about: sourceIP}, map[uint32]bool{}
	selects := false
	for _, p := range one.peers {
		if p.block != nil {
			addresses.blocks = append(addresses.blocks, p.block)
			continue
		}
		selects = true
		for _, number := range r.index.selected(p) {
			numbers[number] = true
		}
	}
	if len(addresses.blocks) > 0 {
		addresses.keyed()
		out = append(out, match{addresses})
	}
	if selects {
		out = append(out, match{{about: sourceNumber, numbers: numbers}})
	}
	return out
}

// namedByPeer are what a named port is at each peer: by identity, or by address where those of one
// identity differ.
func (r *run) namedByPeer(p port) (out []match) {
	same := map[string]map[uint32]bool{}
	for _, who := range r.peerAtoms() {
		all := r.index.byIdentity[who.number]
		if len(all) == 0 {
			continue
		}
		first := all[0].numbers(p)
		if slices.ContainsFunc(all[1:],
			func(e *Endpoint) bool { return !slices.Equal(e.numbers(p), first) }) {
			out = append(out, namedByAddress(p, all)...)
			continue
		}
		key := fmt.Sprint(first)
		if same[key] == nil && len(first) > 0 {
			same[key] = map[uint32]bool{}
			out = append(out,
				match{{about: sourceNumber, numbers: same[key]},
					{about: destinationPort, ports: spans(p.protocol, first)}})
		}
		if len(first) > 0 {
			same[key][who.number] = true
		}
	}
	return out
}

func namedByAddress(p port, all []*Endpoint) (out []match) {
	for _, e := range all {
		if numbers := e.numbers(p); len(numbers) > 0 {
			at := condition{about: sourceIP, blocks: singles(e.Addresses)}
			at.keyed()
			out = append(out,
				match{at,
					{about: destinationPort, ports: spans(p.protocol, numbers)}})
		}
	}
	return out
}

func singles(addresses []netip.Addr) (out []*block) {
	for _, a := range addresses {
		out = append(out, single(a))
	}
	return out
}

func spans(protocol uint8, numbers []uint16) (out []span) {
	for _, n := range numbers {
		out = append(out, span{protocol, n, n})
	}
	return out
}
