package etcd

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/store"
	etcdtest "weft.dev/weft/test/etcd"
)

// noneLost checks that no node was told to be gone.
func (w *watcher) noneLost() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lost) > 0 {
		w.t.Errorf("nodes were told to be gone: %v", w.lost)
	}
}

func TestAway(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	puts(t, c, map[string]string{"/weft/node/a": nodeText("a", 1)})
	e := open(t, c, "a")
	w := watching(t, e)
	w.nodes("", "a")
	c.Members[0].Kill()
	w.nodes("store.etcd: etcd is away since 20", "a")
	for what, call := range map[string]func() error{
		"snapshot": func() error { _, err := e.Snapshot(); return err },
		"put":      func() error { return e.PutEndpoint(endpoint("shop", "web", "a")) },
		"delete":   func() error { return e.DeleteEndpoint("shop/web") },
		"create":   func() error { return e.CreateEpoch(epoch(1, "x")) },
		"epochs":   func() error { _, err := e.Epochs(); return err },
		"identity": func() error { _, err := e.Identity(300); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "etcd is away since") {
			t.Errorf("%s: %v", what, err)
		}
	}
	c.Members[0].Start()
	w.nodes("", "a")
	puts(t, c, map[string]string{"/weft/node/b": nodeText("b", 2)})
	w.nodes("", "a", "b")
	must(t, e.PutEndpoint(endpoint("shop", "web", "a")))
	w.noneLost()
}

// TestStartsWithoutEtcd: the first listing comes whenever etcd does.
func TestStartsWithoutEtcd(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	puts(t, c, map[string]string{"/weft/node/a": nodeText("a", 1)})
	c.Members[0].Kill()
	e := open(t, c, "a")
	w := watching(t, e)
	for e.Away() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	if w.now != nil || !strings.Contains(e.Away().Error(), "no answer from etcd at unix://") ||
		!strings.Contains(e.Away().Error(), "no such file or directory") {
		t.Errorf("%v, %v", w.now, e.Away())
	}
	c.Members[0].Start()
	w.nodes("", "a")
}

// TestCompaction: what was deleted and made while nobody looked is found, though etcd has forgotten
// the steps.
func TestCompaction(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{})
	puts(t, c,
		map[string]string{"/weft/node/a": nodeText("a", 1), "/weft/node/b": nodeText("b", 2),
			"/weft/node/c": nodeText("c", 3)})
	e := open(t, c, "a")
	ctx, cancel := context.WithCancel(context.Background())
	first := make(chan store.Delta, 10)
	done := make(chan error)
	go func() { done <- e.Watch(ctx, func(d store.Delta) { first <- d }) }()
	<-first
	cancel()
	must(t, <-done)
	puts(t, c, map[string]string{"/weft/node/b": "", "/weft/node/d": nodeText("d", 4)})
	client := c.Client()
	last, err := client.Get(context.Background(), "x")
	must(t, err)
	_, err = client.Compact(context.Background(), last.Header.Revision,
		clientv3.WithCompactPhysical())
	must(t, err)
	before := e.mirror.generation
	w := watching(t, e)
	w.nodes("", "a", "c", "d")
	if e.mirror.generation != before {
		t.Error("a compaction was taken for a restore")
	}
}

// TestLeaderOfEtcdIsKilled: three members, of which any may go.
func TestLeaderOfEtcdIsKilled(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{Members: 3})
	puts(t, c, map[string]string{"/weft/node/a": nodeText("a", 1)})
	e := open(t, c, "a")
	w := watching(t, e)
	w.nodes("", "a")
	want := []string{"a"}
	for round := range 3 {
		killed := c.Leader()
		killed.Kill()
		name := fmt.Sprint("n", round)
		puts(t, c, map[string]string{"/weft/node/" + name: nodeText(name, 10+round)})
		want = append(want, name)
		w.nodes("", want...)
		killed.Start()
		c.Leader()
	}
	// Two of three: no majority, nothing can be known.
	c.Members[0].Kill()
	c.Members[1].Kill()
	w.nodes("etcd is away since", want...)
	c.Members[0].Start()
	w.nodes("", want...)
	w.noneLost()
}

// TestRestore puts an older state of etcd in place of what was, under the same cluster ID, while
// watchers live.
func TestRestore(t *testing.T) {
	for _, further := range []int{0, 500} { // writes after the restore, before anybody looks
		t.Run(fmt.Sprint(further, " writes after"), func(t *testing.T) {
			c := etcdtest.Start(t, etcdtest.Options{})
			m := c.Members[0]
			puts(t, c,
				map[string]string{"/weft/node/a": nodeText("a", 1),
					"/weft/node/gone": nodeText("gone", 9)})
			m.Kill()
			saved := m.Save()
			m.Start()
			a, b := open(t, c, "a"), open(t, c, "b")
			w := watching(t, a)
			w.nodes("", "a", "gone")
			puts(t, c, map[string]string{"/weft/node/b": nodeText("b", 2), "/weft/node/gone": ""})
			must(t, a.PutEndpoint(endpoint("shop", "web", "a")))
			must(t, b.PutEndpoint(endpoint("shop", "db", "b")))
			must(t, a.CreateEpoch(epoch(1, "one")))
			id := identity.ID{TrustDomain: "weft.local", Namespace: "shop", ServiceAccount: "web"}
			number, err := identity.Allocate(a, id)
			must(t, err)
			w.until("all", func(s *store.Snapshot) bool {
				return len(s.Nodes) == 2 && len(s.Endpoints) == 2 && len(s.Epochs) == 1 &&
					len(s.Identities) == 1
			})
			w.mu.Lock()
			w.lost = nil // "gone" went
			w.mu.Unlock()
			_, err = b.Snapshot()
			must(t, err)
			m.Kill()
			m.Restore(saved)
			if further > 0 {
				path := strings.TrimPrefix(m.Endpoint, "unix://")
				endpoint := m.Endpoint
				m.Rebind(endpoint + ".other") // where the watchers do not see it
				m.Start()
				client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint +
					".other"}})
				must(t, err)
				for n := range further {
					_, err := client.Put(t.Context(), "/other", fmt.Sprint(n))
					must(t, err)
				}
				client.Close()
				m.Kill()
				m.Rebind(endpoint)
				os.Remove(path + ".other")
			}
			m.Start()
			s := w.nodes("/weft/node/b: is missing since etcd was restored to an older state", "a",
				"b", "gone")
			if len(s.Epochs) != 1 || len(s.Identities) != 1 || len(s.Endpoints) != 2 {
				t.Errorf("%v, %v, %v", s.Epochs, s.Identities, s.Endpoints)
			}
			w.noneLost()
			// A node that knows nothing of the time before finds what this one has written again.
			fresh, err := open(t, c, "c").Snapshot()
			must(t, err)
			if keys := slices.Sorted(maps.Keys(fresh.Endpoints)); len(fresh.Epochs) != 1 ||
				!slices.Equal(keys, []string{"shop/web"}) {
				t.Errorf("%v, %v", fresh.Epochs, keys)
			}
			if again, err := identity.Allocate(open(t, c, "c"), id); err != nil || again != number {
				t.Errorf("number %d after, %d before: %v", again, number, err)
			}
			// b's agent looks: its endpoint comes back. What it then withdraws is gone for all.
			_, err = b.Snapshot()
			must(t, err)
			w.until("b's endpoint", func(s *store.Snapshot) bool {
				return s.Endpoints["shop/db"] != nil &&
					!slices.ContainsFunc(s.Errors,
						func(e store.ObjectError) bool {
							return strings.Contains(e.File,
								"shop/db")
						})
			})
			must(t, b.DeleteEndpoint("shop/db"))
			w.until("it gone",
				func(s *store.Snapshot) bool { return s.Endpoints["shop/db"] == nil })
			// Applied again and deleted, a node is gone for good.
			puts(t, c, map[string]string{"/weft/node/b": nodeText("b", 2)})
			w.nodes("", "a", "b", "gone")
			puts(t, c, map[string]string{"/weft/node/b": ""})
			w.nodes("", "a", "gone")
		})
	}
}

// TestDatabaseIsFull: a refused write says so, reads go on.
func TestDatabaseIsFull(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Options{Quota: 4 << 20})
	puts(t, c, map[string]string{"/weft/node/a": nodeText("a", 1)})
	e := open(t, c, "a")
	w := watching(t, e)
	w.nodes("", "a")
	client, filler := c.Client(), strings.Repeat("x", 1<<20)
	for n := range 20 {
		if _, err := client.Put(t.Context(), fmt.Sprint("/filler/", n), filler); err != nil {
			break
		}
	}
	for what, call := range map[string]func() error{
		"put":    func() error { return e.PutEndpoint(endpoint("shop", "web", "a")) },
		"create": func() error { return e.CreateEpoch(epoch(1, "x")) },
	} {
		if err := call(); err == nil ||
			!strings.Contains(err.Error(), "etcd's database is full, and nothing can be written") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if s, err := e.Snapshot(); err != nil || s.Nodes["a"] == nil {
		t.Errorf("reading: %v", err)
	}
	w.nodes("", "a")
	if e.Away() != nil {
		t.Errorf("away: %v", e.Away())
	}
	_, err := client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	must(t, err)
}

// TestStartWithTakenPort: a cluster of tests one of whose members finds its port taken is started
// again, with others.
func TestStartWithTakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	asked := 0
	c := etcdtest.Start(t, etcdtest.Options{Members: 3, Address: func(t testing.TB) string {
		if asked++; asked == 2 {
			return taken.Addr().String()
		}
		return etcdtest.FreeAddress(t)
	}})
	if asked != 6 {
		t.Errorf("%d ports were asked for, want those of two starts", asked)
	}
	members, err := c.Client().MemberList(t.Context())
	must(t, err)
	if got := fmt.Sprint(members); len(members.Members) != 3 ||
		strings.Contains(got, taken.Addr().String()) {
		t.Errorf("members %s", got)
	}
}
