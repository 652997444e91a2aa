package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
)

// many are more rules than a policy that is read may have.
func many() (rules []any) {
	for n := range 30000 {
		rules = append(rules, thing{"ipBlock": thing{"cidr": fmt.Sprintf("10.%d.%d.%d/32", n>>16,
			n>>8&255, n&255)}})
	}
	return rules
}

// TestLargePolicyDenies: a policy that is too large to be read is there, and denies to what it is
// about and to nobody else.
func TestLargePolicyDenies(t *testing.T) {
	web := thing{"matchLabels": thing{"app": "web"}}
	long := thing{"matchLabels": thing{"app": strings.Repeat("x", maxPolicy)}}
	for name, row := range map[string]struct {
		kind string
		spec thing
		// web and db say whether pods of these names are let in and out still.
		web, db [2]bool
	}{
		"NetworkPolicy, in": {policy.KindNetworkPolicy, thing{"podSelector": web,
			"policyTypes": []any{"Ingress"}, "ingress": []any{thing{"from": many()}}},
			[2]bool{policy.Egress: true}, [2]bool{true, true}},
		"NetworkPolicy, both by its rules": {policy.KindNetworkPolicy, thing{"podSelector": web,
			"ingress": []any{thing{}}, "egress": []any{thing{"to": many()}}},
			[2]bool{}, [2]bool{true, true}},
		"NetworkPolicy, whose selector is too much": {policy.KindNetworkPolicy, thing{
			"podSelector": long, "ingress": []any{thing{}}}, [2]bool{}, [2]bool{}},
		"ClusterNetworkPolicy": {policy.KindClusterNetworkPolicy, thing{"tier": "Baseline",
			"priority": int64(1), "subject": thing{"pods": thing{"namespaceSelector": thing{},
				"podSelector": web}}, "ingress": []any{thing{"action": "Accept",
				"from": []any{thing{"namespaces": long}}}}}, [2]bool{}, [2]bool{true, true}},
		"AuthorizationPolicy": {policy.KindAuthorizationPolicy, thing{"selector": web,
			"action": "ALLOW", "rules": []any{thing{}, thing{"from": []any{thing{"source": thing{
				"namespaces": []any{strings.Repeat("x", maxPolicy)}}}}}}},
			[2]bool{policy.Egress: true}, [2]bool{true, true}},
		"PeerAuthentication": {policy.KindPeerAuthentication, thing{"selector": web,
			"mtls": thing{"mode": "PERMISSIVE"}, "portLevelMtls": thing{"80": thing{
				"mode": strings.Repeat("x", maxPolicy)}}},
			[2]bool{policy.Egress: true}, [2]bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var r *resource
			for _, one := range resources {
				if one.kind == row.kind {
					r = one
				}
			}
			o := &object{Object: thing{"apiVersion": r.GroupVersion().String(), "kind": r.apiKind,
				"metadata": thing{"name": "large"}, "spec": row.spec}}
			if r.namespaced {
				o.SetNamespace("shop")
			}
			source, _ := r.read(o)
			if len(source.Objects) != 1 || len(source.Errors) != 1 ||
				!strings.Contains(source.Errors[0].Error(), "/large: is 1") {
				t.Fatalf("%d objects, %v", len(source.Objects), source.Errors)
			}
			verdicts := decided(source.Objects[0].Object.(*policy.Policy))
			if verdicts["web"] != row.web || verdicts["db"] != row.db {
				t.Errorf("web %v, want %v; db %v, want %v", verdicts["web"], row.web,
					verdicts["db"], row.db)
			}
		})
	}
}

// decided is whether pods web and db of a namespace are let in and out, towards a third.
func decided(p *policy.Policy) map[string][2]bool {
	in := policy.Input{Policies: []*policy.Policy{p}, Namespaces: map[string]map[string]string{
		"shop": {}}}
	for n, name := range []string{"web", "db", "other"} {
		labels, number := map[string]string{"app": name}, v1alpha1.MinIdentity+uint32(n)
		in.Identities = append(in.Identities, policy.Identity{Number: number, Namespace: "shop",
			Labels: labels})
		in.Endpoints = append(in.Endpoints, policy.Endpoint{Namespace: "shop", Name: name,
			Labels: labels, Identity: number, Local: true,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 1, byte(n + 1)})}})
	}
	table := policy.NewTable(policy.NewCompiler(policy.Options{}).Compile(in))
	other := policy.Peer{Identity: v1alpha1.MinIdentity + 2,
		Address: netip.MustParseAddr("10.1.1.3")}
	out := map[string][2]bool{}
	for _, name := range []string{"web", "db"} {
		var let [2]bool
		for _, d := range []policy.Direction{policy.Egress, policy.Ingress} {
			let[d] = table.Decide("shop/"+name, d, other, policy.TCP, 80).Verdict == policy.Allow
		}
		out[name] = let
	}
	return out
}

// TestLargePolicyIsThere: the API server takes one of this size, and an agent has it.
func TestLargePolicyIsThere(t *testing.T) {
	s := startServer(t)
	s.put(policiesPath, "shop", "large", thing{"apiVersion": "networking.k8s.io/v1",
		"kind": "NetworkPolicy", "spec": thing{"podSelector": thing{},
			"policyTypes": []any{"Ingress"}, "ingress": []any{thing{"from": many()}}}})
	got, err := open(t, s, "a").Snapshot()
	must(t, err)
	if got.NetworkPolicies["shop/large"] == nil ||
		!hasError(got, "it denies all to what it is about until it is split") {
		t.Fatalf("%v, %v", got.NetworkPolicies, got.Errors)
	}
}

// TestManyNamedPorts: a pod with more of them than count is a pod, with its labels.
func TestManyNamedPorts(t *testing.T) {
	ports := []any{}
	for n := range 70 {
		ports = append(ports, thing{"name": fmt.Sprint("p", n), "containerPort": 1000 + n,
			"protocol": "TCP"})
	}
	s := startServer(t)
	s.put(podsPath, "shop", "web", thing{"metadata": thing{"labels": thing{"app": "web"}},
		"spec": thing{"serviceAccountName": "seller",
			"containers": []any{thing{"ports": ports}}}})
	k := open(t, s, "a")
	got, err := k.Snapshot()
	must(t, err)
	single, err := k.Pod("shop/web")
	must(t, err)
	for _, pod := range []*v1alpha1.Pod{got.Pods["shop/web"], single} {
		if pod == nil || pod.Spec.ServiceAccount != "seller" ||
			pod.Metadata.Labels["app"] != "web" || len(pod.Spec.Ports) != v1alpha1.MaxPorts {
			t.Errorf("%+v", pod)
		}
	}
	if !hasError(got, "have 70 named ports, of which the first 64 are used") {
		t.Errorf("%v", got.Errors)
	}
}
