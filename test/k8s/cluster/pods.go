package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The ports of what the pods run: echo of TCP and UDP, and a page.
const (
	EchoPort = 7000
	PagePort = 8080
)

// Pod is a pod that runs.
type Pod struct {
	Namespace, Name string
	Node            *Node
	IPv4, IPv6      netip.Addr
	// NetNS is where the test finds its network namespace, HostIf the node's end of its interface.
	NetNS, HostIf string
}

// Container is the container of a pod's template, with every kind of probe that a kubelet makes by
// the network or in the pod.
const Container = `    containers:
    - name: pod
      image: ` + Image + `
      imagePullPolicy: Never
      args: [serve]
      startupProbe: {tcpSocket: {port: 7000}, periodSeconds: 1, failureThreshold: 120}
      readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1, timeoutSeconds: 10}
      livenessProbe: {exec: {command: [/pod, check]}, periodSeconds: 5, timeoutSeconds: 30}
    dnsPolicy: Default
    automountServiceAccountToken: false
    terminationGracePeriodSeconds: 1
`

// AwaitPods waits until so many pods that a selector of labels names are Ready, and the agents of
// all nodes know their addresses.
func (c *Cluster) AwaitPods(namespace, selector string, count int) (out []*Pod) {
	c.t.Helper()
	c.Eventually(fmt.Sprintf("%d pods of %s are Ready", count, selector),
		func(ctx context.Context) error {
			list, err := c.API.Dynamic.Resource(Core("pods")).Namespace(namespace).
				List(ctx, metav1.ListOptions{LabelSelector: selector})
			if err != nil {
				return err
			}
			out = nil
			for _, o := range list.Items {
				p, err := c.pod(ctx, &o)
				if err != nil {
					return fmt.Errorf("pod %s: %w", o.GetName(), err)
				}
				out = append(out, p)
			}
			if len(out) != count {
				return fmt.Errorf("%d", len(out))
			}
			return nil
		})
	return out
}

// pod is the pod of an object, which is Ready.
func (c *Cluster) pod(ctx context.Context, o *unstructured.Unstructured) (*Pod, error) {
	if !ready(o.Object) || o.GetDeletionTimestamp() != nil {
		return nil, fmt.Errorf("not Ready: %v", o.Object["status"])
	}
	p := &Pod{Namespace: o.GetNamespace(), Name: o.GetName()}
	ips, _, _ := unstructured.NestedSlice(o.Object, "status", "podIPs")
	for _, item := range ips {
		one, _ := item.(map[string]any)
		addr, err := netip.ParseAddr(fmt.Sprint(one["ip"]))
		switch {
		case err != nil:
			return nil, err
		case addr.Is4():
			p.IPv4 = addr
		default:
			p.IPv6 = addr
		}
	}
	name, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
	for _, n := range c.Nodes {
		if n.Name == name {
			p.Node = n
		}
	}
	if p.Node == nil || !p.IPv4.IsValid() || !p.IPv6.IsValid() {
		return nil, fmt.Errorf("on node %q with addresses %v", name, ips)
	}
	return p, p.find(ctx)
}

// find asks the agent for the rest.
func (p *Pod) find(ctx context.Context) error {
	all, err := p.Node.Admin().Endpoints(ctx)
	if err != nil {
		return err
	}
	for _, e := range all {
		if e.Namespace == p.Namespace && e.Pod == p.Name && e.IPv4 == p.IPv4 && e.IPv6 == p.IPv6 {
			// The link /var/run would lead into the test's own /run.
			p.NetNS = p.Node.Path(strings.TrimPrefix(e.NetNS, "/var"))
			p.HostIf = e.HostIf
			return nil
		}
	}
	return fmt.Errorf("its agent has no endpoint of these addresses among %d", len(all))
}

// Addr is the pod's address of a family, 4 or 6.
func (p *Pod) Addr(family int) netip.Addr {
	if family == 6 {
		return p.IPv6
	}
	return p.IPv4
}

// Delete deletes a pod, as kubectl does.
func (c *Cluster) Delete(p *Pod) {
	c.t.Helper()
	if err := c.API.Dynamic.Resource(Core("pods")).Namespace(p.Namespace).
		Delete(context.Background(), p.Name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}
