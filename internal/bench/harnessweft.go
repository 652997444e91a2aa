package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/lab"
)

// Names inside Weft's labs. They are short because interface and socket names are.
const (
	weftWireIf = "wire0"
	nearNode   = "a"
	farNode    = "b"
)

// Addresses of Weft's labs: IPv4 as in the harnesses without Weft, and IPv6 beside it.
var (
	weftPods6 = [2]netip.Prefix{netip.MustParsePrefix("fd57:1::/64"),
		netip.MustParsePrefix("fd57:2::/64")}
	weftNodes6 = [2]netip.Prefix{netip.MustParsePrefix("fd57:ff::1/64"),
		netip.MustParsePrefix("fd57:ff::2/64")}
)

// labCount numbers the labs of this process.
var labCount atomic.Uint32

// newWeftHarness builds a lab whose nodes run the variant's mode. In shapeForward only
// the near node runs an agent: exactly one node's forwarding is measured.
func newWeftHarness(ctx context.Context, binary, variant string, s shape) (*harness, error) {
	return newLabHarness(ctx, binary, variant, s,
		weftSpec(agentConfig(variant), s, podDatapathOf(variant)))
}

// newLabHarness builds the harness of a variant on a lab.
func newLabHarness(ctx context.Context, binary, variant string, s shape,
	spec *lab.Spec) (*harness, error) {
	l, err := lab.Up(ctx, spec, lab.Options{Binary: binary})
	if err != nil {
		return nil, fmt.Errorf("build harness %s/%s: %w", variant, s, err)
	}
	b := &harness{variant: variant, shape: s, lab: l, binary: binary,
		path: spec.Pods[0].PodDatapath}
	b.close = func(ctx context.Context) error {
		if b.lab == nil {
			return nil
		}
		b.lab = nil
		return l.Down(ctx)
	}
	if err := b.fromLab(); err != nil {
		return nil, fmt.Errorf("build harness %s/%s: %w", variant, s,
			errors.Join(err, b.close(context.WithoutCancel(ctx))))
	}
	return b, nil
}

// podDatapathOf is the path that a mode's or variant's pods ask for, "" for none.
func podDatapathOf(mode string) string {
	if mode == VariantAutoXDP {
		return v1alpha1.DatapathXDP
	}
	return ""
}

// modeOf is the agents' mode where pods may ask for a path.
func modeOf(mode string) string {
	if mode == VariantAutoXDP {
		return config.ModeAuto
	}
	return mode
}

// weftSpec describes the lab of a shape whose agents have these settings and whose pods ask for a
// path. Nothing is encrypted.
func weftSpec(agent map[string]any, s shape, path string) *lab.Spec {
	spec := &lab.Spec{
		Name:       fmt.Sprintf("bench-%d-%d", os.Getpid(), labCount.Add(1)),
		Encryption: lab.EncryptionOff,
		Agent:      agent,
		Wires:      []lab.WireSpec{{Name: weftWireIf, Nodes: []string{nearNode, farNode}}},
	}
	for i, name := range []string{nearNode, farNode} {
		spec.Nodes = append(spec.Nodes, lab.NodeSpec{
			Name:      name,
			Addresses: []netip.Prefix{plainNodes[i], weftNodes6[i]},
			PodCIDRs:  []netip.Prefix{plainPods[i], weftPods6[i]},
		})
	}
	spec.Pods = []lab.PodSpec{{Name: "a0", Node: nearNode}}
	if s == shapeForward {
		bare := false
		spec.Nodes[1].Agent = &bare
	} else {
		spec.Pods = append(spec.Pods, lab.PodSpec{Name: "a1", Node: nearNode},
			lab.PodSpec{Name: "b0", Node: farNode})
	}
	for i := range spec.Pods {
		spec.Pods[i].PodDatapath = path
	}
	return spec
}

// agentConfig is what a variant sets in the agents' configuration; all else is as
// shipped, so that every feature that is on by default is measured.
func agentConfig(variant string) map[string]any {
	c := map[string]any{"mode": modeOf(variant)}
	if variant == VariantXDPGeneric {
		c["mode"] = VariantXDP
		c["xdp"] = map[string]any{"generic": true}
	}
	return c
}

// fromLab fills the harness from its running lab.
func (b *harness) fromLab() error {
	nodes := map[string]*lab.Node{}
	for i, name := range []string{nearNode, farNode} {
		n := b.lab.Node(name)
		if n == nil {
			return fmt.Errorf("lab has no node %s", name)
		}
		nodes[name] = n
		b.wire[i] = port{n.NetNS, weftWireIf}
	}
	b.node = nodes[nearNode]
	for _, p := range b.lab.Pods() {
		made, err := podOf(p, nodes[p.Node])
		if err != nil {
			return err
		}
		if p.Node == nearNode {
			b.near = append(b.near, made)
		} else {
			b.far = append(b.far, made)
		}
	}
	if b.shape == shapeForward {
		b.sink, b.sinkIP, b.hops = b.wire[1], hostOf(plainPods[1], 10), 1
	}
	b.grow = b.growLab
	return nil
}

// podOf describes a lab's pod.
func podOf(p *lab.Pod, n *lab.Node) (pod, error) {
	out := pod{NS: p.NetNS, If: p.IfName, IP: p.IPv4, HostNS: n.NetNS, HostIf: p.HostIf}
	var err error
	if out.MAC, err = net.ParseMAC(p.MAC); err != nil {
		return out, fmt.Errorf("pod %s: %w", p.Name, err)
	}
	out.GatewayMAC, err = hardwareAddr(port{out.HostNS, out.HostIf})
	return out, err
}

// growLab adds pods through the CNI plugin until the near node has n.
func (b *harness) growLab(ctx context.Context, n int) error {
	var specs []lab.PodSpec
	for i := len(b.near); i < n; i++ {
		specs = append(specs,
			lab.PodSpec{Name: fmt.Sprintf("a%d", i), Node: nearNode, PodDatapath: b.path})
	}
	if len(specs) == 0 {
		return nil
	}
	pods, err := b.lab.AddPods(ctx, specs)
	for _, p := range pods {
		made, err := podOf(p, b.node)
		if err != nil {
			return err
		}
		b.near = append(b.near, made)
	}
	return err
}
