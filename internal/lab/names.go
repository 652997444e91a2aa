package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/netns"
)

// What a lab's agents make outside its directory: sockets and pins stay where
// the CLI and the CNI plugin look for them. State moves into the lab's directory, so
// that nothing of a lab outlives a reboot.
const (
	agentRunDir  = "/run/weft"
	agentBPFDir  = BPFFS + "/weft"
	cniVersion   = "1.0.0"
	cniPlugin    = "weft-cni"
	busyLock     = "busy.lock"
	stateLock    = "state.lock"
	agentLogFile = "agent.log"
)

// BPFFS is where the kernel's bpffs is, with all pins.
const BPFFS = "/sys/fs/bpf"

func nodeDir(lab, node string) string     { return filepath.Join(labdir.Dir(lab), node) }
func stateDir(lab, node string) string    { return filepath.Join(nodeDir(lab, node), "state") }
func keysDir(lab, node string) string     { return filepath.Join(nodeDir(lab, node), "keys") }
func authorityDir(lab string) string      { return filepath.Join(labdir.Dir(lab), "ca") }
func binDir(lab string) string            { return filepath.Join(labdir.Dir(lab), "bin") }
func cniCacheDir(lab, node string) string { return filepath.Join(nodeDir(lab, node), "cni") }
func instance(lab, node string) string    { return lab + "-" + node }

func nodeNS(lab, node string) string     { return "weft-" + lab + "-" + node }
func podNS(lab, node, pod string) string { return nodeNS(lab, node) + "-" + pod }
func wireNS(lab, wire string) string     { return "weft-" + lab + "-wire-" + wire }

// bridged wires need a namespace of their own; two nodes share a plain veth pair.
func (w WireSpec) bridged() bool { return len(w.Nodes) != 2 }

// offload says whether the wire keeps its offloads.
func (w WireSpec) offload() bool { return w.Offload == nil || *w.Offload }

// namedNS is a network namespace's name and the field of the Spec that asks for it.
type namedNS struct{ name, field string }

// namespaceNames lists every network namespace of a lab: wires, nodes, pods.
func namespaceNames(s *Spec) []namedNS {
	var out []namedNS
	for i, w := range s.Wires {
		if w.bridged() {
			out = append(out, namedNS{wireNS(s.Name, w.Name), fmt.Sprintf("wires[%d].name", i)})
		}
	}
	for i, n := range s.Nodes {
		out = append(out, namedNS{nodeNS(s.Name, n.Name), fmt.Sprintf("nodes[%d].name", i)})
	}
	for i, p := range s.Pods {
		out = append(out, namedNS{podNS(s.Name, p.Node, p.Name), fmt.Sprintf("pods[%d].name", i)})
	}
	return out
}

// agentDirs lists the directories that a lab's agents make outside the lab's own.
func agentDirs(s *Spec) []string {
	var out []string
	for _, n := range s.Nodes {
		if n.Bare() {
			continue
		}
		for _, base := range []string{agentBPFDir, agentRunDir} {
			out = append(out, filepath.Join(base, instance(s.Name, n.Name)))
		}
	}
	return out
}

// containerID is the same for the same pod of the same lab, so that a DEL can be
// made from the lab's name alone.
func containerID(lab, node, pod string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{"weft-lab", lab, node, pod}, "/")))
	return hex.EncodeToString(sum[:])
}

// clone copies a Spec through its own file format.
func (s *Spec) clone() *Spec {
	out, err := unmarshalSpec(s.YAML())
	if err != nil {
		// A Spec that cannot be written cannot be read back either: keep what there is, Validate
		// will tell.
		shallow := *s
		return &shallow
	}
	return out
}

// YAML is the Spec as a lab file.
func (s *Spec) YAML() []byte {
	data, err := yaml.Marshal(s)
	if err != nil {
		return []byte("# " + err.Error() + "\n")
	}
	return data
}

func unmarshalSpec(data []byte) (*Spec, error) {
	var s Spec
	if err := yaml.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("read lab description: %w", err)
	}
	return &s, nil
}

// newNode describes a node of a running lab.
func newNode(l *Lab, s *Spec, n NodeSpec) *Node {
	node := &Node{
		Name: n.Name, NetNS: netns.Path(nodeNS(s.Name, n.Name)), PodCIDRs: slices.Clone(n.PodCIDRs),
		Uplinks: s.uplinks(n.Name), Bare: n.Bare(), lab: l,
	}
	node.Addresses = addrsOf(n.Addresses)
	if !n.Bare() {
		node.Instance = instance(s.Name, n.Name)
		node.Socket = filepath.Join(agentRunDir, node.Instance, "agent.sock")
		node.ConfigFile = filepath.Join(nodeDir(s.Name, n.Name), "agent.yaml")
		node.LogFile = filepath.Join(nodeDir(s.Name, n.Name), agentLogFile)
	}
	return node
}

func addrsOf(prefixes []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.Addr()
	}
	return out
}

// newPod describes a pod of a running lab.
func newPod(s *Spec, p PodSpec, r podRecord) *Pod {
	return &Pod{
		Name: p.Name, Namespace: p.Namespace, ServiceAccount: p.ServiceAccount,
		Labels: maps.Clone(p.Labels), Node: p.Node,
		NetNS: netns.Path(podNS(s.Name, p.Node, p.Name)), IfName: PodIfName,
		ContainerID: containerID(s.Name, p.Node, p.Name),
		HostIf:      r.HostIf, IPv4: r.IPv4, IPv6: r.IPv6, MAC: r.MAC,
	}
}
