package kube

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/store"
)

// TestWritesNeedTheirOwnResource: what cannot be read of others stops nobody from writing.
func TestWritesNeedTheirOwnResource(t *testing.T) {
	s := startFake(t)
	s.put(namespacesPath, "", "shop", thing{})
	k := open(t, s, "a")
	w := watching(t, k)
	w.nodes("")
	s.mu.Lock()
	s.forbidden["GET networkpolicies"] = true
	s.mu.Unlock()
	s.kill() // ends its watch
	s.start()
	w.nodes("does not let this agent list networkpolicies.networking.k8s.io")
	must(t, k.PutEndpoint(endpoint("shop", "web", "a")))
	must(t, k.CreateEpoch(epoch(1, "one")))
	_, err := identity.Allocate(k, identity.ID{TrustDomain: "weft.local", Namespace: "shop",
		ServiceAccount: "web"})
	must(t, err)
	must(t, k.Leader("a").Campaign(t.Context(), nil))
	must(t, k.DeleteEndpoint("shop/web"))
	if k.Away() == nil {
		t.Error("nothing is said of the policies")
	}
}

// TestListingBesideTheWatch: what a watch enters while a listing is on its way is no restore.
func TestListingBesideTheWatch(t *testing.T) {
	s := startServer(t)
	k, other := open(t, s, "a"), open(t, s, "b")
	w := watching(t, k)
	w.nodes("")
	const count = 60
	var group sync.WaitGroup
	for _, writer := range []*Kube{k, other} {
		group.Go(func() {
			for n := range count {
				_, err := identity.Allocate(writer, identity.ID{TrustDomain: "weft.local",
					Namespace: "shop", ServiceAccount: fmt.Sprint(writer.opt.Node, n)})
				if err != nil {
					t.Errorf("allocate: %v", err)
				}
			}
		})
	}
	group.Wait()
	w.until("all", func(s *store.Snapshot) bool { return len(s.Identities) == 2*count })
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.mirrorOf(identities); m.generation != 0 || k.restores != 0 {
		t.Errorf("%d and %d restores were seen, and there was none", m.generation, k.restores)
	}
}

// TestNamespaceIsLost: what cannot be written again as its namespace is lost too stops nothing, and
// is written once that is back.
func TestNamespaceIsLost(t *testing.T) {
	s := startServer(t)
	saved := s.save()
	s.put(namespacesPath, "", "shop", thing{})
	k := open(t, s, "a")
	w := watching(t, k)
	must(t, k.PutEndpoint(endpoint("shop", "web", "a")))
	w.until("it", func(s *store.Snapshot) bool { return s.Endpoints["shop/web"] != nil })
	s.kill()
	s.restore(saved)
	s.start()
	w.until("the loss", func(s *store.Snapshot) bool {
		return hasError(s, "namespaces/shop: is missing since") &&
			hasError(s, "endpoints.weft.dev/shop/web.a: is missing since")
	})
	if err := k.awayFrom(endpoints); err != nil {
		t.Errorf("endpoints cannot be read: %v", err)
	}
	s.put(namespacesPath, "", "shop", thing{})
	w.until("what is written again", func(s *store.Snapshot) bool {
		return !slices.ContainsFunc(s.Errors, func(e store.ObjectError) bool {
			return strings.Contains(e.File, "endpoints")
		})
	})
	fresh, err := open(t, s, "c").Snapshot()
	must(t, err)
	if fresh.Endpoints["shop/web"] == nil {
		t.Error("the endpoint was not written again")
	}
}

// TestRestoreShowsElsewhere: a restore that a resource alone cannot tell from deletions, as the API
// server has forgotten the time before, shows in another.
func TestRestoreShowsElsewhere(t *testing.T) {
	s := startServer(t)
	s.put(nodesPath, "", "a", nodeText(1))
	saved := s.save()
	s.put(nodesPath, "", "a", thing{"metadata": thing{"labels": thing{"x": "y"}},
		"spec": nodeText(1)["spec"], "status": nodeText(1)["status"]})
	s.put(policiesPath, "shop", "deny", denyAll())
	s.put(policiesPath, "shop", "more", denyAll())
	w := watching(t, open(t, s, "b"))
	w.until("all", func(s *store.Snapshot) bool { return len(s.NetworkPolicies) == 2 })
	s.kill()
	s.restore(saved)
	s.advance(2000) // and so versions are newer than they were
	s.start()
	got := w.until("the loss", func(s *store.Snapshot) bool {
		return hasError(s, "shop/deny: is missing since Kubernetes' API went back") &&
			hasError(s, "shop/more: is missing since Kubernetes' API went back")
	})
	if len(got.NetworkPolicies) != 2 {
		t.Errorf("%v", got.NetworkPolicies)
	}
	w.noneLost()
}

// TestLargePolicyDenies: a policy that is too large to be read is there, and denies.
func TestLargePolicyDenies(t *testing.T) {
	rules := make([]any, 0, 30000)
	for n := range cap(rules) {
		rules = append(rules, thing{"ipBlock": thing{"cidr": fmt.Sprintf("10.%d.%d.%d/32", n>>16,
			n>>8&255, n&255)}})
	}
	large := thing{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"spec": thing{"podSelector": thing{"matchLabels": thing{"app": "web"}},
			"policyTypes": []any{"Ingress"}, "ingress": []any{thing{"from": rules}}}}
	s := startServer(t)
	s.put(policiesPath, "shop", "large", large)
	got, err := open(t, s, "a").Snapshot()
	must(t, err)
	p := got.NetworkPolicies["shop/large"]
	const want = "networkpolicies.networking.k8s.io/shop/large: is "
	if p == nil || !hasError(got, want) || !hasError(got, "it denies all to what it is about") {
		t.Fatalf("%v, %v", p, got.Errors)
	}
	t.Log(got.Errors)
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
