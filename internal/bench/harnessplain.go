package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"weft.dev/weft/internal/bench/report"
)

// Addresses of the harnesses without Weft.
var (
	plainPods = [2]netip.Prefix{netip.MustParsePrefix("10.201.16.0/20"),
		netip.MustParsePrefix("10.201.32.0/20")}
	plainNodes = [2]netip.Prefix{netip.MustParsePrefix("172.31.255.1/24"),
		netip.MustParsePrefix("172.31.255.2/24")}
	plainGateway = netip.MustParseAddr("169.254.1.1")
	defaultRoute = netip.MustParsePrefix("0.0.0.0/0")
)

// plainPodIf names the host side of a pod's veth; plainPodIfs is its iptables pattern.
const (
	plainPodIf  = "wtpod"
	plainPodIfs = plainPodIf + "+"
	plainWireIf = "wire0"
)

// newPlainHarness builds a harness without Weft: the kernel forwards, and for the variant
// iptables filters, tracks and masquerades on every node that the shape measures.
func newPlainHarness(ctx context.Context, variant string, s shape) (*harness, error) {
	t := newTopo()
	b := &harness{variant: variant, shape: s,
		close: func(context.Context) error { return t.close() }}
	err := buildPlain(t, b)
	if err == nil && variant == VariantIPTables {
		err = b.addRules(ctx)
	}
	if err == nil && variant == VariantBare {
		err = b.addForwarder()
	}
	if err != nil {
		return nil, fmt.Errorf("build harness %s/%s: %w", variant, s, errors.Join(err, t.close()))
	}
	return b, nil
}

// buildPlain makes namespaces, wire and pods.
func buildPlain(t *topo, b *harness) error {
	for i, name := range []string{"a", "b"} {
		ns, err := t.add(name)
		if err != nil {
			return err
		}
		b.wire[i] = port{ns, plainWireIf}
	}
	if err := plainWire(b.wire); err != nil {
		return err
	}
	if err := sysctl(b.wire[0].NS, "net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	var err error
	near := 2
	if b.shape == shapeForward {
		near = 1
		b.grow = func(ctx context.Context, n int) error { return growPlain(ctx, t, b, n) }
		b.sink, b.sinkIP, b.hops = b.wire[1], hostOf(plainPods[1], 10), 1
	} else {
		if err := sysctl(b.wire[1].NS, "net/ipv4/ip_forward", "1"); err != nil {
			return err
		}
		if b.far, err = plainPodsOn(t, b.wire[1].NS, 1, 1); err != nil {
			return err
		}
	}
	b.near, err = plainPodsOn(t, b.wire[0].NS, 0, near)
	return err
}

// growPlain adds pods until the near node has n.
func growPlain(ctx context.Context, t *topo, b *harness, n int) error {
	for i := len(b.near); i < n; i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		p, err := plainPod(t, b.wire[0].NS, 0, i)
		if err != nil {
			return err
		}
		b.near = append(b.near, p)
	}
	return nil
}

// joinNodes makes the wire between two nodes, with their addresses. GRO is on at both
// ends, as on a real network card and as in Weft's harnesses.
func joinNodes(wire [2]port) error {
	if err := veth(wire[0], wire[1]); err != nil {
		return err
	}
	for i, p := range wire {
		if err := addAddress(p, plainNodes[i]); err != nil {
			return err
		}
		if _, err := setFeatures(p, true, "rx-gro"); err != nil {
			return err
		}
	}
	return nil
}

// plainWire joins two nodes and routes each one's pods to it.
func plainWire(wire [2]port) error {
	if err := joinNodes(wire); err != nil {
		return err
	}
	for i, p := range wire {
		if err := addRoute(p, plainPods[1-i], plainNodes[1-i].Addr()); err != nil {
			return err
		}
	}
	return nil
}

// plainPodsOn adds n pods to the node in namespace host.
func plainPodsOn(t *topo, host string, node, n int) ([]pod, error) {
	var pods []pod
	for i := range n {
		p, err := plainPod(t, host, node, i)
		if err != nil {
			return nil, err
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// plainPod adds the i-th pod of a node.
func plainPod(t *topo, host string, node, i int) (pod, error) {
	ns, err := t.add(fmt.Sprintf("%c%d", 'a'+node, i))
	if err != nil {
		return pod{}, err
	}
	p := pod{NS: ns, If: "eth0", IP: hostOf(plainPods[node], 10+i), HostNS: host,
		HostIf: fmt.Sprintf("%s%d", plainPodIf, i)}
	return p, plainAttach(&p)
}

// plainAttach wires one pod to its node: a veth, host routes, permanent neighbours.
func plainAttach(p *pod) error {
	inside, outside := port{p.NS, p.If}, port{p.HostNS, p.HostIf}
	if err := veth(outside, inside); err != nil {
		return err
	}
	var err error
	if p.MAC, err = hardwareAddr(inside); err != nil {
		return err
	}
	if p.GatewayMAC, err = hardwareAddr(outside); err != nil {
		return err
	}
	self := netip.PrefixFrom(p.IP, p.IP.BitLen())
	steps := []func() error{
		func() error { return addAddress(inside, self) },
		func() error { return addRoute(inside, netip.PrefixFrom(plainGateway, 32), netip.Addr{}) },
		func() error { return addRoute(inside, defaultRoute, plainGateway) },
		func() error { return addNeighbour(inside, plainGateway, p.GatewayMAC) },
		func() error { return addRoute(outside, self, netip.Addr{}) },
		func() error { return addNeighbour(outside, p.IP, p.MAC) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// addRules loads the baseline's rules on the measured nodes.
func (b *harness) addRules(ctx context.Context) error {
	for i, p := range b.wire {
		if b.shape == shapeForward && i == 1 {
			break
		}
		if err := loadRules(ctx, p.NS, iptablesRules(plainPodIfs, plainPods[i])); err != nil {
			return err
		}
	}
	return nil
}

// newGenHarness builds the harness that measures the generator alone.
func newGenHarness() (*harness, error) {
	t := newTopo()
	b := &harness{variant: report.Generator, shape: shapeGen,
		close: func(context.Context) error { return t.close() }}
	err := func() error {
		from, err := t.add("gen")
		if err != nil {
			return err
		}
		to, err := t.add("sink")
		if err != nil {
			return err
		}
		p := pod{NS: from, If: "eth0", IP: hostOf(plainPods[0], 10), HostNS: to, HostIf: "sink0"}
		b.sink, b.sinkIP = port{to, "sink0"}, hostOf(plainPods[1], 10)
		if err := plainAttach(&p); err != nil {
			return err
		}
		b.near = []pod{p}
		return nil
	}()
	if err != nil {
		return nil, fmt.Errorf("build harness gen: %w", errors.Join(err, t.close()))
	}
	return b, nil
}

// hostOf returns the n-th address of an IPv4 range.
func hostOf(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr().As4()
	v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}
