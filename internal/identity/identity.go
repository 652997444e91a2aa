// Package identity gives workload identities their numbers, and says which packets may
// travel in cleartext. It does no I/O of its own: the store is an interface, and what is
// compiled from a snapshot of objects is the same on every node that reads the same
// objects.
package identity

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"

	"weft.dev/weft/api/v1alpha1"
)

// ID is who a workload is.
type ID struct {
	TrustDomain    string
	Namespace      string
	ServiceAccount string
	// Labels are those that policies may tell it from others by: see LabelFilter. The SPIFFE ID,
	// its name, does not have them: with other labels, the same name has another number.
	Labels map[string]string
}

// SPIFFE is the ID on paper: spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT.
func (id ID) SPIFFE() string {
	return fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", id.TrustDomain, id.Namespace, id.ServiceAccount)
}

// Key is the whole ID in one text: see v1alpha1.IdentitySpec.Key.
func (id ID) Key() string {
	return v1alpha1.IdentitySpec{SPIFFEID: id.SPIFFE(), Labels: id.Labels}.Key()
}

// Of is the ID of an endpoint, without labels.
func Of(trustDomain string, ep *v1alpha1.Endpoint) ID {
	return ID{TrustDomain: trustDomain, Namespace: ep.Metadata.Namespace,
		ServiceAccount: ep.Spec.ServiceAccount}
}

// span is how many numbers there are.
const span = v1alpha1.MaxIdentity - v1alpha1.MinIdentity + 1

// Start is the number that an ID gets unless another has it: the same on every node, so
// that nodes which allocate at once collide on one file rather than make two.
func Start(key string) uint32 {
	sum := sha256.Sum256([]byte(key))
	return v1alpha1.MinIdentity + uint32(binary.BigEndian.Uint64(sum[:8])%span)
}

// next is the number to try after n.
func next(n uint32) uint32 {
	if n >= v1alpha1.MaxIdentity {
		return v1alpha1.MinIdentity
	}
	return n + 1
}

// distance is how many tries it takes from start to n.
func distance(start, n uint32) uint32 { return (n + span - start) % span }

// object is the Identity that claims a number.
func object(number uint32, spiffeID string, labels map[string]string) *v1alpha1.Identity {
	i := &v1alpha1.Identity{
		Metadata: v1alpha1.ObjectMeta{Name: strconv.FormatUint(uint64(number), 10)},
		Spec:     v1alpha1.IdentitySpec{SPIFFEID: spiffeID, Labels: labels},
	}
	i.SetDefaults()
	return i
}
