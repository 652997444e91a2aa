package ipam

import "net/netip"

// Networks are allocators over the same ranges, one for each network: an address may be in use in
// several, by others each time.
type Networks struct {
	ranges   []netip.Prefix
	reserved []netip.Addr
	of       map[uint32]*Allocator
}

// NewNetworks returns the allocators of networks whose ranges New would take.
func NewNetworks(ranges []netip.Prefix, reserved []netip.Addr) (*Networks, error) {
	cluster, err := New(ranges, reserved)
	if err != nil {
		return nil, err
	}
	return &Networks{ranges: ranges, reserved: reserved, of: map[uint32]*Allocator{0: cluster}}, nil
}

// Of is a network's allocator; 0 is the cluster's.
func (n *Networks) Of(network uint32) *Allocator {
	if n.of[network] == nil {
		n.of[network], _ = New(n.ranges, n.reserved) // they have been taken once
	}
	return n.of[network]
}
