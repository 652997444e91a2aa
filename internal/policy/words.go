package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/inet"
)

// reserved are the identities that are no workload's, in words.
var reserved = map[uint32]string{
	v1alpha1.IdentityUnknown: "nobody that is known", v1alpha1.IdentityHost: "the pod's own node",
	v1alpha1.IdentityRemoteHost: "another node", v1alpha1.IdentityWorld: "outside the cluster",
}

// IdentityName is how a workload identity is written: NAMESPACE/SERVICE-ACCOUNT, and the labels
// that tell it from others.
func IdentityName(namespace, serviceAccount string, labels map[string]string) string {
	name, separator := namespace+"/"+serviceAccount, " "
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		name += separator + key + "=" + labels[key]
		separator = ","
	}
	return name
}

// IdentityText is an identity in words.
func (v *View) IdentityText(number uint32) string {
	if text, is := reserved[number]; is {
		return text
	}
	if name := v.names.Identity(number); name != "" {
		return name
	}
	return fmt.Sprintf("identity %d", number)
}

// peerText is who is at the other end, with the address where the identity alone does not say.
func (v *View) peerText(p Peer) string {
	text := v.IdentityText(p.Identity)
	if p.Identity < v1alpha1.MinIdentity && p.Address.IsValid() {
		return fmt.Sprintf("%s (%s)", p.Address, text)
	}
	return text
}

// HasPorts says whether a protocol has ports that policies know of.
func HasPorts(protocol uint8) bool { return slices.Contains(withPorts, protocol) }

// portsText is a prefix of ports in words.
func portsText(p portPrefix) string {
	if p.protocol == AnyProtocol {
		return "any"
	}
	name := cmp.Or(inet.ProtocolName(p.protocol), fmt.Sprintf("protocol %d", p.protocol))
	switch {
	case p.bits == 0 || !HasPorts(p.protocol):
		return name
	case p.bits == 16:
		return fmt.Sprintf("%d/%s", p.port, name)
	}
	return fmt.Sprintf("%d-%d/%s", p.port, p.port|(1<<(16-p.bits)-1), name)
}

// covers says whether a prefix of ports has all of another in it.
func covers(outer, inner portPrefix) bool {
	for ok := true; ok; inner, ok = inner.parent() {
		if inner == outer {
			return true
		}
	}
	return false
}
