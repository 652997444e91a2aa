package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netns"
)

func TestMain(m *testing.M) { Main(m) }

// A Deployment with a pod on each node.
const web = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
   metadata: {labels: {app: web}}
   spec:
    affinity:
      podAntiAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector: {matchLabels: {app: web}}
` + Container

// onePod is a pod on a node. It is indented as Container is.
func onePod(name, node string) string {
	return `apiVersion: v1
kind: Pod
metadata: {name: ` + name + `, namespace: shop, labels: {app: ` + name + `}}
spec:
    nodeSelector: {kubernetes.io/hostname: ` + node + `}
` + Container
}

// TestCluster: pods that real kubelets make are in Weft's network for all of their lives, whatever
// else restarts, and nothing that they send each other crosses the wire in cleartext.
func TestCluster(t *testing.T) {
	c := Start(t, 2)
	wire := c.watch(t)
	c.Apply(web)
	pods := c.AwaitPods("shop", "app=web", 2)
	if pods[0].Node == pods[1].Node {
		t.Fatalf("both pods are on %s", pods[0].Node.Name)
	}
	for _, step := range []struct {
		name string
		run  func(*testing.T, *Cluster, []*Pod)
	}{
		{"pods reach each other", testReach},
		{"a NetworkPolicy cuts and opens", testPolicy},
		{"a deleted pod leaves nothing", testDelete},
		{"Services", testServices},
		{"the API is away", testAway},
		{"agents restart", testRestart},
		{"kubelet and containerd restart", testRuntime},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, c, pods) }) {
			break
		}
	}
	wire(t)
}

// watch looks at all frames on the wire until the returned function judges them.
func (c *Cluster) watch(t *testing.T) (judge func(*testing.T)) {
	t.Helper()
	var ports []string
	rules := encryptcheck.Rules{Pods: c.Pods}
	for i, n := range c.Nodes {
		ports = append(ports, fmt.Sprint("port-", i+1))
		rules.Nodes = append(rules.Nodes, n.Addresses...)
	}
	capture, err := encryptcheck.Open("", ports...)
	if err != nil {
		t.Fatal(err)
	}
	detector := encryptcheck.NewDetector(rules)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- capture.Run(ctx, func(f encryptcheck.Frame) { detector.Frame(f) })
	}()
	t.Cleanup(stop)
	return func(t *testing.T) {
		t.Helper()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		lost := capture.Lost()
		capture.Close()
		report := detector.Report()
		t.Logf("on the wire: %d frames, %d sealed, %d plain, %d outside, %d not seen", report.Frames,
			report.Sealed, report.Plain, report.Outside, lost)
		if !report.Clean() || report.Outside > 0 || lost > 0 || len(report.SealedTo) < 2 {
			t.Errorf("of pods in cleartext: %+v", report)
		}
	}
}

// echo asks a pod's echo server from another pod.
func echo(ctx context.Context, from, to *Pod, family int, protocol string) error {
	at := netip.AddrPortFrom(to.Addr(family), EchoPort)
	ask := traffic.EchoTCP
	if protocol == "UDP" {
		ask = traffic.EchoUDP
	}
	_, err := ask(ctx, from.NetNS, from.Addr(family), at, 1000)
	return err
}

func bothWays(pods []*Pod, do func(from, to *Pod, family int, protocol string)) {
	for _, family := range []int{4, 6} {
		for _, protocol := range []string{"TCP", "UDP"} {
			do(pods[0], pods[1], family, protocol)
			do(pods[1], pods[0], family, protocol)
		}
	}
}

func testReach(t *testing.T, c *Cluster, pods []*Pod) {
	bothWays(pods, func(from, to *Pod, family int, protocol string) {
		c.Eventually(fmt.Sprintf("echo by %s over IPv%d", protocol, family),
			func(context.Context) error {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				return echo(ctx, from, to, family, protocol)
			})
	})
}

var networkPolicies = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1",
	Resource: "networkpolicies"}

func testPolicy(t *testing.T, c *Cluster, pods []*Pod) {
	c.Apply(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
`)
	bothWays(pods, func(from, to *Pod, family int, protocol string) {
		c.Eventually(fmt.Sprintf("%s over IPv%d is cut", protocol, family),
			func(context.Context) error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if echo(ctx, from, to, family, protocol) == nil {
					return errors.New("there is an echo")
				}
				return nil
			})
	})
	for _, p := range pods {
		p.denied(t)
	}
	c.AwaitPods("shop", "app=web", 2) // their kubelets' probes are no pods'
	if err := c.API.Dynamic.Resource(networkPolicies).Namespace("shop").
		Delete(t.Context(), "closed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testReach(t, c, pods)
}

// denied fails the test unless the pod's node has refused packets for its policy.
func (p *Pod) denied(t *testing.T) {
	t.Helper()
	drops, err := p.Node.Admin().Drops(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range drops {
		if d.Reason == "policy_denied" && d.Packets > 0 {
			return
		}
	}
	t.Errorf("%s has not refused anything for a policy: %+v", p.Node.Name, drops)
}

// left is what a node has of pods.
func (n *Node) left(t *testing.T) string {
	t.Helper()
	var names []string
	if err := netns.Do(n.NetNS, func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	endpoints, err := n.Admin().Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	records, err := os.ReadDir(n.Path("/var/lib/weft/endpoints"))
	if err != nil {
		t.Fatal(err)
	}
	spaces, err := os.ReadDir(n.Path("/run/netns"))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d endpoints, %d records, %d namespaces, links %v", len(endpoints),
		len(records), len(spaces), names)
}

func testDelete(t *testing.T, c *Cluster, pods []*Pod) {
	n := pods[0].Node
	before := n.left(t)
	c.Apply(onePod("one", n.Name))
	one := c.AwaitPods("shop", "app=one", 1)[0]
	if one.Node != n || n.left(t) == before {
		t.Fatalf("pod one is on %s, which has %s", one.Node.Name, before)
	}
	published := func(ctx context.Context) error {
		_, err := c.API.Dynamic.Resource(Endpoints).Namespace("shop").
			Get(ctx, "one."+n.Name, metav1.GetOptions{})
		return err
	}
	c.Eventually("the endpoint is published", published)
	testReach(t, c, []*Pod{one, pods[1]})
	c.Delete(one)
	c.Eventually("the endpoint is gone", func(ctx context.Context) error {
		if err := published(ctx); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the API server says: %w", err)
		}
		if now := n.left(t); now != before {
			return fmt.Errorf("%s, and before %s", now, before)
		}
		return nil
	})
}

// streams runs traffic of both protocols and families, in both directions, until the returned
// function judges it.
func streams(t *testing.T, pods []*Pod) (judge func()) {
	t.Helper()
	var datagrams []*traffic.UDPStream
	var connections []*traffic.TCPStream
	bothWays(pods, func(from, to *Pod, family int, protocol string) {
		at := netip.AddrPortFrom(to.Addr(family), 0)
		if protocol == "UDP" {
			s, err := traffic.StartUDP(t.Context(), traffic.UDPOptions{From: from.NetNS,
				To: to.NetNS, Src: from.Addr(family), Dst: at, PPS: 100})
			if err != nil {
				t.Fatal(err)
			}
			datagrams = append(datagrams, s)
			return
		}
		s, err := traffic.StartTCP(t.Context(), traffic.TCPOptions{From: from.NetNS, To: to.NetNS,
			Src: from.Addr(family), Dst: at, BytesPerSecond: 100_000})
		if err != nil {
			t.Fatal(err)
		}
		connections = append(connections, s)
	})
	return func() {
		t.Helper()
		for _, s := range datagrams {
			r := s.Stop()
			t.Log("UDP:", r)
			if r.Sent == 0 || r.Lost > 0 || r.SendErrors > 0 || r.Corrupt > 0 {
				t.Error("datagrams were lost")
			}
		}
		for _, s := range connections {
			r := s.Stop()
			t.Log("TCP:", r)
			if r.Sent == 0 || r.Received != r.Sent || r.Resets > 0 || r.Corrupt {
				t.Error("bytes were lost")
			}
		}
	}
}

// away is how long the API server is: nothing is measured by it.
const away = 30 * time.Second

// testAway: without the API server packets go on; a pod that only the kubelet knows of waits, as
// nobody can say who it is, and is made once the server is back.
func testAway(t *testing.T, c *Cluster, pods []*Pod) {
	n := pods[0].Node
	judge := streams(t, pods)
	c.API.Kill()
	n.Write("/etc/kubernetes/manifests/late.yaml", strings.Replace(onePod("late", n.Name),
		"nodeSelector: {kubernetes.io/hostname: "+n.Name+"}", "hostNetwork: false", 1))
	back := time.Now().Add(away)
	c.Eventually("the kubelet asks for a network in vain", func(context.Context) error {
		if log := n.Log(Kubelet); !strings.Contains(log, "weft-cni") ||
			!strings.Contains(log, "late-"+n.Name) {
			return errors.New("not yet")
		}
		return nil
	})
	// An agent that starts meanwhile has what it remembers, and waits for the rest.
	other := pods[1].Node
	other.Stop(Agent, unix.SIGTERM)
	c.launchAgent(other)
	time.Sleep(time.Until(back))
	endpoints, err := n.Admin().Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range endpoints {
		if e.Pod == "late-"+n.Name {
			t.Errorf("a pod of whom nobody knows who it is was added: %+v", e)
		}
	}
	c.API.Start()
	c.AwaitAgent(other)
	late := c.AwaitPods("shop", "app=late", 1)[0]
	judge()
	testReach(t, c, []*Pod{late, pods[1]})
	if err := os.Remove(n.Path("/etc/kubernetes/manifests/late.yaml")); err != nil {
		t.Fatal(err)
	}
}

func testRestart(t *testing.T, c *Cluster, pods []*Pod) {
	judge := streams(t, pods)
	for _, n := range c.Nodes {
		for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
			n.Stop(Agent, signal)
			time.Sleep(2 * time.Second) // traffic without an agent
			c.StartAgent(n)
		}
	}
	judge()
	testReach(t, c, c.AwaitPods("shop", "app=web", 2))
}

func testRuntime(t *testing.T, c *Cluster, pods []*Pod) {
	judge := streams(t, pods)
	n := pods[0].Node
	n.Stop(Kubelet, unix.SIGTERM)
	n.Stop(Containerd, unix.SIGTERM)
	c.startContainerd(n)
	c.startKubelet(n)
	c.Apply(onePod("after", n.Name))
	after := c.AwaitPods("shop", "app=after", 1)[0]
	judge()
	testReach(t, c, []*Pod{after, pods[1]})
	c.Delete(after)
}

// A Service of both families in front of the Deployment, and of every node.
const webService = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports:
  - {name: echo-tcp, port: 7000, protocol: TCP, nodePort: 30070}
  - {name: echo-udp, port: 7000, protocol: UDP, nodePort: 30070}
`

// testServices: kube-proxy translates in the host's stack, to a pod of this node or another one.
// Each is asked often enough to meet both.
func testServices(t *testing.T, c *Cluster, pods []*Pod) {
	c.Apply(webService)
	for _, n := range c.Nodes {
		c.StartProxy(n)
	}
	c.Apply(onePod("client", pods[0].Node.Name))
	client := c.AwaitPods("shop", "app=client", 1)[0]
	service, err := c.API.Dynamic.Resource(Core("services")).Namespace("shop").
		Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addresses, _, _ := unstructured.NestedStringSlice(service.Object, "spec", "clusterIPs")
	if len(addresses) != 2 {
		t.Fatalf("the Service has %v", addresses)
	}
	ask := func(what, netNS string, at netip.AddrPort) {
		for range 8 {
			for protocol, echo := range map[string]func(context.Context, string, netip.Addr,
				netip.AddrPort, int) (time.Duration, error){"TCP": traffic.EchoTCP,
				"UDP": traffic.EchoUDP} {
				c.Eventually(fmt.Sprintf("%s asks %s by %s", what, at, protocol),
					func(context.Context) error {
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						defer cancel()
						_, err := echo(ctx, netNS, netip.Addr{}, at, 1000)
						return err
					})
			}
		}
	}
	for _, text := range addresses {
		at := netip.AddrPortFrom(netip.MustParseAddr(text), EchoPort)
		ask("a pod", client.NetNS, at)
		ask("a node", pods[0].Node.NetNS, at)
	}
	for _, addr := range pods[0].Node.Addresses {
		at := netip.AddrPortFrom(addr, 30070)
		ask("a pod", client.NetNS, at)
		ask("another node", pods[1].Node.NetNS, at)
		ask("a machine outside", "", at)
	}
	c.Delete(client)
}
