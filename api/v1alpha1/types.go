// Package v1alpha1 holds Weft's own objects: what a directory of YAML (or, later,
// the Kubernetes API) declares and what agents publish for each other.
package v1alpha1

import "net/netip"

// APIVersion is the apiVersion of this package's objects, but for those of Kubernetes: see
// VersionOf.
const APIVersion = "weft.dev/v1alpha1"

// The kinds of this package.
const (
	KindNode     = "Node"
	KindPod      = "Pod"
	KindEndpoint = "Endpoint"
	KindIdentity = "Identity"

	KindNamespace        = "Namespace"
	KindEncryptionPolicy = "EncryptionPolicy"
)

// PodPhase names used in Endpoint.Status.
const (
	EndpointReady = "Ready"
)

// TypeMeta is an object's apiVersion and kind.
type TypeMeta struct {
	APIVersion string `yaml:"apiVersion" json:"apiVersion"`
	Kind       string `yaml:"kind" json:"kind"`
}

// ObjectMeta names an object. Namespace is empty for nodes.
type ObjectMeta struct {
	Name        string            `yaml:"name" json:"name"`
	Namespace   string            `yaml:"namespace,omitempty" json:"namespace,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty" json:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty" json:"annotations,omitempty"`
}

// Key is "namespace/name", or "name" for an object without a namespace.
func (m ObjectMeta) Key() string {
	if m.Namespace == "" {
		return m.Name
	}
	return m.Namespace + "/" + m.Name
}

// Node is a host that runs `weft agent`.
type Node struct {
	TypeMeta `yaml:",inline"`
	Metadata ObjectMeta `yaml:"metadata" json:"metadata"`
	Spec     NodeSpec   `yaml:"spec" json:"spec"`
}

// NodeSpec says where a node is reached and which addresses its pods have.
type NodeSpec struct {
	// Addresses are the node's own addresses on the wire, at most one per family.
	Addresses []netip.Addr `yaml:"addresses" json:"addresses"`
	// PodCIDRs are the ranges whose addresses live on this node.
	PodCIDRs []netip.Prefix `yaml:"podCIDRs" json:"podCIDRs"`
}

// Pod declares a workload before it has an interface: what the CNI plugin's
// caller does not say, such as labels and service account.
type Pod struct {
	TypeMeta `yaml:",inline"`
	Metadata ObjectMeta `yaml:"metadata" json:"metadata"`
	Spec     PodSpec    `yaml:"spec,omitempty" json:"spec,omitempty"`
}

// PodSpec is the declared part of a pod that Weft needs.
type PodSpec struct {
	// NodeName is the node that runs the pod. Optional.
	NodeName string `yaml:"nodeName,omitempty" json:"nodeName,omitempty"`
	// ServiceAccount is the pod's service account. Default: "default".
	ServiceAccount string `yaml:"serviceAccount,omitempty" json:"serviceAccount,omitempty"`
	// UID is the one by which runtimes know the pod: another of its name is not meant. Optional.
	UID string `yaml:"uid,omitempty" json:"uid,omitempty"`
	// Addresses asks for fixed addresses, at most MaxAddresses. Optional.
	Addresses []netip.Addr `yaml:"addresses,omitempty" json:"addresses,omitempty"`
	// Ports are those that have names, for policies that go by these. Optional.
	Ports []NamedPort `yaml:"ports,omitempty" json:"ports,omitempty"`
}

// NamedPort is a port of a pod that policies can name.
type NamedPort struct {
	// Name is at most 15 of a-z, 0-9 and '-', with a letter.
	Name string `yaml:"name" json:"name"`
	Port uint16 `yaml:"port" json:"port"`
	// Protocol is TCP, UDP or SCTP. Default: TCP.
	Protocol string `yaml:"protocol,omitempty" json:"protocol,omitempty"`
}

// Endpoint is a workload interface as its node's agent published it.
type Endpoint struct {
	TypeMeta `yaml:",inline"`
	Metadata ObjectMeta     `yaml:"metadata" json:"metadata"`
	Spec     EndpointSpec   `yaml:"spec" json:"spec"`
	Status   EndpointStatus `yaml:"status,omitempty" json:"status,omitempty"`
}

// EndpointSpec is where an endpoint is and who it is.
type EndpointSpec struct {
	NodeName       string `yaml:"nodeName" json:"nodeName"`
	ServiceAccount string `yaml:"serviceAccount,omitempty" json:"serviceAccount,omitempty"`
	// Addresses are all of the endpoint's, 1 to MaxAddresses.
	Addresses []netip.Addr `yaml:"addresses" json:"addresses"`
	MAC       string       `yaml:"mac,omitempty" json:"mac,omitempty"`
	// Ports are the pod's, as it declares them.
	Ports []NamedPort `yaml:"ports,omitempty" json:"ports,omitempty"`
}

// EndpointStatus is the publishing agent's word on an endpoint.
type EndpointStatus struct {
	Phase string `yaml:"phase,omitempty" json:"phase,omitempty"`
	// Identity is the number of the endpoint's Identity, 0 while it has none.
	Identity uint32 `yaml:"identity,omitempty" json:"identity,omitempty"`
}
