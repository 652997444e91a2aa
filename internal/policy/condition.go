package policy

import (
	"slices"
	"strings"
)

// attribute is what a condition is about.
type attribute uint8

const (
	sourcePrincipal attribute = iota
	sourceNamespace
	sourceAccount
	sourceTrustDomain
	// sourceNumber is the peer's identity, by its number.
	sourceNumber
	sourceIP
	destinationIP
	destinationPort
)

// truth is what is known of a condition: who a peer is that has no identity yet decides later.
type truth uint8

const (
	no truth = iota
	maybe
	yes
)

func (t truth) not() truth { return yes - t }

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// pattern is a text, or the beginning or the end of one.
type pattern struct {
	text string
	// prefix: the text begins so, suffix: it ends so. present: any text but "".
	prefix, suffix, present bool
}

// patternOf reads Istio's wildcards.
func patternOf(s string) pattern {
	switch {
	case s == "*":
		return pattern{present: true}
	case strings.HasPrefix(s, "*"):
		return pattern{text: s[1:], suffix: true}
	case strings.HasSuffix(s, "*"):
		return pattern{text: s[:len(s)-1], prefix: true}
	}
	return pattern{text: s}
}

func (p pattern) matches(s string) bool {
	switch {
	case p.present:
		return s != ""
	case p.suffix:
		return strings.HasSuffix(s, p.text)
	case p.prefix:
		return strings.HasPrefix(s, p.text)
	}
	return s == p.text
}

// span is some ports: protocol 0 is every one that has ports.
type span struct {
	protocol uint8
	from, to uint16
}

// condition holds if one of its values does, or if it is the opposite and none does.
type condition struct {
	about  attribute
	not    bool
	texts  []pattern
	blocks []*block
	// inside are the keys of blocks, where the condition is about the peer's address.
	inside  map[string]bool
	ports   []span
	numbers map[uint32]bool
}

// keyed has a condition know its blocks by their keys.
func (o *condition) keyed() {
	o.inside = make(map[string]bool, len(o.blocks))
	for _, b := range o.blocks {
		o.inside[b.key] = true
	}
}

// match holds if all conditions do, and without any.
type match []condition

// term is a rule of any kind: it holds if of each clause one match does, and without clauses.
type term struct {
	at      Rule
	clauses [][]match
}

// conditions are all of a term's.
func (t *term) conditions(each func(*condition)) {
	for _, clause := range t.clauses {
		for _, m := range clause {
			for i := range m {
				each(&m[i])
			}
		}
	}
}

// peerAtom is who is at the other end.
type peerAtom struct {
	// unknown may be anybody; without number and unknown it is nobody with an identity.
	unknown bool
	number  uint32
	// trustDomains has the cluster's own a second time, under the name that stands for it in
	// Istio's policies.
	trustDomains, principals []string
	// account is NAMESPACE/SERVICE-ACCOUNT.
	namespace, account string
}

// place is the addresses that are inside the same blocks.
type place struct {
	// inside are the blocks, by their keys.
	inside map[string]bool
}

// portAtom is ports that no rule tells apart.
type portAtom struct {
	// protocol is 0 for what has no ports.
	protocol uint8
	from, to uint16
}

// connection is what a term is judged for.
type connection struct {
	peer  *peerAtom
	place *place
	port  portAtom
	// own says of the pod's addresses of each family whether those of a condition on destination.ip
	// are among them.
	own func(*condition, *place) truth
}

func (t *term) holds(c connection) truth {
	out := yes
	for _, clause := range t.clauses {
		best := no
		for _, m := range clause {
			all := yes
			for i := range m {
				all = min(all, m[i].holds(c))
			}
			best = max(best, all)
		}
		out = min(out, best)
	}
	return out
}

func (o *condition) holds(c connection) truth {
	got := o.any(c)
	if o.not {
		return got.not()
	}
	return got
}

func (o *condition) any(c connection) truth {
	switch o.about {
	case sourceIP:
		for key := range c.place.inside { // few, where a policy may name many
			if o.inside[key] {
				return yes
			}
		}
		return no
	case destinationIP:
		return c.own(o, c.place)
	case destinationPort:
		return truthOf(slices.ContainsFunc(o.ports, func(s span) bool {
			return c.port.protocol != 0 && (s.protocol == 0 || s.protocol == c.port.protocol) &&
				s.from <= c.port.from && c.port.to <= s.to
		}))
	}
	if c.peer.unknown {
		return maybe
	}
	if o.about == sourceNumber {
		return truthOf(o.numbers[c.peer.number])
	}
	return truthOf(slices.ContainsFunc(o.texts,
		func(p pattern) bool { return c.peer.is(o.about, p) }))
}

// is says whether a text about a peer is like a pattern. Who has no identity has empty ones.
func (p *peerAtom) is(about attribute, like pattern) bool {
	switch about {
	case sourceNamespace:
		return like.matches(p.namespace)
	case sourceAccount:
		return like.matches(p.account)
	case sourceTrustDomain:
		return slices.ContainsFunc(p.trustDomains, like.matches)
	}
	return slices.ContainsFunc(p.principals, like.matches)
}
