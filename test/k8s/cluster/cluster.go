// Package cluster runs a Kubernetes cluster for tests: a real control plane and real kubelets with
// containerd and runc, and Weft on each node as docs/kubernetes.md says. A node is a set of
// namespaces with a wire to the others; images come from an archive, not from a registry. A package
// of such tests calls Main from its TestMain.
package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns/nettest"
	"weft.dev/weft/test/k8s"
)

// Cluster is a cluster of a test. Its control plane is in the test's own network namespace.
type Cluster struct {
	API   *k8s.Server
	Nodes []*Node
	// Pods are the ranges that the nodes' are of.
	Pods []netip.Prefix

	t testing.TB
	// dir has the files that all nodes share.
	dir string
}

// Addresses of the control plane on the wire; nodes have those that follow.
var (
	control4 = netip.MustParsePrefix("192.0.2.1/24")
	control6 = netip.MustParsePrefix("2001:db8::1/64")
)

// bridge is the wire: a port for each node.
const bridge = "wire"

// Start runs a cluster of so many nodes until the test ends. When it returns, every node is Ready
// and every agent is.
func Start(t testing.TB, nodes int) *Cluster {
	t.Helper()
	if os.Getenv(k8s.Wanted) == "" {
		t.Skip("needs Kubernetes, which takes many minutes to build from its module: make test-k8s")
	}
	require(t)
	c := &Cluster{t: t, dir: scratchOf(t, "shared"), Pods: []netip.Prefix{
		netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd77::/48")}}
	c.layWire()
	c.API = k8s.StartWith(t, k8s.Options{Address: control4.Addr(), Args: []string{
		"--enable-admission-plugins", "NodeRestriction", "--allow-privileged",
		"--service-cluster-ip-range", "10.96.0.0/24,fd96::/112"}})
	c.API.Install()
	c.control()
	archive := image(t, c.dir)
	build(t, filepath.Join(c.dir, "loopback"),
		"github.com/containernetworking/plugins/plugins/main/loopback")
	keys := newKeys(t, c.dir)
	for i := range nodes {
		c.Nodes = append(c.Nodes, c.node(i+1))
	}
	for _, n := range c.Nodes {
		c.runtime(n, archive)
		c.kubelet(n)
	}
	for _, n := range c.Nodes {
		c.awaitNode(n, "is registered", func(map[string]any) bool { return true })
		keys.give(t, n)
		c.weft(n)
	}
	for _, n := range c.Nodes {
		c.StartAgent(n)
		c.installCNI(n)
	}
	for _, n := range c.Nodes {
		c.awaitNode(n, "is Ready", ready)
	}
	return c
}

// require ends the test where this machine lacks what it needs: who asks for it wants to know.
func require(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: makes namespaces")
	}
	for _, program := range []string{"containerd", "ctr", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("needs containerd and runc: apt-get install --no-install-recommends containerd runc: %v", err)
		}
	}
	all, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		if h.mounted == "memory" {
			return
		}
	}
	t.Fatal("needs control groups of version 1 with the controller memory: nodes on version 2 are not written yet")
}

// layWire makes the bridge that is all nodes' wire, with the control plane on it.
func (c *Cluster) layWire() {
	c.t.Helper()
	snooping := false
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge},
		MulticastSnooping: &snooping})
	if err == nil {
		err = nettest.Up("lo")
	}
	if err == nil {
		err = nettest.Up(bridge, control4.String(), control6.String())
	}
	if err != nil {
		c.t.Fatalf("lay the wire: %v", err)
	}
	c.t.Cleanup(func() {
		if link, err := netlink.LinkByName(bridge); err == nil {
			netlink.LinkDel(link) //nolint:errcheck // the namespace goes too
		}
	})
}

// node makes the number-th node and starts it.
func (c *Cluster) node(number int) *Node {
	c.t.Helper()
	name := fmt.Sprint("node-", number)
	n := &Node{Name: name, t: c.t, dir: scratchOf(c.t, name), number: number}
	for _, first := range []netip.Prefix{control4, control6} {
		addr := first.Addr()
		for range number {
			addr = addr.Next()
		}
		n.Addresses = append(n.Addresses, addr)
	}
	c.connect(n)
	n.boot()
	c.t.Cleanup(func() {
		if c.t.Failed() {
			for _, service := range []string{Agent, Kubelet, Containerd} {
				c.t.Logf("%s of %s: %s", service, name, n.Log(service))
			}
		}
	})
	return n
}

// connect gives a node a network namespace that is on the wire.
func (c *Cluster) connect(n *Node) {
	c.t.Helper()
	n.NetNS = nettest.New(c.t, "k8s")
	nettest.Do(c.t, n.NetNS, func() error {
		for _, file := range []string{"all/disable_ipv6", "default/disable_ipv6",
			"default/accept_ra", "default/accept_dad"} {
			if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", file), []byte("0"),
				0); err != nil {
				return err
			}
		}
		return errors.Join(lab.SetSysctls(lab.SysctlsDistribution), nettest.Up("lo"))
	})
	nettest.Wire(c.t, nettest.End{Name: n.port(), Index: 100 + n.number},
		nettest.End{NetNS: n.NetNS, Name: Uplink, Addrs: []string{
			netip.PrefixFrom(n.Addresses[0], control4.Bits()).String(),
			netip.PrefixFrom(n.Addresses[1], control6.Bits()).String()}})
	nettest.Do(c.t, n.NetNS, func() error {
		return nettest.DefaultRoutes(control4.Addr().String(), control6.Addr().String())
	})
	link, err := netlink.LinkByName(n.port())
	if err == nil {
		err = netlink.LinkSetMasterByIndex(link, indexOf(bridge))
	}
	if err != nil {
		c.t.Fatalf("put node %s on the wire: %v", n.Name, err)
	}
}

func indexOf(name string) int {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0
	}
	return link.Attrs().Index
}
