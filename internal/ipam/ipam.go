// Package ipam hands out addresses and slots of one node.
//
// It does no I/O and holds no lock: the caller serialises calls and remembers what it
// was given, so that the records of endpoints stay the only truth. Both pools go on
// after the last value given and reuse one only after a full round, because peers,
// neighbour tables and connections remember a freed address for a while.
package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Family is an IP version.
type Family int

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns "IPv4" or "IPv6".
func (f Family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

// FamilyOf returns the family of a valid address.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// ExhaustedError says that every address of a family is in use.
type ExhaustedError struct {
	Family Family
	Ranges []netip.Prefix
	InUse  int
}

// Error names the ranges and what to do.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("no free %s address in %s (%d in use): delete endpoints or add a range to ipam.ranges",
		e.Family, joinPrefixes(e.Ranges), e.InUse)
}

// TakenError says that an asked-for address belongs to somebody else.
type TakenError struct {
	Addr  netip.Addr
	Owner string
}

// Error names the owner.
func (e *TakenError) Error() string {
	return fmt.Sprintf("address %s is taken by %s: delete that or ask for another", e.Addr, e.Owner)
}

// OutsideError says that an asked-for address is not in the node's ranges.
type OutsideError struct {
	Addr   netip.Addr
	Ranges []netip.Prefix
}

// Error names the ranges.
func (e *OutsideError) Error() string {
	return fmt.Sprintf("address %s is not usable in this node's ranges %s: ask for one inside, or add its range to ipam.ranges",
		e.Addr, joinPrefixes(e.Ranges))
}

// Reserved owns the addresses that are never handed out.
const Reserved = "the node itself"

// Allocator hands out the addresses of a set of ranges.
type Allocator struct {
	ranges map[Family][]netip.Prefix
	owners map[netip.Addr]string
	cursor map[Family]netip.Addr
}

// New returns an allocator over ranges. reserved addresses are never handed out, nor are
// the network and broadcast addresses of an IPv4 range or the first of an IPv6 range.
func New(ranges []netip.Prefix, reserved []netip.Addr) (*Allocator, error) {
	a := &Allocator{
		ranges: map[Family][]netip.Prefix{},
		owners: map[netip.Addr]string{},
		cursor: map[Family]netip.Addr{},
	}
	for i, p := range ranges {
		if err := checkRange(p, ranges[:i]); err != nil {
			return nil, fmt.Errorf("range %d: %w", i+1, err)
		}
		f := FamilyOf(p.Addr())
		a.ranges[f] = append(a.ranges[f], p)
	}
	for _, addr := range reserved {
		a.owners[addr.Unmap()] = Reserved
	}
	return a, nil
}

func checkRange(p netip.Prefix, before []netip.Prefix) error {
	if !p.IsValid() {
		return errors.New("not a valid prefix: write it like 10.1.0.0/24")
	}
	if p.Addr().Is4In6() {
		return fmt.Errorf("%s is IPv4 in IPv6: write it as IPv4", p)
	}
	if p != p.Masked() {
		return fmt.Errorf("%s has host bits set: write %s", p, p.Masked())
	}
	if a := p.Addr(); a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() {
		return fmt.Errorf("%s is not unicast space that can be routed: choose another", p)
	}
	for _, other := range before {
		if p.Overlaps(other) {
			return fmt.Errorf("%s overlaps %s: make them disjoint", p, other)
		}
	}
	return nil
}

// Has tells whether there is a range of family f.
func (a *Allocator) Has(f Family) bool { return len(a.ranges[f]) > 0 }

// Next gives owner the next free address of family f after the last one given.
func (a *Allocator) Next(owner string, f Family) (netip.Addr, error) {
	ranges := a.ranges[f]
	if len(ranges) == 0 {
		return netip.Addr{}, &ExhaustedError{Family: f}
	}
	start := 0
	last := a.cursor[f]
	for i, p := range ranges {
		if last.IsValid() && p.Contains(last) {
			start = i
		}
	}
	// One more turn than there are ranges: the start range is seen from the cursor
	// to its end first, and from its beginning last.
	for turn := range len(ranges) + 1 {
		p := ranges[(start+turn)%len(ranges)]
		from := p.Addr()
		if turn == 0 && last.IsValid() && p.Contains(last) {
			from = last.Next()
		}
		if addr, ok := a.firstFree(p, from); ok {
			a.owners[addr] = owner
			a.cursor[f] = addr
			return addr, nil
		}
	}
	return netip.Addr{}, &ExhaustedError{Family: f, Ranges: ranges, InUse: a.inUse(f)}
}

// firstFree looks from an address to the end of its range. It ends after at most as many
// steps as addresses are in use, however large the range is.
func (a *Allocator) firstFree(p netip.Prefix, from netip.Addr) (netip.Addr, bool) {
	for addr := from; addr.IsValid() && p.Contains(addr); addr = addr.Next() {
		if _, used := a.owners[addr]; !used && usable(p, addr) {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// usable refuses the addresses that mean a whole subnet to a careful stack.
func usable(p netip.Prefix, addr netip.Addr) bool {
	if p.Bits() >= addr.BitLen()-1 {
		return true // RFC 3021 and RFC 6164: both addresses of a pair are hosts
	}
	if addr == p.Addr() {
		return false
	}
	return addr.Is6() || p.Contains(addr.Next())
}

// Claim gives owner a particular address of the ranges. Claiming one's own again is fine.
func (a *Allocator) Claim(owner string, addr netip.Addr) error {
	f := FamilyOf(addr)
	inside := slices.ContainsFunc(a.ranges[f], func(p netip.Prefix) bool {
		return p.Contains(addr) && usable(p, addr)
	})
	if !inside {
		return &OutsideError{Addr: addr, Ranges: a.ranges[f]}
	}
	return a.Adopt(owner, addr)
}

// Adopt is Claim for an address that was given out before, perhaps from other ranges.
func (a *Allocator) Adopt(owner string, addr netip.Addr) error {
	if other, taken := a.owners[addr]; taken && other != owner {
		return &TakenError{Addr: addr, Owner: other}
	}
	a.owners[addr] = owner
	return nil
}

// Owner returns who has addr.
func (a *Allocator) Owner(addr netip.Addr) (string, bool) {
	owner, ok := a.owners[addr]
	return owner, ok
}

// Release frees addr if owner has it; freeing somebody else's does nothing.
func (a *Allocator) Release(owner string, addr netip.Addr) {
	if a.owners[addr] == owner {
		delete(a.owners, addr)
	}
}

// Cursor returns the last address of family f that Next gave, invalid if none.
func (a *Allocator) Cursor(f Family) netip.Addr { return a.cursor[f] }

// SetCursor makes Next go on after addr.
func (a *Allocator) SetCursor(addr netip.Addr) {
	if addr.IsValid() {
		a.cursor[FamilyOf(addr)] = addr
	}
}

func (a *Allocator) inUse(f Family) int {
	n := 0
	for addr, owner := range a.owners {
		if FamilyOf(addr) == f && owner != Reserved {
			n++
		}
	}
	return n
}

func joinPrefixes(ranges []netip.Prefix) string {
	if len(ranges) == 0 {
		return "(none)"
	}
	out := make([]string, len(ranges))
	for i, p := range ranges {
		out[i] = p.String()
	}
	return strings.Join(out, ", ")
}
