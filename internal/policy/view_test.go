package policy

import (
	"slices"
	"strings"
	"testing"
)

// TestSummaries: policies of the whole cluster and of the root namespace have the pods and rules
// that they are about, and a key.
func TestSummaries(t *testing.T) {
	in := shop()
	in.Policies = append(policiesOf(t, strings.NewReplacer("np", "db", "NetworkPolicy",
		"ClusterNetworkPolicy", "networking.k8s.io/v1", "policy.networking.k8s.io/v1beta1",
		", namespace: shop", "").Replace(header)+
		"  tier: Admin\n  priority: 1\n  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}\n"+
		"  ingress: [{action: Deny, from: [{namespaces: {}}]}]\n"),
		policiesOf(t, strings.Replace(authorizationHeader, "shop", "istio-system", 1)+
			"  selector: {matchLabels: {app: web}}\n  rules: [{}]\n")...)
	view := NewView(NewCompiler(istioOptions).Compile(in), in, Names{
		Identity: func(uint32) string { return "" }, Pod: func(key string) string { return key }})
	want := map[string]string{
		"ClusterNetworkPolicy db":             "shop/db spec.ingress[0]",
		"AuthorizationPolicy istio-system/ap": "shop/web shop/web-2 spec.rules[0]",
	}
	for _, s := range view.Policies() {
		got := slices.Clone(s.Pods)
		for _, rule := range s.Rules {
			got = append(got, rule.Field)
		}
		if text := strings.Join(got, " "); text != want[s.Object()] {
			t.Errorf("%s: %s, want %s", s.Object(), text, want[s.Object()])
		}
		if len(view.SetsOf(s.Object())) == 0 {
			t.Errorf("%s has no sets", s.Object())
		}
	}
}

// TestErrorsInWhatIsOnlyListed: they are told, and nothing is denied, also in the next run.
func TestErrorsInWhatIsOnlyListed(t *testing.T) {
	const bad = "  rules: [{to: [{operation: {ports: ['x']}}]}]\n"
	dry := strings.Replace(authorizationHeader, "namespace: shop",
		"namespace: shop, annotations: {istio.io/dry-run: 'true'}", 1)
	for _, text := range []string{
		authorizationHeader + "  action: AUDIT\n" + bad, dry + bad,
		authorizationHeader + "  targetRefs: [{kind: Service, name: web}]\n" + bad,
	} {
		in := shop()
		in.Policies = policiesOf(t, text)
		if said := said(in.Policies[0].errors()); !strings.Contains(said, "is no port") {
			t.Errorf("%s: said %q", text, said)
		}
		open := func() bool {
			return probe(t, NewTable(NewCompiler(istioOptions).Compile(in)), in,
				"shop/db shop/web 80/TCP") == Allow
		}
		if !open() {
			t.Errorf("%s: denies", text)
		}
		data, err := Remember(in.Policies)
		if err != nil {
			t.Fatal(err)
		}
		if in.Policies, _, err = Recall(data); err != nil {
			t.Fatal(err)
		}
		if !open() {
			t.Errorf("%s: denies when it is remembered", text)
		}
	}
}

// TestRulesMoved: a rule that has moved in its file is cited where it is now.
func TestRulesMoved(t *testing.T) {
	compiler := NewCompiler(istioOptions)
	for _, above := range []string{"", "# one\n# two\n"} {
		in := shop()
		in.Policies = policiesOf(t, above+authorizationHeader+
			"  action: DENY\n  rules: [{from: [{source: {namespaces: [ops]}}]}]\n")
		result := compiler.Compile(in)
		want := in.Policies[0].authorization.rules[0].at
		if n := strings.Count(above, "\n"); want.Line == 0 || want.Line != 6+n {
			t.Fatalf("rule at line %d", want.Line)
		}
		found := false
		for _, rule := range result.Rules {
			found = found || rule == want
		}
		if !found {
			t.Errorf("no rule is %v: %v", want, result.Rules)
		}
	}
}

// TestRemedyOfLists: where no rule of a list allows it, one is to be added to a policy of that
// list.
func TestRemedyOfLists(t *testing.T) {
	in := shop()
	in.Policies = append(policiesOf(t, header+"  podSelector: {}\n  ingress: [{}]\n"),
		policiesOf(t, authorizationHeader+"  rules: [{from: [{source: {namespaces: [ops]}}]}]\n")...)
	view := NewView(NewCompiler(istioOptions).Compile(in), in, Names{
		Identity: func(uint32) string { return "" }, Pod: func(key string) string { return key }})
	var from, to End
	for _, e := range in.Endpoints {
		end := End{Peer{Identity: e.Identity, Address: e.Addresses[0]}, e.Key()}
		switch e.Key() {
		case "shop/db":
			from = end
		case "shop/web":
			to = end
		}
	}
	got := view.Explain(from, to, TCP, 80)
	if got.Verdict != Deny || !strings.Contains(got.Ingress.Remedy, "AuthorizationPolicy shop/ap") {
		t.Errorf("%+v", got.Ingress)
	}
	if !HasPorts(136) {
		t.Error("UDP-Lite has no ports")
	}
}

// TestSimulatedRanges: an address of a node's pods that is in no file may be anybody's.
func TestSimulatedRanges(t *testing.T) {
	const objects = `apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: c}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  ingress: [{action: Deny, from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: ops}}}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
status: {podIPs: [{ip: 10.1.0.2}]}
`
	for node, want := range map[string]Verdict{
		"": Allow,
		"---\napiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDRs: [10.1.0.0/24]}\n":                Deny,
		"---\napiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDRs: [10.1.0.0/24]}\n": Deny,
	} {
		o, problems := Decode("f.yaml", []byte(objects+node))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		got, err := Simulate(o, allLabels{}, ClusterNames{}).Ask("10.1.0.9", "shop/web", TCP, "80")
		if err != nil || got.Verdict != want {
			t.Errorf("%q: %+v %v, want %v", node, got, err, want)
		}
	}
}
