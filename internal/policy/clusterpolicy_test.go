package policy

import (
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
)

// clusterPolicy is a ClusterNetworkPolicy about the pods of shop.
func clusterPolicy(name, tier string, priority string, rules string) string {
	return "apiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: " + name + "}\nspec:\n  tier: " + tier +
		"\n  priority: " + priority +
		"\n  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}\n" + rules +
		"---\n"
}

// TestClusterPolicies has packets that are allowed (+) and denied (-) with policies of three tiers.
func TestClusterPolicies(t *testing.T) {
	const (
		everybody = "[{namespaces: {}}]"
		ops       = "[{namespaces: {matchLabels: {team: ops}}}]"
		databases = "[{pods: {namespaceSelector: {}, podSelector: {matchLabels: {tier: data}}}}]"
	)
	rule := func(does, from, more string) string { return "  - {action: " + does + ", from: " + from + more + "}\n" }
	egress := func(does, to, more string) string { return "  - {action: " + does + ", to: " + to + more + "}\n" }
	ingress := "  ingress:\n"
	isolated := header +
		"  podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{podSelector: {}}]}]\n---\n"
	tests := []packetsRow{
		{"Deny", clusterPolicy("a", "Admin", "5", ingress+rule("Deny", ops, "")),
			"-ops/prom shop/web 80/TCP, +shop/db shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP, -ops/prom shop/db 0/ICMP, +shop/db ops/prom 80/TCP"},
		{"Accept goes before a NetworkPolicy",
			isolated + clusterPolicy("a", "Admin", "5", ingress+rule("Accept", ops, "")),
			"+ops/prom shop/web 80/TCP, +shop/db shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP"},
		{"Pass leaves it to the NetworkPolicy",
			isolated + clusterPolicy("a", "Admin", "5",
				ingress+rule("Pass", databases, "")+rule("Deny", everybody, "")),
			"+shop/db shop/web 80/TCP, -shop/plain shop/web 80/TCP, -ops/prom shop/plain 80/TCP, +shop/db shop/plain 80/TCP, -8.8.8.8 shop/web 80/TCP"},
		{"the first rule counts",
			clusterPolicy("a", "Admin", "5",
				ingress+rule("Accept", databases, "")+rule("Deny", everybody, "")),
			"+shop/db shop/web 80/TCP, -shop/plain shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP"},
		{"the lower priority counts",
			clusterPolicy("a", "Admin", "9",
				ingress+rule("Deny", everybody, "")) + clusterPolicy("b", "Admin", "5",
				ingress+rule("Accept", ops, "")),
			"+ops/prom shop/web 80/TCP, -shop/db shop/web 80/TCP"},
		{"Baseline is for pods without NetworkPolicies",
			isolated + clusterPolicy("a", "Baseline", "5", ingress+rule("Deny", everybody, "")),
			"+shop/db shop/web 80/TCP, -shop/db shop/plain 80/TCP, -8.8.8.8 shop/web 80/TCP, +8.8.8.8 shop/plain 80/TCP"},
		{"Admin passes to Baseline",
			clusterPolicy("a", "Admin", "5",
				ingress+rule("Pass", ops, "")+rule("Deny", everybody, "")) + clusterPolicy("b",
				"Baseline", "5",
				ingress+rule("Deny", everybody,
					", protocols: [{tcp: {destinationPort: {number: 81}}}]")),
			"+ops/prom shop/web 80/TCP, -ops/prom shop/web 81/TCP, -shop/db shop/web 80/TCP"},
		{"protocols",
			clusterPolicy("a", "Admin", "5",
				ingress+rule("Deny", everybody,
					", protocols: [{tcp: {destinationPort: {range: {start: 80, end: 90}}}}, {udp: {}}, {destinationNamedPort: sql}]")),
			"-shop/db shop/web 85/TCP, +shop/db shop/web 91/TCP, -shop/db shop/web 7/UDP, +shop/db shop/web 85/SCTP, -shop/web shop/db 5432/TCP, +shop/db shop/web 5432/TCP"},
		{"egress",
			clusterPolicy("a", "Admin", "5",
				"  egress:\n"+
					egress("Accept", "[{networks: [10.1.0.0/24, 'fd00::/16']}]", "")+egress("Deny",
					"[{networks: [0.0.0.0/0, '::/0']}]", "")),
			"+shop/web shop/db 80/TCP, -shop/web ops/prom 80/TCP, -shop/web 8.8.8.8 80/TCP, +shop/web~6 shop/db~6 80/TCP, +8.8.8.8 shop/web 80/TCP"},
		{"egress to pods but one port",
			clusterPolicy("a", "Admin", "5",
				"  egress:\n"+
					egress("Deny", everybody, ", protocols: [{destinationNamedPort: http}]")),
			"-shop/db shop/web 8080/TCP, +shop/db shop/web 9090/TCP, -shop/db shop/web-2 9090/TCP, +shop/db shop/web-2 8080/TCP, +shop/db 8.8.8.8 8080/TCP"},
		{"beside an AuthorizationPolicy",
			authorizationHeader + "  rules: [{to: [{operation: {ports: ['80']}}]}]\n---\n" +
				clusterPolicy("a", "Admin", "5",
					ingress+rule("Accept", ops, "")+rule("Deny", everybody, "")),
			"+ops/prom shop/web 80/TCP, -ops/prom shop/web 81/TCP, -shop/db shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP"},
		{"egress beside a NetworkPolicy",
			header +
				"  podSelector: {}\n  policyTypes: [Egress]\n  egress: [{to: [{namespaceSelector: {}}], ports: [{port: http}]}]\n---\n" + clusterPolicy("a", "Admin", "5", "  egress:\n"+egress("Deny", ops, "")+egress("Accept", "[{networks: [8.8.8.8/32]}]", "")),
			"+shop/db shop/web 8080/TCP, -shop/db shop/web-2 8080/TCP, +shop/db shop/web-2 9090/TCP, -shop/db ops/prom 8080/TCP, +shop/db 8.8.8.8 1/UDP, -shop/db 8.8.4.4 80/TCP"},
	}
	judgeRows(t, tests)
}

// TestClusterPolicyOfUnknownPeers: who is in a range of pods and not known may be anybody, so of
// what a rule may be about that counts which denies.
func TestClusterPolicyOfUnknownPeers(t *testing.T) {
	for _, tt := range []struct {
		rules string
		want  Verdict
	}{
		{"  - {action: Deny, from: [{namespaces: {matchLabels: {team: ops}}}]}\n", Deny},
		{"  - {action: Accept, from: [{namespaces: {matchLabels: {team: ops}}}]}\n", Allow},
		{"  - {action: Pass, from: [{namespaces: {matchLabels: {team: ops}}}]}\n  - {action: Deny, from: [{namespaces: {}}]}\n", Deny},
		{"  - {action: Accept, from: [{namespaces: {matchLabels: {team: ops}}}]}\n  - {action: Deny, from: [{namespaces: {}}]}\n", Deny},
	} {
		in := shop()
		in.Ranges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		in.Policies = policiesOf(t, clusterPolicy("a", "Admin", "1", "  ingress:\n"+tt.rules))
		table := NewTable(NewCompiler(istioOptions).Compile(in))
		unknown := Peer{Identity: v1alpha1.MinIdentity + 9, Address: netip.MustParseAddr("10.1.7.7")}
		world := Peer{Identity: v1alpha1.IdentityWorld, Address: netip.MustParseAddr("8.8.8.8")}
		if got := table.Decide("shop/web", Ingress, unknown, TCP, 80).Verdict; got != tt.want ||
			table.Decide("shop/web", Ingress, world, TCP, 80).Verdict != Allow {
			t.Errorf("%s: %v", tt.rules, got)
		}
	}
}

// TestClusterPolicyErrors has one mistake per row: what is said of it. The pods that the policy is
// about are closed, and if nobody knows which these are, all.
func TestClusterPolicyErrors(t *testing.T) {
	good := func(rules string) string { return clusterPolicy("a", "Admin", "5", rules) }
	tests := []struct {
		name, text, want string
		all              bool
	}{
		{"tier", clusterPolicy("a", "Adm", "5", ""),
			`f.yaml:5: ClusterNetworkPolicy a: spec.tier: is "Adm": want Admin or Baseline`, false},
		{"priority", clusterPolicy("a", "Admin", "1001", ""),
			"spec.priority: is 1001: want 0 to 1000", false},
		{"namespace", strings.Replace(good(""), "{name: a}", "{name: a, namespace: shop}", 1),
			"metadata.namespace: is \"shop\"", false},
		{"subject",
			strings.Replace(good(""),
				"{namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}", "{}", 1),
			"spec.subject: has none or several", true},
		{"unknown key", good("  ingres: []\n"), "spec.ingres: unknown key", true},
		{"action", good("  ingress: [{action: Allow, from: [{namespaces: {}}]}]\n"),
			`f.yaml:8: ClusterNetworkPolicy a: spec.ingress[0].action: is "Allow": want Accept, Deny or Pass`, false},
		{"nobody", good("  ingress: [{action: Deny, from: []}]\n"),
			"spec.ingress[0].from: is empty", false},
		{"empty peer", good("  ingress: [{action: Deny, from: [{}]}]\n"),
			"spec.ingress[0].from[0]: has none or several of its kinds", false},
		{"empty protocol",
			good("  ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{}]}]\n"),
			"spec.ingress[0].protocols[0]: is empty", false},
		{"port",
			good("  ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 9, end: 8}}}}]}]\n"), "spec.ingress[0].protocols[0].tcp.destinationPort: is 9 to 8", false},
		{"no port",
			good("  ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {}}}]}]\n"), "destinationPort: has none or both", false},
		{"nodes", good("  egress: [{action: Deny, to: [{nodes: {}}]}]\n"),
			"spec.egress[0].to[0].nodes: is not known", false},
		{"domain names", good("  egress: [{action: Accept, to: [{domainNames: [a.example]}]}]\n"),
			"spec.egress[0].to[0].domainNames: are not known", false},
		{"networks", good("  egress: [{action: Deny, to: [{networks: [10.0.0.0/33]}]}]\n"),
			`spec.egress[0].to[0].networks[0]: "10.0.0.0/33" is not a range`, false},
		{"both",
			good("  egress: [{action: Deny, to: [{networks: [10.0.0.0/8], namespaces: {}}]}]\n"),
			"spec.egress[0].to[0]: has networks and pods", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := shop()
			in.Policies = policiesOf(t, tt.text)
			p := in.Policies[0]
			if len(p.errors()) != 1 || !strings.Contains(said(p.errors()), tt.want) {
				t.Fatalf("said:\n%s\nwant: %s", said(p.Problems), tt.want)
			}
			data, err := Remember(in.Policies)
			if err != nil {
				t.Fatal(err)
			}
			again, _, err := Recall(data)
			if err != nil || !again[0].IsClosed() && !again[0].Broken() {
				t.Errorf("came back as %+v, %v", again, err)
			}
			table := NewTable(NewCompiler(istioOptions).Compile(in))
			for packet, want := range map[string]bool{
				"8.8.8.8 shop/web 80/TCP": false, "shop/web 8.8.8.8 80/TCP": false,
				"host shop/web 80/TCP": true, "8.8.8.8 ops/prom 80/TCP": !tt.all,
			} {
				if got := probe(t, table, in, packet) == Allow; got != want {
					t.Errorf("%s is allowed: %v", packet, got)
				}
			}
		})
	}
}

// TestClusterPolicyByIrrelevantLabel: a rule that denies by a label that identities do not have
// would deny nobody.
func TestClusterPolicyByIrrelevantLabel(t *testing.T) {
	in := shop()
	in.Policies = policiesOf(t,
		clusterPolicy("a", "Baseline", "1",
			"  ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {hash: a}}}}]}]\n"))
	r := NewCompiler(Options{Relevant: func(key string) bool { return key != "hash" }}).Compile(in)
	const want = "f.yaml:8: ClusterNetworkPolicy a: spec.ingress[0]: selects peers by the label hash, which is not part of identities, so the policy denies all"
	if probe(t, NewTable(r), in, "shop/db shop/web 80/TCP") != Deny ||
		!strings.Contains(said(r.Problems), want) {
		t.Errorf("allowed, or nothing said: %q", said(r.Problems))
	}
}
