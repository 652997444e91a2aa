package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// randomAddr is one of few, so that many are in the ranges: of IPv4, of IPv6, or IPv4 as IPv6 has
// it.
func randomAddr(random *rand.Rand) netip.Addr {
	low := [4]byte{10, byte(random.IntN(3)), byte(random.Uint32()), byte(random.Uint32())}
	switch random.IntN(8) {
	case 0:
		return netip.AddrFrom16(netip.AddrFrom4(low).As16())
	case 1, 2, 3:
		address := [16]byte{0: 0xfd, 15: low[3]}
		address[random.IntN(15)+1] = low[2]
		return netip.AddrFrom16(address)
	}
	return netip.AddrFrom4(low)
}

// TestContainsAddr: an address is in one of the ranges exactly if one of them says so.
func TestContainsAddr(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		var list []netip.Prefix
		for range random.IntN(60) {
			a := randomAddr(random)
			list = append(list, netip.PrefixFrom(a, random.IntN(a.BitLen()/2)+a.BitLen()/2+1))
		}
		switch round % 10 {
		case 0:
			list = append(list, netip.Prefix{}, netip.PrefixFrom(randomAddr(random), 200))
		case 1:
			list = append(list, netip.MustParsePrefix("0.0.0.0/0"))
		case 2:
			list = append(list, netip.MustParsePrefix("::/0"))
		}
		given, outer := slices.Clone(list), outermost(list)
		if !slices.Equal(given, list) {
			t.Fatal("the list has changed")
		}
		addresses := []netip.Addr{{}, netip.MustParseAddr("fd00::1%eth0"),
			netip.IPv4Unspecified(), netip.IPv6Unspecified()}
		for range 100 {
			addresses = append(addresses, randomAddr(random))
		}
		for _, p := range list { // its ends, and what is beside these
			first := p.Masked().Addr()
			addresses = append(addresses, p.Addr(), first, first.Prev())
		}
		for _, a := range addresses {
			want := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
			if containsAddr(outer, a) != want {
				t.Fatalf("%v in %v: want %v", a, list, want)
			}
		}
		for i := 1; i < len(outer); i++ {
			if outer[i].Overlaps(outer[i-1]) {
				t.Fatalf("%v and %v overlap", outer[i-1], outer[i])
			}
		}
	}
}
