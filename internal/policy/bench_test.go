package policy

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/api/v1alpha1"
)

// many is a cluster of so many policies and pods, each with an identity of its own, in 20
// namespaces: every policy is about one app, allows two others, some ports and a block, and every
// tenth all of its namespace.
func many(policies, pods int) Input {
	const namespaces, apps = 20, 50
	in := Input{Namespaces: map[string]map[string]string{}}
	for n := range namespaces {
		in.Namespaces[fmt.Sprint("ns-", n)] = map[string]string{"team": fmt.Sprint(n % 5)}
	}
	for i := range pods {
		ns, set := fmt.Sprint("ns-",
			i%namespaces),
			map[string]string{"app": fmt.Sprint(i / namespaces % apps), "pod": fmt.Sprint(i)}
		number := v1alpha1.MinIdentity + uint32(i)
		in.Identities = append(in.Identities, Identity{Number: number, Namespace: ns, Labels: set})
		in.Endpoints = append(in.Endpoints, Endpoint{
			Namespace: ns, Name: fmt.Sprint("pod-", i), Labels: set, Identity: number, Local: true,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})},
			Ports:     []ContainerPort{{"http", TCP, 8080}},
		})
	}
	app := func(n int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(n % apps)}}
	}
	for i := range policies {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p-", i),
			Namespace: fmt.Sprint("ns-", i%namespaces)}}
		p.Spec.PodSelector = *app(i / namespaces)
		if i%10 == 0 {
			p.Spec.PodSelector = metav1.LabelSelector{}
		}
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress,
			networkingv1.PolicyTypeEgress}
		ports := []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("http"))},
			{Port: new(intstr.FromInt32(53)), Protocol: new(corev1.ProtocolUDP)}}
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: app(i + 1)}, {PodSelector: app(i + 2), NamespaceSelector: &metav1.LabelSelector{}}}, Ports: ports}}
		p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{
			{To: []networkingv1.NetworkPolicyPeer{{PodSelector: app(i + 3)}}, Ports: ports},
			{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("10.%d.0.0/16", i%200)}}}, Ports: ports[1:]},
		}
		in.Policies = append(in.Policies, Read(p))
	}
	return in
}

func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{100, 1000} {
		in := many(n, n)
		b.Run(fmt.Sprintf("cold/%d", n), func(b *testing.B) {
			entries := 0
			for b.Loop() {
				entries = 0
				for _, set := range NewCompiler(Options{}).Compile(in).Sets {
					entries += len(set.Entries)
				}
			}
			b.ReportMetric(float64(entries), "entries")
		})
		b.Run(fmt.Sprintf("again/%d", n), func(b *testing.B) {
			c := NewCompiler(Options{})
			c.Compile(in)
			for i := 0; b.Loop(); i++ {
				// One pod gets another label, and with it another identity.
				pod := &in.Endpoints[i%n]
				pod.Labels = map[string]string{"app": fmt.Sprint(i % 50), "pod": fmt.Sprint("c", i)}
				in.Identities[i%n].Labels = pod.Labels
				c.Compile(in)
			}
		})
	}
}

// BenchmarkAuthorization has an AuthorizationPolicy that allows in each namespace, and one that
// denies in all.
func BenchmarkAuthorization(b *testing.B) {
	in := many(1000, 1000)
	in.Ranges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	for i := range in.Identities {
		in.Identities[i].ServiceAccount = fmt.Sprint("sa-", i%7)
	}
	add := func(ns string, s *authorizationSpec) {
		in.Policies = append(in.Policies,
			readAuthorization(metav1.ObjectMeta{Namespace: ns, Name: "a"}, s, source{}))
	}
	var rule authorizationRule
	rule.From = append(rule.From, struct {
		Source *authorizationSource `yaml:"source" json:"source,omitempty"`
	}{&authorizationSource{Principals: []string{"*/sa/sa-1"}}})
	add("istio-system", &authorizationSpec{Action: "DENY", Rules: []authorizationRule{rule}})
	for i := range 20 {
		var rule authorizationRule
		rule.From = append(rule.From, struct {
			Source *authorizationSource `yaml:"source" json:"source,omitempty"`
		}{&authorizationSource{Namespaces: []string{fmt.Sprint("ns-", i), "ns-1*"}}})
		add(fmt.Sprint("ns-", i), &authorizationSpec{Rules: []authorizationRule{rule}})
	}
	b.Run("cold", func(b *testing.B) {
		entries := 0
		for b.Loop() {
			entries = 0
			for _, set := range NewCompiler(istioOptions).Compile(in).Sets {
				entries += len(set.Entries)
			}
		}
		b.ReportMetric(float64(entries), "entries")
	})
	b.Run("again", func(b *testing.B) {
		c := NewCompiler(istioOptions)
		c.Compile(in)
		for i := 0; b.Loop(); i++ {
			pod := &in.Endpoints[i%1000]
			pod.Labels = map[string]string{"app": fmt.Sprint(i % 50), "pod": fmt.Sprint("c", i)}
			in.Identities[i%1000].Labels = pod.Labels
			c.Compile(in)
		}
	})
}
