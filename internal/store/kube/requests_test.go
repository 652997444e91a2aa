package kube

import (
	"maps"
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/store"
)

// reconnected are the requests with which an agent is back at an API server that was away, by kind
// of request. Three of the nine kinds that are served have no objects.
func reconnected(t *testing.T, meanwhile func(*server)) map[string]int {
	t.Helper()
	s := startFake(t)
	s.put(nodesPath, "", "a", nodeText(1))
	s.put(podsPath, "shop", "web", thing{})
	s.put(policiesPath, "shop", "deny", denyAll())
	k := open(t, s, "a")
	must(t, k.PutEndpoint(endpoint("shop", "web", "a")))
	must(t, k.CreateEpoch(epoch(1, "one")))
	w := watching(t, k)
	w.until("all", func(s *store.Snapshot) bool {
		return len(s.Endpoints) == 1 && len(s.Epochs) == 1 && len(s.NetworkPolicies) == 1
	})
	s.mu.Lock()
	served := len(resources) - len(s.unserved)
	s.mu.Unlock()
	s.kill()
	meanwhile(s)
	s.mu.Lock()
	clear(s.asked)
	s.mu.Unlock()
	s.start()
	for {
		s.mu.Lock()
		asked := maps.Clone(s.asked)
		s.mu.Unlock()
		if asked["watch"] >= served {
			return asked
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestEmptyKindsAskForThemselves: a kind without objects has nothing to find out of others.
func TestEmptyKindsAskForThemselves(t *testing.T) {
	asked := reconnected(t, func(*server) {})
	if asked["get"] > len(resources) || asked["exact"] > len(resources) {
		t.Errorf("asked %v", asked)
	}
	t.Log(asked)
}

// TestForgottenTimeIsAskedOnce: kinds that all find nothing out by themselves do not each ask about
// all others.
func TestForgottenTimeIsAskedOnce(t *testing.T) {
	asked := reconnected(t, func(s *server) {
		s.advance(1)
		s.compact()
	})
	if asked["get"] > len(resources) || asked["exact"] > 2*len(resources) {
		t.Errorf("asked %v", asked)
	}
	t.Log(asked)
}

// TestRestoreAfterTheOtherWasAsked: what another mirror was found to be of before a restore says
// nothing after it, whether that was a moment ago or not.
func TestRestoreAfterTheOtherWasAsked(t *testing.T) {
	s := startFake(t)
	s.put(nodesPath, "", "a", nodeText(1))
	s.put(policiesPath, "shop", "deny", denyAll())
	s.put(policiesPath, "shop", "other", denyAll())
	k := open(t, s, "a")
	_, err := k.Snapshot()
	must(t, err)
	s.remove(policiesPath, "shop", "deny")
	saved, forgotten := s.save(), int64(len(s.steps))
	s.put(nodesPath, "", "b", nodeText(2))
	policies := k.mirrors[slices.IndexFunc(resources, func(r *resource) bool {
		return r.Resource == "networkpolicies"
	})]
	for range 2 { // the second time there is something to be found out about nodes
		must(t, k.refresh(k.mirrorOf(nodes)))
	}
	s.kill()
	s.restore(saved)
	s.advance(2000)
	s.compacted = forgotten
	s.start()
	must(t, k.refresh(policies))
	k.mu.Lock()
	defer k.mu.Unlock()
	if x := policies.entries["networkpolicies.networking.k8s.io/shop/deny"]; x == nil || !x.lost {
		t.Errorf("the restore went unnoticed: %+v", x)
	}
}
