package kube

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
)

// Kinds of custom resources that are called otherwise in Kubernetes: a definition there is either
// namespaced or not, while an EncryptionPolicy may be either.
const kindClusterEncryptionPolicy = "ClusterEncryptionPolicy"

// resource is what is read of the API, and how.
type resource struct {
	schema.GroupVersionResource
	// apiKind is its kind in the API, kind that of the objects that become of it.
	apiKind, kind string
	namespaced    bool
	// optional is one that need not be served.
	optional  bool
	translate func(*object) (map[string]any, error)
}

func core(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: name}
}

func own(name string) schema.GroupVersionResource {
	gv, err := schema.ParseGroupVersion(v1alpha1.APIVersion)
	if err != nil {
		panic(err)
	}
	return gv.WithResource(name)
}

var (
	nodes = &resource{core("nodes"), "Node", v1alpha1.KindNode, false, false, nodeOf}

	endpoints = &resource{own("endpoints"), v1alpha1.KindEndpoint, v1alpha1.KindEndpoint, true,
		false, endpointOf}
	identities = &resource{own("identities"), v1alpha1.KindIdentity, v1alpha1.KindIdentity, false,
		false, ownObject}
	epochs = &resource{own("epochs"), v1alpha1.KindEpoch, v1alpha1.KindEpoch, false, false,
		ownObject}
	encryptionPolicies = &resource{own("encryptionpolicies"), v1alpha1.KindEncryptionPolicy,
		v1alpha1.KindEncryptionPolicy, true, false, ownObject}
	clusterEncryptionPolicies = &resource{own("clusterencryptionpolicies"),
		kindClusterEncryptionPolicy, v1alpha1.KindEncryptionPolicy, false, false, ownObject}
	pods = &resource{core("pods"), "Pod", v1alpha1.KindPod, true, false, podOf}
)

// resources are all that are read.
var resources = []*resource{
	nodes,
	pods,
	{core("namespaces"), "Namespace", v1alpha1.KindNamespace, false, false, namespaceOf},
	{schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1",
		Resource: "networkpolicies"}, "NetworkPolicy", policy.KindNetworkPolicy, true, false, asIs},
	{schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1beta1",
		Resource: "clusternetworkpolicies"}, "ClusterNetworkPolicy", policy.KindClusterNetworkPolicy,
		false, true, asIs},
	{schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha1",
		Resource: "adminnetworkpolicies"}, "AdminNetworkPolicy", policy.KindAdminNetworkPolicy,
		false, true, asIs},
	{schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha1",
		Resource: "baselineadminnetworkpolicies"}, "BaselineAdminNetworkPolicy",
		policy.KindBaselineAdminNetworkPolicy, false, true, asIs},
	{schema.GroupVersionResource{Group: "security.istio.io", Version: "v1",
		Resource: "authorizationpolicies"}, "AuthorizationPolicy", policy.KindAuthorizationPolicy,
		true, true, asIs},
	{schema.GroupVersionResource{Group: "security.istio.io", Version: "v1",
		Resource: "peerauthentications"}, "PeerAuthentication", policy.KindPeerAuthentication,
		true, true, dated},
	endpoints, identities, epochs, encryptionPolicies, clusterEncryptionPolicies,
}

// formerVersions are those in which optional resources were served before the version that is read.
var formerVersions = map[string]string{"clusternetworkpolicies": "v1alpha2",
	"authorizationpolicies": "v1beta1", "peerauthentications": "v1beta1"}

// formerly is the former version in which a resource is served, "" for none that is known.
func (k *Kube) formerly(ctx context.Context, r *resource) string {
	version, there := formerVersions[r.Resource]
	if !there {
		return ""
	}
	former := *r
	former.Version = version
	if _, err := k.page(ctx, &former, ""); err != nil {
		return ""
	}
	return version
}

// name is what the resource is called in errors, and by kubectl.
func (r *resource) name() string { return r.GroupResource().String() }

// file is what an object is called in errors: never the name of a directory of others.
func (r *resource) file(namespace, name string) string {
	if r.namespaced {
		return r.name() + "/" + namespace + "/" + name
	}
	return r.name() + "/" + name
}

// resourceOf is where an object of Weft's own kinds is, nil for one that is not written by Weft.
func resourceOf(kind, namespace string) *resource {
	switch kind {
	case v1alpha1.KindEndpoint:
		return endpoints
	case v1alpha1.KindIdentity:
		return identities
	case v1alpha1.KindEpoch:
		return epochs
	case v1alpha1.KindEncryptionPolicy:
		if namespace == "" {
			return clusterEncryptionPolicies
		}
		return encryptionPolicies
	}
	return nil
}
