package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func mustNew(t *testing.T, ranges []netip.Prefix, reserved ...netip.Addr) *Allocator {
	t.Helper()
	a, err := New(ranges, reserved)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestNewRefusesBadRanges(t *testing.T) {
	for _, tc := range []struct{ name, want string }{
		{"10.0.0.1/24", "host bits set: write 10.0.0.0/24"},
		{"10.0.0.0/24 10.0.0.128/25", "overlaps"},
		{"224.0.0.0/24", "not unicast"},
		{"127.0.0.0/8", "not unicast"},
		{"fe80::/64", "not unicast"},
		{"::ffff:10.0.0.0/120", "IPv4 in IPv6"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := New(prefixes(strings.Fields(tc.name)...), nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
		})
	}
	if _, err := New([]netip.Prefix{{}}, nil); err == nil {
		t.Fatal("an invalid prefix was accepted")
	}
}

func TestNextGivesEveryUsableAddressOnce(t *testing.T) {
	for _, tc := range []struct {
		ranges   []netip.Prefix
		reserved []netip.Addr
		family   Family
		want     int
	}{
		{prefixes("10.0.0.0/29"), nil, IPv4, 6},
		{prefixes("10.0.0.0/29"), []netip.Addr{netip.MustParseAddr("10.0.0.1")}, IPv4, 5},
		{prefixes("10.0.0.0/31"), nil, IPv4, 2},
		{prefixes("10.0.0.7/32", "10.0.1.0/30"), nil, IPv4, 3},
		{prefixes("fd00::/126"), nil, IPv6, 3},
		{prefixes("fd00::/127", "10.0.0.0/24"), nil, IPv6, 2},
		{prefixes("255.255.255.252/30"), nil, IPv4, 2},
		{prefixes("10.0.0.0/24"), nil, IPv6, 0},
	} {
		t.Run(fmt.Sprint(tc.ranges, tc.family), func(t *testing.T) {
			a := mustNew(t, tc.ranges, tc.reserved...)
			seen := map[netip.Addr]bool{}
			for {
				addr, err := a.Next("x", tc.family)
				var full *ExhaustedError
				if errors.As(err, &full) {
					break
				} else if err != nil || seen[addr] {
					t.Fatalf("address %s given twice (err %v)", addr, err)
				}
				seen[addr] = true
			}
			if len(seen) != tc.want {
				t.Fatalf("gave %d addresses, want %d: %v", len(seen), tc.want, seen)
			}
		})
	}
}

func TestNextGoesOnAfterTheLast(t *testing.T) {
	a := mustNew(t, prefixes("10.0.0.0/29", "10.0.1.0/30"))
	var got []string
	for range 10 {
		addr, err := a.Next("x", IPv4)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, addr.String())
		a.Release("x", addr)
	}
	want := "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.6 10.0.1.1 10.0.1.2 10.0.0.1 10.0.0.2"
	if strings.Join(got, " ") != want {
		t.Fatalf("got %v, want %s", got, want)
	}
	b := mustNew(t, prefixes("10.0.0.0/29", "10.0.1.0/30"))
	b.SetCursor(a.Cursor(IPv4))
	if addr, _ := b.Next("x", IPv4); addr.String() != "10.0.0.3" {
		t.Fatalf("after SetCursor got %s, want 10.0.0.3", addr)
	}
	b.SetCursor(netip.MustParseAddr("192.0.2.1")) // a range that is no longer ours
	if addr, err := b.Next("x", IPv4); err != nil || addr.String() != "10.0.0.1" {
		t.Fatalf("after a foreign cursor got %s, %v", addr, err)
	}
}

// TestNetworks: each network has all addresses for itself, and goes on with its own.
func TestNetworks(t *testing.T) {
	n, err := NewNetworks(prefixes("10.0.0.0/29"), []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		network uint32
		want    string
	}{{0, "10.0.0.2"}, {7, "10.0.0.2"}, {0, "10.0.0.3"}, {7, "10.0.0.3"}, {9, "10.0.0.2"}} {
		if addr, err := n.Of(step.network).Next("x", IPv4); err != nil ||
			addr.String() != step.want {
			t.Errorf("network %d gives %s, %v; want %s", step.network, addr, err, step.want)
		}
	}
	n.Release(7, "x", netip.MustParseAddr("10.0.0.3"))
	if owner, _ := n.Owner(0, netip.MustParseAddr("10.0.0.3")); owner != "x" {
		t.Error("one network's release freed another's address")
	}
	if _, err := NewNetworks(prefixes("10.0.0.1/29"), nil); err == nil {
		t.Error("a bad range was taken")
	}
}

// TestNetworkForgotten: a network is there while an address of it is in use, and no question makes
// one.
func TestNetworkForgotten(t *testing.T) {
	first, second := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	n, err := NewNetworks(prefixes("10.0.0.0/29"), []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	for _, network := range []uint32{0, 7} {
		for _, want := range []netip.Addr{first, second} {
			if addr, err := n.Of(network).Next("x", IPv4); err != nil || addr != want {
				t.Fatal(addr, err)
			}
		}
	}
	for _, step := range []struct {
		name  string
		do    func()
		there []uint32 // networks
	}{
		{"as they are", func() {}, []uint32{0, 7}},
		{"asked for one that is not there", func() { n.Owner(9, first) }, []uint32{0, 7}},
		{"of somebody else", func() { n.Release(7, "y", first, second) }, []uint32{0, 7}},
		{"one of two released", func() { n.Release(7, "x", first) }, []uint32{0, 7}},
		{"both", func() { n.Release(7, "x", second) }, []uint32{0}},
		{"both of the cluster's", func() { n.Release(0, "x", first, second) }, []uint32{0}},
		{"of none", func() { n.Release(9, "x", first) }, []uint32{0}},
		{"made, and nothing taken", func() { n.Of(9); n.Release(9, "x") }, []uint32{0}},
	} {
		step.do()
		if got := slices.Sorted(maps.Keys(n.of)); !slices.Equal(got, step.there) {
			t.Errorf("%s: networks %v, want %v", step.name, got, step.there)
		}
	}
}

// TestCursorsOfNetworks: a network goes on where it was, if there is anybody in it.
func TestCursorsOfNetworks(t *testing.T) {
	ranges := prefixes("10.0.0.0/29", "fd00::/120")
	before, err := NewNetworks(ranges, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		network uint32
		family  Family
	}{{0, IPv4}, {7, IPv4}, {7, IPv4}, {7, IPv6}, {9, IPv4}} {
		if _, err := before.Of(step.network).Next("x", step.family); err != nil {
			t.Fatal(err)
		}
	}
	cursors := before.Cursors()
	after, err := NewNetworks(ranges, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := after.Of(7).Adopt("x", netip.MustParseAddr("10.0.0.5")); err != nil {
		t.Fatal(err)
	}
	after.SetCursors(cursors)
	for _, step := range []struct {
		network uint32
		family  Family
		want    string
	}{{0, IPv4, "10.0.0.2"}, {7, IPv4, "10.0.0.3"}, {7, IPv6, "fd00::2"}, {9, IPv4, "10.0.0.1"}} {
		if addr, err := after.Of(step.network).Next("y", step.family); err != nil ||
			addr.String() != step.want {
			t.Errorf("network %d goes on with %s, %v; want %s", step.network, addr, err, step.want)
		}
	}
}

func TestClaim(t *testing.T) {
	a := mustNew(t, prefixes("10.0.0.0/24"))
	addr := netip.MustParseAddr("10.0.0.9")
	if err := errors.Join(a.Claim("a", addr), a.Claim("a", addr)); err != nil {
		t.Fatal(err)
	}
	var taken *TakenError
	if err := a.Claim("b", addr); !errors.As(err, &taken) || taken.Owner != "a" {
		t.Fatalf("want TakenError by a, got %v", err)
	}
	for _, s := range []string{"10.0.1.9", "10.0.0.0", "10.0.0.255", "fd00::1"} {
		var outside *OutsideError
		if err := a.Claim("b", netip.MustParseAddr(s)); !errors.As(err, &outside) {
			t.Errorf("claim %s: want OutsideError, got %v", s, err)
		}
	}
	a.Release("b", addr)
	if owner, _ := a.Owner(addr); owner != "a" {
		t.Fatal("somebody else released the address")
	}
	a.Release("a", addr)
	if err := a.Claim("b", addr); err != nil {
		t.Fatal(err)
	}
	if err := a.Adopt("c", netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Fatalf("adopt outside the ranges: %v", err)
	}
}

func TestSlots(t *testing.T) {
	s := NewSlots(3)
	if err := s.Adopt("old", 2); err != nil {
		t.Fatal(err)
	}
	one, _ := s.Next("a")
	three, _ := s.Next("b")
	if one != 1 || three != 3 {
		t.Fatalf("got %d and %d, want 1 and 3", one, three)
	}
	var full *SlotsExhaustedError
	if _, err := s.Next("c"); !errors.As(err, &full) {
		t.Fatalf("want SlotsExhaustedError, got %v", err)
	}
	s.Release("somebody", 1)
	if err := s.Adopt("c", 1); err == nil {
		t.Fatal("a taken slot was adopted")
	}
	s.Release("a", 1)
	if got, err := s.Next("c"); err != nil || got != 1 {
		t.Fatalf("got %d, %v", got, err)
	}
	if s.Adopt("c", 0) == nil || s.Adopt("c", 4) == nil {
		t.Fatal("a slot outside the pool was adopted")
	}
}
