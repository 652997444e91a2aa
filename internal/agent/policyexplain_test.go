package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/policy"
)

// explainObjects are a node with a pod of another, and policies: db takes 5432 from web, and web is
// isolated.
const explainObjects = `apiVersion: weft.dev/v1alpha1
kind: Node
metadata: {name: b}
spec: {addresses: [192.0.2.2], podCIDRs: [10.77.2.0/24]}
---
apiVersion: weft.dev/v1alpha1
kind: Identity
metadata: {name: "400"}
spec: {spiffeID: spiffe://weft.local/ns/front/sa/default, labels: {role: client}}
---
apiVersion: weft.dev/v1alpha1
kind: Identity
metadata: {name: "301"}
spec: {spiffeID: spiffe://weft.local/ns/shop/sa/default, labels: {app: web}}
---
apiVersion: weft.dev/v1alpha1
kind: Identity
metadata: {name: "302"}
spec: {spiffeID: spiffe://weft.local/ns/shop/sa/default, labels: {app: db}}
---
apiVersion: weft.dev/v1alpha1
kind: Endpoint
metadata: {name: client, namespace: front, labels: {role: client}}
spec: {nodeName: b, addresses: [10.77.2.5]}
status: {identity: 400}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 5432}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]
`

// pods is an endpoint manager that knows these.
type pods struct {
	fakeEndpoints
	list []endpoint.Info
}

func (p pods) List() []endpoint.Info { return p.list }

func (p pods) find(fits func(endpoint.Info) bool) (endpoint.Info, bool) {
	if at := slices.IndexFunc(p.list, fits); at >= 0 {
		return p.list[at], true
	}
	return endpoint.Info{}, false
}
func (p pods) Get(name string) (endpoint.Info, bool) {
	return p.find(func(i endpoint.Info) bool { return i.Key() == name })
}
func (p pods) BySlot(slot uint16) (endpoint.Info, bool) {
	return p.find(func(i endpoint.Info) bool { return i.Slot == slot })
}
func (p pods) ByIP(_ uint32, a netip.Addr) (endpoint.Info, bool) {
	return p.find(func(i endpoint.Info) bool { return i.IPv4 == a })
}

// mapped is a datapath whose maps say what was compiled, changed by change.
type mapped struct {
	recordedPolicies
	policies *policies
	change   func(*datapath.PolicyAnswer)
	// cleartext has other nodes' packets come so.
	cleartext bool
}

func (m *mapped) Authenticated(_ uint32, peer, _ netip.Addr) (bool, error) {
	return !m.cleartext && peer.IsPrivate(), nil
}

func (m *mapped) AskPolicy(q datapath.PolicyQuestion) (datapath.PolicyAnswer, error) {
	view, direction := m.policies.view.Load(), policy.Direction(q.Direction)
	key := map[uint16]string{1: "shop/web", 2: "shop/db"}[q.Slot]
	known := map[string]uint32{"10.77.1.1": 301, "10.77.1.2": 302,
		"10.77.2.5": 400}[q.Peer.String()]
	if known == 0 {
		known, _ = m.IdentityAt(0, q.Peer)
	}
	here, peer := policy.End{Endpoint: key}, policy.End{Peer: policy.Peer{Identity: known,
		Address: q.Peer}}
	peer.Authenticated = known == 301 || known == 302 || !m.cleartext && q.Peer.IsPrivate()
	said := view.Judge(here, peer, q.Protocol, q.Port).Egress
	if direction == policy.Ingress {
		said = view.Judge(peer, here, q.Protocol, q.Port).Ingress
	}
	sets, err := m.policies.numbers(key)
	got := datapath.PolicyAnswer{
		Set: sets[direction], Identity: known, Allow: said.Verdict == policy.Allow,
		Rule: said.Decision.Rule,
	}
	if m.change != nil {
		m.change(&got)
	}
	return got, err
}

// explaining is an agent of a node with two pods and the policies of explainObjects.
func explaining(t *testing.T, objects ...string) (*Agent, *mapped) {
	t.Helper()
	own := []endpoint.Info{policyPod(1, "web", map[string]string{"app": "web"}),
		policyPod(2, "db", map[string]string{"app": "db"})}
	dp := &mapped{}
	p, err := newPolicies(dp, policy.Options{Relevant: identity.LabelFilter{}.Relevant}, nil)
	if err != nil {
		t.Fatal(err)
	}
	dp.policies = p
	ix := policyIndex(t, objects...)
	if len(ix.snapshot.Errors) > 0 {
		t.Fatal(ix.snapshot.Errors)
	}
	if err := p.begin(ix, own, "a"); err != nil {
		t.Fatal(err)
	}
	a := &Agent{cfg: &config.Config{Node: "a"},
		node: &node{policies: p, manager: pods{fakeEndpoints{newWorld()}, own},
			dp: fakeDatapath{world: newWorld()}}}
	a.index.Store(ix)
	return a, dp
}

func TestExplainPolicy(t *testing.T) {
	const isolated = "isolated by NetworkPolicy shop/db: no rule of ingress allows it"
	for _, tt := range []struct {
		name, from, to, port string
		change               func(*datapath.PolicyAnswer)
		verdict              policy.Verdict
		// want is in the answer in words.
		want []string
	}{
		{name: "allowed at both ends", from: "shop/web", to: "shop/db", port: "5432",
			verdict: policy.Allow,
			want: []string{"egress allow NetworkPolicy shop/out, spec.egress[0] (f0:",
				"ingress allow NetworkPolicy shop/db, spec.ingress[0] (f0:"}},
		{name: "another port", from: "shop/web", to: "shop/db", port: "5433",
			want: []string{"ingress deny " + isolated,
				"allows this peer 5432/tcp: add 5433/tcp there"}},
		{name: "from another node", from: "front/client", to: "shop/db", port: "5432",
			want: []string{isolated,
				"allows 5432/tcp to others: add front/default role=client there",
				"egress of front/client is judged by node b"}},
		{name: "by its address", from: "10.77.2.5", to: "shop/db", port: "5432",
			want: []string{isolated, "egress of front/client is judged by node b"}},
		{name: "to another node", from: "shop/web", to: "10.77.2.5", port: "80",
			want: []string{"egress deny isolated by NetworkPolicy shop/out",
				"ingress of front/client is judged by node b"}},
		{name: "no policy there", from: "shop/db", to: "front/client", port: "80",
			verdict: policy.Allow,
			want:    []string{"egress allow no policy is about egress of shop/db"}},
		{name: "from outside", from: "203.0.113.9", to: "shop/db", port: "80",
			want: []string{isolated,
				"add to NetworkPolicy shop/db (f0:27) a rule of ingress that allows 80/tcp for 203.0.113.9 (outside the cluster)"}},
		{name: "maps that allow", from: "shop/web", to: "shop/db", port: "1",
			change: func(a *datapath.PolicyAnswer) { a.Allow = true },
			want:   []string{"ingress of shop/db: the verdict is deny as compiled, and allow in the maps"}},
		{name: "another set in the maps", from: "front/client", to: "shop/db", port: "1",
			change: func(a *datapath.PolicyAnswer) { a.Set = 99 },
			want: []string{"ingress of shop/db: the set is ",
				" as compiled, and 99 in the maps"}},
		{name: "another rule in the maps", from: "shop/web", to: "10.77.2.5", port: "1",
			change: func(a *datapath.PolicyAnswer) { a.Rule = 77 },
			want:   []string{"the rule's number is 0 as compiled, and 77 in the maps"}},
		{name: "another identity in the maps", from: "front/client", to: "shop/db", port: "1",
			change: func(a *datapath.PolicyAnswer) { a.Identity = 5 },
			want:   []string{"the identity of 10.77.2.5 is 400 as compiled, and 5 in the maps"}},
		{name: "an identity that no object says", from: "203.0.113.9", to: "shop/db", port: "1",
			change: func(a *datapath.PolicyAnswer) { a.Identity = 5 }, want: []string{isolated}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, dp := explaining(t, explainObjects)
			dp.change = tt.change
			q, err := a.policyQuestion(a.node,
				admin.PolicyRequest{From: tt.from, To: tt.to, Port: tt.port}, policy.TCP)
			if err != nil {
				t.Fatal(err)
			}
			e, err := a.node.policies.explain(q)
			if err != nil {
				t.Fatal(err)
			}
			words := explanationText(e)
			differs := tt.change != nil && !strings.Contains(tt.name, "no object")
			if e.Verdict != tt.verdict || differs != (len(e.Disagreements) > 0) {
				t.Errorf("%s, disagreements %q", e.Verdict, e.Disagreements)
			}
			for _, want := range tt.want {
				if !strings.Contains(words, want) {
					t.Errorf("no %q in:\n%s", want, words)
				}
			}
		})
	}
}

// strictDB has db let in only what comes sealed.
const strictDB = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: db, namespace: shop}
spec:
  selector: {matchLabels: {app: db}}
  mtls: {mode: STRICT}
`

// TestExplainAuthenticated: whether who begins is authenticated is asked of the maps, and who is on
// this node is in any case.
func TestExplainAuthenticated(t *testing.T) {
	const strict = "ingress deny PeerAuthentication shop/db demands STRICT, and this does not come sealed: spec.mtls.mode (f1:6)"
	for _, tt := range []struct {
		name, from string
		cleartext  bool
		want       string
	}{
		{"from this node", "shop/web", true, "ingress allow NetworkPolicy shop/db, spec.ingress[0]"},
		{"sealed", "front/client", false, "ingress deny isolated by NetworkPolicy shop/db, PeerAuthentication shop/db"},
		{"in cleartext", "front/client", true, strict},
		{"by its address", "10.77.2.5", true, strict},
		{"from outside", "203.0.113.9", false, strict},
	} {
		a, dp := explaining(t, explainObjects, strictDB)
		dp.cleartext = tt.cleartext
		q, err := a.policyQuestion(a.node, admin.PolicyRequest{From: tt.from, To: "shop/db",
			Port: "5432"}, policy.TCP)
		if err != nil {
			t.Fatal(err)
		}
		e, err := a.node.policies.explain(q)
		if err != nil {
			t.Fatal(err)
		}
		if words := explanationText(e); !strings.Contains(words, tt.want) ||
			len(e.Disagreements) > 0 {
			t.Errorf("%s: no %q in:\n%s", tt.name, tt.want, words)
		}
	}
}

func explanationText(e *admin.PolicyExplanation) string {
	var lines []string
	for _, h := range []*policy.Half{e.Egress, e.Ingress} {
		if h != nil {
			lines = append(lines, fmt.Sprint(h.Direction, " ", h.Verdict, " ", h.Why), h.Remedy)
		}
	}
	return strings.Join(slices.Concat(lines, e.Elsewhere, e.Disagreements), "\n")
}

// TestPolicyQuestionRefused: what cannot be answered here is refused with what to do.
func TestPolicyQuestionRefused(t *testing.T) {
	a, _ := explaining(t, explainObjects)
	for _, tt := range []struct {
		from, to, port string
		protocol       uint8
		want           string
	}{
		{"front/client", "10.77.2.9", "80", policy.TCP,
			"neither is a pod of node a: front/client is on node b: ask there"},
		{"203.0.113.1", "203.0.113.2", "80", policy.TCP, "no policy is about either"},
		{"shop/gone", "shop/db", "80", policy.TCP, `from: node a knows no pod "shop/gone"`},
		{"shop/web", "shop/gone", "80", policy.TCP, `to: node a knows no pod "shop/gone"`},
		{"shop/web", "2001:db8::1", "80", policy.TCP, "no addresses of the same family"},
		{"shop/web", "shop/db", "sql", policy.TCP, `shop/db has no port "sql"`},
		{"shop/web", "shop/db", "", policy.UDP, "tcp, udp, udplite and sctp have one"},
		{"shop/web", "shop/db", "1", 1, "other protocols have none"},
	} {
		_, err := a.policyQuestion(a.node,
			admin.PolicyRequest{From: tt.from, To: tt.to, Port: tt.port}, tt.protocol)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s to %s: %v, want %q", tt.from, tt.to, err, tt.want)
		}
	}
}
