package policymap

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
)

// open makes the maps that the table keeps, with room for few.
func open(t *testing.T) *Table {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes BPF maps")
	}
	specs, err := bpf.SharedMaps(0, true)
	if err != nil {
		t.Fatal(err)
	}
	m := &bpf.Maps{}
	for name, to := range map[string]**ebpf.Map{
		"weft_policy": &m.Policy, "weft_addr_ids": &m.AddrIDs, "weft_classes": &m.Classes,
		"weft_ep_slot": &m.EpSlot,
		"weft_ep_addr": &m.EpAddr, "weft_routes": &m.Routes, "weft_config": &m.Config,
		"weft_plain": &m.Plain,
	} {
		specs[name].MaxEntries = 8
		if *to, err = ebpf.NewMap(specs[name]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*to).Close() })
	}
	table, err := Open(m)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func entries(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	all := m.Iterate()
	for all.Next(&key, &value) {
		n++
	}
	if err := all.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

func ports(n int) []Entry {
	var list []Entry
	for i := range n {
		list = append(list,
			Entry{Peer: 1000, Protocol: 6, Port: uint16(i), PortBits: 16, Allow: true})
	}
	return list
}

func TestEntriesAreChecked(t *testing.T) {
	table := open(t)
	for name, list := range map[string][]Entry{
		"direction":                  {{Direction: 2}},
		"port without a protocol":    {{PortBits: 16, Port: 80}},
		"too many bits of a port":    {{Protocol: 6, PortBits: 17}},
		"bits behind the prefix":     {{Protocol: 6, PortBits: 8, Port: 80}},
		"a port that does not count": {{Protocol: 6, Port: 80}},
		"the same twice":             {{Peer: 7, Allow: true}, {Peer: 7}},
	} {
		if set, err := table.Add(list); err == nil {
			t.Errorf("%s: set %d, want an error", name, set)
		}
	}
	if n := entries(t, table.maps.Policy); n != 0 || table.Sets() != 0 {
		t.Errorf("%d entries, %d sets are left", n, table.Sets())
	}
}

// TestFull: a set that does not fit leaves nothing, and the others as they were.
func TestFull(t *testing.T) {
	table := open(t)
	first, err := table.Add(ports(5))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Add(ports(4)); !errors.Is(err, ErrFull) {
		t.Fatalf("%v, want ErrFull", err)
	}
	if n := entries(t, table.maps.Policy); n != 5 {
		t.Errorf("%d entries, want the first set's 5", n)
	}
	if left, err := table.Remove(first); err != nil || len(left) > 0 {
		t.Fatalf("left are %v, %v", left, err)
	}
	second, err := table.Add(ports(8))
	if err != nil || second == first {
		t.Errorf("set %d, %v; want another than %d", second, err, first)
	}
}

// TestSetsOfBefore: numbers of a previous run are not given out again while its entries, or an
// endpoint, have them.
func TestSetsOfBefore(t *testing.T) {
	table := open(t)
	first, err := table.Add(ports(2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Add(ports(2)); err != nil {
		t.Fatal(err)
	}
	empty := uint32(9 | bpf.PolicySetNoAnybody) // without entries all is denied
	slot := bpf.EpSlot{Sets: [2]uint32{first, empty}}
	if err := table.maps.EpSlot.Put(uint32(3), &slot); err != nil {
		t.Fatal(err)
	}
	next, err := Open(table.maps)
	if err != nil {
		t.Fatal(err)
	}
	if set, err := next.Add(nil); err != nil || set&^bpf.PolicySetNoAnybody != 10 {
		t.Errorf("set %d, %v; want the tenth", set, err)
	}
	left, err := next.Remove(first, empty)
	if err != nil || !slices.Equal(left, []uint32{first, empty}) {
		t.Errorf("left are %v, %v; an endpoint has %d and %d", left, err, first, empty)
	}
	if n := entries(t, next.maps.Policy); n != 2 || next.Sets() != 3 {
		t.Errorf("%d entries, %d sets; want the first's, the ninth's and the tenth's", n, next.Sets())
	}
	if used, err := next.InUse(); err != nil || !used {
		t.Errorf("in use: %v, %v", used, err)
	}
}

func TestAddresses(t *testing.T) {
	table := open(t)
	a, b, c := netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("fd00::3")
	identity := func(addr netip.Addr) (id uint32) {
		key := bpf.AddrKeyOf(0, addr)
		_ = table.maps.AddrIDs.Lookup(&key, &id)
		return id
	}
	if _, err := table.SetIdentities(map[netip.Addr]uint32{a: 1000, b: 1001}); err != nil {
		t.Fatal(err)
	}
	if changed, err := table.SetIdentities(map[netip.Addr]uint32{b: 1002, c: 1003}); err != nil ||
		!changed {
		t.Fatal(changed, err)
	}
	if identity(a) != 0 || identity(b) != 1002 || identity(c) != 1003 {
		t.Errorf("identities %d, %d, %d", identity(a), identity(b), identity(c))
	}
	if changed, err := table.SetIdentities(map[netip.Addr]uint32{b: 1002, c: 1003}); err != nil ||
		changed {
		t.Errorf("the same again: changed %v, %v", changed, err)
	}
	if changed, err := table.SetIdentities(map[netip.Addr]uint32{c: 1003}); err != nil ||
		!changed || identity(b) != 0 || identity(c) != 1003 {
		t.Errorf("identities %d, %d; changed %v, %v", identity(b), identity(c), changed, err)
	}
	if _, err := table.SetIdentities(map[netip.Addr]uint32{a: MaxIdentity + 1}); err == nil ||
		identity(c) != 1003 {
		t.Error("a class as an identity: want an error, and nothing changed")
	}
	many := map[netip.Addr]uint32{}
	for i, addr := 0, a; i < 9; i, addr = i+1, addr.Next() {
		many[addr] = 1000
	}
	if _, err := table.SetIdentities(many); !errors.Is(err, ErrFull) {
		t.Errorf("%v, want ErrFull", err)
	}
	// What is there is not known then: it is looked at.
	if changed, err := table.SetIdentities(map[netip.Addr]uint32{b: 1004}); err != nil ||
		!changed || identity(b) != 1004 || identity(c) != 0 {
		t.Errorf("after that: identities %d, %d; changed %v, %v", identity(b), identity(c),
			changed, err)
	}
	if n := entries(t, table.maps.AddrIDs); n != 1 {
		t.Errorf("%d entries are left", n)
	}
}

func TestClasses(t *testing.T) {
	table := open(t)
	wide, narrow := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")
	class := func(addr string) (class uint32) {
		key := bpf.RouteKeyOf(netip.PrefixFrom(netip.MustParseAddr(addr), 32))
		_ = table.maps.Classes.Lookup(&key, &class)
		return class
	}
	const first = MaxIdentity + 2
	if _, err := table.SetClasses(map[netip.Prefix]uint32{wide: first,
		narrow: first + 1}); err != nil {
		t.Fatal(err)
	}
	if class("10.2.0.1") != first || class("10.1.0.1") != first+1 || class("11.0.0.1") != 0 {
		t.Errorf("classes %d, %d, %d", class("10.2.0.1"), class("10.1.0.1"), class("11.0.0.1"))
	}
	if changed, err := table.SetClasses(map[netip.Prefix]uint32{wide: first + 2}); err != nil ||
		!changed || class("10.1.0.1") != first+2 {
		t.Errorf("class %d; changed %v, %v", class("10.1.0.1"), changed, err)
	}
	if changed, err := table.SetClasses(map[netip.Prefix]uint32{wide: first + 2}); err != nil ||
		changed {
		t.Errorf("the same again: changed %v, %v", changed, err)
	}
	for _, around := range []string{"::/0", "::/80", "::fffe:0:0/95"} {
		if _, err := table.SetClasses(map[netip.Prefix]uint32{netip.MustParsePrefix(around): first,
			wide: first + 1}); err != nil ||
			class("192.0.2.1") != 0 || class("10.0.0.1") != first+1 {
			t.Errorf("IPv4 beside %s: class %d, and %d of its own, %v", around, class("192.0.2.1"),
				class("10.0.0.1"), err)
		}
	}
	if _, err := table.SetClasses(map[netip.Prefix]uint32{wide: MaxIdentity}); err == nil {
		t.Error("an identity as a class: want an error")
	}
	if _, err := table.SetClasses(map[netip.Prefix]uint32{wide: first, narrow: 0}); err != nil ||
		class("10.1.0.1") != 0 || class("10.2.0.1") != first {
		t.Errorf("a range without a class in one that has one: %d in %d, %v", class("10.1.0.1"),
			class("10.2.0.1"), err)
	}
}
