// Package config is the agent's configuration file: its typed form, its
// defaults and the strict reader that refuses what it does not understand.
package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// DefaultPath is where `weft agent` looks when no --config is given.
const DefaultPath = "/etc/weft/agent.yaml"

// The modes that Config.Mode may name.
const (
	ModeAuto  = "auto"
	ModeXDP   = "xdp"
	ModeTC    = "tc"
	ModeStack = "stack"
)

// Config is one agent's configuration. Every field but Node has a default
// (see Default and Example).
type Config struct {
	// Node is the name of this node: the Node object with this name is ours.
	Node string `yaml:"node" json:"node"`
	// Instance tells several agents on one machine apart. "" is the default one.
	Instance string `yaml:"instance" json:"instance"`
	// Mode is how the datapath is hooked: auto, xdp, tc or stack.
	Mode string `yaml:"mode" json:"mode"`
	// XDP holds what only matters to the xdp mode.
	XDP XDP `yaml:"xdp" json:"xdp"`
	// Uplinks are the interfaces to other nodes. Empty: those that hold this
	// node's addresses (the agent resolves them).
	Uplinks []string `yaml:"uplinks" json:"uplinks"`
	// MTU is the pods' MTU. 0: the smallest MTU of the uplinks, less what sealing
	// adds (see PodMTU).
	MTU int `yaml:"mtu" json:"mtu"`
	// ClusterCIDRs are ranges of which everything is the cluster's, whether a Node object names it
	// or not: sealed or dropped, never plain.
	ClusterCIDRs []netip.Prefix `yaml:"clusterCIDRs" json:"clusterCIDRs"`
	// Store is where objects come from.
	Store Store `yaml:"store" json:"store"`
	// IPAM is where pods' addresses come from.
	IPAM IPAM `yaml:"ipam" json:"ipam"`
	// Masquerade hides pods' addresses from the outside world.
	Masquerade Masquerade `yaml:"masquerade" json:"masquerade"`
	// Identity says what tells workloads apart.
	Identity Identity `yaml:"identity" json:"identity"`
	// Policy says what policies go by.
	Policy Policy `yaml:"policy" json:"policy"`
	// Flows bounds the flow table and the flow log.
	Flows Flows `yaml:"flows" json:"flows"`
	// Encryption says how packets to other nodes' pods travel.
	Encryption Encryption `yaml:"encryption" json:"encryption"`
	// Keys says where the keys for it come from and how long they live.
	Keys Keys `yaml:"keys" json:"keys"`
	// Metrics is the Prometheus listener.
	Metrics Metrics `yaml:"metrics" json:"metrics"`
	// Paths are the base directories; the instance is appended by RunDir,
	// StateDir and BPFDir.
	Paths Paths `yaml:"paths" json:"paths"`
	// Log is the agent's own log.
	Log Log `yaml:"log" json:"log"`
}

// XDP holds the settings of the xdp mode.
type XDP struct {
	// Generic allows generic XDP where a driver has no native one.
	Generic bool `yaml:"generic" json:"generic"`
}

// Store says where the objects are: in a directory, in etcd, or in Kubernetes.
type Store struct {
	// Dir is the directory of YAML objects. "" with etcd and Kubernetes.
	Dir string `yaml:"dir" json:"dir"`
	// Etcd is the etcd cluster that has them instead, if it has endpoints.
	Etcd Etcd `yaml:"etcd" json:"etcd"`
	// Kubernetes is the cluster that has them instead, if it is enabled.
	Kubernetes Kubernetes `yaml:"kubernetes" json:"kubernetes"`
}

// Kubernetes is a Kubernetes cluster, and how its API is reached.
type Kubernetes struct {
	Enabled bool `yaml:"enabled" json:"enabled"`
	// Kubeconfig is the path of a kubeconfig file; "" is the service account of the agent's pod.
	Kubeconfig string `yaml:"kubeconfig" json:"kubeconfig"`
}

// Etcd is an etcd cluster, and where in it the objects are.
type Etcd struct {
	// Endpoints are URLs of its members: https://HOST:PORT, http://ADDRESS:PORT on the loopback, or
	// unix:///PATH.
	Endpoints []string `yaml:"endpoints" json:"endpoints"`
	// TLS is for https.
	TLS EtcdTLS `yaml:"tls" json:"tls"`
	// Prefix is what the objects' keys begin with.
	Prefix string `yaml:"prefix" json:"prefix"`
}

// EtcdTLS are PEM files: the authorities of etcd's certificates, and this node's certificate with
// its key.
type EtcdTLS struct {
	CA   string `yaml:"ca" json:"ca"`
	Cert string `yaml:"cert" json:"cert"`
	Key  string `yaml:"key" json:"key"`
}

// On says whether the objects are in etcd.
func (e Etcd) On() bool { return len(e.Endpoints) > 0 }

// Remote says whether the objects are on another host, or other hosts', and not in a directory.
func (s Store) Remote() bool { return s.Etcd.On() || s.Kubernetes.Enabled }

// Where names the place of the objects, for people.
func (s Store) Where() string {
	if s.Etcd.On() {
		return fmt.Sprintf("%s in etcd at %s", s.Etcd.Prefix, strings.Join(s.Etcd.Endpoints, ", "))
	}
	if s.Kubernetes.Enabled {
		return "Kubernetes by " + cmp.Or(s.Kubernetes.Kubeconfig, "the pod's service account")
	}
	return s.Dir
}

// Identity says what, besides namespace and service account, tells workloads apart.
type Identity struct {
	// Labels are those of pods' labels that policies can select peers by.
	Labels Labels `yaml:"labels" json:"labels"`
}

// Labels are patterns of label keys: a key, which may end in "*". A label counts that matches one
// of Include and none of Exclude.
type Labels struct {
	// Include: empty for all but those that are of one pod, one revision or one place only.
	Include []string `yaml:"include" json:"include"`
	Exclude []string `yaml:"exclude" json:"exclude"`
}

// Policy says what policies go by.
type Policy struct {
	Istio Istio `yaml:"istio" json:"istio"`
}

// Istio is what a mesh calls its own.
type Istio struct {
	// RootNamespace is the one whose policies of Istio's are about all namespaces.
	RootNamespace string `yaml:"rootNamespace" json:"rootNamespace"`
}

// IPAM says which addresses pods get.
type IPAM struct {
	// Ranges has at most one range per family. Empty: the podCIDRs of this
	// node's Node object.
	Ranges []netip.Prefix `yaml:"ranges" json:"ranges"`
}

// Masquerade is source NAT for what pods send outside the nodes' world.
type Masquerade struct {
	// Enabled switches it on.
	Enabled bool `yaml:"enabled" json:"enabled"`
	// Except are destinations that see the pods' own addresses.
	Except []netip.Prefix `yaml:"except" json:"except"`
}

// Flows bounds the flow table and the flow log.
type Flows struct {
	// MaxEntries is the size of the flow table of each family.
	MaxEntries uint32 `yaml:"maxEntries" json:"maxEntries"`
	// EventsPerSecond limits the flow events, so that a flood cannot hurt.
	EventsPerSecond uint32 `yaml:"eventsPerSecond" json:"eventsPerSecond"`
	// Log is a file for flow events as JSON lines. "" is none.
	Log string `yaml:"log" json:"log"`
}

// Metrics is the listener of /metrics, /healthz and /readyz.
type Metrics struct {
	// Listen is ADDRESS:PORT. "" is off.
	Listen string `yaml:"listen" json:"listen"`
}

// Paths are base directories, without the instance.
type Paths struct {
	Run   string `yaml:"run" json:"run"`
	State string `yaml:"state" json:"state"`
	BPF   string `yaml:"bpf" json:"bpf"`
}

// Log is the agent's own log.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `yaml:"level" json:"level"`
	// Format is text or json.
	Format string `yaml:"format" json:"format"`
}

// Default is the configuration of an empty file: valid but for Node.
func Default() *Config {
	return &Config{
		Mode:       ModeAuto,
		Store:      Store{Dir: "/etc/weft/objects", Etcd: Etcd{Prefix: "/weft"}},
		Policy:     Policy{Istio: Istio{RootNamespace: "istio-system"}},
		Encryption: defaultEncryption(),
		Keys:       defaultKeys(),
		Flows:      Flows{MaxEntries: 262144, EventsPerSecond: 1000},
		Metrics:    Metrics{Listen: "127.0.0.1:9551"},
		Paths:      Paths{Run: "/run/weft", State: "/var/lib/weft", BPF: "/sys/fs/bpf/weft"},
		Log:        Log{Level: "info", Format: "text"},
	}
}

// RunDir holds the socket, the lock and the pid file of this instance.
func (c *Config) RunDir() string { return filepath.Join(c.Paths.Run, c.Instance) }

// StateDir holds what this instance must remember over a restart.
func (c *Config) StateDir() string { return filepath.Join(c.Paths.State, c.Instance) }

// BPFDir holds the pins of this instance.
func (c *Config) BPFDir() string { return filepath.Join(c.Paths.BPF, c.Instance) }

// Socket is the admin API's unix socket.
func (c *Config) Socket() string { return filepath.Join(c.RunDir(), "agent.sock") }

// SealerSocket is how the agent speaks with the sealer, with engine user.
func (c *Config) SealerSocket() string { return filepath.Join(c.RunDir(), "sealer.sock") }
