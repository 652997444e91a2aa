package wirefuzz

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/test/labtest"
)

// patience bounds every wait. Nothing here takes a twentieth of it on a machine with time.
const patience = 2 * time.Minute

// The machine out knows nothing of Weft: it is the world. Its wire is a bridge in a namespace of
// its own, where the fuzzer sits on the cables to a and b.
const twoNodes = `
name: set-later
` + labtest.ABOut + `pods:
  - {name: client, node: a, namespace: shop, serviceAccount: client, addresses: [10.77.1.10, "fd77:1::10"]}
  - {name: db, node: a, namespace: vault, serviceAccount: db, addresses: [10.77.1.100, "fd77:1::100"]}
  - {name: server, node: b, namespace: shop, serviceAccount: server, addresses: [10.77.2.100, "fd77:2::100"]}
  - {name: web, node: b, namespace: open, serviceAccount: web, addresses: [10.77.2.80, "fd77:2::80"]}
`

// Addresses of the world that hosts route to out.
var far = [2]netip.Addr{netip.MustParseAddr("198.51.100.7"),
	netip.MustParseAddr("2001:db8:ffff::7")}

// harness is the lab with the fuzzer on its wire.
type harness struct {
	lab    *lab.Lab
	know   *cluster
	wire   string // its namespace
	cables map[string]*cable
	evil   map[string]*takenOver // by the node whose datapath seals
	macs   map[string]net.HardwareAddr
	tap    *tap
	honest []*talk
	number map[string]uint16 // a node's number at the other
	idents map[string]uint32 // a pod's identity
	held   map[string][]*heldPacket
	lastID uint32 // of the markers
	// lastLane is the highest of the lanes towards the node that has a sealer: what it opens.
	lastLane uint8
	asSealer link.Link
}

func newHarness(t *testing.T, modes string) *harness {
	t.Helper()
	spec, err := lab.Parse([]byte(twoNodes))
	if err != nil {
		t.Fatal(err)
	}
	spec.Name = labName
	for i := range spec.Nodes {
		if spec.Nodes[i].Bare() {
			continue
		}
		spec.Nodes[i].Mode = modes
		engine := "bpf"
		if spec.Nodes[i].Name == sealerNode {
			engine = "user"
		}
		spec.Nodes[i].Config = map[string]any{"encryption": map[string]any{"engine": engine}}
	}
	l, err := lab.Up(t.Context(), spec,
		lab.Options{Binary: weftBinary, ReadyTimeout: labtest.ReadyTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil && !errors.Is(err, labdir.ErrNoLab) {
			t.Errorf("take the lab down: %v", err)
		}
	})
	b := &harness{lab: l, know: know(l), wire: netns.Path("weft-" + l.Name() + "-wire-w0"),
		macs:   map[string]net.HardwareAddr{},
		cables: map[string]*cable{}, number: map[string]uint16{}, idents: map[string]uint32{},
		held: map[string][]*heldPacket{}, evil: map[string]*takenOver{}}
	b.applyPolicies(t)
	b.routeWorld(t)
	// Frames that stand for many packets cross the cables as they are.
	b.offload(t, "p0", "p1")
	for node, port := range map[string]string{"a": "p0", "b": "p1"} {
		b.macs[node] = b.mac(t, node)
		b.cables[node] = newCable(t, b.wire, port)
	}
	b.lastLane = b.lanes(t, other(sealerNode)) - 1
	b.asSealer = asBySealer(t, b.wire, "p1", b.lastLane)
	b.tap = newTap(t, l)
	b.startTalks(t)
	return b
}

func know(l *lab.Lab) *cluster {
	c := &cluster{pods: map[netip.Addr]string{}, nodes: map[netip.Addr]string{},
		homes: map[netip.Prefix]string{}, plain: map[netip.Addr]bool{},
		isolated: map[string]bool{"db": true}}
	for _, n := range agents(l) {
		for _, a := range n.Addresses {
			c.nodes[a] = n.Name
		}
		for _, r := range n.PodCIDRs {
			c.homes[r] = n.Name
		}
	}
	for _, p := range l.Pods() {
		for _, a := range []netip.Addr{p.IPv4, p.IPv6} {
			c.pods[a] = p.Name
			if p.Namespace == "open" {
				c.plain[a] = true
			}
		}
	}
	return c
}

func agents(l *lab.Lab) []*lab.Node {
	return slices.DeleteFunc(l.Nodes(), func(n *lab.Node) bool { return n.Bare })
}

// other is the peer of node a or b.
func other(node string) string {
	if node == "a" {
		return "b"
	}
	return "a"
}

func must(t *testing.T, ns string, argv ...string) string {
	t.Helper()
	var out []byte
	err := netns.Do(ns, func() (err error) {
		out, err = exec.Command(argv[0], argv[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// eventually polls until ok returns nil, and fails with its last answer.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	labtest.Eventually(t, patience, what, ok)
}

// isolation lets nobody begin with pod db but its own node.
const isolation = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: vault}
spec:
  podSelector: {}
  policyTypes: [Ingress]
`

// applyPolicies has one that lets pod web travel in cleartext, and one that isolates pod db, and
// waits until both nodes know them.
func (b *harness) applyPolicies(t *testing.T) {
	t.Helper()
	for name, text := range map[string]string{"policy.yaml": labtest.OpenPolicy,
		"isolation.yaml": isolation} {
		err := os.WriteFile(filepath.Join(b.lab.ObjectsDir(), name), []byte(text), 0o644)
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the isolation of pod db", func() error {
		all, err := admin.NewClient(b.lab.Node("a").Socket).Policies(t.Context())
		if err != nil {
			return err
		}
		for _, p := range all.Pods {
			if p.Pod == "vault/db" && len(p.Ingress) == 1 {
				return nil
			}
		}
		return fmt.Errorf("pods are %+v", all.Pods)
	})
	b.keyed(t)
}

// keyed waits until the nodes have keys with each other and know what may be plain.
func (b *harness) keyed(t *testing.T) {
	t.Helper()
	for _, n := range agents(b.lab) {
		eventually(t, "keys of node "+n.Name, func() error {
			e, err := admin.NewClient(n.Socket).Encrypt(t.Context())
			if err != nil {
				return err
			}
			if len(e.Plain) != len(b.know.plain) {
				return fmt.Errorf("plain are %v", e.Plain)
			}
			for _, p := range e.Peers {
				if p.SendEpoch == 0 || p.ReceiveEpoch == 0 || p.Identities < 2 {
					return fmt.Errorf("peer %+v; problems: %v", p, e.Problems)
				}
			}
			if len(e.Peers) != 1 {
				return fmt.Errorf("%d peers", len(e.Peers))
			}
			return nil
		})
	}
}

// routeWorld gives the nodes a route to the world, which is what makes their kernels forward from
// it.
func (b *harness) routeWorld(t *testing.T) {
	t.Helper()
	out := b.lab.Node("out")
	for _, n := range agents(b.lab) {
		for i, a := range far {
			must(t, n.NetNS, "ip", "route", "add", a.String(), "via", out.Addresses[i].String())
		}
	}
}

func (b *harness) mac(t *testing.T, node string) (mac net.HardwareAddr) {
	t.Helper()
	err := b.lab.Node(node).Do(func() error {
		i, err := net.InterfaceByName("w0")
		if err == nil {
			mac = i.HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

func (b *harness) offload(t *testing.T, ports ...string) {
	t.Helper()
	err := netns.Do(b.wire, func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		for _, p := range ports {
			known, err := tool.FeatureNames(p)
			if err != nil {
				return err
			}
			change := map[string]bool{}
			for _, f := range []string{"tx-tcp-segmentation", "tx-tcp6-segmentation",
				"tx-udp-segmentation", "tx-generic-segmentation", "tx-checksum-ip-generic"} {
				if _, ok := known[f]; ok {
					change[f] = true
				}
			}
			if err := tool.Change(p, change); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("offloads of the wire: %v", err)
	}
}

// setMode restarts both agents in a datapath mode.
func (b *harness) setMode(t *testing.T, mode string) {
	t.Helper()
	b.mergeUDP(t)
	var group errgroup.Group
	for _, n := range agents(b.lab) {
		writeMode(t, n, mode)
		group.Go(func() error { return n.RestartAgent(t.Context()) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	b.keyed(t)
}

// writeMode changes the mode in a node's configuration.
func writeMode(t *testing.T, n *lab.Node, mode string) {
	t.Helper()
	data, err := os.ReadFile(n.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	config := map[string]any{}
	if err := yaml.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	config["mode"] = mode
	if data, err = yaml.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.ConfigFile, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
