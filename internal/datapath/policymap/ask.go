package policymap

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
)

// Answer is what the maps say of a packet of an endpoint, as the programs would read them.
type Answer struct {
	// Set is the endpoint's in that direction, 0 for none, which allows all.
	Set uint32
	// Identity and Class are what is known of the peer's address.
	Identity, Class uint32
	// Authenticated says that more than its address tells who the peer is, of what it begins.
	Authenticated bool
	Allow         bool
	// Rule is that of the entry that decided, 0 where there was none.
	Rule uint32
}

// Question is about the first packet of a conversation of an endpoint, which has begun it (Egress)
// or not.
type Question struct {
	Slot      uint16
	Direction Direction
	// Network is the one that Peer is an address of.
	Network uint32
	Peer    netip.Addr
	// Own is the endpoint's address.
	Own      netip.Addr
	Protocol uint8
	// Port is the responder's, 0 for protocols that have none.
	Port uint16
}

// Ask reads the maps as policy_judge in bpf/lib/policy.h does, one after the other: while they are
// changed, the answer may be half of each version.
func (t *Table) Ask(q Question) (Answer, error) {
	var slot bpf.EpSlot
	var a Answer
	if err := t.maps.EpSlot.Lookup(uint32(q.Slot), &slot); err != nil {
		return a, fmt.Errorf("read slot %d: %w", q.Slot, err)
	}
	var err error
	if a.Identity, err = t.IdentityAt(q.Network, q.Peer); err != nil {
		return a, err
	}
	a.Set = slot.Sets[q.Direction]
	// This host always reaches its own endpoints.
	if a.Set == 0 || q.Direction == Ingress && a.Identity == bpf.IdentityHost {
		a.Allow = true
		return a, nil
	}
	var config bpf.Config
	if err := t.maps.Config.Lookup(uint32(0), &config); err != nil {
		return a, fmt.Errorf("read the configuration: %w", err)
	}
	if config.Flags&bpf.ConfigNoClasses == 0 {
		key := bpf.RouteKeyOf(netip.PrefixFrom(q.Peer, q.Peer.BitLen()))
		if _, err := lookup(t.maps.Classes, &key, &a.Class); err != nil {
			return a, fmt.Errorf("read the class of %s: %w", q.Peer, err)
		}
	}
	if a.Authenticated, err = t.Authenticated(q.Network, q.Peer, q.Own); err != nil {
		return a, err
	}
	best, found, err := t.best(a, q, config.Flags)
	a.Allow, a.Rule = found && best.Verdict == bpf.PolicyAllow, best.Rule
	return a, err
}

// best is the entry that decides.
func (t *Table) best(a Answer, q Question, flags uint32) (best bpf.PolicyEntry, found bool,
	err error) {
	var peers []uint32
	if a.Set&bpf.PolicySetNoAnybody == 0 || flags&bpf.ConfigMarkedSets == 0 {
		peers = append(peers, Anybody)
	}
	for _, known := range []uint32{a.Identity, a.Class} {
		if known != 0 {
			peers = append(peers, known)
		}
	}
	if q.Direction == Ingress && !a.Authenticated {
		peers = append(peers, Unauthenticated)
	}
	for _, peer := range peers {
		key := Entry{Direction: q.Direction, Peer: peer, Protocol: q.Protocol, Port: q.Port,
			PortBits: 16}.key(a.Set)
		key.Prefixlen = peerBits + protocolBits + 16
		var entry bpf.PolicyEntry
		there, err := lookup(t.maps.Policy, &key, &entry)
		if err != nil {
			return best, found, fmt.Errorf("read policy set %d: %w", a.Set, err)
		}
		if there && (!found || better(entry, best)) {
			best, found = entry, true
		}
	}
	return best, found, nil
}

// better says whether an entry goes before another: by precedence, then what denies, then the rule
// of the lower number.
func better(a, b bpf.PolicyEntry) bool {
	switch {
	case a.Precedence != b.Precedence:
		return a.Precedence > b.Precedence
	case a.Verdict != b.Verdict:
		return a.Verdict == bpf.PolicyDeny
	}
	return a.Rule < b.Rule
}

// IdentityAt is the identity of who has an address, as identity_at in bpf/lib/policy.h has it.
func (t *Table) IdentityAt(network uint32, addr netip.Addr) (uint32, error) {
	key := bpf.AddrKeyOf(network, addr)
	var ep bpf.Endpoint
	if there, err := lookup(t.maps.EpAddr, &key, &ep); there || err != nil {
		return ep.Identity, named("read the endpoint of an address", err)
	}
	var identity uint32
	if there, err := lookup(t.maps.AddrIDs, &key, &identity); there || err != nil {
		return identity, named("read the identity of an address", err)
	}
	at := bpf.RouteKeyIn(network, netip.PrefixFrom(addr, addr.BitLen()))
	var route bpf.Route
	there, err := lookup(t.maps.Routes, &at, &route)
	switch {
	case err != nil:
		return 0, named("read the route of an address", err)
	case !there:
		return bpf.IdentityWorld, nil
	case route.Flags&bpf.RouteHost == 0:
		return bpf.IdentityUnknown, nil
	case route.Node != 0 || route.Flags&bpf.RouteNoNode != 0:
		return bpf.IdentityRemoteHost, nil
	}
	return bpf.IdentityHost, nil
}

// Authenticated says whether more than a peer's address tells who it is: it is an endpoint here, or
// on another node, and what it sends to an own address comes sealed, or not at all.
func (t *Table) Authenticated(network uint32, peer, own netip.Addr) (bool, error) {
	key := bpf.AddrKeyOf(network, peer)
	var ep bpf.Endpoint
	if here, err := lookup(t.maps.EpAddr, &key, &ep); here || err != nil {
		return here, named("read the endpoint of an address", err)
	}
	at := bpf.RouteKeyIn(network, netip.PrefixFrom(peer, peer.BitLen()))
	var route bpf.Route
	if _, err := lookup(t.maps.Routes, &at, &route); err != nil || route.Node == 0 {
		return false, named("read the route of an address", err)
	}
	var config bpf.Config
	if err := t.maps.Config.Lookup(uint32(0), &config); err != nil {
		return false, fmt.Errorf("read the settings: %w", err)
	}
	if config.Flags&bpf.ConfigSeal == 0 {
		return false, nil
	}
	for _, end := range []netip.Addr{peer, own} {
		key := bpf.RouteKeyOf(netip.PrefixFrom(end, end.BitLen()))
		var plain uint8
		if exempt, err := lookup(t.maps.Plain, &key, &plain); exempt || err != nil {
			return false, named("read what may travel in cleartext", err)
		}
	}
	return true, nil
}

func lookup(m *ebpf.Map, key, value any) (bool, error) {
	err := m.Lookup(key, value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}
