package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	netpol "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"weft.dev/weft/api/v1alpha1"
)

// writtenAuthorization is an AuthorizationPolicy as it is written, and its name.
type writtenAuthorization struct {
	namespace, name string
	spec            *authorizationSpec
}

// writtenAll are policies as they are written, besides NetworkPolicies.
type writtenAll struct {
	authorizations []writtenAuthorization
	clusters       []*netpol.ClusterNetworkPolicy
	peers          []writtenPeerAuthentication
}

// FuzzAuthorization draws clusters with policies of all kinds, and compares what is compiled with
// evaluators of each kind, packet by packet.
func FuzzAuthorization(f *testing.F) {
	for seed := range uint64(80) {
		f.Add(seed, seed*5)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		g := &generator{rand.New(rand.NewPCG(a, b))}
		compiler, w := NewCompiler(istioOptions), g.cluster()
		var list writtenAll
		for i := range g.IntN(4) {
			list.authorizations = append(list.authorizations, g.authorization(fmt.Sprint("a", i)))
		}
		for i := range g.IntN(4) {
			list.clusters = append(list.clusters, g.clusterPolicy(fmt.Sprint("c", i)))
		}
		compareAll(t, compiler, w, list)
		g.change(w)
		if len(list.authorizations) > 0 {
			list.authorizations[0] = g.authorization("a0")
		}
		compareAll(t, compiler, w, list)
	})
}

func (g *generator) authorization(name string) writtenAuthorization {
	s := &authorizationSpec{Action: one(g, "", "ALLOW", "DENY")}
	if g.IntN(2) > 0 {
		s.Selector = &workloadSelector{MatchLabels: map[string]string{one(g, "app", "tier"): one(g,
			"a", "b")}}
	}
	for range g.IntN(3) {
		var r authorizationRule
		for range g.IntN(3) {
			r.From = append(r.From, struct {
				Source *authorizationSource `yaml:"source" json:"source,omitempty"`
			}{g.source()})
		}
		for range g.IntN(2) {
			o := &authorizationOperation{Ports: []string{one(g, "80", "53", "101")}}
			if g.IntN(2) > 0 {
				o = &authorizationOperation{NotPorts: []string{"80", one(g, "0", "8080")}}
			}
			r.To = append(r.To, struct {
				Operation *authorizationOperation `yaml:"operation" json:"operation,omitempty"`
			}{o})
		}
		if g.IntN(3) == 0 {
			r.When = append(r.When,
				one(g, authorizationCondition{Key: "source.namespace", NotValues: []string{"red"}},
					authorizationCondition{Key: "destination.ip",
						Values: []string{"10.1.0.0/24", "fd00:1::/32"}},
					authorizationCondition{Key: "destination.port", Values: []string{"80", "8080"}},
					authorizationCondition{Key: "source.ip",
						Values: []string{"10.1.0.0/24", "8.8.8.8"}}))
		}
		s.Rules = append(s.Rules, r)
	}
	return writtenAuthorization{one(g, "red", "blue", "green", "istio-system"), name, s}
}

func (g *generator) source() *authorizationSource {
	s := &authorizationSource{}
	blocks := one(g, []string{"10.1.0.0/16"}, []string{"10.1.0.0/24", "8.8.8.8"},
		[]string{"10.1.1.2/31", "::/0"}, []string{"0.0.0.0/0"})
	names := one(g, []string{"red"}, []string{"gr*", "*ue"}, []string{"*"}, []string{"blue", "red"})
	switch g.IntN(7) {
	case 0:
		s.IPBlocks = blocks
	case 1:
		s.NotIPBlocks = blocks
	case 2:
		s.Namespaces = names
	case 3:
		s.NotNamespaces, s.IPBlocks = names, one(g, nil, blocks)
	case 4:
		s.ServiceAccounts = []string{one(g, "red/one", "one", "green/two")}
	case 5:
		s.Principals, s.NotIPBlocks = []string{one(g, "cluster.local/ns/red/*", "*/sa/one",
			"weft.local/ns/blue/sa/two", "*")}, one(g, nil, nil, blocks)
	default:
		s.NotPrincipals = []string{one(g, "*/sa/two", "cluster.local/ns/green/sa/one", "*")}
	}
	return s
}

func accountOf(p *Endpoint) string {
	if len(p.Labels)%2 == 0 {
		return "one"
	}
	return "two"
}

func compareAll(t *testing.T, compiler *Compiler, w *reference, list writtenAll) {
	t.Helper()
	in := w.input()
	for _, a := range list.authorizations {
		in.Policies = append(in.Policies,
			readAuthorization(metav1.ObjectMeta{Namespace: a.namespace, Name: a.name}, a.spec,
				source{}))
	}
	for _, c := range list.clusters {
		in.Policies = append(in.Policies, readCluster(c.ObjectMeta, &c.Spec, source{}))
	}
	for _, p := range list.peers {
		in.Policies = append(in.Policies, readPeerAuthentication(p.meta, p.spec, source{}))
	}
	for _, p := range in.Policies {
		if p.Broken() {
			t.Fatalf("the generator made a policy with errors: %v", p.Problems)
		}
	}
	for i := range in.Identities {
		id := &in.Identities[i]
		id.TrustDomain, id.ServiceAccount = "weft.local", accountOf(&Endpoint{Labels: id.Labels})
	}
	in.Ranges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"),
		netip.MustParsePrefix("10.1.1.0/25"), netip.MustParsePrefix("fd00:1::/32")}
	table := NewTable(compiler.Compile(in))
	for i := range w.pods {
		subject := &w.pods[i]
		for _, own := range subject.Addresses {
			for _, other := range w.ends() {
				// Nobody else is at a pod's address: the datapath drops what says so.
				posed := other.pod == nil &&
					slices.ContainsFunc(w.pods,
						func(e Endpoint) bool {
							return slices.Contains(e.Addresses,
								other.address)
						})
				if !subject.Local || own.Is4() != other.address.Is4() || posed {
					continue
				}
				for _, port := range []uint16{0, 53, 80, 101, 8080} {
					for _, protocol := range []uint8{TCP, UDP, 1} {
						for _, d := range directions {
							comparePacket(t, table, w, list, d, subject, own, other, protocol, port)
						}
					}
				}
			}
		}
	}
}

func comparePacket(t *testing.T, table *Table, w *reference, list writtenAll, d Direction,
	subject *Endpoint, own netip.Addr, other end, protocol uint8, port uint16) {
	t.Helper()
	if protocol == 1 {
		port = 0
	}
	inRange := strings.HasPrefix(other.address.String(), "10.1.") ||
		strings.HasPrefix(other.address.String(), "fd00:1:")
	want := w.tiers(list.clusters, d, subject, other, protocol, port)
	if d == Ingress {
		want = other.identity == v1alpha1.IdentityHost || want &&
			authorized(list.authorizations, subject, own, other, protocol, port)
	}
	for _, authenticated := range []bool{true, false} {
		want := want && (d == Egress || authenticated || other.identity == v1alpha1.IdentityHost ||
			!demanded(list.peers, subject, protocol, port))
		got := table.Decide(subject.Key(), d,
			Peer{Identity: other.identity, Address: other.address, Authenticated: authenticated},
			protocol, port).Verdict == Allow
		// Who is unknown in the pods' ranges may be denied what somebody else is allowed.
		if got == want || !got && other.pod == nil && inRange {
			continue
		}
		t.Fatalf("%v of %s at %v, other end %v (%d, authenticated %v), protocol %d, port %d: compiled %v, the specifications allow: %v",
			d, subject.Key(), own, other.address, other.identity, authenticated, protocol, port, got,
			want)
	}
}

// authorized says what AuthorizationPolicies say of a packet, from what is written.
func authorized(list []writtenAuthorization, subject *Endpoint, own netip.Addr, other end,
	protocol uint8, port uint16) bool {
	allowing, allowed := false, false
	for _, a := range list {
		if a.namespace != subject.Namespace && a.namespace != "istio-system" {
			continue
		}
		if a.spec.Selector != nil &&
			!labelled(&metav1.LabelSelector{MatchLabels: a.spec.Selector.MatchLabels},
				subject.Labels) {
			continue
		}
		hit := slices.ContainsFunc(a.spec.Rules,
			func(r authorizationRule) bool {
				return ruleHits(a.namespace, r, own, other, protocol,
					port)
			})
		if a.spec.Action == "DENY" && hit {
			return false
		}
		if a.spec.Action != "DENY" {
			allowing, allowed = true, allowed || hit
		}
	}
	return !allowing || allowed
}

func ruleHits(namespace string, r authorizationRule, own netip.Addr, other end, protocol uint8,
	port uint16) bool {
	from, to := len(r.From) == 0, len(r.To) == 0
	principal, ns, account := "", "", ""
	if other.pod != nil {
		ns, account = other.pod.Namespace, other.pod.Namespace+"/"+accountOf(other.pod)
		principal = "/ns/" + ns + "/sa/" + accountOf(other.pod)
	}
	known := func(s string) bool {
		if principal == "" {
			return false
		}
		return wild(s, "weft.local"+principal) || wild(s, "cluster.local"+principal)
	}
	inBlock := func(a netip.Addr) func(string) bool {
		return func(s string) bool {
			if !strings.Contains(s, "/") {
				return netip.MustParseAddr(s) == a
			}
			return netip.MustParsePrefix(s).Contains(a)
		}
	}
	isPort := func(s string) bool { return protocol != 1 && s == strconv.Itoa(int(port)) }
	is := func(s string) bool { return wild(s, ns) }
	isAccount := func(s string) bool { return account != "" && (s == account || namespace+"/"+s == account) }
	both := func(yes, no []string, f func(string) bool) bool {
		return (len(yes) == 0 || slices.ContainsFunc(yes, f)) && !slices.ContainsFunc(no, f)
	}
	for _, f := range r.From {
		s := f.Source
		from = from || both(s.Principals, s.NotPrincipals, known) &&
			both(s.Namespaces, s.NotNamespaces, is) &&
			both(s.IPBlocks, s.NotIPBlocks, inBlock(other.address)) &&
			both(s.ServiceAccounts, nil, isAccount)
	}
	for _, o := range r.To {
		to = to || both(o.Operation.Ports, o.Operation.NotPorts, isPort)
	}
	when := true
	for _, c := range r.When {
		f := map[string]func(string) bool{"source.namespace": is, "destination.ip": inBlock(own), "destination.port": isPort, "source.ip": inBlock(other.address)}[c.Key]
		when = when && both(c.Values, c.NotValues, f)
	}
	return from && to && when
}

// wild compares as Istio does.
func wild(like, s string) bool {
	switch {
	case like == "*":
		return s != ""
	case strings.HasPrefix(like, "*"):
		return strings.HasSuffix(s, like[1:])
	case strings.HasSuffix(like, "*"):
		return strings.HasPrefix(s, like[:len(like)-1])
	}
	return like == s
}
