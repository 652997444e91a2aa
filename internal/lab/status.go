package lab

import (
	"context"
	"net/netip"
	"os"
)

// What Status says of an agent.
const (
	AgentReady    = "ready"
	AgentNotReady = "not ready"
	AgentStopped  = "stopped"
	AgentNone     = "none"
)

// What Status says of a pod.
const (
	PodAttached = "attached"
	PodMissing  = "missing"
)

// Status is what is there of a lab.
type Status struct {
	Name  string       `json:"name" yaml:"name"`
	Phase string       `json:"phase" yaml:"phase"` // building, up or going-down
	Dir   string       `json:"dir" yaml:"dir"`
	Nodes []NodeStatus `json:"nodes" yaml:"nodes"`
	Wires []WireStatus `json:"wires" yaml:"wires"`
	Pods  []PodStatus  `json:"pods" yaml:"pods"`
}

// NodeStatus is one node's.
type NodeStatus struct {
	Name      string         `json:"name" yaml:"name"`
	NetNS     string         `json:"netns" yaml:"netns"`
	Addresses []netip.Addr   `json:"addresses" yaml:"addresses"`
	PodCIDRs  []netip.Prefix `json:"podCIDRs" yaml:"podCIDRs"`
	Agent     string         `json:"agent" yaml:"agent"` // ready, not ready, stopped or none
	PID       int            `json:"pid,omitempty" yaml:"pid,omitempty"`
	Socket    string         `json:"socket,omitempty" yaml:"socket,omitempty"`
	Config    string         `json:"config,omitempty" yaml:"config,omitempty"`
	Log       string         `json:"log,omitempty" yaml:"log,omitempty"`
}

// WireStatus is one wire's.
type WireStatus struct {
	Name    string   `json:"name" yaml:"name"`
	Nodes   []string `json:"nodes" yaml:"nodes"`
	MTU     int      `json:"mtu" yaml:"mtu"`
	Offload bool     `json:"offload" yaml:"offload"`
}

// PodStatus is one pod's.
type PodStatus struct {
	Name           string            `json:"name" yaml:"name"`
	Namespace      string            `json:"namespace" yaml:"namespace"`
	Node           string            `json:"node" yaml:"node"`
	ServiceAccount string            `json:"serviceAccount" yaml:"serviceAccount"`
	Labels         map[string]string `json:"labels,omitempty" yaml:"labels,omitempty"`
	NetNS          string            `json:"netns" yaml:"netns"`
	HostIf         string            `json:"hostIf,omitempty" yaml:"hostIf,omitempty"`
	IPv4           string            `json:"ipv4,omitempty" yaml:"ipv4,omitempty"`
	IPv6           string            `json:"ipv6,omitempty" yaml:"ipv6,omitempty"`
	MAC            string            `json:"mac,omitempty" yaml:"mac,omitempty"`
	State          string            `json:"state" yaml:"state"` // attached or missing
}

// Status says what is there of the lab and whether its agents are ready.
func (l *Lab) Status(ctx context.Context) (*Status, error) {
	st, err := l.st.read()
	if err != nil {
		return nil, err
	}
	out := &Status{Name: st.spec.Name, Phase: st.Phase, Dir: l.Dir()}
	for _, n := range st.spec.Nodes {
		out.Nodes = append(out.Nodes, nodeStatus(ctx, newNode(l, st.spec, n)))
	}
	for _, w := range st.spec.Wires {
		out.Wires = append(out.Wires,
			WireStatus{Name: w.Name, Nodes: w.Nodes, MTU: w.MTU, Offload: w.offload()})
	}
	for _, p := range st.spec.Pods {
		_, attached := st.Pods[p.Name]
		out.Pods = append(out.Pods, podStatus(newPod(st.spec, p, st.Pods[p.Name]), attached))
	}
	return out, nil
}

func nodeStatus(ctx context.Context, n *Node) NodeStatus {
	s := NodeStatus{
		Name: n.Name, NetNS: n.NetNS, Addresses: n.Addresses, PodCIDRs: n.PodCIDRs,
		Agent:  AgentNone,
		Socket: n.Socket, Config: n.ConfigFile, Log: n.LogFile,
	}
	if n.Bare {
		return s
	}
	s.PID = n.PID()
	switch {
	case s.PID == 0:
		s.Agent = AgentStopped
	case n.ready(ctx) != nil:
		s.Agent = AgentNotReady
	default:
		s.Agent = AgentReady
	}
	return s
}

func podStatus(p *Pod, attached bool) PodStatus {
	s := PodStatus{
		Name: p.Name, Namespace: p.Namespace, Node: p.Node, ServiceAccount: p.ServiceAccount,
		Labels: p.Labels,
		NetNS:  p.NetNS, HostIf: p.HostIf, MAC: p.MAC, State: PodMissing,
	}
	if p.IPv4.IsValid() {
		s.IPv4 = p.IPv4.String()
	}
	if p.IPv6.IsValid() {
		s.IPv6 = p.IPv6.String()
	}
	if attached && hasInterface(p) {
		s.State = PodAttached
	}
	return s
}

// hasInterface looks into the pod. /proc/sys/net follows the thread's namespace, /sys does not.
func hasInterface(p *Pod) bool {
	found := false
	_ = p.Do(func() error {
		_, err := os.Stat("/proc/sys/net/ipv4/conf/" + p.IfName)
		found = err == nil
		return nil
	})
	return found
}
