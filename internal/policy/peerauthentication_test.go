package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const peerAuthHeader = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: pa, namespace: shop}\nspec:\n"

// peerAuthOf is a PeerAuthentication, of NAMESPACE/NAME.
func peerAuthOf(key, spec string) string {
	namespace, name, _ := strings.Cut(key, "/") // what is behind the name are other keys
	return strings.Replace(peerAuthHeader, "name: pa, namespace: shop", fmt.Sprintf("namespace: %s, name: %s", namespace, name), 1) + spec + "---\n"
}

const (
	isStrict     = "  mtls: {mode: STRICT}\n"
	isPermissive = "  mtls: {mode: PERMISSIVE}\n"
	selectsWeb   = "  selector: {matchLabels: {app: web}}\n"
)

// TestPeerAuthentication has packets that are let in (+) and refused (-): POD is one that comes
// sealed or is of the same node, POD! comes in cleartext.
func TestPeerAuthentication(t *testing.T) {
	ports := func(text string) string { return "  portLevelMtls: {" + text + "}\n" }
	const all = "+shop/db shop/web 80/TCP, +host shop/web 80/TCP, +shop/web 8.8.8.8 80/TCP, +shop/web! ops/prom 80/TCP"
	tests := []packetsRow{
		{"strict in a namespace", peerAuthOf("shop/a", isStrict), all + ", -shop/db! shop/web 80/TCP, -8.8.8.8 shop/web 80/TCP, -shop/db! shop/web 0/ICMP, -ops/prom! shop/plain 53/UDP, +8.8.8.8 ops/prom 80/TCP"},
		{"of the older version", strings.Replace(peerAuthOf("shop/a", isStrict), "/v1\n", "/v1beta1\n", 1), "-shop/db! shop/web 80/TCP"},
		{"permissive", peerAuthOf("shop/a", isPermissive), all + ", +shop/db! shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP"},
		{"disable refuses nothing that comes sealed", peerAuthOf("shop/a", "  mtls: {mode: DISABLE}\n"), all + ", +shop/db! shop/web 80/TCP"},
		{"unset is permissive", peerAuthOf("shop/a", "  mtls: {mode: UNSET}\n"), "+shop/db! shop/web 80/TCP"},
		{"nothing at all is permissive", peerAuthOf("shop/a", "  {}\n"), "+shop/db! shop/web 80/TCP"},
		{"strict in the mesh", peerAuthOf("istio-system/a", isStrict), all[:len(all)-len(", +shop/web! ops/prom 80/TCP")] + ", -shop/db! shop/web 80/TCP, -shop/web! ops/prom 80/TCP"},
		{"unset takes the mesh's", peerAuthOf("istio-system/a", isStrict) + peerAuthOf("shop/a", "  mtls: {}\n") + peerAuthOf("shop/b", selectsWeb), "-shop/db! shop/web 80/TCP, -shop/web! shop/db 80/TCP"},
		{"a namespace before the mesh", peerAuthOf("istio-system/a", isStrict) + peerAuthOf("shop/a", isPermissive), "+shop/db! shop/web 80/TCP, -shop/web! ops/prom 80/TCP"},
		{"some pods before their namespace", peerAuthOf("shop/a", isStrict) + peerAuthOf("shop/b", selectsWeb+isPermissive), "+shop/db! shop/web 80/TCP, -shop/web! shop/db 80/TCP"},
		{"strict pods", peerAuthOf("shop/b", selectsWeb+isStrict), "-shop/db! shop/web 80/TCP, +shop/web! shop/db 80/TCP"},
		{"a selector without labels is a namespace's", peerAuthOf("shop/a", "  selector: {}\n"+isStrict) + peerAuthOf("shop/b", selectsWeb+isPermissive), "+shop/db! shop/web 80/TCP, -shop/web! shop/db 80/TCP"},
		{"a selector in the root namespace is ignored", peerAuthOf("istio-system/a", selectsWeb+isStrict), "+shop/db! shop/web 80/TCP"},
		{"another namespace's", peerAuthOf("ops/a", isStrict), "+ops/prom! shop/web 80/TCP, -shop/web! ops/prom 80/TCP"},
		{"a permissive port", peerAuthOf("shop/a", selectsWeb+isStrict+ports("8080: {mode: PERMISSIVE}")), "+shop/db! shop/web 8080/TCP, +shop/db! shop/web 8080/UDP, -shop/db! shop/web 8081/TCP, -shop/db! shop/web 0/ICMP, -shop/db! shop/web-2 80/TCP"},
		{"a strict port", peerAuthOf("shop/a", selectsWeb+ports("8080: {mode: STRICT}")), "-shop/db! shop/web 8080/TCP, -shop/db! shop/web 8080/SCTP, +shop/db! shop/web 8081/TCP, +shop/db! shop/web 0/ICMP, +shop/db shop/web 8080/TCP"},
		{"a strict port of a permissive pod", peerAuthOf("shop/a", selectsWeb+isPermissive+ports("80: {mode: STRICT}, 81: {mode: UNSET}, 82: {}, 83: {mode: DISABLE}")), "-shop/db! shop/web 80/TCP, +shop/db! shop/web 81/TCP, +shop/db! shop/web 82/TCP, +shop/db! shop/web 83/TCP"},
		{"an unset port takes the pod's", peerAuthOf("shop/a", selectsWeb+isStrict+ports("80: {mode: UNSET}, 81: {}, 82: {mode: DISABLE}")), "-shop/db! shop/web 80/TCP, -shop/db! shop/web 81/TCP, +shop/db! shop/web 82/TCP"},
		{"a permissive port of a strict mesh", peerAuthOf("istio-system/a", isStrict) + peerAuthOf("shop/a", selectsWeb+ports("80: {mode: PERMISSIVE}")), "+shop/db! shop/web 80/TCP, -shop/db! shop/web 81/TCP, -shop/web! shop/db 80/TCP"},
		{"ports in quotes", peerAuthOf("shop/a", selectsWeb+ports("'80': {mode: STRICT}")), "-shop/db! shop/web 80/TCP"},
		{"the oldest of a scope", peerAuthOf("shop/a, creationTimestamp: 2026-01-02T00:00:00Z", isStrict) + peerAuthOf("shop/b, creationTimestamp: 2026-01-01T00:00:00Z", isPermissive), "+shop/db! shop/web 80/TCP"},
		{"the oldest of some pods, with its ports alone", peerAuthOf("shop/a, creationTimestamp: 2026-01-02T00:00:00Z", selectsWeb+isStrict) + peerAuthOf("shop/b, creationTimestamp: 2026-01-01T00:00:00Z", selectsWeb+ports("80: {mode: STRICT}")), "-shop/db! shop/web 80/TCP, +shop/db! shop/web 81/TCP"},
		{"the first by name where nobody says", peerAuthOf("shop/b", isPermissive) + peerAuthOf("shop/a", isStrict), "-shop/db! shop/web 80/TCP"},
		{"beside a NetworkPolicy", header + "  podSelector: {}\n  ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]\n---\n" + peerAuthOf("shop/a", isStrict), "+shop/db shop/web 80/TCP, -shop/db! shop/web 80/TCP, -shop/db shop/web 81/TCP, -ops/prom shop/web 80/TCP, +host shop/web 81/TCP"},
		{"what is let in unsealed is still a NetworkPolicy's", header + "  podSelector: {}\n  ingress: [{ports: [{port: 80}]}]\n---\n" + peerAuthOf("shop/a", selectsWeb+isStrict+ports("80: {mode: PERMISSIVE}, 81: {mode: PERMISSIVE}")), "+shop/db! shop/web 80/TCP, -shop/db! shop/web 81/TCP, +shop/db! shop/db 80/TCP"},
		{"beside an AuthorizationPolicy", authorizationHeader + "  rules: [{from: [{source: {principals: ['*/sa/db']}}]}]\n---\n" + peerAuthOf("shop/a", isStrict), "+shop/db shop/web 80/TCP, -shop/db! shop/web 80/TCP, -shop/plain shop/web 80/TCP"},
		{"beside one that denies", authorizationHeader + "  action: DENY\n  rules: [{from: [{source: {principals: ['*/sa/db']}}]}]\n---\n" + peerAuthOf("shop/a", selectsWeb+isStrict+ports("80: {mode: PERMISSIVE}")), "-shop/db shop/web 80/TCP, -shop/plain! shop/web 81/TCP, +shop/plain! shop/web 80/TCP, +8.8.8.8 shop/web 80/TCP"},
	}
	judgeRows(t, tests)
}

// TestPeerAuthenticationErrors has one mistake per row. Whatever it is, the pods that the policy
// selects let in only who is authenticated, whatever others say, and if nobody knows which these
// are, all of its namespace.
func TestPeerAuthenticationErrors(t *testing.T) {
	tests := []struct {
		name, text, want string
		all              bool
	}{
		{"mode", selectsWeb + "  mtls: {mode: strict}\n", `f.yaml:6: PeerAuthentication shop/pa: spec.mtls.mode: is "strict": want STRICT, PERMISSIVE, DISABLE or UNSET`, false},
		{"mode that is no text", selectsWeb + "  mtls: {mode: [STRICT]}\n", "spec.mtls.mode: is a list", false},
		{"unknown key of mtls", selectsWeb + "  mtls: {modus: STRICT}\n", "spec.mtls.modus: unknown key", false},
		{"unknown key of the spec", selectsWeb + "  mtlss: {mode: STRICT}\n", `spec.mtlss: unknown key: did you mean "mtls"?`, true},
		{"misspelt selector", "  selektor: {matchLabels: {app: web}}\n", "spec.selektor: unknown key", true},
		{"wildcard in the selector", "  selector: {matchLabels: {app: 'w*'}}\n", "spec.selector.matchLabels[app]: has a *", true},
		{"another kind of selector", "  selector: {matchExpressions: []}\n", "spec.selector.matchExpressions: unknown key", true},
		{"ports without a selector", "  portLevelMtls: {80: {mode: PERMISSIVE}}\n", "f.yaml:5: PeerAuthentication shop/pa: spec.portLevelMtls: goes only with a selector", true},
		{"no ports", selectsWeb + "  portLevelMtls: {}\n", "spec.portLevelMtls: is empty", false},
		{"port by name", selectsWeb + "  portLevelMtls: {http: {mode: STRICT}}\n", `f.yaml:6: PeerAuthentication shop/pa: spec.portLevelMtls[http]: "http" is no port: want a number from 1 to 65535`, false},
		{"port 0", selectsWeb + "  portLevelMtls: {0: {mode: STRICT}}\n", `spec.portLevelMtls[0]: "0" is no port`, false},
		{"port too large", selectsWeb + "  portLevelMtls: {65536: {mode: STRICT}}\n", `spec.portLevelMtls[65536]: "65536" is no port`, false},
		{"port in two ways", selectsWeb + "  portLevelMtls: {80: {}, 080: {}}\n", `spec.portLevelMtls[080]: "080" is no port`, false},
		{"port given twice", selectsWeb + "  portLevelMtls: {80: {}, '80': {}}\n", "spec.portLevelMtls.80: is given twice", false},
		{"mode of a port", selectsWeb + "  portLevelMtls: {80: {mode: OFF}}\n", `spec.portLevelMtls[80].mode`, false},
	}
	others := "---\n" + peerAuthOf("shop/other", isPermissive) + peerAuthOf("shop/web", selectsWeb+isPermissive) + peerAuthOf("istio-system/mesh", isPermissive)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := shop()
			in.Policies = policiesOf(t, peerAuthHeader+tt.text+others)
			p := in.Policies[0]
			if !p.Broken() || !strings.Contains(said(p.errors()), tt.want) {
				t.Fatalf("said:\n%s\nwant: %s", said(p.Problems), tt.want)
			}
			if n := len(p.errors()); n != 1 {
				t.Errorf("one mistake, %d errors:\n%s", n, said(p.Problems))
			}
			table := NewTable(NewCompiler(istioOptions).Compile(in))
			for packet, want := range map[string]bool{
				"8.8.8.8 shop/web 80/TCP": false, "shop/db! shop/web 80/TCP": false,
				"shop/db shop/web 80/TCP": true, "host shop/web 80/TCP": true, "shop/web 8.8.8.8 80/TCP": true,
				"8.8.8.8 shop/plain 80/TCP": !tt.all, "8.8.8.8 ops/prom 80/TCP": true,
			} {
				if got := probe(t, table, in, packet) == Allow; got != want {
					t.Errorf("%s is allowed: %v", packet, got)
				}
			}
		})
	}
}

// TestPeerAuthenticationClosed: of one that is declared in two ways, or was broken when it was last
// read, nobody knows what it says: it is STRICT. In the root namespace it is so for the mesh.
func TestPeerAuthenticationClosed(t *testing.T) {
	for name, tt := range map[string]struct {
		of      func(*Policy) *Policy
		text    string
		packets string
	}{
		"in two ways":               {(*Policy).Closed, peerAuthOf("shop/a", selectsWeb+isPermissive), "-shop/db! shop/web 80/TCP, +shop/web! shop/db 80/TCP, +shop/db shop/web 80/TCP"},
		"forgotten how":             {(*Policy).Isolating, peerAuthOf("shop/a", selectsWeb+isPermissive), "-shop/db! shop/web 80/TCP, -shop/web! shop/db 80/TCP, +ops/prom! ops/prom 80/TCP, +shop/db shop/web 80/TCP"},
		"forgotten how in the root": {(*Policy).Isolating, peerAuthOf("istio-system/a", isPermissive), "-shop/db! shop/web 80/TCP, -shop/web! ops/prom 80/TCP, +shop/db shop/web 80/TCP"},
	} {
		in := shop()
		before := policiesOf(t, tt.text)[0]
		in.Policies = append(policiesOf(t, peerAuthOf("shop/z", selectsWeb+isPermissive)), tt.of(before))
		t.Run(name, func(t *testing.T) { judgePackets(t, in, tt.packets) })
		if before.peerAuth.closed || in.Policies[1].Same(before) || !in.Policies[1].IsClosed() {
			t.Errorf("%s: %+v", name, before.peerAuth)
		}
	}
}

// TestPeerAuthenticationWarnings: what is in force, and perhaps not as it was meant.
func TestPeerAuthenticationWarnings(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"disable", peerAuthOf("shop/a", "  mtls: {mode: DISABLE}\n"), "f.yaml:5: PeerAuthentication shop/a: spec.mtls.mode: warning: DISABLE is what PERMISSIVE is"},
		{"disable of a port", peerAuthOf("shop/a", selectsWeb+"  portLevelMtls:\n    80: {mode: DISABLE}\n"), "f.yaml:7: PeerAuthentication shop/a: spec.portLevelMtls[80].mode: warning: DISABLE is"},
		{"a selector in the root namespace", peerAuthOf("istio-system/a", selectsWeb+isStrict), "PeerAuthentication istio-system/a: spec.selector: warning: is ignored in the root namespace"},
		{"two of a namespace", peerAuthOf("shop/a", isStrict) + peerAuthOf("shop/b", isPermissive), "PeerAuthentication shop/b: metadata.name: warning: says nothing, as PeerAuthentication shop/a is about the same pods and older"},
		{"two of the mesh", peerAuthOf("istio-system/b", isStrict) + peerAuthOf("istio-system/a", isPermissive), "PeerAuthentication istio-system/b: metadata.name: warning: says nothing"},
		{"of a namespace and of some pods", peerAuthOf("shop/a", isStrict) + peerAuthOf("shop/b", selectsWeb), ""},
	} {
		in := shop()
		in.Policies = policiesOf(t, tt.text)
		problems := NewCompiler(istioOptions).Compile(in).Problems
		if text := said(problems); (tt.want == "") != (text == "") || !strings.Contains(text, tt.want) || len(problems) > 1 {
			t.Errorf("%s: said:\n%s\nwant: %s", tt.name, text, tt.want)
		}
	}
}

// TestPeerAuthenticationRemembered: what was in force comes back as it was, and what was broken as
// STRICT.
func TestPeerAuthenticationRemembered(t *testing.T) {
	before := policiesOf(t, peerAuthOf("shop/a, creationTimestamp: 2026-01-02T00:00:00Z", selectsWeb+"  portLevelMtls: {80: {mode: STRICT}}\n")+
		peerAuthOf("shop/b", isPermissive)+peerAuthOf("shop/c", "  selector: {matchLabels: {app: db}}\n  mtl: {}\n"))
	data, err := Remember(before)
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := Recall(data)
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	for i := range 2 {
		if !list[i].Same(before[i]) {
			t.Errorf("%s came back as another: %+v", before[i].Object(), list[i].peerAuth)
		}
	}
	if c := list[2]; c.Object() != "PeerAuthentication shop/c" || !c.IsClosed() || !c.peerAuth.closed || !c.subject.Empty() {
		t.Errorf("what was broken came back as %+v", c)
	}
	newer := policiesOf(t, peerAuthOf("shop/a, creationTimestamp: 2026-01-03T00:00:00Z", selectsWeb+"  portLevelMtls: {80: {mode: STRICT}}\n"))[0]
	if newer.Same(before[0]) {
		t.Error("two that were made at different times are the same")
	}
}

// TestPeerAuthenticationExplained says which object demands it, and what would have to change.
func TestPeerAuthenticationExplained(t *testing.T) {
	in := shop()
	in.Policies = policiesOf(t, peerAuthOf("shop/a", selectsWeb+"  portLevelMtls:\n    80: {mode: STRICT}\n")+peerAuthOf("ops/p", isPermissive))
	r := NewCompiler(istioOptions).Compile(in)
	view := NewView(r, in, Names{Identity: func(uint32) string { return "" }, Pod: func(key string) string { return key }})
	peer := peerCalled(t, in, "shop/db!")
	half := view.Explain(End{Peer: peer}, End{Endpoint: "shop/web"}, TCP, 80).Ingress
	if want := "PeerAuthentication shop/a demands STRICT, and this does not come sealed: spec.portLevelMtls[80].mode (f.yaml:7)"; half.Verdict != Deny || half.Why != want {
		t.Errorf("%v: %s\nwant: %s", half.Verdict, half.Why, want)
	}
	if !strings.HasPrefix(half.Remedy, "have it come sealed") {
		t.Errorf("remedy: %s", half.Remedy)
	}
	peer.Authenticated = true
	if half = view.Explain(End{Peer: peer}, End{Endpoint: "shop/web"}, TCP, 80).Ingress; half.Verdict != Allow || half.Why != "no rule of PeerAuthentication shop/a denies it" {
		t.Errorf("sealed: %v: %s", half.Verdict, half.Why)
	}
	for _, s := range view.Policies() {
		want := map[string][]string{"a": {"shop/web", "shop/web-2"}, "p": {"ops/prom"}}[s.Name]
		if !slices.Equal(s.Pods, want) || len(s.Rules) != 1 || !slices.Equal(s.Directions, []string{"ingress"}) {
			t.Errorf("%s is about %v, %v, by %v", s.Key(), s.Pods, s.Directions, s.Rules)
		}
	}
	if idle := view.Idle(); len(idle) > 0 {
		t.Errorf("about no pod: %v", idle)
	}
	if r.Endpoints["ops/prom"] != (Sets{}) {
		t.Errorf("a permissive pod has sets: %v", r.Endpoints["ops/prom"])
	}
}

// TestPeerAuthenticationChange: a change of mode gives the pods it is about other sets, and those
// alone.
func TestPeerAuthenticationChange(t *testing.T) {
	compiler, in := NewCompiler(istioOptions), shop()
	compile := func(text string) *Result {
		in.Policies = policiesOf(t, header+"  podSelector: {}\n  ingress: [{}]\n---\n"+text)
		return compiler.Compile(in)
	}
	open := compile("")
	strict := compile(peerAuthOf("shop/a", selectsWeb+isStrict))
	ports := compile(peerAuthOf("shop/a", selectsWeb+isStrict+"  portLevelMtls: {80: {mode: PERMISSIVE}}\n"))
	for _, r := range []*Result{strict, ports} {
		if r.Endpoints["shop/web"] == open.Endpoints["shop/web"] || r.Endpoints["shop/db"] != open.Endpoints["shop/db"] {
			t.Errorf("sets %v, before %v", r.Endpoints, open.Endpoints)
		}
	}
	if ports.Endpoints["shop/web"] == strict.Endpoints["shop/web"] {
		t.Error("a set has changed, or was used again for something else")
	}
	in.Policies = append(slices.Clone(in.Policies), policiesOf(t, peerAuthOf("ops/a", isStrict))...)
	again := compiler.Compile(in)
	if again.Endpoints["shop/web"] != ports.Endpoints["shop/web"] || again.Sets[again.Endpoints["shop/web"][Ingress]] != ports.Sets[ports.Endpoints["shop/web"][Ingress]] {
		t.Error("the same was made anew")
	}
}

// TestPeerAuthenticationBudget: a set for which there is no room denies all, sealed or not.
func TestPeerAuthenticationBudget(t *testing.T) {
	in := shop()
	in.Policies = policiesOf(t, peerAuthOf("shop/a", selectsWeb+isStrict+"  portLevelMtls: {80: {mode: PERMISSIVE}, 81: {mode: PERMISSIVE}}\n"))
	opts := istioOptions
	opts.MaxEntries = 10
	r := NewCompiler(opts).Compile(in)
	table := NewTable(r)
	for packet, want := range map[string]Verdict{"shop/db shop/web 80/TCP": Deny, "shop/db! shop/web 80/TCP": Deny, "host shop/web 80/TCP": Allow, "shop/web! shop/db 80/TCP": Allow} {
		if got := probe(t, table, in, packet); got != want {
			t.Errorf("%s: %v", packet, got)
		}
	}
	if !strings.Contains(said(r.Problems), "PeerAuthentication shop/a: ingress would need 11 entries for one pod, more than 10") {
		t.Errorf("said: %s", said(r.Problems))
	}
}
