package cyclonus

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
)

// pod is one of cyclonus' pods.
type pod struct {
	namespace, name string
	labels          map[string]string
	address         netip.Addr
}

func (p *pod) key() string { return p.namespace + "/" + p.name }

// world is the cluster that a case changes step by step.
type world struct {
	namespaces map[string]map[string]string
	pods       []*pod
	policies   []*networkingv1.NetworkPolicy
	addresses  int
	// compiler is one for all steps of a case, as an agent has one.
	compiler *policy.Compiler
}

// newWorld is cyclonus' own: three namespaces with three pods each.
func newWorld() *world {
	w := &world{namespaces: map[string]map[string]string{},
		compiler: policy.NewCompiler(policy.Options{})}
	for _, ns := range []string{"x", "y", "z"} {
		w.namespaces[ns] = map[string]string{"ns": ns}
		for _, name := range []string{"a", "b", "c"} {
			w.addPod(ns, name, map[string]string{"pod": name})
		}
	}
	return w
}

func (w *world) addPod(namespace, name string, labels map[string]string) {
	w.addresses++
	w.pods = append(w.pods,
		&pod{namespace, name, labels, netip.AddrFrom4([4]byte{10, 1, 7, byte(w.addresses)})})
}

func (w *world) pod(namespace, name string) *pod {
	at := slices.IndexFunc(w.pods,
		func(p *pod) bool { return p.namespace == namespace && p.name == name })
	return w.pods[at]
}

func (w *world) policy(namespace, name string) int {
	return slices.IndexFunc(w.policies,
		func(p *networkingv1.NetworkPolicy) bool {
			return p.Namespace == namespace &&
				p.Name == name
		})
}

// apply makes the change that a step of a case asks for.
func (w *world) apply(t *testing.T, a *generator.Action) {
	t.Helper()
	switch {
	case a.CreatePolicy != nil:
		w.policies = append(w.policies, a.CreatePolicy.Policy)
	case a.UpdatePolicy != nil:
		w.policies[w.policy(a.UpdatePolicy.Policy.Namespace,
			a.UpdatePolicy.Policy.Name)] = a.UpdatePolicy.Policy
	case a.DeletePolicy != nil:
		at := w.policy(a.DeletePolicy.Namespace, a.DeletePolicy.Name)
		w.policies = slices.Delete(w.policies, at, at+1)
	case a.CreateNamespace != nil:
		w.namespaces[a.CreateNamespace.Namespace] = a.CreateNamespace.Labels
	case a.SetNamespaceLabels != nil:
		w.namespaces[a.SetNamespaceLabels.Namespace] = a.SetNamespaceLabels.Labels
	case a.DeleteNamespace != nil:
		delete(w.namespaces, a.DeleteNamespace.Namespace)
		w.pods = slices.DeleteFunc(w.pods,
			func(p *pod) bool { return p.namespace == a.DeleteNamespace.Namespace })
	case a.CreatePod != nil:
		w.addPod(a.CreatePod.Namespace, a.CreatePod.Pod, a.CreatePod.Labels)
	case a.SetPodLabels != nil:
		w.pod(a.SetPodLabels.Namespace, a.SetPodLabels.Pod).labels = a.SetPodLabels.Labels
	case a.DeletePod != nil:
		gone := w.pod(a.DeletePod.Namespace, a.DeletePod.Pod)
		w.pods = slices.DeleteFunc(w.pods, func(p *pod) bool { return p == gone })
	default:
		t.Fatalf("an action that this test does not know: %+v", a)
	}
}

// served are the ports that every pod has a name for.
var served = []struct {
	number   uint16
	protocol corev1.Protocol
}{{80, "TCP"}, {80, "UDP"}, {80, "SCTP"}, {81, "TCP"}, {81, "UDP"}, {81, "SCTP"}}

var numbers = map[corev1.Protocol]uint8{"TCP": policy.TCP, "UDP": policy.UDP, "SCTP": policy.SCTP}

func portName(number uint16, protocol corev1.Protocol) string {
	for _, s := range served {
		if s.number == number && s.protocol == protocol {
			return fmt.Sprintf("serve-%d-%s", number, strings.ToLower(string(protocol)))
		}
	}
	return ""
}

// compile has internal/policy compile the world.
func (w *world) compile(t *testing.T) (*policy.Table, map[string]uint32) {
	t.Helper()
	in := policy.Input{Namespaces: w.namespaces}
	for _, o := range w.policies {
		read := policy.Read(o)
		if read.Broken() {
			t.Fatalf("%s: %v", read.Key(), read.Problems)
		}
		in.Policies = append(in.Policies, read)
	}
	identities, known := map[string]uint32{}, map[string]uint32{}
	for _, p := range w.pods {
		// Pods that differ in nothing that a policy sees are one identity.
		who := p.namespace + fmt.Sprint(p.labels)
		if known[who] == 0 {
			known[who] = v1alpha1.MinIdentity + uint32(len(known))
			in.Identities = append(in.Identities,
				policy.Identity{Number: known[who], Namespace: p.namespace,
					Labels: maps.Clone(p.labels)})
		}
		identities[p.key()] = known[who]
		e := policy.Endpoint{
			Namespace: p.namespace, Name: p.name, Labels: p.labels, Identity: known[who],
			Addresses: []netip.Addr{p.address}, Local: true,
		}
		for _, s := range served {
			e.Ports = append(e.Ports,
				policy.ContainerPort{Name: portName(s.number, s.protocol),
					Protocol: numbers[s.protocol], Number: s.number})
		}
		in.Endpoints = append(in.Endpoints, e)
	}
	return policy.NewTable(w.compiler.Compile(in)), identities
}

// party is one end of a packet.
type party struct {
	name    string
	pod     *pod // nil: outside the cluster
	address netip.Addr
}

// parties are all pods, and machines outside at the edges of the blocks that cyclonus makes.
func (w *world) parties() []party {
	var out []party
	for _, p := range w.pods {
		out = append(out, party{p.key(), p, p.address})
	}
	for _, text := range []string{"8.8.8.8", "10.1.6.255", "10.1.7.0", "10.1.7.200", "10.1.7.255",
		"10.1.8.0", "192.168.242.1", "2001:db8::1"} {
		out = append(out, party{name: text, address: netip.MustParseAddr(text)})
	}
	return out
}

func (w *world) theirs(p party) *matcher.TrafficPeer {
	out := &matcher.TrafficPeer{IP: p.address.String()}
	if p.pod != nil {
		out.Internal = &matcher.InternalPeer{PodLabels: p.pod.labels,
			NamespaceLabels: w.labels(p.pod.namespace), Namespace: p.pod.namespace}
	}
	return out
}

// labels are what a cluster's API would say of a namespace.
func (w *world) labels(namespace string) map[string]string {
	out := maps.Clone(w.namespaces[namespace])
	out[policy.NamespaceNameLabel] = namespace
	return out
}
