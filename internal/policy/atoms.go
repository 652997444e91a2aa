package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// divide cuts addresses and ports into the parts that no rule tells apart.
func (c *conjunction) divide(ix *index) {
	// Every address has a class, so that one which has none yet, or one that this set does not
	// know, is denied: what denies an address may be its class.
	c.blocks = append(c.blocks, families[:]...)
	c.all(func(o *condition) {
		if o.about == sourceIP {
			c.blocks = append(c.blocks, o.blocks...)
		}
	})
	if c.byIdentity() && len(ix.ranges) > 0 {
		c.pods = newUnion(ix.ranges)
		c.blocks = append(c.blocks, c.pods)
	}
	c.divideAddresses()
	c.dividePorts()
}

// byIdentity says whether somebody unknown may be treated otherwise than somebody without an
// identity.
func (c *conjunction) byIdentity() (found bool) {
	for _, kind := range []struct {
		terms []term
		not   bool
	}{{c.denies, false}, {c.allows, true}} {
		for i := range kind.terms {
			kind.terms[i].conditions(func(o *condition) { found = found || o.about < sourceNumber && o.not == kind.not })
		}
	}
	for _, tier := range [][]tierRule{c.admin, c.baseline} {
		for i := range tier {
			tier[i].conditions(func(o *condition) { found = found || o.about == sourceNumber && tier[i].does != accept })
		}
	}
	return found
}

func (c *conjunction) divideAddresses() {
	parts := blocks{index: map[string]int{}}
	for _, b := range c.blocks {
		parts.add(b)
	}
	numbers, last := map[string]uint32{}, uint32(0)
	parts.classify(func(key string) uint32 { return number(numbers, key, &last) })
	inside := c.inside(parts.of)
	for _, class := range slices.Sorted(maps.Keys(inside)) {
		c.places = append(c.places, place{inside[class]})
	}
}

// inside are, for each class of addresses, the blocks that these are in.
func (c *conjunction) inside(classes func(*block) []uint32) map[uint32]map[string]bool {
	out := map[uint32]map[string]bool{}
	for _, b := range c.blocks {
		for _, class := range classes(b) {
			if out[class] == nil {
				out[class] = map[string]bool{}
			}
			out[class][b.key] = true
		}
	}
	return out
}

// place finds the one with these blocks. Blocks of single addresses tell none apart.
func (c *conjunction) place(inside map[string]bool) int {
	return slices.IndexFunc(c.places, func(p place) bool {
		for key := range p.inside {
			if !inside[key] {
				return false
			}
		}
		for key := range inside {
			if !p.inside[key] && c.divides(key) {
				return false
			}
		}
		return true
	})
}

// divides says whether a block is one that places differ in.
func (c *conjunction) divides(key string) bool {
	return slices.ContainsFunc(c.places, func(p place) bool { return p.inside[key] })
}

func (c *conjunction) placeOf(a netip.Addr) int {
	inside := map[string]bool{}
	for _, b := range c.blocks {
		if b.contains(a) {
			inside[b.key] = true
		}
	}
	return c.place(inside)
}

// withPorts are the protocols whose packets have ports.
var withPorts = []uint8{TCP, UDP, SCTP, udpLite}

// udpLite is the protocol that no NetworkPolicy names, and that has ports.
const udpLite = 136

// dividePorts cuts ports where a rule begins or ends.
func (c *conjunction) dividePorts() {
	cuts := map[int]bool{0: true}
	c.all(func(o *condition) {
		for _, s := range o.ports {
			cuts[int(s.from)], cuts[int(s.to)+1] = true, true
		}
	})
	delete(cuts, maxPort+1)
	from := slices.Sorted(maps.Keys(cuts))
	c.ports = []portAtom{{}}
	for _, protocol := range withPorts {
		for i, first := range from {
			last := maxPort
			if i+1 < len(from) {
				last = from[i+1] - 1
			}
			c.ports = append(c.ports, portAtom{protocol, uint16(first), uint16(last)})
		}
	}
}

// Levels of a conjunction's entries: each says all there is to say, so the narrower goes before.
const (
	precedenceAddresses = precedencePolicy + 1 + iota
	precedenceIdentity
	precedenceAddress
)

// enter makes the entries of a conjunction.
func (r *run) enter(d *draft) *finished {
	c, set := d.conjunction, &Set{Number: d.number, Direction: d.direction}
	done := &finished{set: set}
	for _, p := range d.policies {
		set.Policies = append(set.Policies, p.Object())
	}
	values := map[uint32][]portValue{}
	if d.direction == Ingress {
		node := r.node().parts[0]
		values[node.peer] = []portValue{{portPrefix{}, node.value}}
	}
	anybody := make([]decided, len(c.ports)) // denied
	values[AnyPeer] = c.values(anybody, precedencePolicy)
	for class, inside := range c.inside(r.blocks.of) {
		if at := c.place(inside); !slices.Equal(c.base[at], anybody) {
			values[class] = c.values(c.base[at], precedenceAddresses)
		}
	}
	for _, p := range c.peers {
		values[p.number] = c.values(p.ports, precedenceIdentity)
	}
	for _, a := range c.addresses {
		for _, class := range r.blocks.of(a.at) {
			values[class] = c.values(a.ports, precedenceAddress)
		}
	}
	for _, who := range slices.Sorted(maps.Keys(values)) {
		for _, v := range values[who] {
			set.Entries = append(set.Entries,
				Entry{Key{d.number, d.direction, who, v.at.protocol, v.at.port, v.at.bits},
					v.value})
		}
	}
	slices.SortFunc(set.Entries, func(a, b Entry) int { return compareKeys(a.Key, b.Key) })
	if limit := r.compiler.opts.MaxEntries; len(set.Entries) > limit {
		done.problems = refuse(set, limit)
	}
	return done
}

type portValue struct {
	at    portPrefix
	value Value
}

// values says verdicts by port in prefixes: what most of a protocol's ports have is said once, and
// then the rest.
func (c *conjunction) values(ports []decided, precedence uint32) []portValue {
	value := func(d decided) Value { return Value{d.verdict, precedence, d.rule} }
	out := []portValue{{portPrefix{}, value(ports[0])}}
	for i := 1; i < len(ports); {
		end, most, size := i, ports[i], map[decided]int{}
		for ; end < len(ports) && c.ports[end].protocol == c.ports[i].protocol; end++ {
			size[ports[end]] += int(c.ports[end].to-c.ports[end].from) + 1
			if size[ports[end]] > size[most] {
				most = ports[end]
			}
		}
		if most != ports[0] {
			out = append(out, portValue{portPrefix{protocol: c.ports[i].protocol}, value(most)})
		}
		for ; i < end; i++ {
			if ports[i] == most {
				continue
			}
			for _, p := range split(c.ports[i].protocol, c.ports[i].from, c.ports[i].to) {
				out = append(out, portValue{p, value(ports[i])})
			}
		}
	}
	return out
}

// shared says whether endpoints of several identities claim an address. It is nobody's then.
func (ix *index) shared(a netip.Addr) bool {
	if ix.claims == nil {
		ix.claims = map[netip.Addr]uint32{}
		for _, e := range ix.endpoints {
			for _, own := range e.Addresses {
				if had, there := ix.claims[own]; there && had != e.Identity {
					ix.claims[own] = AnyPeer
				} else if !there {
					ix.claims[own] = e.Identity
				}
			}
		}
	}
	return ix.claims[a] == AnyPeer
}

// newUnion is the addresses of several prefixes, which are in order.
func newUnion(prefixes []netip.Prefix) *block {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return &block{prefixes: prefixes, key: strings.Join(texts, "+")}
}
