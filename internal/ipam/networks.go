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

// Of is a network's allocator, made if there is none; 0 is the cluster's. It is no longer the
// network's after a Release that leaves it without addresses in use.
func (n *Networks) Of(network uint32) *Allocator {
	if n.of[network] == nil {
		n.of[network], _ = New(n.ranges, n.reserved) // they have been taken once
	}
	return n.of[network]
}

// Owner returns who has an address of a network.
func (n *Networks) Owner(network uint32, addr netip.Addr) (string, bool) {
	a := n.of[network]
	if a == nil {
		return "", false
	}
	return a.Owner(addr)
}

// Release frees those of the addresses that owner has. A network that then has none in use is
// forgotten, with its cursors: nobody is left in it who could remember an address.
func (n *Networks) Release(network uint32, owner string, addrs ...netip.Addr) {
	a := n.of[network]
	if a == nil {
		return
	}
	for _, addr := range addrs {
		a.Release(owner, addr)
	}
	if network != 0 && a.inUse(IPv4)+a.inUse(IPv6) == 0 {
		delete(n.of, network)
	}
}

// Cursors are the last addresses that Next gave in a network, invalid if none.
type Cursors struct {
	IPv4 netip.Addr `json:"ipv4,omitzero"`
	IPv6 netip.Addr `json:"ipv6,omitzero"`
}

// Cursors are those of all networks in which Next has given an address.
func (n *Networks) Cursors() map[uint32]Cursors {
	out := map[uint32]Cursors{}
	for network, a := range n.of {
		if c := (Cursors{a.Cursor(IPv4), a.Cursor(IPv6)}); c != (Cursors{}) {
			out[network] = c
		}
	}
	return out
}

// SetCursors makes the networks go on where they were; those without addresses in use begin anew.
func (n *Networks) SetCursors(cursors map[uint32]Cursors) {
	for network, c := range cursors {
		if a := n.of[network]; a != nil {
			a.SetCursor(c.IPv4)
			a.SetCursor(c.IPv6)
		}
	}
}
