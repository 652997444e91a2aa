// Package policymap writes what network policies mean to the datapath: sets of entries, which an
// endpoint refers to by number, and what the programs know of the addresses that are not this
// node's endpoints: their identities and classes.
package policymap

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/datapath/bpf"
)

// Direction is the endpoint's part in the conversations that an entry is about.
type Direction uint8

// The directions: of what the endpoint begins, of what others begin towards it.
const (
	Egress  Direction = bpf.DirEgress
	Ingress Direction = bpf.DirIngress
)

// MaxIdentity is the highest number of an identity. Classes of addresses are above it.
const MaxIdentity = 1<<22 - 1

// Anybody as a peer stands for whoever there is, and Unauthenticated for whoever nothing but an
// address tells: neither is an endpoint here, nor has a node sealed what it sends as somebody's.
const (
	Anybody         = 0
	Unauthenticated = MaxIdentity + 1
)

// ErrFull says that the map of entries, identities or classes has no room.
var ErrFull = errors.New("no room in the map")

// Entry is one line of a policy set. Of the entries about one peer the most specific in protocol
// and port counts; of the up to four that are about a packet (its peer's identity, its address's
// class, anybody, and whoever is not authenticated) the one with the highest precedence, and of
// equal ones the one that denies.
type Entry struct {
	Direction Direction
	// Peer is an identity, a class (above Unauthenticated), Anybody or Unauthenticated.
	Peer uint32
	// Protocol is the number of IP's, 0: any, and then there is no port.
	Protocol uint8
	// Port is the responder's, of which the first PortBits (0 to 16) count.
	Port     uint16
	PortBits uint8
	Allow    bool
	// Precedence: the higher wins.
	Precedence uint32
	// Rule is what explains the entry; 0: nothing. It is told with what it refuses.
	Rule uint32
}

// check refuses what no packet could meet, or more packets than it says.
func (e Entry) check() error {
	switch {
	case e.Direction > Ingress:
		return fmt.Errorf("direction %d: want %d or %d", e.Direction, Egress, Ingress)
	case e.PortBits > 16:
		return fmt.Errorf("%d bits of a port: want at most 16", e.PortBits)
	case e.Protocol == 0 && e.PortBits != 0:
		return errors.New("a port without a protocol")
	case e.Port&^(0xffff<<(16-e.PortBits)) != 0:
		return fmt.Errorf("port %d has bits behind the first %d", e.Port, e.PortBits)
	}
	return nil
}

// keyBits are those of a key that holds a protocol and a port.
const (
	peerBits     = 32 + 32 + 8
	protocolBits = 8
)

func (e Entry) key(set uint32) bpf.PolicyKey {
	bits := uint32(peerBits)
	if e.Protocol != 0 {
		bits += protocolBits + uint32(e.PortBits)
	}
	return bpf.PolicyKey{
		Prefixlen: bits, Set: set, Peer: e.Peer, Direction: uint8(e.Direction),
		Protocol: e.Protocol, Port: bpf.Ntohs(e.Port),
	}
}

func (e Entry) value() bpf.PolicyEntry {
	v := bpf.PolicyEntry{Precedence: e.Precedence, Rule: e.Rule, Verdict: bpf.PolicyDeny}
	if e.Allow {
		v.Verdict = bpf.PolicyAllow
	}
	return v
}
