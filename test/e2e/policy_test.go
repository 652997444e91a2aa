package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

const policyNodes = `
name: set-later
encryption: %s
agent:
  log: {level: debug}
nodes:
  - {name: a, addresses: [192.0.2.1/24, "2001:db8::1/64"], podCIDRs: [10.77.1.0/24, "fd77:1::/64"]}
  - {name: b, addresses: [192.0.2.2/24, "2001:db8::2/64"], podCIDRs: [10.77.2.0/24, "fd77:2::/64"]}
wires:
  - {name: w0, nodes: [a, b], offload: false}
pods:
  - {name: client, node: a, namespace: front, addresses: [10.77.1.10, "fd77:1::10"], labels: {role: client}}
  - {name: other, node: b, namespace: front, addresses: [10.77.2.10, "fd77:2::10"], labels: {role: other}}
  - {name: web, node: a, namespace: shop, addresses: [10.77.1.80, "fd77:1::80"], labels: {app: web}}
  - {name: db, node: b, namespace: shop, addresses: [10.77.2.100, "fd77:2::100"], labels: {app: db}}
`

const (
	denyShop = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop}
spec:
  podSelector: {}
  policyTypes: [Ingress]
`
	allowFront = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow-front, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
    - from: [{namespaceSelector: {matchLabels: {team: front}}}]
      ports: [{port: 7007}]
`
	frontNamespace = `apiVersion: v1
kind: Namespace
metadata: {name: front, labels: {team: front}}
`
	isolateWeb = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolate, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Egress]
  egress:
    - to: [{podSelector: {matchLabels: {app: db}}}]
`
)

// TestNetworkPolicy enforces Kubernetes' policies between pods of one node and of two, sealed and
// in cleartext.
func TestNetworkPolicy(t *testing.T) {
	for _, encryption := range []string{"strict", `"off"`} {
		t.Run("encryption "+strings.Trim(encryption, `"`), func(t *testing.T) {
			l := newLab(t, "pol"+encryption[1:3], parseSpec(t, policyNodes, encryption))
			if encryption == "strict" {
				for _, n := range agents(l) {
					keyed(t, l, n)
				}
			}
			serveEcho(t, l.Pods()...)
			policies := matrix{lab: l}
			t.Run("none", func(t *testing.T) { policies.holds(t, nil) })
			t.Run("default deny", func(t *testing.T) {
				putObject(t, l, "deny.yaml", denyShop)
				policies.holds(t,
					[]string{"client web", "client db", "other web", "other db", "web db",
						"db web"})
				policies.probed(t, "web")
			})
			t.Run("withdrawn", func(t *testing.T) { policies.holds(t, nil) })
			t.Run("allowed by namespace", func(t *testing.T) {
				putObject(t, l, "deny.yaml", denyShop)
				putObject(t, l, "allow.yaml", frontNamespace+"---\n"+allowFront)
				policies.holds(t, []string{"client db", "other db", "web db", "db web"})
			})
			t.Run("egress by label", func(t *testing.T) {
				putObject(t, l, "egress.yaml", isolateWeb)
				policies.holds(t, []string{"web client", "web other"})
			})
			t.Run("broken", func(t *testing.T) {
				putObject(t, l, "deny.yaml", strings.Replace(isolateWeb, "app: db", "app: '-'", 1))
				policies.holds(t, []string{"web client", "web other", "web db"})
			})
			t.Run("kept while its file cannot be read", func(t *testing.T) {
				putObject(t, l, "deny.yaml", denyShop)
				refused := []string{"client web", "client db", "other web", "other db", "web db",
					"db web"}
				policies.holds(t, refused)
				path := filepath.Join(l.ObjectsDir(), "deny.yaml")
				if err := os.WriteFile(path, []byte("apiVersion: networking.k8s.io/v1\nkind: [\n"),
					0o644); err != nil {
					t.Fatal(err)
				}
				never := policies.never(t, "client web", "client db", "web db")
				soon()
				restartAll(t, l)
				policies.holds(t, refused)
				never()
			})
			t.Run("without agents", func(t *testing.T) {
				putObject(t, l, "deny.yaml", denyShop)
				refused := []string{"client web", "client db", "other web", "other db", "web db",
					"db web"}
				policies.holds(t, refused)
				never := policies.never(t, "client web", "client db", "web db")
				for _, n := range agents(l) {
					if err := n.KillAgent(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				policies.holds(t, refused)
				restartAll(t, l)
				policies.holds(t, refused)
				never()
			})
			t.Run("running connections are cut", func(t *testing.T) { cutByPolicy(t, l) })
		})
	}
}

// restartAll starts every agent anew.
func restartAll(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, n := range agents(l) {
		ensureStarted(t, n, true)
	}
}

// matrix is who reaches whom.
type matrix struct{ lab *lab.Lab }

// holds waits until every pod reaches every other but those that are refused, by TCP and both
// families.
func (m matrix) holds(t *testing.T, refused []string) {
	t.Helper()
	denied := map[string]bool{}
	for _, pair := range refused {
		denied[pair] = true
	}
	for _, from := range m.lab.Pods() {
		for _, to := range m.lab.Pods() {
			if from.Name == to.Name {
				continue
			}
			pair := from.Name + " " + to.Name
			eventually(t, fmt.Sprintf("%s refused: %t", pair, denied[pair]), func() error {
				for _, family := range []int{4, 6} {
					err := m.try(t, from, to, family, denied[pair])
					if denied[pair] == (err == nil) {
						return fmt.Errorf("%s IPv%d: %v; drops at a: %s; at b: %s", pair, family,
							err,
							dropText(t, m.lab.Node("a")), dropText(t, m.lab.Node("b")))
					}
				}
				return nil
			})
		}
	}
}

// never calls all the time between pods that are refused, until the function that it returns is
// called: then packets have been sent, and no answer has come.
func (m matrix) never(t *testing.T, pairs ...string) func() {
	t.Helper()
	calls := map[string]*call{}
	for _, pair := range pairs {
		from, to, _ := strings.Cut(pair, " ")
		for _, family := range []int{4, 6} {
			c, err := startCall(m.lab.Pod(from).NetNS,
				netip.AddrPortFrom(m.lab.Pod(to).Addr(family), echoPort))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.close)
			calls[fmt.Sprintf("%s IPv%d", pair, family)] = c
		}
	}
	return func() {
		t.Helper()
		for pair, c := range calls {
			eventually(t, "calls from "+pair, func() error {
				if sent := c.sent.Load(); sent < 100 {
					return fmt.Errorf("%d sent", sent)
				}
				return nil
			})
			if answers := c.answers.Load(); answers > 0 {
				t.Errorf("%s: %d answers to what a policy refuses", pair, answers)
			}
		}
	}
}

// try echoes something once. Who is to be refused has a moment only.
func (m matrix) try(t *testing.T, from, to *lab.Pod, family int, refused bool) error {
	limit := callTime
	if refused {
		limit = 100 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err := traffic.EchoTCP(ctx, from.NetNS, netip.Addr{},
		netip.AddrPortFrom(to.Addr(family), echoPort), 1000)
	return err
}

// probed: its own node reaches a pod whatever policies say, as kubelet's probes must.
func (m matrix) probed(t *testing.T, name string) {
	t.Helper()
	pod := m.lab.Pod(name)
	node := m.lab.Node(pod.Node)
	for _, family := range []int{4, 6} {
		if _, err := traffic.EchoTCP(t.Context(), node.NetNS, netip.Addr{},
			netip.AddrPortFrom(pod.Addr(family), echoPort), 1000); err != nil {
			t.Errorf("node %s does not reach its pod %s: %v", node.Name, name, err)
		}
	}
}

// cutByPolicy: a policy that comes cuts what it does not allow, in both directions.
func cutByPolicy(t *testing.T, l *lab.Lab) {
	for _, to := range []*lab.Pod{l.Pod("web"), l.Pod("db")} {
		c, err := startCall(l.Pod("client").NetNS, netip.AddrPortFrom(to.IPv4, echoPort))
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		eventually(t, "answers of "+to.Name, func() error {
			if c.answers.Load() < 100 {
				return fmt.Errorf("%d answers", c.answers.Load())
			}
			return nil
		})
		node := l.Node(to.Node)
		before := dropped(t, node, "", "policy_denied")
		t.Run(to.Name, func(t *testing.T) {
			putObject(t, l, "deny.yaml", denyShop)
			eventually(t, "the call to "+to.Name+" refused", func() error {
				if now := dropped(t, node, "", "policy_denied"); now < before+100 {
					return fmt.Errorf("%d packets refused", now-before)
				}
				return nil
			})
			answers := c.answers.Load()
			sent := c.sent.Load()
			eventually(t, "more packets sent", func() error {
				if c.sent.Load() < sent+100 {
					return fmt.Errorf("%d", c.sent.Load()-sent)
				}
				return nil
			})
			if now := c.answers.Load(); now != answers {
				t.Errorf("%d answers came after the policy", now-answers)
			}
		})
		answers := c.answers.Load()
		eventually(t, "answers of "+to.Name+" again", func() error {
			if c.answers.Load() < answers+100 {
				return fmt.Errorf("%d", c.answers.Load()-answers)
			}
			return nil
		})
	}
}
