// Package lab builds nodes and pods from network namespaces: one real agent per
// node, pods attached through Weft's own CNI plugin, wires of veth. The demo, the
// end-to-end tests and the benchmarks all stand on it.
//
// Everything a lab makes is named after it and written to /run/weft-lab/LAB/lab.json
// before it is made, so that Down also cleans up after a crash of any part.
package lab

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"weft.dev/weft/internal/netns"
)

// PodIfName is the name of a pod's interface.
const PodIfName = "eth0"

// Options are what Up needs beyond the lab's description.
type Options struct {
	// Binary is the weft binary that runs as agent and as CNI plugin. Default: beside the running
	// program, else in PATH.
	Binary string
	// Log takes the progress of Up and Down. Default: discarded.
	Log *slog.Logger
	// ReadyTimeout is how long an agent may take to be ready. Default 30 s.
	ReadyTimeout time.Duration
	// Keep leaves a half-built lab standing when Up fails, for a look at it.
	Keep bool
}

// Lab is a running lab.
type Lab struct {
	opts Options
	st   *store
}

// Node is one node of a running lab.
type Node struct {
	Name string
	// NetNS is the path of the node's network namespace.
	NetNS string
	// Addresses are the node's own addresses, without prefix lengths.
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix
	// Uplinks are the wires' interfaces in the node.
	Uplinks []string
	// Bare nodes have no agent; the fields below are empty for them.
	Bare bool
	// Instance, Socket, ConfigFile and LogFile are the agent's.
	Instance   string
	Socket     string
	ConfigFile string
	LogFile    string

	lab *Lab
}

// Pod is one pod of a running lab.
type Pod struct {
	Name           string
	Namespace      string
	ServiceAccount string
	Labels         map[string]string
	// Node is the name of the pod's node.
	Node string
	// NetNS is the path of the pod's network namespace, IfName the interface in it.
	NetNS  string
	IfName string
	// ContainerID is what the CNI plugin knows the pod by.
	ContainerID string
	// HostIf is the host side's name as the CNI result gave it.
	HostIf string
	// IPv4 and IPv6 are the pod's addresses; either may be invalid (absent).
	IPv4 netip.Addr
	IPv6 netip.Addr
	MAC  string
}

// Stdio is what a command run by Exec reads and writes. Nil streams are /dev/null.
type Stdio struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Key is "namespace/name", as in the agents' objects.
func (p *Pod) Key() string { return p.Namespace + "/" + p.Name }

// Addr is the pod's address of the family: 4 or 6.
func (p *Pod) Addr(family int) netip.Addr {
	if family == 6 {
		return p.IPv6
	}
	return p.IPv4
}

// Do runs fn inside the node's network namespace; sockets that fn opens stay in it.
func (n *Node) Do(fn func() error) error { return netns.Do(n.NetNS, fn) }

// Do runs fn inside the pod's network namespace; sockets that fn opens stay in it.
func (p *Pod) Do(fn func() error) error { return netns.Do(p.NetNS, fn) }

// Run builds a lab, calls fn with it and takes it down again, whatever fn returns.
func Run(ctx context.Context, spec *Spec, opts Options, fn func(*Lab) error) error {
	l, err := Up(ctx, spec, opts)
	if err != nil {
		return err
	}
	return l.runThenDown(ctx, fn)
}
