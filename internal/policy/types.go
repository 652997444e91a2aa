// Package policy turns network policies into the entries of the datapath's policy maps, and
// evaluates those entries as the datapath does. It does no I/O: what is compiled from the same
// objects is the same on every node.
//
// Kubernetes' NetworkPolicy v1 (networkpolicy.go) becomes rules that say who, which ports, verdict
// and precedence, and these become entries one by one. Where Istio's AuthorizationPolicy
// (authorization.go) or Kubernetes' ClusterNetworkPolicy (clusterpolicy.go, and adminpolicy.go of
// before) has a say besides, the verdicts are found first, and entries made of those
// (conjunction.go). To either Istio's PeerAuthentication (peerauthentication.go) adds entries about
// who is not authenticated (authentication.go).
package policy

import (
	"cmp"
	"fmt"
	"net/netip"
)

// Kinds are the kinds of policies that are read.
func Kinds() []string {
	return []string{KindNetworkPolicy, KindClusterNetworkPolicy, KindAdminNetworkPolicy,
		KindBaselineAdminNetworkPolicy, KindAuthorizationPolicy, KindPeerAuthentication}
}

// Direction is that of a packet, seen from the endpoint whose policy it is.
type Direction uint8

// The directions, as the maps' keys have them.
const (
	Egress  Direction = 0
	Ingress Direction = 1
)

// directions are both.
var directions = [2]Direction{Egress, Ingress}

func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

// Verdict is what becomes of a packet.
type Verdict uint8

// The verdicts. The zero value denies.
const (
	Deny  Verdict = 0
	Allow Verdict = 1
)

func (v Verdict) String() string {
	if v == Allow {
		return "allow"
	}
	return "deny"
}

// MarshalText implements encoding.TextMarshaler.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *Verdict) UnmarshalText(text []byte) error {
	switch string(text) {
	case Allow.String():
		*v = Allow
	case Deny.String():
		*v = Deny
	default:
		return fmt.Errorf("verdict %q: want %s or %s", text, Allow, Deny)
	}
	return nil
}

// IANA's numbers of the protocols that have ports. AnyProtocol is every one, and ICMP too.
const (
	AnyProtocol = 0
	TCP         = 6
	UDP         = 17
	SCTP        = 132
)

const (
	// AnyPeer is the peer of entries for whoever is at the other end.
	AnyPeer = 0
	// ClassBase is below every number of a class of addresses, and above every identity's.
	ClassBase = 1 << 22
	// Withheld is the class that an address has while its own is about to change. Every set denies
	// it.
	Withheld = 1<<32 - 1
)

// Precedences. Of several entries that match, the highest wins. What is between is for kinds with
// priorities of their own.
const (
	precedencePolicy = 1 << 24
	// precedenceNode is that of a pod's own node, which no policy can keep out.
	precedenceNode = 1<<32 - 1
)

// Key is what an entry is found by: a longest prefix match over its fields in this order.
type Key struct {
	Set       uint32
	Direction Direction
	// Peer is an identity's number, a class of addresses, Unauthenticated, or AnyPeer.
	Peer uint32
	// Protocol is IANA's number. AnyProtocol ends the prefix: such a key has no port.
	Protocol uint8
	// Port is the destination's, of which the first PortBits count. 0 bits: every port.
	Port     uint16
	PortBits uint8
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Direction, b.Direction),
		cmp.Compare(a.Peer, b.Peer),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.PortBits, b.PortBits))
}

// Value is what an entry says.
type Value struct {
	Verdict    Verdict
	Precedence uint32
	// Rule is the number of the rule that says so, in Result.Rules.
	Rule uint32
}

// better says whether v wins over o: by precedence, then denying, then the rule that came first.
func (v Value) better(o Value) bool {
	return cmp.Or(cmp.Compare(v.Precedence, o.Precedence), cmp.Compare(o.Verdict, v.Verdict),
		cmp.Compare(o.Rule, v.Rule)) > 0
}

// Entry is one entry of the policy map.
type Entry struct {
	Key
	Value
}

// Class gives the addresses of a prefix, unless they are in a longer one, their class: 0 is none.
type Class struct {
	Prefix netip.Prefix
	Class  uint32
}

// Rule names the rule behind a verdict.
type Rule struct {
	// Kind and Name are those of the object: NetworkPolicy, shop/web. Without them the rule is
	// Weft's own.
	Kind string `json:"kind,omitempty"`
	Name string `json:"name,omitempty"`
	// Field is the rule in the object, such as spec.ingress[0].
	Field string `json:"field,omitempty"`
	// File and Line are where it is written, where that is known.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
}

// ContainerPort is a port of a pod that has a name.
type ContainerPort struct {
	Name     string
	Protocol uint8
	Number   uint16
}

// Endpoint is a pod's interface, of this node or another.
type Endpoint struct {
	Namespace, Name string
	Labels          map[string]string
	// Identity is 0 while it has none.
	Identity  uint32
	Addresses []netip.Addr
	Ports     []ContainerPort
	// Local endpoints get policy sets; the others are only peers.
	Local bool
}

// Key is NAMESPACE/NAME.
func (e *Endpoint) Key() string { return e.Namespace + "/" + e.Name }

// Identity is what a number stands for, with the labels that tell it from others.
type Identity struct {
	Number         uint32
	TrustDomain    string
	Namespace      string
	ServiceAccount string
	Labels         map[string]string
}
