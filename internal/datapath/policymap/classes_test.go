package policymap

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestClassSteps: while classes change, every address has the class of before or that of after.
func TestClassSteps(t *testing.T) {
	const space = 5 // bits of an address that differ
	class := func(m map[bpf.RouteKey]uint32, a byte) uint32 {
		for bits := 32; bits >= 32-space; bits-- {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, a}), bits)
			if c, there := m[bpf.RouteKeyOf(p)]; there {
				return c
			}
		}
		return 0
	}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		draw := func() map[bpf.RouteKey]uint32 {
			m := map[bpf.RouteKey]uint32{}
			for range r.IntN(12) {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(1 << space))}),
					32-r.IntN(space+1))
				m[bpf.RouteKeyOf(p)] = uint32(r.IntN(4))
			}
			return m
		}
		before, after := draw(), draw()
		now := maps.Clone(before)
		for i, s := range steps(before, after) {
			if s.gone {
				delete(now, s.key)
			} else {
				now[s.key] = s.class
			}
			for a := range byte(1 << space) {
				if c := class(now, a); c != class(before, a) && c != class(after, a) {
					t.Fatalf("seed %d, step %d: address %d has class %d, before %d, after %d", seed, i,
						a, c, class(before, a), class(after, a))
				}
			}
		}
		if !maps.Equal(now, after) {
			t.Fatalf("seed %d: %v, want %v", seed, now, after)
		}
	}
}

// TestClassesAreRead: what one run has entered the next can ask for, and changes to it alone.
func TestClassesAreRead(t *testing.T) {
	table := open(t)
	want := map[netip.Prefix]uint32{
		netip.MustParsePrefix("192.0.2.0/24"):  MaxIdentity + 2,
		netip.MustParsePrefix("192.0.2.16/28"): MaxIdentity + 2, // the same as around it
		netip.MustParsePrefix("::/0"):          MaxIdentity + 3,
	}
	if _, err := table.SetClasses(want); err != nil {
		t.Fatal(err)
	}
	if got, err := table.Classes(); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, want %v; %v", got, want, err)
	}
}
