package v1alpha1

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Identities that are not a workload's, and the bounds of those that are: a packet has 22 bits
// for one, and everything below MinIdentity is reserved.
const (
	IdentityUnknown = 0
	// IdentityHost is the node itself: its processes and its kernel.
	IdentityHost = 1
	// IdentityRemoteHost is another node, seen from this one.
	IdentityRemoteHost = 2
	// IdentityWorld is whoever is outside the cluster.
	IdentityWorld = 3
	// IdentityHealth is reserved for health probes, IdentityUnmanaged for pods that Weft does not
	// attach.
	IdentityHealth    = 4
	IdentityUnmanaged = 5

	MinIdentity = 256
	MaxIdentity = 1<<22 - 1
)

// Identity says which workload identity a number stands for: the number is its name.
// Agents create these, each once; a number is never given to another identity while
// its object is there.
type Identity struct {
	TypeMeta `yaml:",inline"`
	Metadata ObjectMeta   `yaml:"metadata" json:"metadata"`
	Spec     IdentitySpec `yaml:"spec" json:"spec"`
}

// IdentitySpec is what the number stands for.
type IdentitySpec struct {
	// SPIFFEID is spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT.
	SPIFFEID string `yaml:"spiffeID" json:"spiffeID"`
	// Labels are those that tell the identity from others of the same SPIFFE ID. Policies that
	// select peers go by these, on every node. None: that of pods without such labels.
	Labels map[string]string `yaml:"labels,omitempty" json:"labels,omitempty"`
}

// Key is the whole identity in one text, for maps: the SPIFFE ID without labels, followed by
// "|KEY=VALUE" for each, sorted. It cannot be ambiguous: neither "|" nor "=" is part of a SPIFFE ID
// of ours or a label.
func (s IdentitySpec) Key() string {
	key := s.SPIFFEID
	for _, label := range slices.Sorted(maps.Keys(s.Labels)) {
		key += "|" + label + "=" + s.Labels[label]
	}
	return key
}

// Workload is what the SPIFFE ID is made of, "" if that is none of a workload.
func (s IdentitySpec) Workload() (trustDomain, namespace, serviceAccount string) {
	trustDomain, namespace, serviceAccount, _ = splitWorkloadID(s.SPIFFEID)
	return trustDomain, namespace, serviceAccount
}

// Number is the identity's number, 0 when its name is none.
func (i *Identity) Number() uint32 {
	n, msg := parseIdentity(i.Metadata.Name)
	if msg != "" {
		return IdentityUnknown
	}
	return n
}

// Meta implements Object.
func (i *Identity) Meta() *ObjectMeta { return &i.Metadata }

// Type implements Object.
func (i *Identity) Type() *TypeMeta { return &i.TypeMeta }

// SetDefaults implements Object.
func (i *Identity) SetDefaults() { i.TypeMeta.setDefaults(KindIdentity) }

// Validate implements Object.
func (i *Identity) Validate() []FieldError {
	v := newValidator(i, KindIdentity)
	if i.Metadata.Namespace != "" {
		v.fail("metadata.namespace", "an Identity has no namespace: take it away")
	}
	if _, msg := parseIdentity(i.Metadata.Name); msg != "" && i.Metadata.Name != "" {
		v.fail("metadata.name", "%s", msg)
	}
	if msg := checkWorkloadID(i.Spec.SPIFFEID); msg != "" {
		v.fail("spec.spiffeID", "%s", msg)
	}
	v.labels("spec.labels", i.Spec.Labels)
	return v.errs
}

func parseIdentity(name string) (uint32, string) {
	n, err := strconv.ParseUint(name, 10, 32)
	if err != nil || n < MinIdentity || n > MaxIdentity || strconv.FormatUint(n, 10) != name {
		return 0, quote(name) + " is not the number of a workload's identity: want " +
			strconv.Itoa(MinIdentity) + " to " + strconv.Itoa(MaxIdentity)
	}
	return uint32(n), ""
}

// checkWorkloadID follows the SPIFFE ID that Weft gives to workloads.
func checkWorkloadID(s string) string {
	const rule = ": want spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT"
	if s == "" {
		return "is missing" + rule
	}
	td, ns, sa, ok := splitWorkloadID(s)
	if !ok || len(s) > 2048 || td == "" || CheckLabel(ns) != "" || CheckName(sa) != "" {
		return quote(s) + " is not the identity of a workload" + rule
	}
	return ""
}

// splitWorkloadID takes a workload's SPIFFE ID apart.
func splitWorkloadID(s string) (trustDomain, namespace, serviceAccount string, ok bool) {
	rest, found := strings.CutPrefix(s, "spiffe://")
	parts := strings.Split(rest, "/")
	if !found || len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return "", "", "", false
	}
	return parts[0], parts[2], parts[4], true
}

// checkIdentity is for numbers inside other objects; 0 is none.
func checkIdentity(n uint32) string {
	if n != IdentityUnknown && (n < MinIdentity || n > MaxIdentity) {
		return strconv.FormatUint(uint64(n), 10) +
			" is not the number of a workload's identity: want " + strconv.Itoa(MinIdentity) +
			" to " + strconv.Itoa(MaxIdentity)
	}
	return ""
}
