package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// asBefore waits until every node has no more of pods than it had.
func (c *Cluster) asBefore(t *testing.T, before []string) {
	t.Helper()
	for i, n := range c.Nodes {
		c.Eventually(n.Name+" has no more of pods than before", func(context.Context) error {
			if now := n.left(t); now != before[i] {
				return fmt.Errorf("%s, and before %s", now, before[i])
			}
			return nil
		})
	}
}

func (c *Cluster) left(t *testing.T) (out []string) {
	t.Helper()
	for _, n := range c.Nodes {
		out = append(out, n.left(t))
	}
	return out
}

// published are the names of a namespace's Endpoints that begin so.
func (c *Cluster) published(ctx context.Context, namespace, prefix string) (out []string, err error) {
	list, err := c.API.Dynamic.Resource(Endpoints).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range list.Items {
		if strings.HasPrefix(o.GetName(), prefix) {
			out = append(out, o.GetName())
		}
	}
	return out, nil
}

// gone waits until no Endpoint whose name begins so is published.
func (c *Cluster) gone(namespace, prefix string) {
	c.t.Helper()
	c.Eventually("Endpoints "+prefix+"* are gone", func(ctx context.Context) error {
		left, err := c.published(ctx, namespace, prefix)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%v", left)
		}
		return err
	})
}

// testMany: pods that come and go together leave nothing, and the two that stay lose nothing.
func testMany(t *testing.T, c *Cluster, pods []*Pod) {
	before := c.left(t)
	judge := streams(t, pods)
	const count = 16
	many := strings.NewReplacer("name: web,", "name: many,", "app: web", "app: many", "replicas: 2",
		fmt.Sprint("replicas: ", count), "requiredDuring", "preferredDuring").Replace(web)
	many = strings.Replace(many, `        - topologyKey: kubernetes.io/hostname
          labelSelector: {matchLabels: {app: many}}
`, `        - weight: 1
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector: {matchLabels: {app: many}}
`, 1)
	for range 2 {
		c.Apply(many)
		made := c.AwaitPods("shop", "app=many", count)
		testReach(t, c, []*Pod{made[0], made[count-1]})
		c.Apply(strings.Replace(many, fmt.Sprint("replicas: ", count), "replicas: 0", 1))
		c.gone("shop", "many-")
		c.asBefore(t, before)
	}
	judge()
}

// testSandbox: a sandbox that dies is made anew for the same pod, and taking away the old one takes
// nothing from the new one.
func testSandbox(t *testing.T, c *Cluster, pods []*Pod) {
	n := pods[0].Node
	c.Apply(onePod("phoenix", n.Name))
	old := c.AwaitPods("shop", "app=phoenix", 1)[0]
	n.Run("sh", "-c", "kill -KILL $(ctr -n k8s.io tasks ls | awk '$1 == \""+c.sandbox(t, old)+
		"\" {print $2}')")
	var again *Pod
	c.Eventually("the pod has another sandbox", func(context.Context) error {
		again = c.AwaitPods("shop", "app=phoenix", 1)[0]
		if again.HostIf == old.HostIf {
			return errors.New("it is the old one")
		}
		return nil
	})
	c.Eventually("what is published is the new one", func(ctx context.Context) error {
		o, err := c.API.Dynamic.Resource(Endpoints).Namespace("shop").
			Get(ctx, "phoenix."+n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		all, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "addresses")
		if !slices.Contains(all, again.IPv4.String()) || !slices.Contains(all, again.IPv6.String()) {
			return fmt.Errorf("%v, and the pod has %s and %s", all, again.IPv4, again.IPv6)
		}
		return nil
	})
	testReach(t, c, []*Pod{again, pods[1]})
	c.Delete(again)
	c.gone("shop", "phoenix.")
}

// sandbox is the ID of a pod's sandbox.
func (c *Cluster) sandbox(t *testing.T, p *Pod) string {
	t.Helper()
	all, err := p.Node.Admin().Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.HostIf == p.HostIf {
			return e.ContainerID
		}
	}
	t.Fatalf("no endpoint of %s", p.Name)
	return ""
}

// testEnded: of a pod that has ended nothing is left, though its object stays, with addresses that
// others may have by then.
func testEnded(t *testing.T, c *Cluster, pods []*Pod) {
	before := c.left(t)
	once := strings.Replace(onePod("once", pods[0].Node.Name), "args: [serve]", "args: [check]", 1)
	for _, probe := range []string{"startupProbe", "readinessProbe", "livenessProbe"} {
		once = dropLine(once, probe)
	}
	c.Apply(once + "    restartPolicy: Never\n")
	c.Eventually("the pod has ended", func(ctx context.Context) error {
		o, err := c.API.Dynamic.Resource(Core("pods")).Namespace("shop").
			Get(ctx, "once", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if phase, _, _ := unstructured.NestedString(o.Object, "status", "phase"); phase != "Failed" {
			return errors.New("it is " + phase)
		}
		return nil
	})
	c.gone("shop", "once.")
	c.asBefore(t, before)
	c.Delete(&Pod{Namespace: "shop", Name: "once"})
}

func dropLine(text, what string) string {
	var out []string
	for _, line := range strings.SplitAfter(text, "\n") {
		if !strings.Contains(line, what) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// testMoves: a pod of the same name on the other node is another pod, and whoever asked the first
// one asks it.
func testMoves(t *testing.T, c *Cluster, pods []*Pod) {
	for _, at := range []int{0, 1, 0} {
		n := pods[at].Node
		c.Apply(onePod("nomad", n.Name))
		p := c.AwaitPods("shop", "app=nomad", 1)[0]
		testReach(t, c, []*Pod{p, pods[1-at]})
		c.Delete(p)
		c.Eventually("the name is free", func(ctx context.Context) error {
			_, err := c.API.Dynamic.Resource(Core("pods")).Namespace("shop").
				Get(ctx, "nomad", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is there, or %w", err)
		})
	}
	c.gone("shop", "nomad.")
}

// testNamespace: with a namespace go its pods and what was published of them, and no agent puts
// that back.
func testNamespace(t *testing.T, c *Cluster, pods []*Pod) {
	before := c.left(t)
	c.Apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: shortlived}\n")
	c.serviceAccount("shortlived")
	c.Apply(strings.Replace(onePod("guest", pods[0].Node.Name), "namespace: shop",
		"namespace: shortlived", 1))
	guest := c.AwaitPods("shortlived", "app=guest", 1)[0]
	testReach(t, c, []*Pod{guest, pods[1]})
	namespaces := c.API.Dynamic.Resource(Core("namespaces"))
	if err := namespaces.Delete(t.Context(), "shortlived", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Eventually("the namespace is gone", func(ctx context.Context) error {
		_, err := namespaces.Get(ctx, "shortlived", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there, or %w", err)
	})
	c.asBefore(t, before)
}

// testHostNetwork: a pod with the host's network is its node: pods reach it there, sealed, and it
// has no Endpoint.
func testHostNetwork(t *testing.T, c *Cluster, pods []*Pod) {
	n, before := pods[0].Node, c.left(t)
	c.Apply(strings.Replace(onePod("hostly", n.Name), "    nodeSelector",
		"    hostNetwork: true\n    nodeSelector", 1))
	c.Eventually("the pod is Ready", func(ctx context.Context) error {
		o, err := c.API.Dynamic.Resource(Core("pods")).Namespace("shop").
			Get(ctx, "hostly", metav1.GetOptions{})
		if err == nil && !ready(o.Object) {
			err = fmt.Errorf("%v", o.Object["status"])
		}
		return err
	})
	host := &Pod{Namespace: "shop", Name: "hostly", Node: n, NetNS: n.NetNS, IPv4: n.Addresses[0],
		IPv6: n.Addresses[1]}
	for _, p := range pods {
		testReach(t, c, []*Pod{host, p})
	}
	c.asBefore(t, before)
	c.Delete(host)
}

// testCrash: a node that crashes and starts again, with its disk and nothing else, makes its pods
// anew. They are sealed from the first packet on.
func testCrash(t *testing.T, c *Cluster) {
	n := c.Nodes[0]
	n.Crash()
	c.connect(n)
	wire := c.watch(t)
	n.boot()
	c.startContainerd(n)
	c.startKubelet(n)
	c.Eventually("the kubelet has noticed", func(ctx context.Context) error {
		list, err := c.API.Dynamic.Resource(Core("pods")).Namespace("shop").
			List(ctx, metav1.ListOptions{LabelSelector: "app=web",
				FieldSelector: "spec.nodeName=" + n.Name})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			if ready(o.Object) {
				return errors.New("it takes its pod for Ready")
			}
		}
		return nil
	})
	c.StartAgent(n)
	pods := c.AwaitPods("shop", "app=web", 2)
	testReach(t, c, pods)
	testReach(t, c, []*Pod{pods[1], pods[0]})
	wire(t)
}
