package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/store"
)

func TestAway(t *testing.T) {
	s := startServer(t)
	s.put(nodesPath, "", "a", nodeText(1))
	s.put(namespacesPath, "", "shop", thing{})
	k := open(t, s, "a")
	w := watching(t, k)
	w.nodes("", "a")
	s.kill()
	w.nodes("store.kubernetes: the API of Kubernetes cannot be read since 20", "a")
	for all := false; !all; time.Sleep(5 * time.Millisecond) {
		all = true
		for _, r := range resources { // the optional ones may not be served
			all = all && (r.optional || k.awayFrom(r) != nil)
		}
	}
	for what, call := range map[string]func() error{
		"snapshot": func() error { _, err := k.Snapshot(); return err },
		"put":      func() error { return k.PutEndpoint(endpoint("shop", "web", "a")) },
		"delete":   func() error { return k.DeleteEndpoint("shop/web") },
		"create":   func() error { return k.CreateEpoch(epoch(1, "x")) },
		"epochs":   func() error { _, err := k.Epochs(); return err },
		"identity": func() error { _, err := k.Identity(300); return err },
		"pod":      func() error { _, err := k.Pod("shop/web"); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "cannot be read since") {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.start()
	w.nodes("", "a")
	s.put(nodesPath, "", "b", nodeText(2))
	w.nodes("", "a", "b")
	must(t, k.PutEndpoint(endpoint("shop", "web", "a")))
	w.noneLost()
}

// TestStartsWithoutServer: the first listing comes whenever the API server does.
func TestStartsWithoutServer(t *testing.T) {
	s := startServer(t)
	s.put(nodesPath, "", "a", nodeText(1))
	s.kill()
	k := open(t, s, "a")
	w := watching(t, k)
	for k.Away() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	if w.now != nil || !strings.Contains(k.Away().Error(), "no answer from the API server at http") {
		t.Errorf("%v, %v", w.now, k.Away())
	}
	s.start()
	w.nodes("", "a")
}

// TestMissed: what was deleted and made while nobody looked is found, whether the API server still
// knows the steps or not, and is no restore.
func TestMissed(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprint("compacted ", compacted), func(t *testing.T) {
			s := startServer(t)
			for n, name := range []string{"a", "b", "c"} {
				s.put(nodesPath, "", name, nodeText(n+1))
			}
			k := open(t, s, "a")
			ctx, cancel := context.WithCancel(t.Context())
			first := make(chan store.Delta, 10)
			done := make(chan error)
			go func() { done <- k.Watch(ctx, func(d store.Delta) { first <- d }) }()
			<-first
			cancel()
			must(t, <-done)
			s.remove(nodesPath, "", "b")
			s.put(nodesPath, "", "d", nodeText(4))
			if compacted {
				s.compact()
			}
			watching(t, k).nodes("", "a", "c", "d")
			if k.mirrors[0].generation != 0 {
				t.Error("a gap was taken for a restore")
			}
		})
	}
}

// TestWatchExpires: a watch that is told that its version is too old lists again.
func TestWatchExpires(t *testing.T) {
	s := startServer(t)
	s.put(nodesPath, "", "a", nodeText(1))
	k := open(t, s, "a")
	w := watching(t, k)
	w.nodes("", "a")
	s.kill()
	s.put(nodesPath, "", "b", nodeText(2))
	s.remove(nodesPath, "", "a")
	s.compact()
	s.start()
	w.nodes("", "b")
}

// TestRestore puts an older state in place of what was, while watchers live.
func TestRestore(t *testing.T) {
	for _, further := range []int{0, 500} { // writes after the restore, before anybody looks
		t.Run(fmt.Sprint(further, " writes after"), func(t *testing.T) {
			s := startServer(t)
			s.put(nodesPath, "", "a", nodeText(1))
			s.put(namespacesPath, "", "shop", thing{})
			saved := s.save()
			a, b := open(t, s, "a"), open(t, s, "b")
			w := watching(t, a)
			w.nodes("", "a")
			s.put(nodesPath, "", "b", nodeText(2))
			s.put(policiesPath, "shop", "deny", denyAll())
			must(t, a.PutEndpoint(endpoint("shop", "web", "a")))
			must(t, b.PutEndpoint(endpoint("shop", "db", "b")))
			must(t, a.CreateEpoch(epoch(1, "one")))
			id := identity.ID{TrustDomain: "weft.local", Namespace: "shop", ServiceAccount: "web"}
			number, err := identity.Allocate(a, id)
			must(t, err)
			w.until("all", func(s *store.Snapshot) bool {
				return len(s.Nodes) == 2 && len(s.Endpoints) == 2 && len(s.Epochs) == 1 &&
					len(s.Identities) == 1 && len(s.NetworkPolicies) == 1
			})
			s.kill()
			s.restore(saved)
			s.advance(further)
			s.start()
			w.nodes("nodes/b: is missing since Kubernetes' API went back to an older state", "a",
				"b")
			got := w.until("the policy's error", func(s *store.Snapshot) bool {
				return slices.ContainsFunc(s.Errors, func(e store.ObjectError) bool {
					return strings.Contains(e.Error(), "shop/deny: is missing since")
				})
			})
			if len(got.Epochs) != 1 || len(got.Identities) != 1 || len(got.Endpoints) != 2 ||
				len(got.NetworkPolicies) != 1 {
				t.Errorf("%v, %v, %v, %v", got.Epochs, got.Identities, got.Endpoints,
					got.NetworkPolicies)
			}
			w.noneLost()
			// A node that knows nothing of the time before finds what this one has written again.
			w.until("what is written again", func(*store.Snapshot) bool {
				fresh, err := open(t, s, "c").Snapshot()
				must(t, err)
				keys := slices.Sorted(maps.Keys(fresh.Endpoints))
				return len(fresh.Epochs) == 1 && slices.Equal(keys, []string{"shop/web"})
			})
			if again, err := identity.Allocate(open(t, s, "c"), id); err != nil ||
				again != number {
				t.Errorf("number %d after, %d before: %v", again, number, err)
			}
			// Applied again and deleted, a node is gone for good.
			s.put(nodesPath, "", "b", nodeText(2))
			w.until("b again", func(s *store.Snapshot) bool {
				return !slices.ContainsFunc(s.Errors, func(e store.ObjectError) bool {
					return strings.HasPrefix(e.File, "nodes/")
				})
			})
			s.remove(nodesPath, "", "b")
			w.until("b gone", func(s *store.Snapshot) bool { return s.Nodes["b"] == nil })
		})
	}
}

// TestHostileListings: listings that lack what is in use, of which nobody is known to have deleted
// anything.
func TestHostileListings(t *testing.T) {
	for name, row := range map[string]struct {
		start  func(*testing.T) apiServer
		change func(apiServer)
		want   string
	}{
		"another cluster's": {startServer, func(s apiServer) {
			s.restore(nil)
			s.advance(1000)
		}, "is missing since Kubernetes' API went back to an older state"},
		"another cluster's, which does not list at first": {startFaulty, func(s apiServer) {
			s.restore(nil)
			s.advance(1000)
			s.put(nodesPath, "", "z", nodeText(9))
			s.remove(nodesPath, "", "z")
			s.compact()
			fakeOf(s).failing = 60
		}, "is missing since Kubernetes' API went back to an older state"},
		"empty ones, and what was is forgotten": {startServer, func(s apiServer) {
			s.remove(nodesPath, "", "a")
			s.remove(policiesPath, "shop", "deny")
			s.compact()
		}, "is missing, as all of its kind are, since Kubernetes' API was away"},
		"no resource of policies": {startFaulty, func(s apiServer) {
			fake := fakeOf(s)
			fake.unserved["networkpolicies"], fake.unserved["nodes"] = true, true
		}, "the API server has no resource"},
		"refused": {startFaulty, func(s apiServer) {
			fake := fakeOf(s)
			fake.forbidden["GET networkpolicies"], fake.forbidden["GET nodes"] = true, true
		}, "does not let this agent list nodes: apply packaging/kubernetes/rbac.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			s := row.start(t)
			s.put(nodesPath, "", "a", nodeText(1))
			s.put(policiesPath, "shop", "deny", denyAll())
			w := watching(t, open(t, s, "a"))
			w.nodes("", "a")
			s.kill()
			row.change(s)
			s.start()
			if got := w.nodes(row.want, "a"); got.NetworkPolicies["shop/deny"] == nil {
				t.Error("the policy is gone")
			}
			time.Sleep(300 * time.Millisecond) // some sessions more
			w.noneLost()
		})
	}
}

// TestDefinitionsAreMissing: agents say what to apply, before they have listed anything.
func TestDefinitionsAreMissing(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*server)
		want   string
	}{
		"definition": {func(s *server) { s.unserved["endpoints"] = true },
			"the API server has no resource endpoints.weft.dev in version v1alpha1: apply packaging/kubernetes/crds.yaml"},
		"permission": {func(s *server) { s.forbidden["GET pods"] = true },
			"the API server does not let this agent list pods: apply packaging/kubernetes/rbac.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startFake(t)
			row.change(s)
			k := open(t, s, "a")
			if _, err := k.Snapshot(); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("snapshot: %v", err)
			}
			w := watching(t, k)
			for k.Away() == nil {
				time.Sleep(5 * time.Millisecond)
			}
			if !strings.Contains(k.Away().Error(), row.want) || w.now != nil {
				t.Errorf("%v, %v", k.Away(), w.now)
			}
			s.mu.Lock()
			clear(s.forbidden)
			delete(s.unserved, "endpoints")
			s.mu.Unlock()
			w.nodes("")
		})
	}
}

// TestOptionalResourceIsNotServed: nobody waits for it.
func TestOptionalResourceIsNotServed(t *testing.T) {
	s := startServer(t)
	w := watching(t, open(t, s, "a"))
	if got := w.nodes(""); len(got.ClusterNetworkPolicies) != 0 {
		t.Errorf("%v", got.ClusterNetworkPolicies)
	}
}

// TestFormerVersionIsServed: who has an older release of Istio is told that its policies do
// nothing.
func TestFormerVersionIsServed(t *testing.T) {
	s := startFake(t)
	delete(s.unserved, "peerauthentications")
	s.unserved["security.istio.io/v1/peerauthentications"] = true
	got := watching(t, open(t, s, "a")).nodes("peerauthentications.security.istio.io: is served in " +
		"version v1beta1 and not in v1, which is read, so nothing enforces")
	if len(got.PeerAuthentications) != 0 {
		t.Errorf("%v", got.PeerAuthentications)
	}
}

// TestRefusedWrites says what to do.
func TestRefusedWrites(t *testing.T) {
	s := startFake(t)
	k := open(t, s, "a")
	s.forbidden["POST endpoints"] = true
	if err := k.PutEndpoint(endpoint("shop", "web", "a")); err == nil ||
		!strings.Contains(err.Error(), "does not let this agent create endpoints.weft.dev: apply") {
		t.Errorf("%v", err)
	}
	long := endpoint("shop", strings.Repeat("a", 250), "node")
	if err := k.PutEndpoint(long); err == nil ||
		!strings.Contains(err.Error(), "is longer than 253 bytes") {
		t.Errorf("%v", err)
	}
	if err := k.PutEndpoint(&v1alpha1.Endpoint{}); err == nil {
		t.Error("an endpoint without anything was published")
	}
}
