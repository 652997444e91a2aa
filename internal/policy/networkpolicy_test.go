package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"

	"go.yaml.in/yaml/v3"
)

// shop is the cluster of these tests: web and db in shop, a pod without labels, and prometheus
// in another namespace. web-2 has its port http elsewhere than web, under one identity.
func shop() Input {
	pod := func(ns, name string, number uint32, address string, labels map[string]string, ports ...ContainerPort) Endpoint {
		v4 := netip.MustParseAddr(address)
		return Endpoint{
			Namespace: ns, Name: name, Labels: labels, Identity: number, Ports: ports, Local: true,
			Addresses: []netip.Addr{v4,
				netip.MustParseAddr("fd00::" + strings.ReplaceAll(address, ".", ":"))},
		}
	}
	web, db := map[string]string{"app": "web"}, map[string]string{"app": "db", "tier": "data"}
	identity := func(number uint32, ns, account string, labels map[string]string) Identity {
		return Identity{Number: number, TrustDomain: "weft.local", Namespace: ns,
			ServiceAccount: account, Labels: labels}
	}
	return Input{
		Namespaces: map[string]map[string]string{"shop": nil, "ops": {"team": "ops"}},
		Identities: []Identity{
			identity(300, "shop", "web", web), identity(301, "shop", "db", db),
			identity(302, "shop", "default", nil),
			identity(303, "ops", "prom", map[string]string{"app": "prometheus"}),
		},
		Endpoints: []Endpoint{
			pod("shop", "web", 300, "10.1.0.1", web, ContainerPort{"http", TCP, 8080},
				ContainerPort{"dns", UDP, 53}),
			pod("shop", "web-2", 300, "10.1.0.2", web, ContainerPort{"http", TCP, 9090}),
			pod("shop", "db", 301, "10.1.0.3", db, ContainerPort{"sql", TCP, 5432}),
			pod("shop", "plain", 302, "10.1.0.4", nil),
			pod("ops", "prom", 303, "10.1.1.1", map[string]string{"app": "prometheus"}),
		},
	}
}

const header = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: np, namespace: shop}\nspec:\n"

func policiesOf(t *testing.T, text string) []*Policy {
	t.Helper()
	o, problems := Decode("f.yaml", []byte(text))
	if len(problems) > 0 {
		t.Fatalf("%v", problems)
	}
	return o.Policies
}

// probe asks for a packet: FROM TO PORT/PROTOCOL, where FROM and TO are pods, addresses, or "host".
// A pod's name with ! behind it is that pod in cleartext from another node.
func probe(t *testing.T, table *Table, in Input, text string) Verdict {
	t.Helper()
	f := strings.Fields(text)
	port, protocol := uint16(0), ""
	if _, err := fmt.Sscanf(strings.ReplaceAll(f[2], "/", " "), "%d %s", &port,
		&protocol); err != nil {
		t.Fatal(err)
	}
	number := map[string]uint8{"TCP": TCP, "UDP": UDP, "SCTP": SCTP, "ICMP": 1}[protocol]
	for _, d := range directions {
		mine, other := f[0], f[1]
		if d == Ingress {
			mine, other = other, mine
		}
		if strings.Contains(mine, "/") &&
			table.Decide(mine, d, peerCalled(t, in, other), number, port).Verdict == Deny {
			return Deny
		}
	}
	return Allow
}

func peerCalled(t *testing.T, in Input, name string) Peer {
	t.Helper()
	if name == "host" {
		return Peer{Identity: v1alpha1.IdentityHost, Address: netip.MustParseAddr("192.0.2.1")}
	}
	if !strings.Contains(name, "/") {
		return Peer{Identity: v1alpha1.IdentityWorld, Address: netip.MustParseAddr(name)}
	}
	name, cleartext := strings.CutSuffix(name, "!")
	key, six := strings.CutSuffix(name, "~6")
	at := slices.IndexFunc(in.Endpoints, func(e Endpoint) bool { return e.Key() == key })
	return Peer{Identity: in.Endpoints[at].Identity, Authenticated: !cleartext,
		Address: in.Endpoints[at].Addresses[map[bool]int{true: 1}[six]]}
}

func TestNetworkPolicy(t *testing.T) {
	tests := []struct {
		name, spec    string
		allowed, deny []string
	}{
		{
			"default deny ingress", "  podSelector: {}\n  policyTypes: [Ingress]\n",
			[]string{"host shop/web 80/TCP", "shop/web ops/prom 80/TCP", "shop/web 8.8.8.8 443/TCP",
				"shop/web ops/prom 0/ICMP"},
			[]string{"shop/db shop/web 80/TCP", "8.8.8.8 shop/plain 80/TCP",
				"ops/prom shop/web 0/ICMP", "shop/web shop/web-2 80/TCP"},
		},
		{
			"default deny egress", "  podSelector: {}\n  policyTypes: [Egress]\n",
			[]string{"ops/prom shop/web 80/TCP", "8.8.8.8 shop/web 80/TCP"},
			[]string{"shop/web ops/prom 80/TCP", "shop/plain 8.8.8.8 53/UDP",
				"shop/web host 80/TCP"},
		},
		{
			"no podSelector, no types: all pods' ingress", "  ingress: []\n",
			[]string{"shop/web 8.8.8.8 80/TCP"},
			[]string{"ops/prom shop/plain 80/TCP"},
		},
		{
			"types by rules", "  podSelector: {}\n  egress: [{}]\n",
			[]string{"shop/web 8.8.8.8 80/TCP", "shop/web ops/prom 0/ICMP"},
			[]string{"ops/prom shop/web 80/TCP"},
		},
		{
			"empty rule allows all", "  podSelector: {}\n  ingress: [{}]\n",
			[]string{"8.8.8.8 shop/web 80/TCP", "ops/prom shop/web 0/ICMP",
				"shop/db shop/web~6 1/SCTP"}, nil,
		},
		{
			"pods of the own namespace",
			"  podSelector: {matchLabels: {app: db}}\n  ingress:\n  - from: [{podSelector: {matchLabels: {app: web}}}]\n    ports: [{port: 5432}]\n",
			[]string{"shop/web shop/db 5432/TCP", "shop/web-2 shop/db 5432/TCP",
				"ops/prom shop/web 80/TCP"},
			[]string{"shop/web shop/db 5432/UDP", "shop/web shop/db 5433/TCP",
				"shop/plain shop/db 5432/TCP", "ops/prom shop/db 5432/TCP",
				"shop/web shop/db 0/ICMP"},
		},
		{
			"empty podSelector of a peer: all pods here, nobody outside",
			"  podSelector: {}\n  ingress: [{from: [{podSelector: {}}]}]\n",
			[]string{"shop/plain shop/web 80/TCP", "shop/db shop/plain 0/ICMP"},
			[]string{"ops/prom shop/web 80/TCP", "8.8.8.8 shop/web 80/TCP"},
		},
		{
			"empty namespaceSelector: all pods, nobody outside",
			"  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {}}]}]\n",
			[]string{"shop/plain shop/web 80/TCP", "ops/prom shop/web 80/TCP"},
			[]string{"8.8.8.8 shop/web 80/TCP"},
		},
		{
			"namespaceSelector and podSelector together",
			"  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {matchLabels: {team: ops}}, podSelector: {matchLabels: {app: prometheus}}}]}]\n",
			[]string{"ops/prom shop/web 80/TCP"},
			[]string{"shop/web shop/db 80/TCP"},
		},
		{
			"and as two entries",
			"  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {matchLabels: {team: none}}}, {podSelector: {matchLabels: {app: web}}}]}]\n",
			[]string{"shop/web shop/db 80/TCP"},
			[]string{"ops/prom shop/web 80/TCP", "shop/plain shop/db 80/TCP"},
		},
		{
			"every namespace has its name",
			"  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [ops]}]}}]}]\n",
			[]string{"ops/prom shop/web 80/TCP"}, []string{"shop/web shop/db 80/TCP"},
		},
		{
			"matchExpressions, and a pod without labels",
			"  podSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}\n  ingress:\n  - from: [{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}}]\n",
			[]string{"shop/plain shop/web 80/TCP", "shop/db shop/plain 80/TCP",
				"shop/web shop/db 80/TCP"},
			[]string{"shop/web shop/plain 80/TCP", "shop/web shop/web-2 80/TCP"},
		},
		{
			"ipBlock with except",
			"  podSelector: {matchLabels: {app: web}}\n  policyTypes: [Egress]\n  egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/30]}}]}]\n",
			[]string{"shop/web 10.9.9.9 80/TCP", "shop/web ops/prom 80/TCP",
				"shop/web shop/plain 80/TCP"},
			[]string{"shop/web 8.8.8.8 80/TCP", "shop/web shop/db 80/TCP",
				"shop/web shop/plain~6 80/TCP"},
		},
		{
			"a block inside another's except",
			"  podSelector: {}\n  policyTypes: [Egress]\n  egress:\n  - to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.2.0.0/16]}}]\n" +
				"  - to: [{ipBlock: {cidr: 10.2.3.0/24}}]\n    ports: [{port: 80}]\n",
			[]string{"shop/web 10.3.0.1 1/UDP", "shop/web 10.2.3.4 80/TCP"},
			[]string{"shop/web 10.2.3.4 81/TCP", "shop/web 10.2.4.4 80/TCP"},
		},
		{
			"both families",
			"  podSelector: {}\n  ingress: [{from: [{ipBlock: {cidr: '::/0'}}]}]\n",
			[]string{"2001:db8::1 shop/web 80/TCP", "ops/prom~6 shop/web 80/TCP"},
			[]string{"8.8.8.8 shop/web 80/TCP", "ops/prom shop/web 80/TCP"},
		},
		{
			"endPort",
			"  podSelector: {}\n  ingress: [{ports: [{port: 1000, endPort: 2049, protocol: UDP}]}]\n",
			[]string{"8.8.8.8 shop/web 1000/UDP", "8.8.8.8 shop/web 1023/UDP",
				"8.8.8.8 shop/web 1024/UDP", "8.8.8.8 shop/web 2048/UDP",
				"8.8.8.8 shop/web 2049/UDP"},
			[]string{"8.8.8.8 shop/web 999/UDP", "8.8.8.8 shop/web 2050/UDP",
				"8.8.8.8 shop/web 1500/TCP"},
		},
		{
			"a protocol's every port",
			"  podSelector: {}\n  ingress: [{ports: [{protocol: SCTP}]}]\n",
			[]string{"8.8.8.8 shop/web 1/SCTP", "8.8.8.8 shop/web 65535/SCTP"},
			[]string{"8.8.8.8 shop/web 1/TCP", "8.8.8.8 shop/web 0/ICMP"},
		},
		{
			"named port of ingress is the pod's own",
			"  podSelector: {}\n  ingress: [{ports: [{port: http}]}]\n",
			[]string{"ops/prom shop/web 8080/TCP", "8.8.8.8 shop/web-2 9090/TCP"},
			[]string{"ops/prom shop/web 9090/TCP", "ops/prom shop/web-2 8080/TCP",
				"ops/prom shop/web 8080/UDP", "ops/prom shop/db 8080/TCP"},
		},
		{
			"named port of egress is the peer's",
			"  podSelector: {}\n  policyTypes: [Egress]\n  egress: [{ports: [{port: http}, {port: sql}]}]\n",
			[]string{"shop/plain shop/db 5432/TCP", "shop/plain shop/web 8080/TCP",
				"shop/plain shop/web-2 9090/TCP", "shop/plain shop/web-2~6 9090/TCP"},
			[]string{"shop/plain shop/web 9090/TCP", "shop/plain shop/web-2 8080/TCP",
				"shop/plain 8.8.8.8 8080/TCP", "shop/plain shop/web 5432/TCP"},
		},
		{
			"named port within a block",
			"  podSelector: {}\n  policyTypes: [Egress]\n  egress: [{to: [{ipBlock: {cidr: 10.1.0.2/31}}], ports: [{port: http}, {port: sql}]}]\n",
			[]string{"shop/plain shop/db 5432/TCP", "shop/plain shop/web-2 9090/TCP"},
			[]string{"shop/plain shop/web 8080/TCP", "shop/plain shop/web-2 8080/TCP",
				"shop/plain shop/web-2~6 9090/TCP"},
		},
		{
			"a name that is a protocol's other port",
			"  podSelector: {}\n  ingress: [{ports: [{port: dns, protocol: UDP}]}]\n",
			[]string{"ops/prom shop/web 53/UDP"},
			[]string{"ops/prom shop/web 53/TCP", "ops/prom shop/web-2 53/UDP"},
		},
		{
			"selectors that match nothing",
			"  podSelector: {}\n  ingress: [{from: [{podSelector: {matchLabels: {app: gone}}}]}]\n",
			nil, []string{"shop/web shop/db 80/TCP", "8.8.8.8 shop/db 80/TCP"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := shop()
			in.Policies = policiesOf(t, header+tt.spec)
			result := NewCompiler(Options{}).Compile(in)
			if len(result.Problems) > 0 {
				t.Fatalf("%v", result.Problems)
			}
			table := NewTable(result)
			for _, packet := range tt.allowed {
				if probe(t, table, in, packet) != Allow {
					t.Errorf("%s: denied", packet)
				}
			}
			for _, packet := range tt.deny {
				if probe(t, table, in, packet) != Deny {
					t.Errorf("%s: allowed", packet)
				}
			}
		})
	}
}

// TestWritten: a policy that is written out reads as the same one.
func TestWritten(t *testing.T) {
	const text = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop, labels: {a: b}}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], ports: [{port: http}, {port: 80, endPort: 90}]}]
`
	o, problems := Decode("f", []byte(text))
	if len(problems) > 0 || len(o.Policies) != 1 {
		t.Fatalf("%+v %v", o, problems)
	}
	o.Policies = append(o.Policies, policiesOf(t, peerAuthOf(
		"shop/a, labels: {a: b}, creationTimestamp: 2026-01-02T00:00:00Z",
		selectsWeb+isStrict+"  portLevelMtls: {80: {mode: UNSET}}\n"))...)
	for _, p := range o.Policies {
		writtenAgain(t, p)
	}
}

func writtenAgain(t *testing.T, p *Policy) {
	t.Helper()
	for name, marshal := range map[string]func(any) ([]byte, error){"YAML": yaml.Marshal,
		"JSON": json.Marshal} {
		out, err := marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, problems := Decode("g", out)
		if len(problems) > 0 || len(again.Policies) != 1 || !again.Policies[0].Same(p) ||
			again.Policies[0].Meta().Labels["a"] != "b" {
			t.Errorf("%s: %v\n%s", name, problems, out)
		}
	}
}

// TestRemembered: what an agent wrote down says the same to the next, and what was in error denies
// all.
func TestRemembered(t *testing.T) {
	const good = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\n" +
		"spec: {podSelector: {matchLabels: {app: web}}, ingress: [{}]}\n"
	broken := strings.Replace(good, "ingress: [{}]", "ingres: [{}]", 1)
	o, _ := Decode("f", []byte(good))
	b, _ := Decode("g", []byte(broken))
	data, err := Remember([]*Policy{o.Policies[0], b.Policies[0]})
	if err != nil {
		t.Fatal(err)
	}
	list, files, err := Recall(data)
	if err != nil || len(list) != 2 || files[0] != "f" || files[1] != "g" {
		t.Fatalf("%v %v %v", list, files, err)
	}
	if !list[0].Same(o.Policies[0]) {
		t.Error("another policy came back")
	}
	if closed := list[1]; !closed.Applies(Egress) || !closed.subject.Empty() ||
		len(closed.rules[Ingress]) > 0 {
		t.Errorf("what was broken came back as %+v", closed)
	}
	if _, _, err := Recall([]byte("{\n")); err == nil {
		t.Error("half a file is no error")
	}
}
