package policy

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// conjunction is a set in which AuthorizationPolicies or ClusterNetworkPolicies have a say. What
// begins must be denied by no rule of an AuthorizationPolicy that denies, and allowed by one of
// those that allow, if there are such policies about the endpoint; and it must be allowed by
// Kubernetes' policies: of the tier Admin, then NetworkPolicies, then of the tier Baseline the
// first that says anything decides.
//
// No entries of the three look-ups can be made of such rules one by one: the look-ups only know
// "the best of what the peer's identity, its address and anybody has", which is an "or" with
// exceptions, and here one rule may ask for identity and address, and all of several kinds must
// agree. So the verdict is found first, for each identity, each place among addresses, and each
// range of ports; entries then only say it. What they say is exact where it is by one of identity
// or address alone. Where it is by both, the identity is denied, and each of its known addresses
// has the verdict of the two together. Whoever is not known yet is in none of the entries about
// identities, and what is said of addresses of pods is what holds for whoever they may be: an ALLOW
// rule that may be about them is not, and a DENY rule is.
type conjunction struct {
	networks, denies, allows []term
	admin, baseline          []tierRule
	// restricted and listed: there are NetworkPolicies, or AuthorizationPolicies that allow.
	restricted, listed bool
	// What is told where no single rule decides.
	notRestricted, notListed, notDenied uint32
	rules                               map[Rule]uint32

	blocks []*block
	pods   *block
	places []place
	// at finds places, by what distinguish makes of their blocks; divides are the blocks that
	// places differ in.
	at      map[string]int
	divides map[string]bool
	ports   []portAtom
	// rows are the verdicts by port that some place has.
	rows map[string][]decided
	own  func(*condition, *place) truth
	// base are the verdicts by address, for peers without an entry of their identity's.
	base table
	// peers are identities with entries of their own, addresses those of the ones that are told
	// apart by both.
	peers     []peerEntries
	addresses []addressEntries
	// kinds are those of peers, by signature, and kindOf the signatures of identities. The first
	// dividing blocks are those that places were made of. byAddress: some identities are told
	// apart by address.
	kinds     map[string]*peerKind
	kindOf    map[uint32]string
	dividing  int
	byAddress bool
	// unlisted are identities that would be of too many kinds: they are of none.
	unlisted []uint32
}

// table has a verdict for each place and port.
type table [][]decided

type decided struct {
	verdict Verdict
	rule    uint32
}

type peerEntries struct {
	number uint32
	ports  []decided
}

type addressEntries struct {
	at    *block
	ports []decided
}

// conjoin finds the verdicts of a draft, or takes those of the run before, as far as nothing that
// they depend on has changed.
func (r *run) conjoin(d *draft) *conjunction {
	if known := r.again(d); known != nil {
		return known
	}
	c := &conjunction{rules: map[Rule]uint32{}, own: ownAddresses(d.sample),
		rows: map[string][]decided{}}
	r.terms(d, c)
	c.divide(r.index)
	c.dividing, c.kinds, c.kindOf = len(c.blocks), map[string]*peerKind{}, map[uint32]string{}
	kinds := map[string]*peerAtom{}
	for _, who := range r.peerAtoms() {
		key := c.signature(who)
		kinds[key], c.kindOf[who.number] = who, key
	}
	most, needed := c.mostKinds(r.compiler.opts.MaxVerdicts), len(kinds)
	if needed > most {
		c.unlisted = r.fewerKinds(d, c, most)
		for _, who := range c.unlisted {
			delete(kinds, c.kindOf[who])
			delete(c.kindOf, who)
		}
	}
	if len(kinds) > most {
		r.refuse(d, c.tooDense(needed, r.compiler.opts.MaxVerdicts))
		return nil
	}
	c.base = make(table, len(c.places))
	nobody, unknown := c.judge(&peerAtom{}), c.judge(&peerAtom{unknown: true})
	for i := range c.places {
		c.base[i] = nobody[i]
		if c.pods != nil && c.places[i].inside[c.pods.key] {
			c.base[i] = unknown[i]
		}
	}
	for key, who := range kinds {
		c.kinds[key] = c.kind(c.judge(who))
	}
	r.peers(c)
	return c
}

// peers enters what is different about identities.
func (r *run) peers(c *conjunction) {
	for _, number := range slices.Sorted(maps.Keys(c.kindOf)) {
		r.peer(c, number, c.kinds[c.kindOf[number]])
	}
	for _, a := range c.addresses {
		c.blocks = append(c.blocks, a.at)
	}
}

// terms takes the rules of a draft's policies.
func (r *run) terms(d *draft, c *conjunction) {
	var networks, denying, allowing []string
	for _, p := range d.policies {
		switch {
		case p.cluster != nil, p.peerAuth != nil:
			denying = append(denying, p.Object())
		case p.authorization == nil:
			networks, c.restricted = append(networks, p.Object()), true
			for i := range p.rules[d.direction] {
				if !r.mute[p] {
					c.networks = append(c.networks, r.termOf(d, &p.rules[d.direction][i]))
				}
			}
		case p.authorization.deny:
			denying, c.denies = append(denying, p.Object()), append(c.denies,
				p.authorization.rules...)
		default:
			allowing, c.listed = append(allowing, p.Object()), true
			c.allows = append(c.allows, p.authorization.rules...)
		}
	}
	r.tiers(d, c)
	number := func(at Rule) uint32 {
		c.rules[at] = r.rule(at)
		return c.rules[at]
	}
	c.each(func(t *term) { number(t.at) })
	c.notRestricted, c.notListed = number(noneAllows(networks)), number(noneAllows(allowing))
	c.notDenied = number(Rule{Field: "no rule of " + strings.Join(denying, ", ") + " denies it"})
}

// all are the terms of every kind.
func (c *conjunction) all(each func(*condition)) { c.each(func(t *term) { t.conditions(each) }) }

func (c *conjunction) each(one func(*term)) {
	for _, list := range [][]term{c.networks, c.denies, c.allows} {
		for i := range list {
			one(&list[i])
		}
	}
	for _, list := range [][]tierRule{c.admin, c.baseline} {
		for i := range list {
			one(&list[i].term)
		}
	}
}

// signature is the same for peers of whom every condition says the same.
func (c *conjunction) signature(p *peerAtom) string {
	var s []byte
	at := connection{peer: p}
	c.all(func(o *condition) {
		if o.about < sourceIP {
			s = append(s, byte(o.any(at)))
		}
	})
	return string(s)
}

// judge finds the verdicts for a peer.
func (c *conjunction) judge(p *peerAtom) table {
	out := make(table, len(c.places))
	row, text := make([]decided, len(c.ports)), []byte(nil)
	for i := range c.places {
		text = text[:0]
		for n, ports := range c.ports {
			row[n] = c.verdict(connection{p, &c.places[i], ports, c.own})
			text = append(binary.LittleEndian.AppendUint32(text, row[n].rule), byte(row[n].verdict))
		}
		if c.rows[string(text)] == nil {
			c.rows[string(text)] = slices.Clone(row)
		}
		out[i] = c.rows[string(text)]
	}
	return out
}

// DefaultMaxVerdicts is how many verdicts may have to be found for a set that AuthorizationPolicies
// or ClusterNetworkPolicies are part of.
const DefaultMaxVerdicts = 1 << 22

// maxConditions is how often a condition may have to be asked for one verdict, on average of all
// that may be: with it, such a set takes some seconds at most.
const maxConditions = 64

// mostKinds is how many kinds of peers a conjunction may tell apart, so that it takes not too long
// and not too much memory: verdicts are found for each range of addresses, range of ports and kind
// of peer. Two kinds are nobody and somebody unknown.
func (c *conjunction) mostKinds(limit int) int {
	each := len(c.places) * len(c.ports)
	return min(limit/each, limit*maxConditions/(each*max(c.asked(), 1))) - 2
}

func (c *conjunction) asked() (conditions int) {
	c.all(func(*condition) { conditions++ })
	return conditions
}

// tooDense says why a conjunction would take too long or too much memory.
func (c *conjunction) tooDense(kinds, limit int) string {
	needed := len(c.places) * len(c.ports) * (kinds + 2)
	return fmt.Sprintf("would need %d verdicts by %d conditions (%d ranges of addresses, %d of "+
		"ports, %d kinds of peers), more than %d: use fewer ranges, or fewer policies that select one pod",
		needed, c.asked(), len(c.places), len(c.ports), kinds, limit)
}

func (c *conjunction) verdict(of connection) decided {
	for i := range c.denies {
		if c.denies[i].holds(of) != no {
			return decided{Deny, c.rules[c.denies[i].at]}
		}
	}
	out := c.tier(c.admin, of, func() decided {
		if c.restricted {
			return c.allowed(c.networks, of, c.notRestricted)
		}
		return c.tier(c.baseline, of, func() decided { return decided{Allow, c.notDenied} })
	})
	if c.listed && out.verdict == Allow {
		return c.allowed(c.allows, of, c.notListed)
	}
	return out
}

// allowed says whether one of some terms holds.
func (c *conjunction) allowed(terms []term, of connection, none uint32) decided {
	at := slices.IndexFunc(terms, func(t term) bool { return t.holds(of) == yes })
	if at < 0 {
		return decided{Deny, none}
	}
	return decided{Allow, c.rules[terms[at].at]}
}

// peerKind is peers of whom every condition says the same.
type peerKind struct {
	own table
	// usual: their verdicts are those of their addresses.
	usual bool
	// ports are what their identities have: where it goes by address too, nothing is allowed.
	// everywhere: it does not.
	ports      []decided
	everywhere bool
}

func (c *conjunction) kind(own table) *peerKind {
	out := &peerKind{own: own, usual: slices.EqualFunc(own, c.base, sameVerdicts), everywhere: true,
		ports: slices.Clone(own[0])}
	for _, there := range own[1:] {
		out.everywhere = out.everywhere && sameVerdicts(there, own[0])
		for i := range out.ports {
			if there[i].verdict == Deny && out.ports[i].verdict == Allow {
				out.ports[i] = there[i]
			}
		}
	}
	return out
}

// peer enters what is different about an identity.
func (r *run) peer(c *conjunction, number uint32, kind *peerKind) {
	if kind.usual {
		return
	}
	c.peers = append(c.peers, peerEntries{number, kind.ports})
	if kind.everywhere {
		return
	}
	c.byAddress = true
	for _, e := range r.index.byIdentity[number] {
		for _, a := range e.Addresses {
			if at := c.placeOf(a); !sameVerdicts(kind.own[at], kind.ports) && !r.index.shared(a) {
				c.addresses = append(c.addresses, addressEntries{single(a), kind.own[at]})
			}
		}
	}
}

func sameVerdicts(a, b []decided) bool {
	return slices.EqualFunc(a, b, func(x, y decided) bool { return x.verdict == y.verdict })
}

// peerAtoms are those who have an identity.
func (r *run) peerAtoms() []*peerAtom {
	if r.atoms != nil {
		return r.atoms
	}
	r.atoms = []*peerAtom{}
	for _, i := range r.index.identities {
		if i.Number == AnyPeer || i.Number >= ClassBase {
			continue
		}
		out := &peerAtom{number: i.Number, namespace: i.Namespace,
			account: i.Namespace + "/" + i.ServiceAccount}
		own := i.TrustDomain == r.compiler.opts.TrustDomain
		if own ||
			i.TrustDomain != ownTrustDomain { // another cluster's domain of that name is not meant
			out.trustDomains = append(out.trustDomains, i.TrustDomain)
		}
		if own && i.TrustDomain != ownTrustDomain {
			out.trustDomains = append(out.trustDomains, ownTrustDomain)
		}
		for _, domain := range out.trustDomains {
			out.principals = append(out.principals,
				domain+"/ns/"+i.Namespace+"/sa/"+i.ServiceAccount)
		}
		r.atoms = append(r.atoms, out)
	}
	return r.atoms
}

// ownTrustDomain stands for the cluster's own trust domain in Istio's policies, whatever that is
// called.
const ownTrustDomain = "cluster.local"

// families are all addresses.
var families = [2]*block{common("0.0.0.0/0"), common("::/0")}

func common(prefix string) *block {
	b := newBlock(netip.MustParsePrefix(prefix))
	b.common = true
	return b
}

// ownAddresses says whether an endpoint's addresses, of the family that a peer at some place has,
// are those of a condition. Of some in and some out nobody knows which one is meant.
func ownAddresses(e *Endpoint) func(*condition, *place) truth {
	return func(o *condition, at *place) truth {
		in, out := 0, 0
		for _, a := range e.Addresses {
			if a.Is4() != at.inside[families[0].key] {
				continue
			}
			if slices.ContainsFunc(o.blocks, func(b *block) bool { return b.contains(a) }) {
				in++
			} else {
				out++
			}
		}
		switch {
		case in > 0 && out == 0:
			return yes
		case in == 0 && out > 0:
			return no
		}
		return maybe
	}
}

// ownSignature is the same for endpoints of which all conditions on destination.ip say the same.
func (p *Policy) ownSignature(e *Endpoint) string {
	var s strings.Builder
	own := ownAddresses(e)
	for i := range p.authorization.rules {
		p.authorization.rules[i].conditions(func(o *condition) {
			if o.about == destinationIP {
				for _, f := range families {
					fmt.Fprintf(&s, " %d", own(o, &place{map[string]bool{f.key: true}}))
				}
			}
		})
	}
	return s.String()
}
