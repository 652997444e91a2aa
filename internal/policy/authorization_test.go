package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
)

const authorizationHeader = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: ap, namespace: shop}\nspec:\n"

// istioOptions are those of a cluster with Istio's usual names.
var istioOptions = Options{RootNamespace: "istio-system", TrustDomain: "weft.local"}

// TestAuthorization has packets that are allowed (+) and denied (-). Each policy is in shop, whose
// pods are web, web-2, db and plain; prom is in ops.
func TestAuthorization(t *testing.T) {
	const web = "  selector: {matchLabels: {app: web}}\n"
	tests := []packetsRow{
		{"nothing is allowed", web, "-shop/db shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP, -shop/db shop/web 53/UDP, -shop/db shop/web 0/ICMP, +host shop/web 80/TCP, +shop/db shop/plain 80/TCP, +shop/web 8.8.8.8 80/TCP"},
		{"a whole namespace", "  {}\n", "-shop/db shop/web 80/TCP, -ops/prom shop/plain 80/TCP, +shop/db ops/prom 80/TCP"},
		{"all is allowed", web + "  rules: [{}]\n", "+shop/db shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP, +shop/db shop/web 0/ICMP"},
		{"all is denied", web + "  action: DENY\n  rules: [{}]\n", "-shop/db shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP, +host shop/web 80/TCP"},
		{"principal", web + "  rules: [{from: [{source: {principals: [weft.local/ns/shop/sa/db]}}]}]\n", "+shop/db shop/web 80/TCP, -shop/plain shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP"},
		{"principal of the own trust domain by its other name", web + "  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/db]}}]}]\n", "+shop/db shop/web 80/TCP, -shop/plain shop/web 80/TCP"},
		{"principal of another trust domain", web + "  rules: [{from: [{source: {principals: [other.local/ns/shop/sa/db]}}]}]\n", "-shop/db shop/web 80/TCP"},
		{"prefix", web + "  rules: [{from: [{source: {principals: [cluster.local/ns/shop/*]}}]}]\n", "+shop/db shop/web 80/TCP, +shop/plain shop/web 80/TCP, -ops/prom shop/web 80/TCP"},
		{"suffix", web + "  rules: [{from: [{source: {principals: ['*/sa/prom']}}]}]\n", "-shop/db shop/web 80/TCP, +ops/prom shop/web 80/TCP"},
		{"presence", web + "  rules: [{from: [{source: {principals: ['*']}}]}]\n", "+shop/db shop/web 80/TCP, +ops/prom shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP"},
		{"all but a principal", web + "  rules: [{from: [{source: {notPrincipals: ['*/sa/db']}}]}]\n", "-shop/db shop/web 80/TCP, +ops/prom shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP"},
		{"namespace", web + "  rules: [{from: [{source: {namespaces: [ops]}}]}]\n", "-shop/db shop/web 80/TCP, +ops/prom shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP"},
		{"service accounts", web + "  rules: [{from: [{source: {serviceAccounts: [db, ops/prom]}}]}]\n", "+shop/db shop/web 80/TCP, +ops/prom shop/web 80/TCP, -shop/plain shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP"},
		{"all but service accounts", web + "  rules: [{from: [{source: {notServiceAccounts: [db]}}]}]\n", "-shop/db shop/web 80/TCP, +ops/prom shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP"},
		{"trust domain", web + "  rules: [{from: [{source: {trustDomains: [weft.*]}}]}]\n", "+shop/db shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP"},
		{"addresses", web + "  rules: [{from: [{source: {ipBlocks: [10.1.0.0/16, 8.8.8.8], notIpBlocks: [10.1.0.4]}}]}]\n",
			"+shop/db shop/web 80/TCP, -shop/plain shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP, -8.8.4.4 shop/web 80/TCP, -shop/db~6 shop/web 80/TCP"},
		{"lists are anded, entries are not", web + "  rules: [{from: [{source: {namespaces: [shop], ipBlocks: [10.1.0.3, 10.1.1.1]}}, {source: {ipBlocks: [8.8.8.8]}}]}]\n",
			"+shop/db shop/web 80/TCP, -ops/prom shop/web 80/TCP, -shop/plain shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP, -shop/db~6 shop/web 80/TCP"},
		{"ports", web + "  rules: [{to: [{operation: {ports: ['80', '443'], notPorts: ['443']}}]}]\n",
			"+shop/db shop/web 80/TCP, +shop/db shop/web 80/UDP, -shop/db shop/web 443/TCP, -shop/db shop/web 0/ICMP, -shop/db shop/web 81/TCP"},
		{"all but a port", web + "  rules: [{to: [{operation: {notPorts: ['22']}}]}]\n", "+shop/db shop/web 80/TCP, -shop/db shop/web 22/TCP, +shop/db shop/web 0/ICMP"},
		{"from and to", web + "  rules: [{from: [{source: {namespaces: [ops]}}], to: [{operation: {ports: ['80']}}]}]\n", "+ops/prom shop/web 80/TCP, -ops/prom shop/web 81/TCP, -shop/db shop/web 80/TCP"},
		{"when", web + "  rules: [{when: [{key: source.namespace, values: [ops, shop], notValues: ['sh*']}, {key: destination.port, values: ['80']}]}]\n",
			"+ops/prom shop/web 80/TCP, -ops/prom shop/web 81/TCP, -shop/db shop/web 80/TCP"},
		{"destination address", web + "  rules: [{when: [{key: destination.ip, values: [10.1.0.1]}]}]\n", "+shop/db shop/web 80/TCP, -shop/db shop/web-2 80/TCP, -shop/db~6 shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP, -2001:db8::1 shop/web 80/TCP"},
		{"denied by destination address", web + "  action: DENY\n  rules: [{when: [{key: destination.ip, notValues: [10.1.0.1]}]}]\n", "+shop/db shop/web 80/TCP, -shop/db shop/web-2 80/TCP, -2001:db8::1 shop/web 80/TCP"},
		{"denied principal", web + "  action: DENY\n  rules: [{from: [{source: {principals: ['*/sa/db']}}]}]\n", "-shop/db shop/web 80/TCP, +shop/plain shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP"},
		{"denied without a principal", web + "  action: DENY\n  rules: [{from: [{source: {notPrincipals: ['*']}}]}]\n", "+shop/db shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP"},
		{"denied addresses of an account", web + "  action: DENY\n  rules: [{from: [{source: {serviceAccounts: [web], ipBlocks: [10.1.0.2]}}]}]\n",
			"-shop/web-2 shop/web 80/TCP, +shop/web shop/web-2 80/TCP, +shop/db shop/web 80/TCP, +10.1.9.9 shop/web 80/TCP, -10.1.0.2 shop/web 80/TCP"},
		{"denied without rules", web + "  action: DENY\n", "+shop/db shop/web 80/TCP"},
		{"an ALLOW rule about requests allows nothing", web + "  rules: [{to: [{operation: {ports: ['80'], methods: [GET]}}]}, {from: [{source: {namespaces: [ops]}}]}]\n", "-shop/db shop/web 80/TCP, +ops/prom shop/web 80/TCP"},
		{"a DENY rule about requests denies without that part", web + "  action: DENY\n  rules: [{from: [{source: {namespaces: [ops]}}], to: [{operation: {paths: [/admin]}}]}]\n", "+shop/db shop/web 80/TCP, -ops/prom shop/web 80/TCP"},
		{"remote addresses are a proxy's to know", web + "  rules: [{from: [{source: {remoteIpBlocks: [8.8.8.8]}}]}]\n", "-8.8.8.8 shop/web 80/TCP, -shop/db shop/web 80/TCP"},
		{"and are denied whatever they are", web + "  action: DENY\n  rules: [{from: [{source: {remoteIpBlocks: [8.8.8.8]}}]}]\n", "-8.8.4.4 shop/web 80/TCP, -shop/db shop/web 80/TCP"},
		{"audit", web + "  action: AUDIT\n  rules: [{}]\n", "+shop/db shop/web 80/TCP"},
		{"for a waypoint", "  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]\n", "+shop/db shop/web 80/TCP"},
		{"a waypoint's own authorizer", "  action: CUSTOM\n  provider: {name: ext}\n  targetRef: {kind: Service, name: web}\n  rules: [{}]\n", "+shop/db shop/web 80/TCP"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := shop()
			in.Policies = policiesOf(t, authorizationHeader+tt.text)
			judgePackets(t, in, tt.packets)
		})
	}
}

// packetsRow has packets that some policies allow (+) or deny (-).
type packetsRow struct{ name, text, packets string }

func judgeRows(t *testing.T, rows []packetsRow) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			in := shop()
			in.Policies = policiesOf(t, row.text)
			judgePackets(t, in, row.packets)
		})
	}
}

// judgePackets says which packets are not as they are to be: allowed (+) or denied (-).
func judgePackets(t *testing.T, in Input, packets string) {
	t.Helper()
	for _, p := range in.Policies {
		if p.Broken() {
			t.Fatalf("%v", p.Problems)
		}
	}
	table := NewTable(NewCompiler(istioOptions).Compile(in))
	for _, packet := range strings.Split(packets, ", ") {
		if got := probe(t, table, in, packet[1:]); (got == Allow) != (packet[0] == '+') {
			t.Errorf("%s: %v", packet, got)
		}
	}
}

// TestAuthorizationTogether: policies of several kinds, actions and namespaces about one pod.
func TestAuthorizationTogether(t *testing.T) {
	named := func(name, namespace, spec string) string {
		return strings.Replace(strings.Replace(authorizationHeader, "name: ap", "name: "+name, 1), "namespace: shop", "namespace: "+namespace, 1) + spec + "---\n"
	}
	networks := func(spec string) string { return header + spec + "---\n" }
	tests := []packetsRow{
		{"two that allow", named("a", "shop", "  rules: [{from: [{source: {serviceAccounts: [db]}}]}]\n") + named("b", "shop", "  rules: [{from: [{source: {namespaces: [ops]}}]}]\n"),
			"+shop/db shop/web 80/TCP, +ops/prom shop/web 80/TCP, -shop/plain shop/web 80/TCP"},
		{"one that denies", named("a", "shop", "  rules: [{}]\n") + named("b", "shop", "  action: DENY\n  rules: [{from: [{source: {namespaces: [ops]}}]}]\n"),
			"+shop/db shop/web 80/TCP, -ops/prom shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP"},
		{"the root namespace's", named("a", "istio-system", "  action: DENY\n  rules: [{to: [{operation: {ports: ['23']}}]}]\n"), "-shop/db shop/web 23/TCP, +shop/db shop/web 80/TCP, -shop/db ops/prom 23/TCP"},
		{"the root namespace's, by label", named("a", "istio-system", "  selector: {matchLabels: {app: web}}\n"), "-shop/db shop/web 80/TCP, +shop/db ops/prom 80/TCP"},
		{"a NetworkPolicy of the root namespace is only its own", strings.Replace(networks("  podSelector: {}\n"), "namespace: shop", "namespace: istio-system", 1) + named("a", "istio-system", "  action: DENY\n  rules: [{to: [{operation: {ports: ['23']}}]}]\n"),
			"+shop/db shop/web 80/TCP, -shop/db shop/web 23/TCP"},
		{"both kinds have to allow", networks("  podSelector: {}\n  ingress: [{from: [{podSelector: {}}], ports: [{port: 80}, {port: 443}]}]\n") + named("a", "shop", "  rules: [{from: [{source: {serviceAccounts: [db, ops/prom]}}], to: [{operation: {ports: ['80', '22']}}]}]\n"),
			"+shop/db shop/web 80/TCP, -shop/db shop/web 443/TCP, -shop/db shop/web 22/TCP, -shop/plain shop/web 80/TCP, -ops/prom shop/web 80/TCP, -shop/db shop/web 80/UDP, +host shop/web 1/TCP"},
		{"identities of one, addresses of the other", networks("  podSelector: {}\n  ingress: [{from: [{podSelector: {}}]}]\n") + named("a", "shop", "  rules: [{from: [{source: {ipBlocks: [10.1.0.3, 10.1.1.1, 8.8.8.8]}}]}]\n"),
			"+shop/db shop/web 80/TCP, -shop/plain shop/web 80/TCP, -ops/prom shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP, -shop/db~6 shop/web 80/TCP"},
		{"addresses of one, identities of the other", networks("  podSelector: {}\n  ingress: [{from: [{ipBlock: {cidr: 10.1.0.0/24}}]}]\n") + named("a", "shop", "  rules: [{from: [{source: {principals: ['*']}}]}]\n"),
			"+shop/db shop/web 80/TCP, -ops/prom shop/web 80/TCP, -10.1.0.77 shop/web 80/TCP, -shop/db~6 shop/web 80/TCP"},
		{"named ports", networks("  podSelector: {}\n  ingress: [{ports: [{port: http}]}]\n") + named("a", "shop", "  action: DENY\n  rules: [{from: [{source: {namespaces: [ops]}}]}]\n"),
			"+shop/db shop/web 8080/TCP, -shop/db shop/web-2 8080/TCP, +shop/db shop/web-2 9090/TCP, -ops/prom shop/web 8080/TCP, +8.8.8.8 shop/web 8080/TCP"},
		{"egress is a NetworkPolicy's alone", networks("  podSelector: {}\n  policyTypes: [Egress]\n  egress: [{ports: [{port: 80}]}]\n") + named("a", "shop", "  rules: [{}]\n"), "+shop/db shop/web 80/TCP, -shop/web 8.8.8.8 81/TCP, +8.8.8.8 shop/web 81/TCP"},
		{"dry run", strings.Replace(named("a", "shop", "  action: DENY\n  rules: [{}]\n"), "name: a,", "name: a, annotations: {istio.io/dry-run: 'true'},", 1), "+shop/db shop/web 80/TCP"},
		{"no dry run", strings.Replace(named("a", "shop", "  action: DENY\n  rules: [{}]\n"), "name: a,", "name: a, annotations: {istio.io/dry-run: 'false'},", 1), "-shop/db shop/web 80/TCP"},
	}
	judgeRows(t, tests)
}

// TestAuthorizationOfUnknownPeers: who is in a range of pods and has no known identity may be
// anybody: a rule that denies somebody denies him, and one that allows somebody, or all but
// somebody, does not allow him.
func TestAuthorizationOfUnknownPeers(t *testing.T) {
	tests := []struct {
		name, text    string
		world, strang Verdict
	}{
		{"DENY of one", "  action: DENY\n  rules: [{from: [{source: {principals: ['*/sa/db']}}]}]\n", Allow, Deny},
		{"DENY of all but one", "  action: DENY\n  rules: [{from: [{source: {notPrincipals: ['*/sa/db']}}]}]\n", Deny, Deny},
		{"DENY by address", "  action: DENY\n  rules: [{from: [{source: {ipBlocks: [192.0.2.0/24]}}]}]\n", Allow, Allow},
		{"ALLOW of one", "  rules: [{from: [{source: {principals: ['*/sa/db']}}]}]\n", Deny, Deny},
		{"ALLOW of all but one", "  rules: [{from: [{source: {notPrincipals: ['*/sa/db']}}]}]\n", Allow, Deny},
		{"ALLOW by address", "  rules: [{from: [{source: {ipBlocks: [10.0.0.0/8, 8.8.8.8]}}]}]\n", Allow, Allow},
	}
	for _, tt := range tests {
		in := shop()
		in.Ranges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.1.9.0/24")}
		in.Policies = policiesOf(t, authorizationHeader+tt.text)
		table := NewTable(NewCompiler(istioOptions).Compile(in))
		for peer, want := range map[Peer]Verdict{
			{Identity: v1alpha1.IdentityWorld, Address: netip.MustParseAddr("8.8.8.8")}:      tt.world,
			{Identity: v1alpha1.IdentityUnknown, Address: netip.MustParseAddr("10.1.9.9")}:   tt.strang,
			{Identity: v1alpha1.MinIdentity + 9, Address: netip.MustParseAddr("10.1.7.7")}:   tt.strang,
			{Identity: v1alpha1.IdentityRemoteHost, Address: netip.MustParseAddr("8.8.8.8")}: tt.world,
		} {
			if got := table.Decide("shop/web", Ingress, peer, TCP, 80).Verdict; got != want {
				t.Errorf("%s: %v: %v, want %v", tt.name, peer, got, want)
			}
		}
	}
}

// TestAuthorizationWithoutClasses: an address whose class is withheld is denied, whatever the
// policy says of it and of others; one that has none yet, or that of another version, is what
// addresses are that no range of the policy has. That this opens nothing is the agent's to see to,
// which withholds every class that is not in all sets in force (agent.TestClassesChange and the
// tests beside it).
func TestAuthorizationWithoutClasses(t *testing.T) {
	there := netip.MustParsePrefix("192.0.2.0/24")
	for text, outside := range map[string]Verdict{
		"  action: DENY\n  rules: [{from: [{source: {ipBlocks: [192.0.2.0/24]}}]}]\n": Allow,
		"  action: DENY\n  rules: [{from: [{source: {principals: ['*/sa/db']}}]}]\n":  Allow,
		"  rules: [{}]\n": Allow,
		"  rules: [{from: [{source: {ipBlocks: [192.0.2.0/24]}}]}]\n": Deny,
		"  rules: [{from: [{source: {notIpBlocks: [0.0.0.0/1]}}]}]\n": Allow,
		"  rules: [{from: [{source: {principals: ['*/sa/db']}}]}]\n":  Deny,
	} {
		in := shop()
		in.Ranges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		in.Policies = policiesOf(t, authorizationHeader+text)
		result := NewCompiler(istioOptions).Compile(in)
		for _, c := range []struct {
			classes []Class
			want    Verdict
		}{{nil, outside}, {[]Class{{there, ClassBase + 900}}, outside},
			{[]Class{{there, Withheld}}, Deny}} {
			result.Classes = c.classes
			peer := Peer{Identity: v1alpha1.IdentityWorld, Address: netip.MustParseAddr("192.0.2.1")}
			got := NewTable(result).Decide("shop/web", Ingress, peer, TCP, 80).Verdict
			if got != c.want {
				t.Errorf("%s with classes %v: %v, want %v", text, c.classes, got, c.want)
			}
		}
	}
}

// TestAuthorizationOfForeignDomain: a trust domain that only has the name by which policies call
// the own is not meant by it.
func TestAuthorizationOfForeignDomain(t *testing.T) {
	in := shop()
	in.Identities = append(in.Identities, Identity{Number: v1alpha1.MinIdentity + 50, TrustDomain: ownTrustDomain, Namespace: "shop", ServiceAccount: "db"})
	in.Policies = policiesOf(t, authorizationHeader+"  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/db]}}]}]\n")
	peer := Peer{Identity: v1alpha1.MinIdentity + 50, Address: netip.MustParseAddr("10.1.7.7")}
	if got := NewTable(NewCompiler(istioOptions).Compile(in)).Decide("shop/web", Ingress, peer, TCP, 80).Verdict; got != Deny {
		t.Errorf("%v", got)
	}
}

// TestIdentityMadeAnew: a number that stands for somebody else than before is judged as that one.
func TestIdentityMadeAnew(t *testing.T) {
	in, compiler := shop(), NewCompiler(istioOptions)
	in.Policies = policiesOf(t, authorizationHeader+"  rules: [{from: [{source: {principals: ['*/sa/late']}}]}]\n")
	peer := Peer{Identity: v1alpha1.MinIdentity + 50, Address: netip.MustParseAddr("10.1.7.7")}
	for _, account := range []string{"late", "other"} {
		now := in
		now.Identities = append(slices.Clone(in.Identities), Identity{Number: peer.Identity, TrustDomain: "weft.local", Namespace: "ops", ServiceAccount: account})
		now.Endpoints = append(slices.Clone(in.Endpoints), Endpoint{Namespace: "ops", Name: account,
			Identity: peer.Identity, Addresses: []netip.Addr{peer.Address}})
		want := Deny
		if account == "late" {
			want = Allow
		}
		if got := NewTable(compiler.Compile(now)).Decide("shop/web", Ingress, peer, TCP, 80).Verdict; got != want {
			t.Errorf("%s: %v, want %v", account, got, want)
		}
	}
}

// TestAuthorizationErrors has one mistake per row: what is said of it. Whatever it is, the pods
// that the policy selects are closed, and if nobody knows which these are, all of its namespace.
func TestAuthorizationErrors(t *testing.T) {
	const good = "  selector: {matchLabels: {app: web}}\n"
	tests := []struct {
		name, text, want string
		all              bool
	}{
		{"action", good + "  action: Deny\n", `f.yaml:6: AuthorizationPolicy shop/ap: spec.action: is "Deny": want ALLOW, DENY, AUDIT or CUSTOM`, false},
		{"custom", good + "  action: CUSTOM\n  provider: {name: ext}\n  rules: [{}]\n", "f.yaml:6: AuthorizationPolicy shop/ap: spec.action: CUSTOM asks a server outside", false},
		{"unknown key of a source", good + "  rules: [{from: [{source: {principal: [a]}}]}]\n", `spec.rules[0].from[0].source.principal: unknown key: did you mean "principals"?`, false},
		{"unknown key of the spec", good + "  rule: [{}]\n", `spec.rule: unknown key`, true},
		{"misspelt selector", "  selektor: {matchLabels: {app: web}}\n", "spec.selektor: unknown key", true},
		{"wildcard in the selector", "  selector: {matchLabels: {app: 'w*'}}\n", "f.yaml:5: AuthorizationPolicy shop/ap: spec.selector.matchLabels[app]: has a *", true},
		{"selector with targetRefs", good + "  targetRefs: [{kind: Service, name: web}]\n", "spec.selector: goes with no targetRef", true},
		{"port by name", good + "  rules: [{to: [{operation: {ports: [http]}}]}]\n", `f.yaml:6: AuthorizationPolicy shop/ap: spec.rules[0].to[0].operation.ports[0]: "http" is no port: want a number from 0 to 65535`, false},
		{"port that is no text", good + "  rules: [{to: [{operation: {ports: [80]}}]}]\n", `spec.rules[0].to[0].operation.ports[0]: is the number "80": want a text`, false},
		{"port too large", good + "  rules: [{to: [{operation: {notPorts: ['65536']}}]}]\n", "spec.rules[0].to[0].operation.notPorts[0]", false},
		{"address", good + "  rules: [{from: [{source: {ipBlocks: [10.0.0.300]}}]}]\n", `spec.rules[0].from[0].source.ipBlocks[0]: "10.0.0.300" is not a range of addresses`, false},
		{"a whole SPIFFE ID", good + "  action: DENY\n  rules: [{from: [{source: {principals: ['spiffe://weft.local/ns/shop/sa/db']}}]}]\n", "spec.rules[0].from[0].source.principals[0]: \"spiffe://weft.local/ns/shop/sa/db\": leave spiffe:// away", false},
		{"empty value", good + "  rules: [{from: [{source: {notNamespaces: ['']}}]}]\n", "spec.rules[0].from[0].source.notNamespaces[0]: is empty", false},
		{"empty source", good + "  rules: [{from: [{source: {}}]}]\n", "spec.rules[0].from[0].source: is empty", false},
		{"no source", good + "  rules: [{from: [{}]}]\n", "spec.rules[0].from[0].source: is missing", false},
		{"no operation", good + "  rules: [{to: [{}]}]\n", "spec.rules[0].to[0].operation: is missing", false},
		{"condition without values", good + "  rules: [{when: [{key: source.ip}]}]\n", "spec.rules[0].when[0]: has no values", false},
		{"condition without key", good + "  rules: [{when: [{values: [a]}]}]\n", "spec.rules[0].when[0].key: is missing", false},
		{"service account with a wildcard", good + "  rules: [{from: [{source: {serviceAccounts: ['db*']}}]}]\n", `spec.rules[0].from[0].source.serviceAccounts[0]: "db*" is no service account`, false},
		{"service accounts and namespaces", good + "  rules: [{from: [{source: {serviceAccounts: [db], namespaces: [ops]}}]}]\n", "spec.rules[0].from[0].source.serviceAccounts: goes with no principals or namespaces", false},
		{"rule that is null", good + "  rules: [~]\n", "spec.rules[0]: is empty", false},
		{"an error in one that denies", good + "  action: DENY\n  rules: [{to: [{operation: {ports: ['x']}}]}]\n", `"x" is no port`, false},
		{"an error in whether it is for a waypoint", good + "  targetRefs: [{kind: Service, name: web}]\n", "spec.selector: goes with no targetRef", true},
	}
	const others = "---\n" + "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: other, namespace: shop}\nspec: {rules: [{}]}\n"
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := shop()
			in.Policies = policiesOf(t, authorizationHeader+tt.text+others)
			p := in.Policies[0]
			if !p.Broken() || !strings.Contains(said(p.errors()), tt.want) {
				t.Fatalf("said:\n%s\nwant: %s", said(p.Problems), tt.want)
			}
			if n := len(p.errors()); n != 1 {
				t.Errorf("one mistake, %d errors:\n%s", n, said(p.Problems))
			}
			table := NewTable(NewCompiler(istioOptions).Compile(in))
			for packet, want := range map[string]bool{
				"8.8.8.8 shop/web 80/TCP": false, "shop/db shop/web 80/TCP": false, "host shop/web 80/TCP": true,
				"shop/web 8.8.8.8 80/TCP": true, "8.8.8.8 shop/plain 80/TCP": !tt.all, "8.8.8.8 ops/prom 80/TCP": true,
			} {
				if got := probe(t, table, in, packet) == Allow; got != want {
					t.Errorf("%s is allowed: %v", packet, got)
				}
			}
		})
	}
}

// TestAuthorizationWarnings: what is in force, and perhaps not as it was meant.
func TestAuthorizationWarnings(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"requests of an ALLOW rule", "  rules: [{from: [{source: {requestPrincipals: ['*']}}], to: [{operation: {paths: [/a]}}], when: [{key: 'request.headers[x]', values: [y]}]}]\n",
			"f.yaml:5: AuthorizationPolicy shop/ap: spec.rules[0]: warning: from[0].source.requestPrincipals, to[0].operation.paths, request.headers[x] cannot be seen at layer 4: the rule allows nothing"},
		{"requests of a DENY rule", "  action: DENY\n  rules: [{to: [{operation: {hosts: [a]}}]}]\n", "spec.rules[0]: warning: to[0].operation.hosts cannot be seen at layer 4: the rule denies whatever they are"},
		{"audit", "  action: AUDIT\n", "f.yaml:5: AuthorizationPolicy shop/ap: spec.action: warning: AUDIT is only listed"},
		{"nothing is denied", "  action: DENY\n", "spec.rules: warning: is empty, so nothing is denied"},
		{"for a waypoint", "  targetRefs: [{kind: Gateway, name: w}]\n  rules: [{to: [{operation: {paths: [/a]}}]}]\n", "spec: warning: is for what its targetRefs name"},
	}
	for _, tt := range tests {
		p := policiesOf(t, authorizationHeader+tt.text)[0]
		if p.Broken() || len(p.Problems) != 1 || !strings.Contains(said(p.Problems), tt.want) {
			t.Errorf("%s: said:\n%s\nwant: %s", tt.name, said(p.Problems), tt.want)
		}
	}
	dry := strings.Replace(authorizationHeader, "name: ap,", "name: ap, annotations: {istio.io/dry-run: 'yes'},", 1)
	if p := policiesOf(t, dry+"  {}\n")[0]; p.Broken() || !p.Applies(Ingress) || !strings.Contains(said(p.Problems), `is "yes", and the policy is in force: want true or false`) {
		t.Errorf("a dry run that is none: %v %s", p.Applies(Ingress), said(p.Problems))
	}
}

// TestAuthorizationRemembered: kinds, what is only listed, and what was broken come back as they
// were.
func TestAuthorizationRemembered(t *testing.T) {
	text := func(name, spec string) string {
		return strings.Replace(authorizationHeader, "name: ap", "name: "+name, 1) + spec + "---\n"
	}
	in := shop()
	in.Policies = policiesOf(t, text("a", "  selector: {matchLabels: {app: web}}\n  rules: [{from: [{source: {serviceAccounts: [db]}}], to: [{operation: {ports: ['80']}}]}]\n")+
		text("b, annotations: {istio.io/dry-run: 'true'}", "  action: DENY\n  rules: [{}]\n")+
		text("c", "  selector: {matchLabels: {app: db}}\n  rule: [{}]\n")+header+"  podSelector: {matchLabels: {app: prometheus}}\n")
	data, err := Remember(in.Policies)
	if err != nil {
		t.Fatal(err)
	}
	before := in.Policies
	if in.Policies, _, err = Recall(data); err != nil || len(in.Policies) != 4 {
		t.Fatal(in.Policies, err)
	}
	for i, p := range []*Policy{before[3], before[0], before[1]} {
		if !in.Policies[i].Same(p) {
			t.Errorf("%s came back as another", p.Object())
		}
	}
	closed := in.Policies[3]
	if closed.Object() != "AuthorizationPolicy shop/c" || !closed.IsClosed() || !closed.subject.Empty() {
		t.Errorf("what was broken came back as %+v", closed)
	}
	in.Policies = in.Policies[:3]
	judgePackets(t, in, "+shop/db shop/web 80/TCP, -shop/plain shop/web 80/TCP, -shop/db shop/web 81/TCP, +shop/web shop/db 80/TCP")
	in.Policies = append(in.Policies, closed)
	judgePackets(t, in, "-shop/db shop/web 80/TCP, -shop/web shop/plain 80/TCP, +shop/db ops/prom 80/TCP")
	if listed := before[1].Closed(); listed.Applies(Ingress) {
		t.Error("of two versions that are only listed, one denies")
	}
	old := `[{"namespace":"shop","name":"web","file":"f","spec":{"podSelector":{}}},{"kind":"AuthorizationPolicy","namespace":"shop","name":"a","file":"f"}]`
	list, _, err := Recall([]byte(old))
	if err != nil || list[0].Kind != KindNetworkPolicy || list[0].IsClosed() || !list[1].IsClosed() || !list[1].Applies(Ingress) {
		t.Errorf("an agent of before wrote what came back as %+v, %v", list, err)
	}
}
