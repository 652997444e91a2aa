package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

// espPort is the UDP port of ESP in tunnels without agents.
const espPort = 4500

// tunnelFlows is the size of their flow tables: larger than any test's number of flows.
const tunnelFlows = 16384

// tunnel is a harness's nodes whose datapaths this process runs, in the place of agents: so
// peers, keys and identities can be had in any number.
type tunnel struct {
	topo   *topo
	engine string // "" for none
	nodes  []*tunnelNode
	peers  int // that the nodes have now, the real one included
}

// tunnelNode is one node.
type tunnelNode struct {
	name     string
	ns       string
	dp       *datapath.Datapath
	bpf      string // directory of its pins, named like the namespace
	state    string // of what it puts back
	stop     context.CancelFunc
	finished sync.WaitGroup
	peers    []datapath.Node
}

// newTunnelHarness builds the harness of a tunnel in a mode, with both nodes or the near one only.
func newTunnelHarness(variant string, s shape, mode, engine string) (*harness, error) {
	b, _, err := newTunnel(variant, s, mode, engine)
	return b, err
}

func newTunnel(variant string, s shape, mode, engine string) (*harness, *tunnel, error) {
	t := &tunnel{topo: newTopo(), engine: engine}
	b := &harness{variant: variant, shape: s, slow: engine != ""}
	b.close = func(context.Context) error { return t.close() }
	b.fill = func(ctx context.Context, f fill) error { return t.fill(ctx, f) }
	err := t.build(b, mode)
	if err == nil {
		err = t.fill(context.Background(), fill{peers: 2, identities: 1})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("build harness %s/%s: %w", variant, s,
			errors.Join(err, t.close()))
	}
	b.dp = t.nodes[0].dp
	return b, t, nil
}

// build makes namespaces, wire, pods and datapaths. The far node of a half is a namespace with a
// sink.
func (t *tunnel) build(b *harness, mode string) error {
	for i, name := range []string{"a", "b"} {
		ns, err := t.topo.add(name)
		if err != nil {
			return err
		}
		b.wire[i] = port{ns, plainWireIf}
	}
	if err := tunnelWire(b.wire); err != nil {
		return err
	}
	count := 2
	if b.shape == shapeSeal {
		count, b.hops, b.sealed = 1, 1, t.engine != ""
		b.sink, b.sinkIP = b.wire[1], hostOf(plainPods[1], 10)
	}
	for i := range count {
		p, err := t.addNode(i, b.wire[i].NS, mode)
		if err != nil {
			return err
		}
		if i == 0 {
			b.near = []pod{p}
			continue
		}
		b.far = []pod{p}
		b.sink, b.sinkIP, b.hops = port{p.NS, p.If}, p.IP, 2
	}
	return nil
}

// tunnelWire joins the two nodes. Neighbours are permanent, and the far node is the router to all
// others.
func tunnelWire(wire [2]port) error {
	if err := joinNodes(wire); err != nil {
		return err
	}
	for i, p := range wire {
		mac, err := hardwareAddr(wire[1-i])
		if err != nil {
			return err
		}
		if err := addNeighbour(p, plainNodes[1-i].Addr(), mac); err != nil {
			return err
		}
		if err := addRoute(p, simNodes, plainNodes[1-i].Addr()); err != nil {
			return err
		}
	}
	return nil
}

// addNode opens a node's datapath and attaches its pod.
func (t *tunnel) addNode(i int, ns, mode string) (pod, error) {
	n := &tunnelNode{name: []string{nearNode, farNode}[i], ns: ns}
	t.nodes = append(t.nodes, n)
	p, err := plainPod(t.topo, ns, i, 0)
	if err != nil {
		return p, err
	}
	n.bpf, n.state = filepath.Join(lab.BPFFS, t.topo.prefix+n.name), filepath.Join(os.TempDir(),
		t.topo.prefix+n.name)
	if err := n.open(i, datapath.Mode(modeOf(mode)), t.engine); err != nil {
		return p, err
	}
	return p, netns.Do(ns, func() error {
		return n.dp.AttachEndpoint(datapath.Endpoint{
			Slot: 1, HostIf: p.HostIf, NetNS: p.NS, PodIf: p.If, MAC: p.MAC,
			GatewayMAC: p.GatewayMAC, IPv4: p.IP,
			MTU: 1400, Identity: firstIdentity, XDPDatapath: podDatapathOf(mode) != "",
		})
	})
}

// open opens a datapath and has it follow the kernel.
func (n *tunnelNode) open(i int, mode datapath.Mode, engine string) error {
	if err := lab.MountBPFFS(); err != nil {
		return err
	}
	options := datapath.Options{
		BPFDir: n.bpf, StateDir: n.state, Mode: mode, Uplinks: []string{plainWireIf},
		HostAddrs: []netip.Addr{plainNodes[i].Addr()}, PodCIDRs: []netip.Prefix{plainPods[i]},
		FlowEntries: tunnelFlows, EventsPerSecond: 1000, Log: slog.New(slog.DiscardHandler),
	}
	if engine != "" {
		options.Encrypt = &esp.Options{Engine: engine, AllowTableAES: true, Port: espPort}
	}
	err := netns.Do(n.ns, func() (err error) {
		n.dp, err = datapath.Open(options)
		return err
	})
	if err != nil {
		return fmt.Errorf("open datapath of node %s: %w", n.name, err)
	}
	var ctx context.Context
	ctx, n.stop = context.WithCancel(context.Background())
	n.finished.Go(func() { _ = netns.Do(n.ns, func() error { return n.dp.Run(ctx) }) })
	return nil
}

// close takes everything away; safe to call twice.
func (t *tunnel) close() error {
	var errs []error
	for _, n := range t.nodes {
		errs = append(errs, n.close())
	}
	t.nodes = nil
	return errors.Join(append(errs, t.topo.close())...)
}

func (n *tunnelNode) close() error {
	if n.stop != nil {
		n.stop()
		n.finished.Wait()
	}
	var errs []error
	if n.dp != nil {
		errs = append(errs, n.dp.Close())
	}
	if n.bpf != "" {
		errs = append(errs, netns.Do(n.ns, func() error {
			return datapath.Cleanup(n.bpf, n.state, slog.New(slog.DiscardHandler))
		}))
	}
	return errors.Join(append(errs, os.RemoveAll(n.state))...)
}
