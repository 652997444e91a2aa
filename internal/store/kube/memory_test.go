package kube

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/store"
)

// remembered are policies of an earlier life, one of each kind, and where each was declared.
func remembered(t *testing.T) (list []*policy.Policy, files []string) {
	t.Helper()
	docs := map[string]string{
		"networkpolicies.networking.k8s.io/shop/deny":         `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"deny","namespace":"shop"},"spec":{"podSelector":{},"policyTypes":["Ingress"]}}`,
		"clusternetworkpolicies.policy.networking.k8s.io/all": `{"apiVersion":"policy.networking.k8s.io/v1beta1","kind":"ClusterNetworkPolicy","metadata":{"name":"all"},"spec":{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}}`,
		"authorizationpolicies.security.istio.io/shop/none":   `{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy","metadata":{"name":"none","namespace":"shop"},"spec":{}}`,
		"peerauthentications.security.istio.io/shop/strict":   `{"apiVersion":"security.istio.io/v1","kind":"PeerAuthentication","metadata":{"name":"strict","namespace":"shop"},"spec":{"mtls":{"mode":"STRICT"}}}`,
	}
	for _, file := range slices.Sorted(maps.Keys(docs)) {
		objects, errs := store.Decode(file, []byte(docs[file]))
		if len(objects) != 1 || len(errs) > 0 {
			t.Fatalf("%s: %v", file, errs)
		}
		list, files = append(list, objects[0].Object.(*policy.Policy)), append(files, file)
	}
	return list, files
}

func hasError(s *store.Snapshot, text string) bool {
	return slices.ContainsFunc(s.Errors, func(e store.ObjectError) bool {
		return strings.Contains(e.Error(), text)
	})
}

// TestRememberedPoliciesStay: until a resource was listed, its remembered policies stay in use, and
// that it is not served is no listing.
func TestRememberedPoliciesStay(t *testing.T) {
	s := startServer(t)
	s.put(namespacesPath, "", "shop", thing{})
	k := open(t, s, "a")
	k.SeedPolicies(remembered(t))
	w := watching(t, k)
	const fix = "clusternetworkpolicies.policy.networking.k8s.io: is not served in version v1beta1, and what was remembered of it stays in use: have the API server serve that version"
	got := w.until("the first listing", func(s *store.Snapshot) bool { return hasError(s, fix) })
	if got.ClusterNetworkPolicies["all"] == nil || got.AuthorizationPolicies["shop/none"] == nil ||
		got.PeerAuthentications["shop/strict"] == nil {
		t.Errorf("policies of what is not served are gone: %v, %v, %v", got.ClusterNetworkPolicies,
			got.AuthorizationPolicies, got.PeerAuthentications)
	}
	if got.NetworkPolicies["shop/deny"] != nil {
		t.Error("a policy stays that a listing has not got")
	}
	if snapshot, err := k.Snapshot(); err != nil || snapshot.ClusterNetworkPolicies["all"] == nil {
		t.Errorf("%v, %v", snapshot, err)
	}
	if fake, ok := s.(*server); ok {
		fake.mu.Lock()
		fake.unserved = map[string]bool{}
		fake.mu.Unlock()
		k.mu.Lock()
		k.lookAnew(func(*mirror) bool { return true })
		k.mu.Unlock()
		got, err := k.Snapshot()
		if err != nil || len(got.ClusterNetworkPolicies)+len(got.AuthorizationPolicies) > 0 ||
			len(got.PeerAuthentications) > 0 ||
			len(got.Errors) > 0 {
			t.Errorf("listed, and still there: %+v, %v", got, err)
		}
	}
}

// TestRememberedUntilListed: one resource that cannot be listed keeps its own, whatever others say.
func TestRememberedUntilListed(t *testing.T) {
	s := startFake(t)
	s.forbidden["GET networkpolicies"] = true
	k := open(t, s, "a")
	k.SeedPolicies(remembered(t))
	for _, m := range k.mirrors {
		if m.kind != policy.KindNetworkPolicy {
			must(t, k.refresh(m))
		}
	}
	k.mu.Lock()
	got := k.history.Snapshot()
	k.mu.Unlock()
	if got.NetworkPolicies["shop/deny"] == nil {
		t.Errorf("gone before its resource was listed: %v", got.Errors)
	}
}

// TestLabelsAreRemembered: namespaces and pods of an earlier life stay until theirs are listed.
func TestLabelsAreRemembered(t *testing.T) {
	s := startServer(t)
	s.put(podsPath, "shop", "web", thing{"metadata": thing{"labels": thing{"app": "web"}}})
	before := open(t, s, "a")
	_, err := before.Snapshot()
	must(t, err)
	list := before.InUse(v1alpha1.KindPod, v1alpha1.KindNamespace)
	k := open(t, s, "a")
	k.SeedObjects(list)
	must(t, k.refresh(k.mirrorOf(resources[0])))
	k.mu.Lock()
	got := k.history.Snapshot()
	k.mu.Unlock()
	if got.Pods["shop/web"] == nil || got.Namespaces["shop"] == nil ||
		got.Pods["shop/web"].Metadata.Labels["app"] != "web" {
		t.Errorf("%v, %v of %v", got.Pods, got.Namespaces, list)
	}
	s.remove(podsPath, "shop", "web")
	if got, err := k.Snapshot(); err != nil || len(got.Pods) > 0 || len(got.Errors) > 0 {
		t.Errorf("%v, %v", got, err)
	}
}
