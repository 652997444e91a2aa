package lab

import (
	_ "embed"
	"fmt"
	"net/netip"
	"os"
)

// Limits and defaults of a lab.
const (
	// MinMTU is IPv6's smallest link, MaxMTU the largest that veth takes.
	MinMTU = 1280
	MaxMTU = 65535
	// DefaultMTU is a wire's MTU when the file names none: Ethernet's.
	DefaultMTU = 1500
	// DefaultNamespace and DefaultServiceAccount are a pod's when the file names none.
	DefaultNamespace      = "default"
	DefaultServiceAccount = "default"
	// SysctlsDistribution and SysctlsKernel are the values of Spec.Sysctls.
	SysctlsDistribution = "distribution"
	SysctlsKernel       = "kernel"
	// EncryptionStrict and EncryptionOff are the values of Spec.Encryption.
	EncryptionStrict = "strict"
	EncryptionOff    = "off"
)

// defaultYAML is examples/lab.yaml; a test holds the two equal.
//
//go:embed lab.yaml
var defaultYAML []byte

// Spec describes a lab: what `weft lab up -f FILE` reads.
type Spec struct {
	// Name is part of every name that the lab makes.
	Name string `yaml:"name" json:"name"`
	// Encryption is "strict", the default, or "off". Strict gives the lab an authority, every
	// agent a certificate, and all of them one key-encryption key.
	Encryption string `yaml:"encryption,omitempty" json:"encryption,omitempty"`
	// Sysctls are those that nodes and pods start with: "distribution", the default, as a machine
	// has them on which systemd has run, or "kernel", as the bare kernel has them.
	Sysctls string `yaml:"sysctls,omitempty" json:"sysctls,omitempty"`
	// Etcd are endpoints of an etcd that has the lab's objects, under a prefix of the lab's name,
	// in place of a directory. It is yours: the lab leaves it as it is when it goes.
	Etcd []string `yaml:"etcd,omitempty" json:"etcd,omitempty"`
	// Agent is merged into every agent's configuration (keys of the agent's YAML).
	Agent map[string]any `yaml:"agent,omitempty" json:"agent,omitempty"`
	Nodes []NodeSpec     `yaml:"nodes" json:"nodes"`
	Wires []WireSpec     `yaml:"wires" json:"wires"`
	Pods  []PodSpec      `yaml:"pods,omitempty" json:"pods,omitempty"`
}

// NodeSpec is one node: a network namespace and, unless it is bare, an agent in it.
type NodeSpec struct {
	Name string `yaml:"name" json:"name"`
	// Addresses are the node's addresses with their prefix lengths, at most one per
	// family. They sit on the first wire that lists the node.
	Addresses []netip.Prefix `yaml:"addresses" json:"addresses"`
	// PodCIDRs are the ranges whose addresses live on this node.
	PodCIDRs []netip.Prefix `yaml:"podCIDRs,omitempty" json:"podCIDRs,omitempty"`
	// Agent false makes a bare node: plain Linux routing, no agent, no Weft.
	Agent *bool `yaml:"agent,omitempty" json:"agent,omitempty"`
	// Mode is the agent's datapath mode: auto, xdp, tc or stack.
	Mode string `yaml:"mode,omitempty" json:"mode,omitempty"`
	// Config is merged over Spec.Agent into this node's agent configuration.
	Config map[string]any `yaml:"config,omitempty" json:"config,omitempty"`
}

// Encrypted says whether the lab's agents have what they need to seal packets.
func (s *Spec) Encrypted() bool { return s.Encryption != EncryptionOff }

// Bare says whether the node runs without an agent.
func (n NodeSpec) Bare() bool { return n.Agent != nil && !*n.Agent }

// WireSpec is a network segment between nodes: a veth pair between two, a bridge
// in a namespace of its own between one, three or more.
type WireSpec struct {
	// Name is also the interface's name in each node.
	Name string `yaml:"name" json:"name"`
	// Nodes are the names of the nodes on the wire.
	Nodes []string `yaml:"nodes" json:"nodes"`
	// MTU is the largest IP packet of the wire. Default 1500.
	MTU int `yaml:"mtu,omitempty" json:"mtu,omitempty"`
	// Offload false turns segmentation and checksum offloads off at every end, so
	// that only packets of at most MTU bytes cross, as on a real network.
	Offload *bool `yaml:"offload,omitempty" json:"offload,omitempty"`
	// Addresses gives further addresses to nodes on this wire, by node name.
	Addresses map[string][]netip.Prefix `yaml:"addresses,omitempty" json:"addresses,omitempty"`
}

// PodSpec is one pod: a network namespace attached to its node by the CNI plugin.
type PodSpec struct {
	// Name is unique in the lab, also among the nodes' names.
	Name string `yaml:"name" json:"name"`
	Node string `yaml:"node" json:"node"`
	// Namespace and ServiceAccount are "default" unless set.
	Namespace      string            `yaml:"namespace,omitempty" json:"namespace,omitempty"`
	ServiceAccount string            `yaml:"serviceAccount,omitempty" json:"serviceAccount,omitempty"`
	Labels         map[string]string `yaml:"labels,omitempty" json:"labels,omitempty"`
	// Addresses asks for fixed addresses inside the node's podCIDRs, at most one per family.
	Addresses []netip.Addr `yaml:"addresses,omitempty" json:"addresses,omitempty"`
	// PodDatapath is "xdp" for a pod that asks for the XDP datapath (annotation ebpf.xdp/datapath).
	PodDatapath string `yaml:"datapath,omitempty" json:"datapath,omitempty"`
}

// Key is "namespace/name", as in the agents' objects.
func (p PodSpec) Key() string { return p.Namespace + "/" + p.Name }

// Load reads and checks a lab file.
func Load(path string) (*Spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read lab file: %w", err)
	}
	return parse(path, data)
}

// Parse reads and checks a lab description. Errors name line and field, all at once.
func Parse(data []byte) (*Spec, error) { return parse("lab.yaml", data) }

// Default is the lab of examples/lab.yaml, which `weft lab up` builds when no file is named.
func Default() *Spec {
	spec, err := parse("examples/lab.yaml", defaultYAML)
	if err != nil {
		panic(err) // the embedded file is tested
	}
	return spec
}

// DefaultYAML is the text of examples/lab.yaml.
func DefaultYAML() []byte { return append([]byte(nil), defaultYAML...) }
