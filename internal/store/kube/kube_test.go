package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	nodesPath      = "v1/nodes"
	podsPath       = "v1/pods"
	namespacesPath = "v1/namespaces"
	policiesPath   = "networking.k8s.io/v1/networkpolicies"
	endpointsPath  = "weft.dev/v1alpha1/endpoints"
)

type thing = map[string]any

func nodeText(n int) thing {
	return thing{"apiVersion": "v1", "kind": "Node",
		"spec": thing{"podCIDRs": []any{fmt.Sprintf("10.1.%d.0/24", n)}},
		"status": thing{"addresses": []any{
			thing{"type": "Hostname", "address": "x"},
			thing{"type": "InternalIP", "address": fmt.Sprintf("10.0.0.%d", n)}}}}
}

func endpoint(ns, name, node string) *v1alpha1.Endpoint {
	return &v1alpha1.Endpoint{
		Metadata: v1alpha1.ObjectMeta{Namespace: ns, Name: name},
		Spec: v1alpha1.EndpointSpec{NodeName: node,
			Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.7")}},
	}
}

func open(t *testing.T, s apiServer, node string) *Kube {
	t.Helper()
	k, err := Open(Options{Kubeconfig: s.kubeconfig(), Node: node})
	must(t, err)
	t.Cleanup(func() { k.Close() })
	return k
}

// watcher is what a watch has delivered.
type watcher struct {
	t    *testing.T
	mu   sync.Mutex
	now  *store.Snapshot
	seen map[string]bool // nodes and policies that were there
	lost []string        // those that were told to be gone
}

// watching runs Watch until the test ends.
func watching(t *testing.T, k *Kube) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w, done := &watcher{t: t, seen: map[string]bool{}}, make(chan struct{})
	now := store.NewSnapshot()
	go func() {
		defer close(done)
		k.Watch(ctx, func(d store.Delta) { //nolint:errcheck // it has none
			w.mu.Lock()
			defer w.mu.Unlock()
			now = now.With(d)
			w.now = now
			names := slices.Concat(slices.Collect(maps.Keys(now.Nodes)),
				slices.Collect(maps.Keys(now.NetworkPolicies)))
			for name := range w.seen {
				if !slices.Contains(names, name) {
					w.lost = append(w.lost, name)
					delete(w.seen, name)
				}
			}
			for _, name := range names {
				w.seen[name] = true
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// until waits for something to hold of what was delivered.
func (w *watcher) until(what string, holds func(*store.Snapshot) bool) *store.Snapshot {
	w.t.Helper()
	var now *store.Snapshot
	deadline := time.Now().Add(3 * time.Minute) // a real server starts meanwhile
	for ; time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		w.mu.Lock()
		now = w.now
		w.mu.Unlock()
		if now != nil && holds(now) {
			return now
		}
	}
	w.t.Fatalf("never saw %s, but last %+v", what, now)
	return nil
}

// nodes waits for exactly these nodes and an error with this text, "" for no error.
func (w *watcher) nodes(errText string, names ...string) *store.Snapshot {
	w.t.Helper()
	return w.until(fmt.Sprintf("nodes %q with error %q", names, errText),
		func(s *store.Snapshot) bool {
			hasErr := slices.ContainsFunc(s.Errors, func(e store.ObjectError) bool {
				return strings.Contains(e.Error(), errText)
			})
			return slices.Equal(slices.Sorted(maps.Keys(s.Nodes)), names) &&
				(errText != "" && hasErr || errText == "" && len(s.Errors) == 0)
		})
}

// noneLost checks that no node or policy was told to be gone.
func (w *watcher) noneLost() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lost) > 0 {
		w.t.Errorf("were told to be gone: %v", w.lost)
	}
}

func denyAll() thing {
	return thing{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": thing{"managedFields": []any{thing{"manager": "kubectl"}}},
		"spec":     thing{"podSelector": thing{}, "policyTypes": []any{"Ingress"}}}
}

func TestWatch(t *testing.T) {
	s := startServer(t)
	s.put(nodesPath, "", "a", nodeText(1))
	k := open(t, s, "a")
	w := watching(t, k)
	w.nodes("", "a")
	s.put(nodesPath, "", "b", nodeText(2))
	w.nodes("", "a", "b")
	s.remove(nodesPath, "", "a")
	w.nodes("", "b")

	broken := func(change func(thing)) thing {
		o := nodeText(2)
		change(o)
		return o
	}
	for name, row := range map[string]struct {
		path, ns, name string
		object         thing
		want           string
		// fakeOnly is what Kubernetes' own server does not let happen.
		fakeOnly bool
	}{
		"a node without address": {nodesPath, "", "b",
			broken(func(o thing) { o["status"] = thing{} }),
			"nodes/b: has no address of type InternalIP", false},
		"its last version": {nodesPath, "", "b",
			broken(func(o thing) { o["status"] = thing{} }),
			"Node b cannot be read any more, its last good version stays in use", false},
		"a range that is none": {nodesPath, "", "b",
			broken(func(o thing) { o["spec"] = thing{"podCIDRs": []any{"0.0.0.0/0"}} }),
			"nodes/b: spec.podCIDRs[0]: 0.0.0.0/0 is every address", true}, // given once
		"a new node's range that is none": {nodesPath, "", "c",
			thing{"spec": thing{"podCIDRs": []any{"0.0.0.0/0"}}, "status": nodeText(3)["status"]},
			"nodes/c: spec.podCIDRs[0]: 0.0.0.0/0 is every address", false},
		"a colliding node": {nodesPath, "", "c", nodeText(2), `so node "c" is not used`, false},
		"an endpoint by another name": {endpointsPath, "shop", "web", thing{
			"apiVersion": "weft.dev/v1alpha1", "kind": "Endpoint",
			"spec": thing{"nodeName": "b", "addresses": []any{"10.1.1.7"}}},
			`endpoints.weft.dev/shop/web: is not called POD.NODE by its pod and spec.nodeName "b"`, true},
		"an endpoint of another's name": {endpointsPath, "shop", "web.a", thing{
			"apiVersion": "weft.dev/v1alpha1", "kind": "Endpoint",
			"spec": thing{"nodeName": "b", "addresses": []any{"10.1.1.7"}}},
			"endpoints.weft.dev/shop/web.a: is not called", true}, // its definition has a rule
		"a policy with a key of tomorrow": {policiesPath, "shop", "p", thing{
			"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
			"spec": thing{"podSelector": thing{}, "tomorrow": true}},
			"networkpolicies.networking.k8s.io/shop/p: spec.tomorrow: unknown key", true}, // dropped
	} {
		if _, fake := s.(*server); row.fakeOnly && !fake {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s.put(row.path, row.ns, row.name, row.object)
			w.nodes(row.want, "b")
			if row.name == "b" {
				s.put(row.path, row.ns, row.name, nodeText(2))
			} else {
				s.remove(row.path, row.ns, row.name)
			}
			w.nodes("", "b")
		})
	}
}

// TestTranslate reads Kubernetes' own objects.
func TestTranslate(t *testing.T) {
	s := startServer(t)
	s.put(nodesPath, "", "a", thing{
		"spec": thing{"podCIDR": "10.1.1.0/24",
			"podCIDRs": []any{"10.1.1.0/24", "fd00:1::/64"}},
		"status": thing{"addresses": []any{
			thing{"type": "ExternalIP", "address": "198.51.100.1"},
			thing{"type": "InternalIP", "address": "10.0.0.1"},
			thing{"type": "InternalIP", "address": "10.0.0.2"},
			thing{"type": "InternalIP", "address": "fd00::1"}}}})
	s.put(podsPath, "shop", "web", thing{
		"metadata": thing{"labels": thing{"app": "web"}, "annotations": thing{
			"ebpf.xdp/encrypt": "true", "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
		"spec": thing{"nodeName": "a", "serviceAccountName": "seller",
			"initContainers": []any{
				thing{"ports": []any{thing{"name": "once", "containerPort": 1}}},
				thing{"restartPolicy": "Always", "ports": []any{
					thing{"name": "proxy", "containerPort": 15001, "protocol": "TCP"}}}},
			"containers": []any{
				thing{"ports": []any{
					thing{"name": "http", "containerPort": 80, "protocol": "TCP"},
					thing{"containerPort": 81, "protocol": "TCP"}}},
				thing{"ports": []any{
					thing{"name": "http", "containerPort": 8080, "protocol": "TCP"},
					thing{"name": "dns", "containerPort": 53, "protocol": "UDP"}}}}},
		"status": thing{"podIP": "10.1.1.7"}})
	s.put(namespacesPath, "", "shop", thing{"metadata": thing{
		"labels": thing{"team": "a"}}, "spec": thing{"finalizers": []any{"kubernetes"}}})
	s.put(policiesPath, "shop", "deny", denyAll())
	s.put("weft.dev/v1alpha1/encryptionpolicies", "shop", "plain", thing{
		"apiVersion": "weft.dev/v1alpha1", "kind": "EncryptionPolicy",
		"spec": thing{"selector": thing{}}})
	s.put("weft.dev/v1alpha1/clusterencryptionpolicies", "", "plain", thing{
		"apiVersion": "weft.dev/v1alpha1", "kind": "ClusterEncryptionPolicy",
		"spec": thing{"cidrs": []any{"10.9.0.0/16"}}})
	got, err := open(t, s, "a").Snapshot()
	must(t, err)
	if len(got.Errors) > 0 {
		t.Errorf("errors %v", got.Errors)
	}
	web := got.Pods["shop/web"]
	if web.Spec.UID == "" {
		t.Error("the pod has no UID")
	}
	web.Spec.UID = ""
	for what, row := range map[string]struct{ got, want any }{
		"node": {got.Nodes["a"].Spec, "{[10.0.0.1 fd00::1] [10.1.1.0/24 fd00:1::/64]}"},
		"pod": {got.Pods["shop/web"].Spec,
			"{a seller  [] [{http 80 TCP} {dns 53 UDP} {proxy 15001 TCP}]}"},
		"labels":      {got.Pods["shop/web"].Metadata.Labels, "map[app:web]"},
		"annotations": {got.Pods["shop/web"].Metadata.Annotations, "map[ebpf.xdp/encrypt:true]"},
		"namespace":   {got.Namespaces["shop"].Metadata.Labels, "map[kubernetes.io/metadata.name:shop team:a]"},
		"policies":    {slices.Collect(maps.Keys(got.NetworkPolicies)), "[shop/deny]"},
		"closed":      {got.NetworkPolicies["shop/deny"].IsClosed(), "false"},
		"encryption":  {slices.Sorted(maps.Keys(got.EncryptionPolicies)), "[plain shop/plain]"},
	} {
		if text := fmt.Sprint(row.got); text != row.want {
			t.Errorf("%s: %s, want %s", what, text, row.want)
		}
	}
}

// TestDryRun: a policy that is only tried stays one.
func TestDryRun(t *testing.T) {
	doc, err := asIs(&object{Object: thing{
		"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
		"metadata": thing{"name": "trial", "namespace": "shop",
			"annotations": thing{"istio.io/dry-run": "true", "other": "x"}},
		"spec": thing{"action": "ALLOW", "rules": []any{thing{}}}}})
	must(t, err)
	const want = "map[annotations:map[istio.io/dry-run:true] name:trial namespace:shop]"
	if got := fmt.Sprint(doc["metadata"]); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestSnapshotIsFresh: without a watch too, a snapshot has what was written before it, and not what
// was deleted before it, the last one of a kind neither.
func TestSnapshotIsFresh(t *testing.T) {
	s := startServer(t)
	k := open(t, s, "a")
	for step, want := range [][]string{{}, {"a"}, {"a", "b"}, {"b"}, {}, {"c"}, {}} {
		for n, name := range []string{"a", "b", "c"} {
			if slices.Contains(want, name) {
				s.put(nodesPath, "", name, nodeText(n+1))
			} else {
				s.remove(nodesPath, "", name)
			}
		}
		got, err := k.Snapshot()
		must(t, err)
		if names := slices.Sorted(maps.Keys(got.Nodes)); !slices.Equal(names, want) {
			t.Errorf("step %d: %v, want %v", step, names, want)
		}
	}
	must(t, k.CreateEpoch(epoch(1, "one")))
	must(t, k.DeleteEpoch(1))
	must(t, k.CreateEpoch(epoch(1, "again")))
}

func TestListsInPages(t *testing.T) {
	s := startServer(t)
	const count = 2*pageSize + 10
	for n := range count {
		s.put(podsPath, "shop", fmt.Sprint("p", n), thing{})
	}
	got, err := open(t, s, "a").Snapshot()
	must(t, err)
	if len(got.Pods) != count {
		t.Errorf("%d of %d pods", len(got.Pods), count)
	}
	if fake, ok := s.(*server); ok && fake.largestAsk != pageSize {
		t.Errorf("%d at once", fake.largestAsk)
	}
}

// TestTwoNodesClaimOneEndpoint: the one in use stays, and once it is withdrawn the other takes its
// place.
func TestTwoNodesClaimOneEndpoint(t *testing.T) {
	s := startServer(t)
	s.put(nodesPath, "", "a", nodeText(1))
	s.put(nodesPath, "", "b", nodeText(2))
	s.put(namespacesPath, "", "shop", thing{})
	a, b := open(t, s, "a"), open(t, s, "b")
	w := watching(t, a)
	of := func(node string) func(*store.Snapshot) bool {
		return func(s *store.Snapshot) bool {
			return s.Endpoints["shop/web"] != nil && s.Endpoints["shop/web"].Spec.NodeName == node
		}
	}
	must(t, a.PutEndpoint(endpoint("shop", "web", "a")))
	w.until("a's", of("a"))
	must(t, b.PutEndpoint(endpoint("shop", "web", "b")))
	both := w.until("both", func(s *store.Snapshot) bool { return len(s.Errors) == 2 })
	if !of("a")(both) {
		t.Errorf("%+v, %v", both.Endpoints, both.Errors)
	}
	must(t, b.DeleteEndpoint("shop/nothing"))
	must(t, a.DeleteEndpoint("shop/web"))
	w.until("b's", of("b"))
	must(t, a.DeleteEndpoint("shop/web")) // a has none of this name any more
	again := endpoint("shop", "web", "b")
	again.Status.Identity = 300
	must(t, b.PutEndpoint(again))
	if got, err := a.Snapshot(); err != nil || !of("b")(got) ||
		got.Endpoints["shop/web"].Status.Identity != 300 {
		t.Errorf("%v, %v", got, err)
	}
	must(t, b.DeleteObject(v1alpha1.KindEndpoint, "shop/web"))
	if err := b.DeleteObject(v1alpha1.KindEndpoint, "shop/web"); !errors.Is(err,
		store.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	if err := b.PutObject(&v1alpha1.Pod{Metadata: v1alpha1.ObjectMeta{Name: "p"}}); err == nil ||
		!strings.Contains(err.Error(), "a Pod is Kubernetes' own: use kubectl") {
		t.Errorf("a pod was written: %v", err)
	}
}

// TestWhichPod: a pod is known by the UID that its kubelet has for it, and one that is not there is
// nobody.
func TestWhichPod(t *testing.T) {
	s := startServer(t)
	s.put(namespacesPath, "", "shop", thing{})
	k := open(t, s, "a")
	if pod, err := k.Pod("shop/web"); err == nil {
		t.Errorf("a pod that is not there: %+v", pod)
	}
	hash := "0123456789abcdef0123456789abcdef"
	for name, annotations := range map[string]thing{
		"web": {}, "static": {"kubernetes.io/config.hash": hash}} {
		s.put(podsPath, "shop", name, thing{"metadata": thing{"annotations": annotations},
			"spec": thing{"nodeName": "a", "containers": []any{
				thing{"name": "c", "image": "none"}}}})
		pod, err := k.Pod("shop/" + name)
		must(t, err)
		if uid := pod.Spec.UID; uid == "" || (uid == hash) != (name == "static") {
			t.Errorf("%s has UID %q", name, uid)
		}
	}
}
