package policy

import (
	"net/netip"
	"slices"
)

// Peer is what is at the other end of a packet.
type Peer struct {
	// Identity is its number, v1alpha1.IdentityWorld for who is outside the cluster.
	Identity uint32
	Address  netip.Addr
	// Authenticated says that more than the address tells who it is, see Unauthenticated.
	Authenticated bool
}

// Decision is what policy says of a packet.
type Decision struct {
	Verdict Verdict
	// Set is 0 where no policy is about the endpoint in that direction.
	Set uint32
	// Rule is the number of the rule that decided, 0 for none: no set, or nothing found in it.
	Rule uint32
}

// Table is a Result for look-ups: a model of what the datapath does with the same entries. It is
// safe for concurrent use.
type Table struct {
	result  *Result
	classes map[netip.Prefix]uint32
}

// NewTable indexes a result. What that costs does not depend on how many entries there are.
func NewTable(r *Result) *Table {
	t := &Table{result: r, classes: map[netip.Prefix]uint32{}}
	for _, c := range r.Classes {
		t.classes[c.Prefix] = c.Class
	}
	return t
}

// Class is that of an address, by the longest prefix that it is in.
func (t *Table) Class(a netip.Addr) uint32 {
	if !a.IsValid() {
		return 0
	}
	for bits := a.BitLen(); bits >= 0; bits-- {
		if p, err := a.Prefix(bits); err == nil {
			if class, ok := t.classes[p]; ok {
				return class
			}
		}
	}
	return 0
}

// Decide says what policy does with a packet of a local endpoint, by its key. The port is the
// destination's, 0 for protocols without.
func (t *Table) Decide(endpoint string, d Direction, who Peer, protocol uint8,
	port uint16) Decision {
	set := t.result.Endpoints[endpoint][d]
	if set == 0 {
		return Decision{Verdict: Allow}
	}
	out, best, found := Decision{Set: set}, Value{}, false
	peers := []uint32{AnyPeer}
	if who.Identity != AnyPeer {
		peers = append(peers, who.Identity)
	}
	if class := t.Class(who.Address); class != 0 {
		peers = append(peers, class)
	}
	if d == Ingress && !who.Authenticated {
		peers = append(peers, Unauthenticated)
	}
	for _, p := range peers {
		if v, ok := t.lookup(set, d, p, portPrefix{protocol, port, 16}); ok &&
			(!found || v.better(best)) {
			best, found = v, true
		}
	}
	if found {
		out.Verdict, out.Rule = best.Verdict, best.Rule
	}
	return out
}

// lookup finds the longest prefix. A set's entries are in the order of their keys.
func (t *Table) lookup(number uint32, d Direction, who uint32, at portPrefix) (Value, bool) {
	set := t.result.Sets[number]
	if set == nil {
		return Value{}, false
	}
	for ok := true; ok; at, ok = at.parent() {
		key := Key{Set: number, Direction: d, Peer: who, Protocol: at.protocol, Port: at.port,
			PortBits: at.bits}
		i, there := slices.BinarySearchFunc(set.Entries, key,
			func(e Entry, k Key) int { return compareKeys(e.Key, k) })
		if there {
			return set.Entries[i].Value, true
		}
	}
	return Value{}, false
}
