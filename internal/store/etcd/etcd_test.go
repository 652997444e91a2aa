package etcd

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

	clientv3 "go.etcd.io/etcd/client/v3"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/store"
	etcdtest "weft.dev/weft/test/etcd"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func nodeText(name string, n int) string {
	return fmt.Sprintf("apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata:\n  name: %s\nspec:\n  addresses: [10.0.0.%d]\n  podCIDRs: [10.1.%d.0/24]\n", name, n, n)
}

func endpoint(ns, name, node string) *v1alpha1.Endpoint {
	return &v1alpha1.Endpoint{
		Metadata: v1alpha1.ObjectMeta{Namespace: ns, Name: name},
		Spec:     v1alpha1.EndpointSpec{NodeName: node, Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.7")}},
	}
}

func open(t *testing.T, c *etcdtest.Cluster, node string) *Etcd {
	t.Helper()
	e, err := Open(Options{Endpoints: c.Endpoints(), Prefix: "/weft", Node: node})
	must(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// puts writes keys as an administrator with etcd's own client does; "" deletes one.
func puts(t *testing.T, c *etcdtest.Cluster, values map[string]string) {
	t.Helper()
	client := c.Client()
	for key, value := range values {
		var err error
		for range 20 { // an election may be on
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			if value == "" {
				_, err = client.Delete(ctx, key)
			} else {
				_, err = client.Put(ctx, key, value)
			}
			cancel()
			if err == nil {
				break
			}
		}
		must(t, err)
	}
}

// watcher is what a watch has delivered.
type watcher struct {
	t    *testing.T
	mu   sync.Mutex
	now  *store.Snapshot
	seen map[string]bool // nodes that were there
	lost []string        // nodes that were told to be gone
	done chan struct{}
}

// watching runs Watch until the test ends.
func watching(t *testing.T, e *Etcd) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{t: t, seen: map[string]bool{}, done: make(chan struct{})}
	now := store.NewSnapshot()
	go func() {
		defer close(w.done)
		must(t, e.Watch(ctx, func(d store.Delta) {
			w.mu.Lock()
			defer w.mu.Unlock()
			now = now.With(d)
			w.now = now
			for name := range w.seen {
				if now.Nodes[name] == nil {
					w.lost = append(w.lost, name)
					delete(w.seen, name)
				}
			}
			for name := range now.Nodes {
				w.seen[name] = true
			}
		}))
	}()
	t.Cleanup(func() { cancel(); <-w.done })
	return w
}

// until waits for something to hold of what was delivered.
func (w *watcher) until(what string, holds func(*store.Snapshot) bool) *store.Snapshot {
	w.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		w.mu.Lock()
		now := w.now
		w.mu.Unlock()
		if now != nil && holds(now) {
			return now
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t.Fatalf("never saw %s, but last %+v", what, w.now)
	return nil
}

// nodes waits for exactly these nodes and an error with this text, "" for no error.
func (w *watcher) nodes(errText string, names ...string) *store.Snapshot {
	w.t.Helper()
	return w.until(fmt.Sprintf("nodes %q with error %q", names, errText), func(s *store.Snapshot) bool {
		hasErr := slices.ContainsFunc(s.Errors, func(e store.ObjectError) bool { return strings.Contains(e.Error(), errText) })
		return slices.Equal(slices.Sorted(maps.Keys(s.Nodes)), names) && (errText != "" && hasErr || errText == "" && len(s.Errors) == 0)
	})
}

func TestWatch(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	puts(t, c, map[string]string{"/weft/node/a": nodeText("a", 1), "/wefter/node/x": nodeText("x", 9)})
	w := watching(t, open(t, c, "a"))
	w.nodes("", "a")
	puts(t, c, map[string]string{"/weft/node/b": nodeText("b", 2)})
	w.nodes("", "a", "b")
	puts(t, c, map[string]string{"/weft/node/a": ""})
	w.nodes("", "b")

	for name, row := range map[string]struct{ key, value, want string }{
		"broken YAML":       {"/weft/node/b", "kind: [", "/weft/node/b:1: not valid YAML"},
		"its last version":  {"/weft/node/b", "kind: [", "Node b cannot be read any more, its last good version stays in use"},
		"an empty value":    {"/weft/node/b", " ", "/weft/node/b: is empty"},
		"a wrong field":     {"/weft/node/b", strings.Replace(nodeText("b", 2), "10.1.2.0/24", "10.1.2.0/33", 1), "/weft/node/b:7: spec.podCIDRs[0]:"},
		"another's name":    {"/weft/node/b", nodeText("c", 3), "holds Node c, which belongs at /weft/node/c: move it"},
		"two objects":       {"/weft/node/b", nodeText("b", 2) + "---\n" + nodeText("c", 3), "holds 2 objects: keep one"},
		"another node's":    {"/weft/endpoint/a/shop/web", "apiVersion: weft.dev/v1alpha1\nkind: Endpoint\nmetadata: {name: web, namespace: shop}\nspec: {nodeName: b, addresses: [10.1.1.7]}\n", "holds Endpoint shop/web, which belongs at /weft/endpoint/b/shop/web"},
		"an unknown kind":   {"/weft/nodes/a", nodeText("a", 1), `"/weft/nodes/a": is no key that is read below /weft`},
		"a kind by itself":  {"/weft/node/", nodeText("a", 1), `"/weft/node/": is no key that is read below /weft`},
		"a foreign key":     {"/weft/hello", "x", `"/weft/hello": is no key`},
		"a colliding node":  {"/weft/node/c", nodeText("c", 2), `so node "c" is not used: correct one of them`},
		"another kind":      {"/weft/pod/b", nodeText("b", 2), "holds Node b, which belongs at /weft/node/b"},
		"another namespace": {"/weft/pod/shop/web", "apiVersion: weft.dev/v1alpha1\nkind: Pod\nmetadata: {name: web}\nspec: {}\n", "holds Pod default/web, which belongs at /weft/pod/default/web"},
	} {
		t.Run(name, func(t *testing.T) {
			puts(t, c, map[string]string{row.key: row.value})
			w.nodes(row.want, "b")
			back := ""
			if row.key == "/weft/node/b" {
				back = nodeText("b", 2)
			}
			puts(t, c, map[string]string{row.key: back})
			w.nodes("", "b")
		})
	}
}

// TestTwoNodesClaimOneEndpoint: the one in use stays, and once it is withdrawn the other takes its
// place.
func TestTwoNodesClaimOneEndpoint(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	a, b := open(t, c, "a"), open(t, c, "b")
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
	if !of("a")(both) || !strings.Contains(both.Errors[0].Error(), "also declared at /weft/endpoint/b/shop/web") {
		t.Errorf("%+v, %v", both.Endpoints, both.Errors)
	}
	must(t, b.DeleteEndpoint("shop/nothing"))
	must(t, a.DeleteEndpoint("shop/web"))
	w.until("b's", of("b"))
	// What only b may: a has no endpoint of this name any more.
	must(t, a.DeleteEndpoint("shop/web"))
	if s, err := a.Snapshot(); err != nil || !of("b")(s) {
		t.Errorf("%v, %v", s, err)
	}
	must(t, b.DeleteObject(v1alpha1.KindEndpoint, "shop/web"))
	if err := b.DeleteObject(v1alpha1.KindEndpoint, "shop/web"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
}

// TestSnapshotIsFresh: without a watch too, a snapshot has what was written before it.
func TestSnapshotIsFresh(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	e := open(t, c, "a")
	want := []string{}
	for step, values := range []map[string]string{
		{}, {"/weft/node/a": nodeText("a", 1)}, {"/weft/node/b": nodeText("b", 2)}, {"/weft/node/b": ""}, {"/weft/node/a": ""},
		{"/weft/node/a": nodeText("a", 1), "/weft/node/c": nodeText("c", 3)}, {"/weft/node/a": "", "/weft/node/d": nodeText("d", 4)},
	} {
		puts(t, c, values)
		for key, value := range values {
			name := strings.TrimPrefix(key, "/weft/node/")
			if want = slices.DeleteFunc(want, func(s string) bool { return s == name }); value != "" {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		s, err := e.Snapshot()
		must(t, err)
		if got := slices.Sorted(maps.Keys(s.Nodes)); !slices.Equal(got, want) {
			t.Errorf("step %d: %v, want %v", step, got, want)
		}
	}
}

func TestListsInPages(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	client := c.Client()
	for n := 0; n < pageSize+10; n += 100 {
		var ops []clientv3.Op
		for k := range 100 {
			data, err := store.Encode(endpoint("shop", fmt.Sprint("p", n+k), "a"))
			must(t, err)
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("/weft/endpoint/a/shop/p%d", n+k), string(data)))
		}
		_, err := client.Txn(context.Background()).Then(ops...).Commit()
		must(t, err)
	}
	s, err := open(t, c, "a").Snapshot()
	must(t, err)
	if want := (pageSize + 109) / 100 * 100; len(s.Endpoints) != want {
		t.Errorf("%d of %d endpoints", len(s.Endpoints), want)
	}
}

func TestIdentitiesAreGivenOnce(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	const agents = 8
	numbers := make([]uint32, agents)
	var group sync.WaitGroup
	for n := range agents {
		e := open(t, c, fmt.Sprint("n", n))
		group.Go(func() {
			var err error
			// Two and two want the same.
			numbers[n], err = identity.Allocate(e, identity.ID{TrustDomain: "weft.local", Namespace: "shop", ServiceAccount: fmt.Sprint("sa-", n/2)})
			if err != nil {
				t.Errorf("allocate: %v", err)
			}
		})
	}
	group.Wait()
	for n := range agents {
		for m := range n {
			if (numbers[n] == numbers[m]) != (n/2 == m/2) {
				t.Errorf("agents %d and %d: %d and %d", n, m, numbers[n], numbers[m])
			}
		}
	}
	e := open(t, c, "a")
	first, err := e.Identity(numbers[0])
	must(t, err)
	w := watching(t, e)
	for _, spec := range []v1alpha1.IdentitySpec{
		{SPIFFEID: "spiffe://weft.local/ns/shop/sa/other"},
		{SPIFFEID: first.Spec.SPIFFEID, Labels: map[string]string{"app": "web"}},
	} {
		again := *first
		again.Spec = spec
		if err := e.CreateIdentity(&again); !errors.Is(err, store.ErrExists) {
			t.Errorf("created twice: %v", err)
		}
		// One that is given to another by hand stays with the first.
		data, err := store.Encode(&again)
		must(t, err)
		puts(t, c, map[string]string{e.keyOf(&again): string(data)})
		refused := "is now the number of " + spec.Key() + ", and was given to " + first.Spec.Key() + ":"
		seen := func(s *store.Snapshot) bool {
			got := s.Identities[first.Metadata.Name]
			return strings.Contains(fmt.Sprint(s.Errors), refused) || got != nil && got.Spec.Key() == spec.Key()
		}
		s := w.until(spec.Key(), seen)
		if got := s.Identities[first.Metadata.Name]; got == nil || got.Spec.Key() != first.Spec.Key() {
			t.Errorf("%s: %+v, %v", spec.Key(), got, s.Errors)
		}
	}
}

// TestOneCreates: of many who make the same object at once, one does.
func TestOneCreates(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	const agents = 8
	var group sync.WaitGroup
	start, results := make(chan struct{}), make(chan error, agents)
	for n := range agents {
		e := open(t, c, fmt.Sprint("n", n))
		_, err := e.Snapshot()
		must(t, err)
		group.Go(func() {
			<-start
			results <- e.create(t.Context(), e.dirOf(v1alpha1.KindEpoch)+"epoch-1", []byte{byte(n)})
		})
	}
	close(start)
	group.Wait()
	made := 0
	for range agents {
		if err := <-results; err == nil {
			made++
		} else if !errors.Is(err, store.ErrExists) {
			t.Errorf("create: %v", err)
		}
	}
	if made != 1 {
		t.Errorf("%d of %d have made it", made, agents)
	}
}

func epoch(number uint64, wrapped string) *v1alpha1.Epoch {
	now := time.Now().UTC()
	return &v1alpha1.Epoch{
		Metadata: v1alpha1.ObjectMeta{Name: v1alpha1.EpochName(number)},
		Spec: v1alpha1.EpochSpec{Number: number, Created: v1alpha1.Time{Time: now}, Expires: v1alpha1.Time{Time: now.Add(time.Hour)},
			KEK: "file:///kek", Wrapped: []byte(wrapped)},
	}
}

func TestEpochs(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	e, other := open(t, c, "a"), open(t, c, "b")
	must(t, e.CreateEpoch(epoch(1, "one")))
	if err := other.CreateEpoch(epoch(1, "two")); !errors.Is(err, store.ErrExists) {
		t.Errorf("created twice: %v", err)
	}
	if err := other.ReplaceEpoch(epoch(1, "two"), []byte("other")); !errors.Is(err, store.ErrChanged) {
		t.Errorf("replaced another: %v", err)
	}
	must(t, other.ReplaceEpoch(epoch(1, "two"), []byte("one")))
	must(t, other.CreateEpoch(epoch(2, "three")))
	list, err := e.Epochs()
	must(t, err)
	if len(list) != 2 || list[0].Spec.Number != 1 || string(list[0].Spec.Wrapped) != "two" || list[1].Spec.Number != 2 {
		t.Errorf("%+v", list)
	}
	must(t, e.DeleteEpoch(1))
	must(t, e.DeleteEpoch(1))
	if err := other.ReplaceEpoch(epoch(1, "four"), []byte("two")); !errors.Is(err, store.ErrChanged) {
		t.Errorf("replaced one that is gone: %v", err)
	}
}

// TestLeader: one of two, and the other once it resigns or falls silent. No object goes with a
// leader.
func TestLeader(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	a, b := open(t, c, "a"), open(t, c, "b")
	must(t, a.PutEndpoint(endpoint("shop", "web", "a")))
	first, second := a.Leader("a"), b.Leader("b")
	must(t, first.Campaign(t.Context(), nil))
	if won, err := second.try(t.Context()); won || err != nil || second.IsLeader() || !first.IsLeader() {
		t.Errorf("two leaders: %t, %v", won, err)
	}
	_, err := b.Snapshot()
	must(t, err)
	if second.Holder() != "a" {
		t.Errorf("holder %q", second.Holder())
	}
	first.Resign()
	must(t, second.Campaign(t.Context(), nil))
	if !second.IsLeader() || first.IsLeader() {
		t.Error("the leadership did not change hands")
	}
	// b falls silent: its lease ends.
	leases, err := c.Client().Leases(t.Context())
	must(t, err)
	for _, l := range leases.Leases {
		_, err := c.Client().Revoke(t.Context(), l.ID)
		must(t, err)
	}
	must(t, first.Campaign(t.Context(), nil))
	second.renew(t.Context(), second.lease)
	if second.IsLeader() {
		t.Error("a leader without a lease")
	}
	s, err := a.Snapshot()
	must(t, err)
	if s.Endpoints["shop/web"] == nil {
		t.Error("the endpoint went with the leadership")
	}
	first.Resign()
}
