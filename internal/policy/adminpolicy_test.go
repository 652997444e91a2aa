package policy

import (
	"strings"
	"testing"

	"weft.dev/weft/internal/config/strictyaml"
)

// adminPolicy is an AdminNetworkPolicy, or a BaselineAdminNetworkPolicy, about the pods of shop.
func adminPolicy(kind, name, rules string) string {
	priority := "  priority: 5\n"
	if kind == KindBaselineAdminNetworkPolicy {
		priority = ""
	}
	return "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: " + kind + "\nmetadata: {name: " +
		name + "}\nspec:\n" + priority +
		"  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}\n" + rules +
		"---\n"
}

// TestAdminPolicies has packets that are allowed (+) and denied (-) with policies of the kinds
// before ClusterNetworkPolicy, alone and beside others.
func TestAdminPolicies(t *testing.T) {
	const (
		everybody = "[{namespaces: {}}]"
		ops       = "[{namespaces: {matchLabels: {team: ops}}}]"
		data      = "[{pods: {namespaceSelector: {}, podSelector: {matchLabels: {tier: data}}}}]"
	)
	rule := func(does, from, more string) string {
		return "  - {action: " + does + ", from: " + from + more + "}\n"
	}
	admin := func(rules string) string { return adminPolicy(KindAdminNetworkPolicy, "a", rules) }
	baseline := func(rules string) string {
		return adminPolicy(KindBaselineAdminNetworkPolicy, "default", rules)
	}
	ingress := "  ingress:\n"
	isolated := header +
		"  podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{podSelector: {}}]}]\n---\n"
	for _, tt := range []struct{ name, text, packets string }{
		{"Deny", admin(ingress + rule("Deny", ops, "")),
			"-ops/prom shop/web 80/TCP, +shop/db shop/web 80/TCP, -ops/prom shop/db 0/ICMP"},
		{"Allow goes before a NetworkPolicy", isolated + admin(ingress+rule("Allow", ops, "")),
			"+ops/prom shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP"},
		{"Pass leaves it to the NetworkPolicy",
			isolated + admin(ingress+rule("Pass", data, "")+rule("Deny", everybody, "")),
			"+shop/db shop/web 80/TCP, -shop/plain shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP"},
		{"Baseline is for pods without NetworkPolicies",
			isolated + baseline(ingress+rule("Deny", everybody, "")),
			"+shop/db shop/web 80/TCP, -shop/db shop/plain 80/TCP, +8.8.8.8 shop/plain 80/TCP"},
		{"ports", admin(ingress + rule("Deny", everybody, ", ports: [{portNumber: {protocol: UDP, "+
			"port: 53}}, {portRange: {start: 80, end: 90}}, {namedPort: sql}]")),
			"-shop/db shop/web 53/UDP, +shop/db shop/web 53/TCP, -shop/db shop/web 85/TCP, " +
				"+shop/db shop/web 91/TCP, -shop/web shop/db 5432/TCP, +shop/db shop/web 5432/TCP"},
		{"egress", admin("  egress:\n  - {action: Allow, to: [{networks: [10.1.0.0/24]}]}\n" +
			"  - {action: Deny, to: [{networks: [0.0.0.0/0]}, {namespaces: {}}]}\n"),
			"+shop/web shop/db 80/TCP, -shop/web ops/prom 80/TCP, -shop/web 8.8.8.8 80/TCP"},
		{"a ClusterNetworkPolicy's Baseline goes before", clusterPolicy("z", "Baseline", "1000",
			ingress+rule("Accept", ops, "")) + baseline(ingress+rule("Deny", everybody, "")),
			"+ops/prom shop/web 80/TCP, -shop/db shop/web 80/TCP"},
		{"priorities are those of both kinds", clusterPolicy("z", "Admin", "4",
			ingress+rule("Accept", ops, "")) + admin(ingress+rule("Deny", everybody, "")),
			"+ops/prom shop/web 80/TCP, -shop/db shop/web 80/TCP"},
		{"of one priority the first name counts", clusterPolicy("z", "Admin", "5",
			ingress+rule("Accept", ops, "")) + admin(ingress+rule("Deny", everybody, "")),
			"-ops/prom shop/web 80/TCP, -shop/db shop/web 80/TCP"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := shop()
			in.Policies = policiesOf(t, tt.text)
			judgePackets(t, in, tt.packets)
			again := recalled(t, in.Policies)
			in.Policies = again
			judgePackets(t, in, tt.packets)
		})
	}
}

// recalled are policies that were written down and read again.
func recalled(t *testing.T, list []*Policy) []*Policy {
	t.Helper()
	data, err := Remember(list)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := Recall(data)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// TestAdminPolicyErrors has one mistake per row: what is said of it, and that the pods that the
// policy is about are closed.
func TestAdminPolicyErrors(t *testing.T) {
	in := func(rule string) string {
		return adminPolicy(KindAdminNetworkPolicy, "a", "  ingress: ["+rule+"]\n")
	}
	for _, tt := range []struct{ name, text, want string }{
		{"action", in("{action: Accept, from: [{namespaces: {}}]}"),
			`f.yaml:7: AdminNetworkPolicy a: spec.ingress[0].action: is "Accept": want Allow, Deny or Pass`},
		{"a baseline that passes", adminPolicy(KindBaselineAdminNetworkPolicy, "default",
			"  ingress: [{action: Pass, from: [{namespaces: {}}]}]\n"),
			`spec.ingress[0].action: is "Pass": want Allow or Deny`},
		{"a baseline's name", adminPolicy(KindBaselineAdminNetworkPolicy, "b", ""),
			`metadata.name: is "b": there is one for the cluster, and its name is default`},
		{"a baseline with a priority", strings.Replace(adminPolicy(
			KindBaselineAdminNetworkPolicy, "default", ""), "spec:\n", "spec:\n  priority: 1\n", 1),
			"spec.priority: unknown key"},
		{"priority", strings.Replace(in(""), "priority: 5", "priority: -1", 1),
			"spec.priority: is -1: want 0 to 1000"},
		{"nobody", in("{action: Deny, from: []}"), "spec.ingress[0].from: is empty"},
		{"no ports", in("{action: Deny, from: [{namespaces: {}}], ports: []}"),
			"spec.ingress[0].ports: is empty"},
		{"two ports", in("{action: Deny, from: [{namespaces: {}}], ports: [{namedPort: a, " +
			"portRange: {start: 1, end: 2}}]}"), "spec.ingress[0].ports[0]: has none or several"},
		{"a range", in("{action: Deny, from: [{namespaces: {}}], ports: [{portRange: {start: 9, " +
			"end: 8}}]}"), "spec.ingress[0].ports[0].portRange: is 9 to 8"},
		{"protocol", in("{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: " +
			"{protocol: ICMP, port: 8}}]}"), `ports[0].portNumber.protocol: "ICMP" is no protocol`},
		{"nodes", adminPolicy(KindAdminNetworkPolicy, "a",
			"  egress: [{action: Deny, to: [{nodes: {}}]}]\n"), "spec.egress[0].to[0].nodes: is not known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := shop()
			in.Policies = policiesOf(t, tt.text)
			if p := in.Policies[0]; len(p.errors()) != 1 || !strings.Contains(said(p.errors()), tt.want) {
				t.Fatalf("said:\n%s\nwant: %s", said(p.Problems), tt.want)
			}
			table := NewTable(NewCompiler(istioOptions).Compile(in))
			for _, packet := range []string{"8.8.8.8 shop/web 80/TCP", "shop/web 8.8.8.8 80/TCP"} {
				if probe(t, table, in, packet) == Allow {
					t.Errorf("%s is allowed", packet)
				}
			}
		})
	}
}

// TestAdminPolicyIsWritten: what is read is written again as it was.
func TestAdminPolicyIsWritten(t *testing.T) {
	for kind, name := range map[string]string{KindAdminNetworkPolicy: "a",
		KindBaselineAdminNetworkPolicy: "default"} {
		text := adminPolicy(kind, name, "  ingress: [{action: Deny, from: [{namespaces: {}}]}]\n")
		first := policiesOf(t, text)[0]
		written, err := first.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		docs, errs := strictyaml.Split("again", written)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		again, wrong := DecodeObject(docs[0])
		if len(wrong) > 0 || !again.(*Policy).Same(first) {
			t.Errorf("%s came back as %s, %v", kind, written, wrong)
		}
	}
}
