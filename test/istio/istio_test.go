// Package istio compares what internal/policy makes of Istio's AuthorizationPolicies and
// PeerAuthentications with what Istio's control plane makes of them for ambient mode: its golden
// files, in its Go module, and how its documentation says that these are evaluated. It is a module
// of its own, for what Istio needs.
package istio

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"istio.io/api/security/v1beta1"
	"istio.io/istio/pkg/workloadapi/security"
	"sigs.k8s.io/yaml"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
)

// golden is the folder of Istio's files: NAME-in.yaml is a policy, NAME.yaml what ztunnel gets for
// it.
func golden(t *testing.T) string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "istio.io/istio").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(dir)),
		"pilot/pkg/serviceregistry/ambient/testdata")
}

// TestGolden evaluates both forms of each policy for connections that are made of its own words. As
// most of the policies both ask for "*" and exclude it, which nothing is like, they are compared
// without that, too.
func TestGolden(t *testing.T) {
	dir, files, compared, matched := golden(t), 0, 0, 0
	inputs, err := filepath.Glob(filepath.Join(dir, "*-in.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range inputs {
		in, out := decode(t, file), decode(t, strings.Replace(file, "-in.yaml", ".yaml", 1))
		if in["kind"] != policy.KindAuthorizationPolicy {
			continue // a PeerAuthentication: TestGoldenPeerAuthentications
		}
		files++
		for variant, drop := range map[string]func(key string) bool{
			"as it is":             func(string) bool { return false },
			"without * in not":     func(key string) bool { return strings.HasPrefix(key, "not") },
			"without *":            func(string) bool { return true },
			"without * but in not": func(key string) bool { return !strings.HasPrefix(key, "not") },
		} {
			t.Run(strings.TrimSuffix(filepath.Base(file), "-in.yaml")+" "+variant,
				func(t *testing.T) {
					c := comparison{mine: without(in, "", drop).(map[string]any),
						theirs: authorization(t, without(out, "", drop))}
					c.run(t)
					compared, matched = compared+c.compared, matched+c.matched
				})
		}
	}
	for i, rule := range denyRules(t, dir) {
		t.Run(fmt.Sprint("deny-groups, only rule ", i), func(t *testing.T) {
			rule.run(t)
			compared, matched = compared+rule.compared, matched+rule.matched
		})
	}
	t.Logf("%d policies, %d verdicts compared, of which %d are about a connection", files, compared,
		matched)
	if files < 3 || matched == 0 || matched == compared {
		t.Fatalf("that is too little to judge anything: %d policies, %d verdicts, %d matches",
			files, compared, matched)
	}
}

// denyRules are the rules of the policy that denies, each by itself, as those without a part at
// layer 4 deny all.
func denyRules(t *testing.T, dir string) (out []*comparison) {
	t.Helper()
	theirs := authorization(t, decode(t, filepath.Join(dir, "deny-groups.yaml")))
	for i, group := range theirs.Groups {
		mine := decode(t, filepath.Join(dir, "deny-groups-in.yaml"))
		spec := mine["spec"].(map[string]any)
		spec["rules"] = spec["rules"].([]any)[i : i+1]
		out = append(out,
			&comparison{mine: mine,
				theirs: &security.Authorization{Action: theirs.Action,
					Groups: []*security.Group{group}}})
	}
	return out
}

func decode(t *testing.T, file string) (out map[string]any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(data, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func authorization(t *testing.T, in any) *security.Authorization {
	t.Helper()
	out := &security.Authorization{}
	text, err := json.Marshal(in)
	if err == nil {
		err = protojson.Unmarshal(text, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// without is a document without "*", in either form, in the lists whose key drop says.
func without(in any, key string, drop func(string) bool) any {
	switch in := in.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, v := range in {
			name := k
			if k == "values" || k == "notValues" {
				name = strings.Replace(k, "alues", "Principals",
					1) // what ztunnel has in their place
			}
			out[k] = without(v, name, drop)
		}
		return out
	case []any:
		out := []any{}
		for _, v := range in {
			presence, _ := v.(map[string]any)
			_, any := presence["presence"]
			if !drop(key) || v != "*" && !any {
				out = append(out, without(v, "", drop))
			}
		}
		return out
	}
	return in
}

// TestFields: whatever Istio's own type has in it is understood.
func TestFields(t *testing.T) {
	spec := sample((&v1beta1.AuthorizationPolicy{}).ProtoReflect().Descriptor())
	delete(spec, "targetRef") // the three are alternatives
	delete(spec, "targetRefs")
	spec["action"] = "AUDIT"
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "security.istio.io/v1", "kind": policy.KindAuthorizationPolicy,
		"metadata": map[string]any{"name": "a"}, "spec": spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	objects, problems := policy.Decode("f", text)
	if len(problems) > 0 || len(objects.Policies) != 1 {
		t.Fatalf("%v\n%s", problems, text)
	}
	for _, p := range objects.Policies[0].Problems {
		if strings.Contains(p.Msg, "unknown key") {
			t.Errorf("%v", p)
		}
	}
	for _, field := range []string{"serviceAccounts", "notTrustDomains", "notPaths", "provider"} {
		if !strings.Contains(string(text), field) {
			t.Errorf("the sample has no %s:\n%s", field, text)
		}
	}
}

// sample is a message with every field.
func sample(d protoreflect.MessageDescriptor) map[string]any {
	out := map[string]any{}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		var value any = "1"
		switch {
		case f.IsMap():
			out[f.JSONName()] = map[string]any{"a": "b"}
			continue
		case f.Message() != nil:
			value = sample(f.Message())
		}
		if f.IsList() {
			value = []any{value}
		}
		out[f.JSONName()] = value
	}
	return out
}

// comparison is one policy in both forms.
type comparison struct {
	mine              map[string]any
	theirs            *security.Authorization
	compared, matched int
}

// words are what identities, addresses and ports are made of: those of the golden files, and what
// is near.
var (
	trustDomains = []string{"cluster.local", "principal-prefix-x", "not-principal-prefix-x"}
	namespaces   = []string{"ns", "ns-prefix-x", "x-ns-suffix", "not-ns", "cfg", "only-l4-ns",
		"when-l4-ns", "from-mix-ns", "when-l4-l7-ns", "else"}
	accounts = []string{"sa", "sa-only", "sa-not", "x-suffix-principal",
		"x-suffix-not-principal", "x"}
	sources = []string{"1.2.3.4", "5.6.7.8", "2.2.3.4", "6.6.1.1", "10.10.10.10",
		"192.168.10.7", "90.10.10.10", "20.20.20.20", "3.3.3.3", "fd00::1"}
	own = []string{"192.168.10.9", "90.168.10.9",
		"4.4.4.4"} // no source, as an address is one pod's
	ports = []uint16{80, 90, 91, 92, 800, 9001, 9090, 1}
)

func (c *comparison) run(t *testing.T) {
	text, err := yaml.Marshal(c.mine)
	if err != nil {
		t.Fatal(err)
	}
	objects, problems := policy.Decode("f", text)
	if len(problems) > 0 || objects.Policies[0].Broken() {
		t.Fatalf("%v %v", problems, objects.Policies[0].Problems)
	}
	in := policy.Input{Policies: objects.Policies}
	for _, domain := range trustDomains {
		for _, ns := range namespaces {
			for _, account := range accounts {
				in.Identities = append(in.Identities, policy.Identity{
					Number: v1alpha1.MinIdentity + uint32(len(in.Identities)), TrustDomain: domain,
					Namespace: ns, ServiceAccount: account,
				})
			}
		}
	}
	for i, a := range own {
		in.Endpoints = append(in.Endpoints, policy.Endpoint{
			Namespace: objects.Policies[0].Namespace, Name: fmt.Sprint("pod", i), Local: true,
			Addresses: []netip.Addr{netip.MustParseAddr(a)},
		})
	}
	c.ask(t, in, nil)
	// An address is one identity's at a time: each has each once.
	for turn := range in.Identities {
		var peers []*policy.Identity
		for j := range sources {
			peers = append(peers, &in.Identities[(turn+j)%len(in.Identities)])
		}
		c.ask(t, in, peers)
	}
}

// ask compares for all sources, which are peers', or for nil nobody's with an identity.
func (c *comparison) ask(t *testing.T, in policy.Input, peers []*policy.Identity) {
	t.Helper()
	in.Endpoints = slices.Clone(in.Endpoints)
	for j, who := range peers {
		in.Endpoints = append(in.Endpoints, policy.Endpoint{
			Namespace: who.Namespace, Name: fmt.Sprint("peer", j), Identity: who.Number,
			Addresses: []netip.Addr{netip.MustParseAddr(sources[j])},
		})
	}
	compiler := policy.NewCompiler(policy.Options{TrustDomain: trustDomains[0]})
	table := policy.NewTable(compiler.Compile(in))
	for _, pod := range in.Endpoints[:len(own)] {
		for j, source := range sources {
			at := connection{source: netip.MustParseAddr(source), destination: pod.Addresses[0]}
			peer := policy.Peer{Identity: v1alpha1.IdentityWorld, Address: at.source}
			if peers != nil {
				at.peer, peer.Identity = peers[j], peers[j].Number
			}
			if at.source.Is4() != at.destination.Is4() {
				continue
			}
			for _, at.port = range ports {
				want := at.matched(c.theirs)
				c.compared++
				if want {
					c.matched++
				}
				allows := want == (c.theirs.Action == security.Action_ALLOW)
				got := table.Decide(pod.Key(), policy.Ingress, peer, policy.TCP, at.port)
				if allows != (got.Verdict == policy.Allow) {
					t.Fatalf("%v → %v:%d of %+v: compiled %v, Istio's form allows: %v", at.source,
						at.destination, at.port, at.peer, got.Verdict, allows)
				}
			}
		}
	}
}
