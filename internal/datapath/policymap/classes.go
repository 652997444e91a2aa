package policymap

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/datapath/bpf"
)

// SetClasses makes these, and no others, the classes of addresses: the longest range that an
// address is in says its class, 0 that it has none although a range around it has. A set in force
// must know a class before an address has it, and until none has it any more. No address has
// another class than before or after meanwhile. It writes what differs from what it wrote before.
func (t *Table) SetClasses(want map[netip.Prefix]uint32) (changed bool, err error) {
	values := map[bpf.RouteKey]uint32{}
	for prefix, class := range want {
		if class != 0 && class <= MaxIdentity {
			return false, fmt.Errorf("class %d of %s: want more than %d", class, prefix,
				MaxIdentity)
		}
		values[bpf.RouteKeyOf(prefix)] = class
	}
	// The map has IPv4 below ::ffff:0:0/96, and a range of IPv6 around that is not about it.
	if _, there := values[allIPv4]; !there && coversIPv4(want) {
		values[allIPv4] = 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.entered
	if now == nil {
		if now, err = t.classes(); err != nil {
			return false, err
		}
	}
	t.entered = nil
	for _, s := range steps(now, values) {
		if s.gone {
			err = bpf.DeleteKey(t.maps.Classes, &s.key)
		} else {
			err = put(t.maps.Classes, &s.key, &s.class)
		}
		if err != nil {
			return changed, named("classes of addresses", err)
		}
		changed = true
	}
	t.entered = values
	return changed, nil
}

var allIPv4 = bpf.RouteKeyOf(netip.MustParsePrefix("0.0.0.0/0"))

// step is one change of the map of classes.
type step struct {
	key   bpf.RouteKey
	class uint32
	gone  bool
}

// steps are what makes some classes others, in an order in which no address ever has the class of a
// range that is around its own, before or after: narrow ranges come before those around them, and
// then wide ones go before those in them.
func steps(now, want map[bpf.RouteKey]uint32) (out []step) {
	for key, class := range want {
		if had, there := now[key]; !there || had != class {
			out = append(out, step{key: key, class: class})
		}
	}
	entered := len(out)
	for key := range now {
		if _, wanted := want[key]; !wanted {
			out = append(out, step{key: key, gone: true})
		}
	}
	byLength := func(a, b step) int { return cmp.Compare(a.key.Prefixlen, b.key.Prefixlen) }
	slices.SortFunc(out[:entered], func(a, b step) int { return byLength(b, a) })
	slices.SortFunc(out[entered:], byLength)
	return out
}

func (t *Table) classes() (map[bpf.RouteKey]uint32, error) {
	out := map[bpf.RouteKey]uint32{}
	var key bpf.RouteKey
	var class uint32
	entries := t.maps.Classes.Iterate()
	for entries.Next(&key, &class) {
		out[key] = class
	}
	return out, named("classes of addresses", entries.Err())
}

// Classes are those that addresses have, since a previous run too.
func (t *Table) Classes() (map[netip.Prefix]uint32, error) {
	now, err := t.classes()
	out := make(map[netip.Prefix]uint32, len(now))
	for key, class := range now {
		if key != allIPv4 || class != 0 { // that one only says that IPv6's are not meant
			out[bpf.PrefixOf(key)] = class
		}
	}
	return out, err
}

// Withheld is a class that every set denies: addresses have it while their own changes.
const Withheld = 1<<32 - 1

// coversIPv4 says whether a range of IPv6 has IPv4's mapped addresses in it.
func coversIPv4(ranges map[netip.Prefix]uint32) bool {
	mapped := netip.AddrFrom16(netip.MustParseAddr("0.0.0.0").As16())
	for p := range ranges {
		if p.Addr().Is6() && p.Bits() <= 96 &&
			p.Masked().Addr() == netip.PrefixFrom(mapped, p.Bits()).Masked().Addr() {
			return true
		}
	}
	return false
}

// HighestClass is the highest number of a class that addresses have, or that a set is about; 0 for
// none.
func (t *Table) HighestClass() (uint32, error) {
	var highest uint32
	classes, err := t.classes()
	for class := range maps.Values(classes) {
		if class != Withheld {
			highest = max(highest, class)
		}
	}
	var key bpf.PolicyKey
	var value bpf.PolicyEntry
	entries := t.maps.Policy.Iterate()
	for entries.Next(&key, &value) {
		if key.Peer > MaxIdentity && key.Peer != Withheld {
			highest = max(highest, key.Peer)
		}
	}
	return highest, named("highest class", errors.Join(err, entries.Err()))
}
