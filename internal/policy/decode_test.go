package policy

import (
	"strings"
	"testing"
)

// TestErrors has one mistake per row: what is said of it, and what the policy denies for it. The
// policy is about app=web in shop, and would allow all.
func TestErrors(t *testing.T) {
	const good = "  podSelector: {matchLabels: {app: web}}\n  policyTypes: [Ingress]\n"
	tests := []struct {
		name, text, want string
		// all: it isolates the whole namespace, both: in both directions.
		all, both bool
	}{
		{"unknown field of a rule", good + "  ingress:\n  - form: []\n",
			`f.yaml:8: NetworkPolicy shop/np: spec.ingress[0].form: unknown key: did you mean "from"?`, false, false},
		{"unknown field of the spec", good + "  ingres: [{}]\n",
			`f.yaml:7: NetworkPolicy shop/np: spec.ingres: unknown key: did you mean "ingress"?`,
			false, true},
		{"misspelt podSelector",
			"  podSelecter: {matchLabels: {app: web}}\n  policyTypes: [Ingress]\n  ingress: [{}]\n",
			`spec.podSelecter: unknown key: did you mean "podSelector"?`, true, true},
		{"podSelector is a list",
			"  podSelector: [app]\n  policyTypes: [Ingress]\n  ingress: [{}]\n",
			"f.yaml:5: NetworkPolicy shop/np: spec.podSelector: is a list", true, false},
		{"podSelector's operator",
			"  podSelector: {matchExpressions: [{key: app, operator: Is, values: [web]}]}\n  policyTypes: [Ingress]\n  ingress: [{}]\n",
			`spec.podSelector.matchExpressions[0].operator: "Is" is no operator: want In, NotIn, Exists or DoesNotExist`, true, false},
		{"unknown type",
			"  podSelector: {matchLabels: {app: web}}\n  policyTypes: [ingress]\n  ingress: [{}]\n",
			`spec.policyTypes[0]: "ingress" is no type of policy: want Ingress or Egress`, false,
			true},
		{"no spec, another key", "", "", true, false},
		{"peer's selector without values",
			good +
				"  ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In}]}}]}]\n", "spec.ingress[0].from[0].podSelector.matchExpressions[0]", false, false},
		{"peer's selector, Exists with values",
			good +
				"  ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: Exists, values: [a]}]}}]}]\n", "spec.ingress[0].from[0].podSelector.matchExpressions[0]", false, false},
		{"peer's label key",
			good + "  ingress: [{from: [{namespaceSelector: {matchLabels: {'a b': c}}}]}]\n",
			"spec.ingress[0].from[0].namespaceSelector.matchLabels[a b]", false, false},
		{"label value that is no text",
			good + "  ingress: [{from: [{podSelector: {matchLabels: {app: true}}}]}]\n",
			"spec.ingress[0].from[0].podSelector.matchLabels[app]: is the boolean \"true\": want a text", false, false},
		{"empty peer", good + "  ingress: [{from: [{}]}]\n",
			"spec.ingress[0].from[0]: is empty: give podSelector, namespaceSelector or ipBlock",
			false, false},
		{"peer that is null", good + "  ingress: [{from: [~]}]\n",
			"spec.ingress[0].from[0]: is empty", false, false},
		{"rule that is null", good + "  ingress: [~]\n", "spec.ingress[0]: is empty", false, false},
		{"block and selector",
			good + "  ingress: [{from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}]\n",
			"spec.ingress[0].from[0]: has an ipBlock and selectors: make it two entries", false,
			false},
		{"bad CIDR", good + "  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/33}}]}]\n",
			`f.yaml:7: NetworkPolicy shop/np: spec.ingress[0].from[0].ipBlock.cidr: "10.0.0.0/33" is not a range of addresses`, false, false},
		{"no CIDR", good + "  ingress: [{from: [{ipBlock: {}}]}]\n",
			`spec.ingress[0].from[0].ipBlock.cidr: "" is not a range of addresses`, false, false},
		{"leading zeros", good + "  ingress: [{from: [{ipBlock: {cidr: 010.0.0.0/8}}]}]\n",
			`spec.ingress[0].from[0].ipBlock.cidr: "010.0.0.0/8" is not`, false, false},
		{"IPv4 as IPv6", good + "  ingress: [{from: [{ipBlock: {cidr: '::ffff:10.0.0.0/104'}}]}]\n",
			"is an IPv4 range written as IPv6", false, false},
		{"except outside",
			good + "  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}]\n",
			"spec.ingress[0].from[0].ipBlock.except[0]: 11.0.0.0/16 is not a part of cidr 10.0.0.0/8", false, false},
		{"except is all",
			good + "  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}]\n",
			"10.0.0.0/8 is not a part of cidr 10.0.0.0/8", false, false},
		{"except of the other family",
			good + "  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: ['fd00::/16']}}]}]\n",
			"fd00::/16 is not a part of cidr", false, false},
		{"endPort without port", good + "  ingress: [{ports: [{endPort: 90}]}]\n",
			"spec.ingress[0].ports[0].endPort: has no port to begin from", false, false},
		{"endPort of a name", good + "  ingress: [{ports: [{port: http, endPort: 90}]}]\n",
			`spec.ingress[0].ports[0].endPort: goes with a number, and port is the name "http"`,
			false, false},
		{"endPort below port", good + "  ingress: [{ports: [{port: 80, endPort: 79}]}]\n",
			"spec.ingress[0].ports[0].endPort: is 79: want 80, which is port, to 65535", false,
			false},
		{"port 0", good + "  ingress: [{ports: [{port: 0}]}]\n",
			"spec.ingress[0].ports[0].port: is 0: want 1 to 65535", false, false},
		{"port too large", good + "  ingress: [{ports: [{port: 65536}]}]\n",
			"spec.ingress[0].ports[0].port: is 65536", false, false},
		{"port in quotes", good + "  ingress: [{ports: [{port: '80'}]}]\n",
			`spec.ingress[0].ports[0].port: "80" is neither number nor name of a port`, false,
			false},
		{"port is a list", good + "  ingress: [{ports: [{port: [80]}]}]\n",
			"spec.ingress[0].ports[0].port: is a list", false, false},
		{"protocol", good + "  ingress: [{ports: [{port: 80, protocol: tcp}]}]\n",
			`spec.ingress[0].ports[0].protocol: "tcp" is no protocol of a policy: want TCP, UDP or SCTP`, false, false},
		{"key given twice", good + "  ingress: [{}]\n  ingress: []\n",
			"spec.ingress: is given twice", false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := header + tt.text
			if tt.text == "" {
				text, tt.want = strings.Replace(header, "spec:", "sepc: {}",
					1), `f.yaml:4: NetworkPolicy shop/np: sepc: unknown key`
				tt.both = true
			}
			in := shop()
			in.Policies = policiesOf(t, text)
			p := in.Policies[0]
			if !p.Broken() || !strings.Contains(said(p.Problems), tt.want) {
				t.Fatalf("said:\n%s\nwant: %s", said(p.Problems), tt.want)
			}
			if n := strings.Count(said(p.Problems), "\n"); n != 1 {
				t.Errorf("one mistake, %d problems:\n%s", n, said(p.Problems))
			}
			table := NewTable(NewCompiler(Options{}).Compile(in))
			for packet, want := range map[string]bool{
				"8.8.8.8 shop/web 80/TCP": false, "host shop/web 80/TCP": true,
				"8.8.8.8 ops/prom 80/TCP": true,
				"shop/web 8.8.8.8 80/TCP": !tt.both, "8.8.8.8 shop/plain 80/TCP": !tt.all,
				"shop/plain 8.8.8.8 80/TCP": !tt.all || !tt.both,
			} {
				if got := probe(t, table, in, packet) == Allow; got != want {
					t.Errorf("%s is allowed: %v", packet, got)
				}
			}
		})
	}
}

func said(problems []Problem) string {
	var s strings.Builder
	for _, p := range problems {
		s.WriteString(p.Error() + "\n")
	}
	return s.String()
}

// TestDecodeFiles is about whole files: what is read of them, and what is said of the rest.
func TestDecodeFiles(t *testing.T) {
	tests := []struct {
		name, text, want string
		policies, pods   int
	}{
		{name: "as kubectl shows it", policies: 1, text: `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}'}
  creationTimestamp: "2026-11-26T10:00:00Z"
  generation: 1
  managedFields:
  - {apiVersion: networking.k8s.io/v1, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:ingress": {}}}, manager: kubectl, operation: Update, time: "2026-11-26T10:00:00Z"}
  name: np
  namespace: shop
  resourceVersion: "123"
  uid: 5f3c
spec: {podSelector: {}}
status: {}
`},
		{name: "a List", policies: 1, pods: 1, text: `apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: x}}, spec: {containers: [{name: c, image: i, ports: [{name: http, containerPort: 80}]}]}, status: {podIP: 10.1.0.1, podIPs: [{ip: 10.1.0.1}, {ip: "fd00::1"}]}}
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: n}, spec: {podSelector: {}}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
`},
		{name: "a pod that has ended",
			text: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nstatus: {phase: Succeeded, podIP: 10.1.0.1}\n"},
		{name: "our own pod", pods: 1,
			text: "apiVersion: weft.dev/v1alpha1\nkind: Pod\nmetadata: {name: a}\nspec: {ports: [{name: http, port: 80}]}\n"},
		{name: "another version",
			text: "apiVersion: networking.k8s.io/v1beta1\nkind: NetworkPolicy\nmetadata: {name: n}\n", want: `f.yaml:1: NetworkPolicy: apiVersion: is "networking.k8s.io/v1beta1": want networking.k8s.io/v1`},
		{name: "another kind, nearly",
			text: "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicies\nmetadata: {name: n}\n",
			want: "did you mean NetworkPolicy?"},
		{name: "others' policies",
			text: "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: n}\n", want: "RequestAuthentication of security.istio.io/v1 is not read, so nothing enforces this one"},
		{name: "no kind", text: "metadata: {name: n}\n", want: "has no apiVersion or no kind"},
		{name: "no YAML", text: "a: [\n", want: "f.yaml:"},
		{name: "a bad one does not hide a good one", policies: 1,
			text: "a: [\n---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: n}\n", want: "f.yaml:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o, problems := Decode("f.yaml", []byte(tt.text))
			if len(o.Policies) != tt.policies || len(o.Pods) != tt.pods {
				t.Errorf("%d policies, %d pods", len(o.Policies), len(o.Pods))
			}
			for _, p := range o.Policies {
				if p.Broken() {
					t.Errorf("%v", p.Problems)
				}
			}
			if text := said(problems); tt.want == "" && text != "" ||
				!strings.Contains(text, tt.want) {
				t.Errorf("said %q, want %q", text, tt.want)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	for spec, want := range map[string]string{
		"  policyTypes: [Egress]\n  ingress: [{}]\n": "f.yaml:6: NetworkPolicy shop/np: spec.ingress: warning: these rules are not in force",
		"  policyTypes: [Ingress]\n  egress: [{}]\n": "spec.egress: warning: these rules are not in force",
	} {
		p := policiesOf(t, header+spec)[0]
		if p.Broken() || !strings.Contains(said(p.Problems), want) {
			t.Errorf("%s: broken %v, said %q", spec, p.Broken(), said(p.Problems))
		}
	}
}
