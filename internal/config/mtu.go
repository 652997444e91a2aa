package config

import (
	"fmt"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/inet"
)

// OuterIPv6 says whether any peer is reached by IPv6 outside: per peer it is IPv4 if
// both ends have an IPv4 address. Without peers it is IPv4 if this node has it.
func OuterIPv6(own []netip.Addr, peers [][]netip.Addr) bool {
	if !slices.ContainsFunc(own, netip.Addr.Is4) {
		return true
	}
	hasIPv6 := slices.ContainsFunc(own, netip.Addr.Is6)
	for _, peer := range peers {
		if hasIPv6 && len(peer) > 0 && !slices.ContainsFunc(peer, netip.Addr.Is4) {
			return true
		}
	}
	return false
}

// PodMTU is the pods' MTU on uplinks whose smallest MTU is uplink: the configured one,
// else the largest that fits. outerIPv6 is as OuterIPv6 says, for the worst peer.
func (c *Config) PodMTU(uplink int, outerIPv6 bool) (int, error) {
	fits := uplink
	if c.Encryption.On() {
		fits = inet.SealedMTU(uplink, outerIPv6)
	}
	switch {
	case c.MTU == 0 && fits < minIPv4MTU:
		return 0, fmt.Errorf("mtu: the uplinks' MTU %d leaves pods %d, which is too little: give the uplinks a larger one", uplink, fits)
	case c.MTU == 0:
		return fits, nil
	case c.Encryption.On() && c.MTU > fits:
		return 0, fmt.Errorf("mtu: is %d: sealed, it does not fit into the uplinks' MTU %d: write at most %d, or 0 for the largest that fits", c.MTU, uplink, fits)
	}
	return c.MTU, nil
}

// minIPv4MTU is what every IPv4 host must be able to take.
const minIPv4MTU = 576
