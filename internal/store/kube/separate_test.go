package kube

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	// Each resource's watch finds out by itself that the server is back.
	soon(t, func() error { return k.PutEndpoint(endpoint("shop", "web", "a")) })
	soon(t, func() error { return k.CreateEpoch(epoch(1, "one")) })
	soon(t, func() error {
		_, err := identity.Allocate(k, identity.ID{TrustDomain: "weft.local", Namespace: "shop",
			ServiceAccount: "web"})
		return err
	})
	must(t, k.Leader("a").Campaign(t.Context(), nil))
	must(t, k.DeleteEndpoint("shop/web"))
	if k.Away() == nil {
		t.Error("nothing is said of the policies")
	}
}

// soon waits until something succeeds.
func soon(t *testing.T, try func() error) {
	t.Helper()
	err := try()
	for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
		err = try()
	}
	must(t, err)
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
	s.put(nodesPath, "", "a", nodeText(1))
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

// TestDeletionAlone: a restore to a state from before a deletion, which is the only thing that is
// different, brings back what was deleted.
func TestDeletionAlone(t *testing.T) {
	for name, others := range map[string]bool{"the last of its kind": false, "one of two": true} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			if others {
				s.put(policiesPath, "shop", "other", denyAll())
			}
			s.put(policiesPath, "shop", "deny", denyAll())
			saved := s.save()
			k := open(t, s, "a")
			w := watching(t, k)
			has := func(want bool) func(*store.Snapshot) bool {
				return func(s *store.Snapshot) bool {
					return (s.NetworkPolicies["shop/deny"] != nil) == want
				}
			}
			w.until("it", has(true))
			s.remove(policiesPath, "shop", "deny")
			w.until("it gone", has(false))
			s.kill()
			s.restore(saved)
			s.advance(2000)
			s.start()
			w.until("it again", has(true))
		})
	}
}

// TestNodeClaimsAnothers: whoever can write a Node's status takes no address that is another's in
// use, by whatever order the two are read in.
func TestNodeClaimsAnothers(t *testing.T) {
	claims := func(n int, address string) thing {
		o := nodeText(n)
		o["status"] = thing{"addresses": []any{thing{"type": "InternalIP", "address": address}}}
		return o
	}
	for name, address := range map[string]string{"its address": "10.0.0.5",
		"an address of its pods": "10.1.5.7"} {
		for _, thief := range []string{"a", "z"} { // before and after it in order
			t.Run(name+" by "+thief, func(t *testing.T) {
				s := startServer(t)
				s.put(nodesPath, "", "m", nodeText(5))
				s.put(nodesPath, "", thief, nodeText(6))
				k := open(t, s, "m")
				w := watching(t, k)
				w.until("both", func(s *store.Snapshot) bool { return len(s.Nodes) == 2 })
				s.put(nodesPath, "", thief, claims(6, address))
				got := w.until("the refusal", func(s *store.Snapshot) bool {
					return hasError(s, "nodes/"+thief+":")
				})
				if got.Nodes["m"] == nil || got.Nodes["m"].Spec.Addresses[0].String() != "10.0.0.5" {
					t.Errorf("m is %+v", got.Nodes["m"])
				}
				if got := got.Nodes[thief]; got != nil && got.Spec.Addresses[0].String() == address {
					t.Errorf("%s has %s", thief, address)
				}
				t.Log(got.Errors)
			})
		}
	}
}

// TestEndpointsOfDeletedNode: they are nobody's, until the Node is there again, and stay where it
// is only lost.
func TestEndpointsOfDeletedNode(t *testing.T) {
	s := startServer(t)
	for n, name := range []string{"a", "b"} {
		s.put(nodesPath, "", name, nodeText(n+1))
	}
	s.put(namespacesPath, "", "shop", thing{})
	k, a, b := open(t, s, "c"), open(t, s, "a"), open(t, s, "b")
	w := watching(t, k)
	must(t, a.PutEndpoint(endpoint("shop", "web", "a")))
	must(t, a.PutEndpoint(endpoint("shop", "db", "a")))
	w.until("a's", func(s *store.Snapshot) bool { return len(s.Endpoints) == 2 })
	must(t, b.PutEndpoint(endpoint("shop", "web", "b")))
	w.until("both", func(s *store.Snapshot) bool { return len(s.Errors) == 2 })
	s.remove(nodesPath, "", "a")
	w.until("b's alone", func(s *store.Snapshot) bool {
		return len(s.Endpoints) == 1 && s.Endpoints["shop/web"].Spec.NodeName == "b" &&
			len(s.Errors) == 0
	})
	if got, err := a.Snapshot(); err != nil || got.Endpoints["shop/db"] == nil {
		t.Errorf("a itself: %v, %v", got.Endpoints, err)
	}
	// A Node that cannot be used is there.
	s.put(nodesPath, "", "a", thing{})
	w.until("a's again", func(s *store.Snapshot) bool { return s.Endpoints["shop/db"] != nil })
}
