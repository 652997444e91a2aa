package policy

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/config/strictyaml"
)

// kind is how policies of a kind are read.
type kind struct {
	// versions are those in which it is, that in which it is written first. They are the same.
	versions []string
	decode   func(*strictyaml.Doc) *Policy
	// recall reads what was remembered, and says whether that could be decoded.
	recall func(r remembered, meta metav1.ObjectMeta, from source) (p *Policy, readable bool)
}

// in says whether a kind is read in a version; the zero kind in none.
func (k kind) in(version string) bool { return slices.Contains(k.versions, version) }

var kinds = map[string]kind{
	KindNetworkPolicy:              kindOf(readSpec, versionNetwork),
	KindClusterNetworkPolicy:       kindOf(readCluster, versionCluster, versionClusterOlder),
	KindAdminNetworkPolicy:         kindOf(readAdmin, versionAdmin),
	KindBaselineAdminNetworkPolicy: kindOf(readBaseline, versionAdmin),
	KindAuthorizationPolicy:        kindOf(readAuthorization, versionIstio, versionIstioOlder),
	KindPeerAuthentication:         kindOf(readPeerAuthentication, versionIstio, versionIstioOlder),
}

// kindOf is a kind whose specification is a Spec.
func kindOf[Spec any](read func(metav1.ObjectMeta, *Spec, source) *Policy,
	versions ...string) kind {
	return kind{versions,
		func(doc *strictyaml.Doc) *Policy {
			var m manifest[Spec]
			from := decodeInto(doc, &m)
			return read(m.Metadata, &m.Spec, from)
		},
		func(r remembered, meta metav1.ObjectMeta, from source) (*Policy, bool) {
			var spec Spec
			readable := r.into(&spec)
			return read(meta, &spec, from), readable
		},
	}
}

func readSpec(meta metav1.ObjectMeta, spec *networkingv1.NetworkPolicySpec, from source) *Policy {
	return read(&networkingv1.NetworkPolicy{ObjectMeta: meta, Spec: *spec}, from)
}
