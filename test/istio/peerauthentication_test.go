package istio

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"istio.io/api/security/v1beta1"
	"istio.io/istio/pkg/workloadapi/security"
	"sigs.k8s.io/yaml"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
)

// rootNamespace is that of Istio's golden files.
const rootNamespace = "istio-system"

// strictByItself are the golden files whose pods Istio's control plane refers to its one policy
// that denies whoever has no principal, on every port: where the mode of all ports is STRICT and no
// port's is another. What such a file has in it, if anything, is not sent for them.
var strictByItself = []string{"peer-authn-strict", "peer-authn-strict-workload",
	"peer-authn-strict-and-strict-port-mtls"}

// noPrincipal is that policy.
var noPrincipal = &security.Authorization{Action: security.Action_DENY,
	Groups: []*security.Group{{Rules: []*security.Rules{{Matches: []*security.Match{{
		NotPrincipals: []*security.StringMatch{{
			MatchType: &security.StringMatch_Presence{Presence: nil}}},
	}}}}}}}

// TestGoldenPeerAuthentications evaluates both forms for the pod that the files are about, who is
// authenticated and who is not. In Istio's form that is whether he has a principal.
func TestGoldenPeerAuthentications(t *testing.T) {
	inputs, err := filepath.Glob(filepath.Join(golden(t), "peer-authn-*-in.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	denied, let := 0, 0
	for _, file := range inputs {
		name := strings.TrimSuffix(filepath.Base(file), "-in.yaml")
		t.Run(name, func(t *testing.T) {
			d, l := comparePeerAuthentications(t, file, name)
			denied, let = denied+d, let+l
		})
	}
	t.Logf("%d files, %d connections denied, %d let in", len(inputs), denied, let)
	if len(inputs) < 19 || denied == 0 || let == 0 {
		t.Fatalf("that is too little to judge anything: %d files, %d denied, %d let in", len(inputs),
			denied, let)
	}
}

func comparePeerAuthentications(t *testing.T, file, name string) (denied, let int) {
	table := compiled(t, file)
	theirs := theirPolicies(t, strings.Replace(file, "-in.yaml", ".yaml", 1), name)
	who := policy.Identity{Number: v1alpha1.MinIdentity, TrustDomain: trustDomains[0],
		Namespace: "foo", ServiceAccount: "sa"}
	for _, port := range []uint16{80, 8080, 9090, 9091} {
		for _, authenticated := range []bool{true, false} {
			at := connection{source: netip.MustParseAddr("10.1.0.2"),
				destination: netip.MustParseAddr("10.1.0.1"), port: port}
			if authenticated {
				at.peer = &who
			}
			want := !slices.ContainsFunc(theirs, at.matched)
			got := table.Decide("pods/a", policy.Ingress, policy.Peer{Identity: who.Number,
				Address: at.source, Authenticated: authenticated}, policy.TCP, port)
			if want != (got.Verdict == policy.Allow) {
				t.Errorf("port %d, authenticated %v: compiled %v, Istio's form allows: %v", port,
					authenticated, got.Verdict, want)
			}
			if want {
				let++
			} else {
				denied++
			}
		}
	}
	return denied, let
}

// theirPolicies are those that a pod has by Istio's control plane.
func theirPolicies(t *testing.T, file, name string) []*security.Authorization {
	t.Helper()
	if slices.Contains(strictByItself, name) {
		return []*security.Authorization{noPrincipal}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	return []*security.Authorization{authorization(t, decode(t, file))}
}

// compiled is what is made of the policies of a file for a pod of theirs: in their namespace, with
// the label app a.
func compiled(t *testing.T, file string) *policy.Table {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects, problems := policy.Decode("f", data)
	if len(problems) > 0 || len(objects.Policies) == 0 {
		t.Fatalf("%v", problems)
	}
	namespace := "default"
	for _, p := range objects.Policies {
		if p.Broken() {
			t.Fatalf("%v", p.Problems)
		}
		if p.Namespace != rootNamespace {
			namespace = p.Namespace
		}
	}
	in := policy.Input{Policies: objects.Policies, Endpoints: []policy.Endpoint{{
		Namespace: namespace, Name: "a", Labels: map[string]string{"app": "a"}, Local: true,
		Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")},
	}}}
	result := policy.NewCompiler(policy.Options{RootNamespace: rootNamespace,
		TrustDomain: trustDomains[0]}).Compile(in)
	result.Endpoints["pods/a"] = result.Endpoints[namespace+"/a"]
	return policy.NewTable(result)
}

// TestPeerAuthenticationFields: whatever Istio's own type has in it is understood.
func TestPeerAuthenticationFields(t *testing.T) {
	spec := sample((&v1beta1.PeerAuthentication{}).ProtoReflect().Descriptor())
	spec["portLevelMtls"] = map[string]any{"80": spec["mtls"]}
	modes := v1beta1.PeerAuthentication_MutualTLS_Mode_value
	if len(spec) != 3 || len(modes) != 4 {
		t.Fatalf("fields %v, modes %v: what is new?", spec, modes)
	}
	for mode := range modes {
		spec["mtls"].(map[string]any)["mode"] = mode
		text, err := yaml.Marshal(map[string]any{
			"apiVersion": "security.istio.io/v1", "kind": policy.KindPeerAuthentication,
			"metadata": map[string]any{"name": "a"}, "spec": spec,
		})
		if err != nil {
			t.Fatal(err)
		}
		objects, problems := policy.Decode("f", text)
		if len(problems) > 0 || len(objects.Policies) != 1 || objects.Policies[0].Broken() {
			t.Errorf("%s: %v %v\n%s", mode, problems, fmt.Sprint(objects.Policies[0].Problems), text)
		}
	}
}
