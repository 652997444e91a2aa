package policy

import (
	"slices"
	"strings"
	"testing"
)

type allLabels struct{}

func (allLabels) Relevant(key string) bool                      { return key != "hash" }
func (allLabels) Of(labels map[string]string) map[string]string { return labels }

const explainedPods = `apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}
status: {podIPs: [{ip: 10.1.0.1}, {ip: "fd00::1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
status: {podIPs: [{ip: 10.1.0.2}]}
---
`

func simulation(t *testing.T, policies string) *Simulation {
	t.Helper()
	o, problems := Decode("f.yaml", []byte(explainedPods+policies))
	if o == nil {
		t.Fatal(problems)
	}
	return Simulate(o, allLabels{}, ClusterNames{})
}

func isolating(name, spec string) string {
	return "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name +
		", namespace: shop}\nspec:\n  podSelector: {}\n" + spec
}

// TestRemedy: who is denied reads what would have to change, the nearest rule first.
func TestRemedy(t *testing.T) {
	for _, tt := range []struct {
		name, policies, to, port string
		why, remedy              string
	}{
		{"nothing allows", isolating("deny", "  policyTypes: [Ingress]\n"), "shop/db", "80",
			"isolated by NetworkPolicy shop/deny: no rule of ingress allows it",
			"add to NetworkPolicy shop/deny (f.yaml:13) a rule of ingress that allows 80/tcp for shop/default app=web"},
		{"the peer may take another port",
			isolating("one",
				"  ingress: [{from: [{podSelector: {}}], ports: [{port: 80}, {port: 8080, endPort: 8095}, {protocol: UDP}]}]\n"), "shop/db", "81",
			"isolated by NetworkPolicy shop/one: no rule of ingress allows it",
			"NetworkPolicy shop/one, spec.ingress[0] (f.yaml:18) allows this peer 80/tcp, 8080-8095/tcp, udp: add 81/tcp there"},
		{"another peer may take the port",
			isolating("one",
				"  ingress: [{from: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 80}]}]\n"), "shop/db", "80",
			"isolated by NetworkPolicy shop/one: no rule of ingress allows it",
			"NetworkPolicy shop/one, spec.ingress[0] (f.yaml:18) allows 80/tcp to others: add shop/default app=web there"},
		{"egress to outside",
			isolating("out",
				"  policyTypes: [Egress]\n  egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.9/32]}}]}]\n"), "192.0.2.9", "80",
			"isolated by NetworkPolicy shop/out: no rule of egress allows it",
			"NetworkPolicy shop/out, spec.egress[0] (f.yaml:19) allows 80/tcp to others: add 192.0.2.9 (outside the cluster) there"},
		{"several policies",
			isolating("a", "  policyTypes: [Ingress]\n") + isolating("b",
				"  policyTypes: [Ingress]\n"), "shop/db", "80",
			"isolated by NetworkPolicy shop/a, NetworkPolicy shop/b: no rule of ingress allows it",
			"add to NetworkPolicy shop/a (f.yaml:13) a rule"},
		{"a mistake", isolating("bad", "  ingress: [{ports: [{port: 99999}]}]\n"), "shop/db", "80",
			"isolated by NetworkPolicy shop/bad: no rule of ingress allows it",
			"correct what is wrong, since nothing is allowed by it until then: f.yaml:18: NetworkPolicy shop/bad: spec.ingress[0].ports[0].port: is 99999"},
		{"a label that is no part of identities",
			isolating("hash", "  ingress: [{from: [{podSelector: {matchLabels: {hash: x}}}]}]\n"),
			"shop/db", "80",
			"isolated by NetworkPolicy shop/hash: no rule of ingress allows it",
			"correct what is wrong"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := simulation(t, tt.policies).Ask("shop/web", tt.to, TCP, tt.port)
			if err != nil {
				t.Fatal(err)
			}
			half := a.Ingress
			if half == nil {
				half = a.Egress
			}
			if a.Verdict != Deny || half.Why != tt.why ||
				!strings.HasPrefix(half.Remedy, tt.remedy) {
				t.Errorf("%s: %s\n%s\nwant %s\n%s", a.Verdict, half.Why, half.Remedy, tt.why,
					tt.remedy)
			}
		})
	}
}

// TestRemedyHolds: what the remedy names is what decides: with it done, the packet is allowed.
func TestRemedyHolds(t *testing.T) {
	const before = "  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}]\n"
	for _, tt := range []struct{ name, after, from, port string }{
		{"the port added", strings.Replace(before, "{port: 80}", "{port: 80}, {port: 81}", 1),
			"shop/web", "81"},
		{"the peer added",
			strings.Replace(before, "from: [", "from: [{ipBlock: {cidr: 203.0.113.1/32}}, ", 1),
			"203.0.113.1", "80"},
	} {
		for i, spec := range []string{before, tt.after} {
			a, err := simulation(t, isolating("p", spec)).Ask(tt.from, "shop/db", TCP, tt.port)
			if want := []Verdict{Deny, Allow}[i]; err != nil || a.Verdict != want ||
				(a.Ingress.Remedy == "") != (want == Allow) {
				t.Errorf("%s: %+v, %v; want %s", tt.name, a.Ingress, err, want)
			}
		}
	}
}

// TestViewOfPolicies: what each policy is about, and the entries that it was compiled to, in words.
func TestViewOfPolicies(t *testing.T) {
	text := isolating("both",
		"  policyTypes: [Egress, Ingress]\n  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: http}, {port: 53, protocol: UDP}]}]\n"+
			"  egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.9/32]}}]}, {ports: [{port: 8080, endPort: 8095}]}]\n") +
		isolating("bad", "  ingress: [{ports: [{port: 99999}]}]\n")
	s := simulation(t, text)
	list := s.Policies()
	if len(list) != 2 || list[0].Object() != "NetworkPolicy shop/bad" || !list[0].Denies ||
		len(list[0].Problems) != 1 || list[0].Problems[0].Line == 0 {
		t.Errorf("%+v", list)
	}
	if both := list[1]; both.Denies ||
		!slices.Equal(both.Directions, []string{"ingress", "egress"}) || len(both.Rules) != 3 ||
		!slices.Equal(both.Pods, []string{"shop/db", "shop/web"}) || both.Line != 13 {
		t.Errorf("%+v", both)
	}
	var got []string
	for _, set := range s.SetsOf("NetworkPolicy shop/both") {
		for _, e := range set.Entries {
			line := strings.Join([]string{set.Direction, strings.Join(set.Pods, "+"),
				e.Verdict.String(), e.Peer, e.Ports, e.Rule.Field}, " ")
			for _, r := range e.Ranges {
				line += " " + r.String()
			}
			got = append(got, line)
		}
	}
	slices.Sort(got)
	want := []string{
		"egress shop/db+shop/web allow addresses any spec.egress[0] 192.0.2.0/24",
		"egress shop/db+shop/web allow anybody 8080-8095/tcp spec.egress[1]",
		"ingress shop/db allow shop/default app=web 53/udp spec.ingress[0]",
		"ingress shop/db allow the pod's own node any the pod's own node",
		"ingress shop/web allow shop/default app=web 53/udp spec.ingress[0]",
		"ingress shop/web allow shop/default app=web 8080/tcp spec.ingress[0]",
		"ingress shop/web allow the pod's own node any the pod's own node",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestPortsText(t *testing.T) {
	for want, p := range map[string]portPrefix{
		"any": {}, "tcp": {protocol: TCP}, "80/tcp": {TCP, 80, 16},
		"8080-8095/udp": {UDP, 8080, 12}, "0-32767/sctp": {SCTP, 0, 1}, "icmp": {1, 0, 16},
		"gre":         {47, 0, 16},
		"protocol 99": {99, 0, 16},
	} {
		if got := portsText(p); got != want {
			t.Errorf("%+v is %s, want %s", p, got, want)
		}
	}
}
