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
	c.divides, c.at = map[string]bool{}, map[string]int{}
	parts := blocks{index: map[string]int{}}
	for _, b := range c.blocks {
		parts.add(b)
	}
	numbers, last := map[string]uint32{}, uint32(0)
	parts.classify(func(key string) uint32 { return number(numbers, key, &last) })
	inside := c.inside(parts.of)
	for _, there := range inside {
		for key := range there {
			c.divides[key] = true
		}
	}
	for _, class := range slices.Sorted(maps.Keys(inside)) {
		c.at[c.distinguish(inside[class])] = len(c.places)
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

// distinguish is the same for addresses in the same place. Blocks of single addresses tell none
// apart.
func (c *conjunction) distinguish(inside map[string]bool) string {
	keys := make([]string, 0, len(inside))
	for key := range inside {
		if c.divides[key] {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

// place finds the one with these blocks.
func (c *conjunction) place(inside map[string]bool) int {
	at, known := c.at[c.distinguish(inside)]
	if !known {
		return -1
	}
	return at
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

// dividePorts cuts the ports of each protocol where a rule begins or ends.
func (c *conjunction) dividePorts() {
	cuts := map[uint8]map[int]bool{}
	for _, protocol := range withPorts {
		cuts[protocol] = map[int]bool{0: true}
	}
	c.all(func(o *condition) {
		for _, s := range o.ports {
			for protocol, at := range cuts {
				if s.protocol == AnyProtocol || s.protocol == protocol {
					at[int(s.from)], at[int(s.to)+1] = true, true
				}
			}
		}
	})
	c.ports = []portAtom{{}}
	for _, protocol := range withPorts {
		delete(cuts[protocol], maxPort+1)
		from := slices.Sorted(maps.Keys(cuts[protocol]))
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

// contentOf is what a conjunction says of each peer.
func (r *run) contentOf(d Direction, c *conjunction) content {
	outside, alike := c.outside()
	values := r.nobody(d)
	values[AnyPeer] = c.values(outside, precedencePolicy)
	if slices.ContainsFunc(outside, func(d decided) bool { return d.verdict == Allow }) {
		values[Withheld] = []portValue{{portPrefix{}, Value{Deny, precedenceAddresses, 0}}}
	}
	for class, inside := range r.named(c, alike) {
		// Addresses that only blocks of single ones, and others' blocks, tell apart are in one
		// place.
		if at := c.place(inside); at >= 0 && !slices.Equal(c.base[at], outside) {
			values[class] = c.values(c.base[at], precedenceAddresses)
		}
	}
	same := map[*decided][]portValue{} // peers of one kind have one slice
	for _, p := range c.peers {
		if same[&p.ports[0]] == nil {
			same[&p.ports[0]] = c.values(p.ports, precedenceIdentity)
		}
		values[p.number] = same[&p.ports[0]]
	}
	for _, a := range c.addresses {
		for _, class := range r.blocks.of(a.at) {
			values[class] = c.values(a.ports, precedenceAddress)
		}
	}
	return values
}

// outside are the verdicts for addresses that no range of the set is about, and whether they are
// the same in both families. Where there are no such addresses, all is denied.
func (c *conjunction) outside() (row []decided, alike bool) {
	var rows [][]decided
	for _, f := range families {
		if at := c.place(map[string]bool{f.key: true}); at >= 0 {
			rows = append(rows, c.base[at])
		}
	}
	if len(rows) == 0 {
		return make([]decided, len(c.ports)), false
	}
	return rows[0], len(rows) == len(families) && slices.Equal(rows[0], rows[1])
}

// ranges are a conjunction's blocks, without those of all addresses where the families are alike.
func (c *conjunction) ranges(alike bool) []*block {
	if !alike {
		return c.blocks
	}
	return slices.DeleteFunc(slices.Clone(c.blocks),
		func(b *block) bool { return b.key == families[0].key || b.key == families[1].key })
}

// classesIn are the classes that a conjunction's entries depend on, 0 after each block.
func (r *run) classesIn(c *conjunction, alike bool) (out []uint32) {
	for _, b := range c.ranges(alike) {
		out = append(append(out, r.blocks.of(b)...), 0)
	}
	return out
}

// named are, for the classes in a conjunction's own ranges, the blocks that these are in. Where the
// families are not alike, each of their classes is one.
func (r *run) named(c *conjunction, alike bool) map[uint32]map[string]bool {
	if r.family == nil {
		r.family = map[uint32]string{}
		for _, f := range families {
			for _, class := range r.blocks.of(f) {
				r.family[class] = f.key
			}
		}
	}
	out := map[uint32]map[string]bool{}
	for _, b := range c.ranges(alike) {
		for _, class := range r.blocks.of(b) {
			if out[class] == nil {
				out[class] = map[string]bool{r.family[class]: true}
			}
			out[class][b.key] = true
		}
	}
	return out
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
	return &block{prefixes: prefixes, key: strings.Join(texts, "+"), common: true}
}
