package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/api/v1alpha1"
)

// FuzzCompiled draws clusters and policies, and compares what is compiled with the reference,
// packet by packet. One compiler sees a cluster change, as an agent's does.
func FuzzCompiled(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed, seed*7)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		g := &generator{rand.New(rand.NewPCG(a, b))}
		compiler := NewCompiler(Options{})
		w := g.cluster()
		for range 3 {
			compare(t, compiler, w)
			g.change(w)
		}
		compare(t, NewCompiler(Options{}), w)
	})
}

// generator draws from small alphabets, so that what it draws meets.
type generator struct{ *rand.Rand }

func one[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

func (g *generator) labels() map[string]string {
	out := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if g.IntN(3) > 0 {
			out[key] = one(g, "a", "b", "")
		}
	}
	return out
}

var fuzzNamespaces = []string{"red", "blue", "green"}

func (g *generator) cluster() *reference {
	w := &reference{namespaces: map[string]map[string]string{},
		read: map[*networkingv1.NetworkPolicy]*Policy{}}
	for _, ns := range fuzzNamespaces[:2] {
		w.namespaces[ns] = g.labels()
	}
	for i := range 7 {
		w.pods = append(w.pods, Endpoint{
			Namespace: one(g, fuzzNamespaces...), Name: fmt.Sprint("p", i), Labels: g.labels(),
			Local: g.IntN(4) > 0, Ports: g.named(),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(g.IntN(2)), byte(i)}),
				netip.MustParseAddr(fmt.Sprintf("fd00:1:%d::%d", g.IntN(2), i))},
		})
	}
	for i := range 1 + g.IntN(4) {
		w.policies = append(w.policies, g.policy(fmt.Sprint("n", i)))
	}
	return w
}

// change is what happens to a cluster between two compilations.
func (g *generator) change(w *reference) {
	at := g.IntN(len(w.policies))
	switch g.IntN(6) {
	case 0:
		w.policies[at] = g.policy(w.policies[at].Name)
	case 1:
		w.policies = append(slices.Delete(slices.Clone(w.policies), at, at+1), g.policy("later"))
	case 2:
		w.pods[g.IntN(len(w.pods))].Labels = g.labels()
	case 3:
		w.pods[g.IntN(len(w.pods))].Ports = g.named()
	case 4:
		w.pods[g.IntN(len(w.pods))].Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 1,
			byte(g.IntN(2)), byte(20 + g.IntN(200))})}
	default:
		w.namespaces[one(g, fuzzNamespaces...)] = g.labels()
	}
}

func (g *generator) named() []ContainerPort {
	var out []ContainerPort
	for _, name := range []string{"web", "dns"} {
		for _, protocol := range []uint8{TCP, UDP} {
			if g.IntN(2) > 0 {
				out = append(out,
					ContainerPort{Name: name, Protocol: protocol,
						Number: one(g, uint16(80), 53, 8080)})
			}
		}
	}
	return out
}

func (g *generator) policy(name string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name,
		Namespace: one(g, fuzzNamespaces...)}}
	p.Spec.PodSelector = *g.selector()
	p.Spec.PolicyTypes = one(g, nil, []networkingv1.PolicyType{"Ingress"},
		[]networkingv1.PolicyType{"Egress"}, []networkingv1.PolicyType{"Egress", "Ingress"})
	for range g.IntN(3) {
		p.Spec.Ingress = append(p.Spec.Ingress,
			networkingv1.NetworkPolicyIngressRule{From: g.peers(), Ports: g.ports()})
	}
	for range g.IntN(3) {
		p.Spec.Egress = append(p.Spec.Egress,
			networkingv1.NetworkPolicyEgressRule{To: g.peers(), Ports: g.ports()})
	}
	return p
}

func (g *generator) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if g.IntN(3) == 0 {
		s.MatchLabels = map[string]string{one(g, "app", "tier"): one(g, "a", "b", "")}
	}
	for range g.IntN(2) {
		e := metav1.LabelSelectorRequirement{Key: one(g, "app", "tier"),
			Operator: one(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
				metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = one(g, []string{"a"}, []string{"a", "b"}, []string{""})
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func (g *generator) namespaceSelector() *metav1.LabelSelector {
	if g.IntN(3) == 0 {
		return &metav1.LabelSelector{MatchLabels: map[string]string{NamespaceNameLabel: one(g,
			fuzzNamespaces...)}}
	}
	return g.selector()
}

func (g *generator) peers() []networkingv1.NetworkPolicyPeer {
	var out []networkingv1.NetworkPolicyPeer
	for range g.IntN(3) {
		var p networkingv1.NetworkPolicyPeer
		switch g.IntN(4) {
		case 0:
			p.PodSelector = g.selector()
		case 1:
			p.NamespaceSelector = g.namespaceSelector()
		case 2:
			p.PodSelector, p.NamespaceSelector = g.selector(), g.namespaceSelector()
		default:
			p.IPBlock = one(g,
				&networkingv1.IPBlock{CIDR: "0.0.0.0/0"},
				&networkingv1.IPBlock{CIDR: "::/0", Except: []string{"fd00:1:1::/64"}},
				&networkingv1.IPBlock{CIDR: "10.1.0.0/16",
					Except: []string{"10.1.0.0/24", "10.1.1.4/30"}},
				&networkingv1.IPBlock{CIDR: "10.1.0.0/24"},
				&networkingv1.IPBlock{CIDR: "10.1.1.3/32"},
				&networkingv1.IPBlock{CIDR: "10.1.1.7/24", Except: []string{"10.1.1.2/31"}},
				&networkingv1.IPBlock{CIDR: "fd00:1::/32"})
		}
		out = append(out, p)
	}
	return out
}

func (g *generator) ports() []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for range g.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if g.IntN(2) > 0 {
			p.Protocol = new(one(g, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP))
		}
		switch g.IntN(4) {
		case 0:
		case 1:
			p.Port = new(intstr.FromString(one(g, "web", "dns", "other")))
		case 2:
			p.Port = new(intstr.FromInt32(one(g, int32(80), 53)))
		default:
			from := int32(1 + g.IntN(100))
			p.Port, p.EndPort = new(intstr.FromInt32(from)), new(from+int32(g.IntN(9000)))
		}
		out = append(out, p)
	}
	return out
}

// input gives pods with the same namespace and labels one identity, whatever their ports.
func (w *reference) input() Input {
	in := Input{Namespaces: w.namespaces}
	for _, p := range w.policies {
		if w.read[p] == nil {
			w.read[p] = Read(p)
		}
		in.Policies = append(in.Policies, w.read[p])
	}
	known := map[string]uint32{}
	for i := range w.pods {
		p := &w.pods[i]
		key := p.Namespace + fmt.Sprint(p.Labels)
		if known[key] == 0 {
			known[key] = v1alpha1.MinIdentity + uint32(len(known))
			in.Identities = append(in.Identities,
				Identity{Number: known[key], Namespace: p.Namespace, Labels: p.Labels})
		}
		p.Identity = known[key]
		in.Endpoints = append(in.Endpoints, *p)
	}
	return in
}

func (w *reference) ends() []end {
	out := []end{{address: netip.MustParseAddr("10.9.9.9"), identity: v1alpha1.IdentityHost}}
	for i := range w.pods {
		for _, a := range w.pods[i].Addresses {
			out = append(out, end{&w.pods[i], a, w.pods[i].Identity})
		}
	}
	for _, text := range []string{"8.8.8.8", "10.1.0.200", "10.1.1.2", "10.1.1.7", "fd00:1:1::99",
		"2001:db8::1"} {
		out = append(out, end{address: netip.MustParseAddr(text), identity: v1alpha1.IdentityWorld})
	}
	return out
}

var fuzzPorts = []uint16{1, 53, 79, 80, 81, 101, 8080, 65535}

func compare(t *testing.T, compiler *Compiler, w *reference) {
	t.Helper()
	in := w.input()
	for _, p := range in.Policies {
		if p.Broken() {
			t.Fatalf("the generator made a policy with errors: %v", p.Problems)
		}
	}
	table := NewTable(compiler.Compile(in))
	for i := range w.pods {
		subject := &w.pods[i]
		for _, other := range w.ends() {
			for _, d := range directions {
				for _, protocol := range []uint8{TCP, UDP, SCTP, 1} {
					for _, port := range fuzzPorts {
						if !subject.Local {
							continue
						}
						if protocol == 1 {
							port = 0
						}
						want := w.allows(d, subject, other, protocol, port)
						got := table.Decide(subject.Key(), d, Peer{Identity: other.identity, Address: other.address},
							protocol, port)
						if want != (got.Verdict == Allow) {
							t.Fatalf("%s %v, other end %v (%d), protocol %d, port %d: compiled %+v, the specification allows: %v",
								subject.Key(), d, other.address, other.identity, protocol, port,
								got, want)
						}
					}
				}
			}
		}
	}
}
