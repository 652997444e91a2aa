package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		{"a sandbox dies", testSandbox},
		{"a pod ends", testEnded},
		{"a name moves to the other node", testMoves},
		{"a namespace goes", testNamespace},
		{"a pod has the host's network", testHostNetwork},
		{"many pods come and go", testMany},
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
	if !t.Failed() {
		t.Run("a node crashes", func(t *testing.T) { testCrash(t, c) })
	}
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
