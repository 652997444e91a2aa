package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/api/v1alpha1"
)

// FuzzIncremental changes a cluster with policies of all kinds many times, and compares what one
// compiler has made over all changes with what a new one makes.
func FuzzIncremental(f *testing.F) {
	for seed := range uint64(30) {
		f.Add(seed, seed*3)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		g := &generator{rand.New(rand.NewPCG(a, b))}
		w, compiler := g.cluster(), NewCompiler(istioOptions)
		var others []*Policy
		for i := range 8 {
			others = g.edit(w, others, i)
			in := w.input()
			in.Policies = append(in.Policies, others...)
			for i := range in.Identities {
				id := &in.Identities[i]
				id.TrustDomain = "weft.local"
				id.ServiceAccount = accountOf(&Endpoint{Labels: id.Labels})
			}
			if g.IntN(4) > 0 {
				in.Ranges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
			}
			sameMeaning(t, compiler.Compile(in), NewCompiler(istioOptions).Compile(in), w)
		}
	})
}

// edit changes one thing: pods, namespaces, NetworkPolicies, or a policy of another kind.
func (g *generator) edit(w *reference, others []*Policy, i int) []*Policy {
	if g.IntN(2) > 0 {
		g.change(w)
		return others
	}
	others = slices.Clone(others)
	if len(others) > 2 {
		others = slices.Delete(others, 0, 1)
	}
	if g.IntN(2) > 0 {
		a := g.authorization(fmt.Sprint("a", i))
		return append(others, readAuthorization(
			metav1.ObjectMeta{Namespace: a.namespace, Name: a.name}, a.spec, source{}))
	}
	c := g.clusterPolicy(fmt.Sprint("c", i))
	return append(others, readCluster(c.ObjectMeta, &c.Spec, source{}))
}

func sameMeaning(t *testing.T, got, want *Result, w *reference) {
	t.Helper()
	one, two := NewTable(got), NewTable(want)
	for i := range w.pods {
		pod := &w.pods[i]
		if !pod.Local {
			continue
		}
		for _, d := range directions {
			a, b := got.Endpoints[pod.Key()][d], want.Endpoints[pod.Key()][d]
			if (a == 0) != (b == 0) {
				t.Fatalf("%s %v: set %d, from scratch %d", pod.Key(), d, a, b)
			}
			if a != 0 && len(got.Sets[a].Entries) != len(want.Sets[b].Entries) {
				t.Fatalf("%s %v: %d entries, from scratch %d", pod.Key(), d,
					len(got.Sets[a].Entries), len(want.Sets[b].Entries))
			}
			for _, other := range w.ends() {
				for _, port := range []uint16{0, 53, 80, 101, 8080} {
					peer := Peer{Identity: other.identity, Address: other.address}
					x := one.Decide(pod.Key(), d, peer, TCP, port)
					y := two.Decide(pod.Key(), d, peer, TCP, port)
					if x.Verdict != y.Verdict {
						t.Fatalf("%s %v with %v port %d: %v by %v, from scratch %v by %v",
							pod.Key(), d, peer, port, x.Verdict, got.Rules[x.Rule], y.Verdict,
							want.Rules[y.Rule])
					}
					if _, known := got.Rules[x.Rule]; x.Rule != 0 && !known {
						t.Fatalf("rule %d decides and is not known", x.Rule)
					}
				}
			}
		}
	}
}

// TestNothingMade: what did not change is not made again: the whole result, and of one pod's change
// the sets that do not name it.
func TestNothingMade(t *testing.T) {
	in := shop()
	in.Policies = append(policiesOf(t, header+
		"  podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}]\n"),
		policiesOf(t, authorizationHeader+
			"  selector: {matchLabels: {app: db}}\n  rules: [{from: [{source: {namespaces: [ops]}}]}]\n")...)
	compiler := NewCompiler(istioOptions)
	first := compiler.Compile(in)
	if compiler.Compile(in) != first {
		t.Error("the same input was compiled again")
	}
	in.Identities = append(slices.Clone(in.Identities), Identity{
		Number: v1alpha1.MinIdentity + 700, Namespace: "shop", Labels: map[string]string{"app": "x"}})
	if compiler.Compile(in) != first {
		t.Error("an identity that no endpoint has was compiled")
	}
	in.Endpoints = append(slices.Clone(in.Endpoints), Endpoint{Namespace: "shop", Name: "x",
		Identity: v1alpha1.MinIdentity + 700, Addresses: []netip.Addr{netip.MustParseAddr("10.1.7.8")}})
	second := compiler.Compile(in)
	for _, pod := range []string{"shop/web", "shop/db"} {
		number := first.Endpoints[pod][Ingress]
		if number == 0 || second.Sets[number] != first.Sets[number] {
			t.Errorf("%s: set %d was made again", pod, number)
		}
	}
}
