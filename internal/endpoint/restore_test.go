package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint/endpointtest"
)

// The steps after which a test stops the manager.
var (
	addSteps = []string{"record", "veth", "host", "attach", "up", "pod", "ready", "publish"}
	delSteps = []string{"unlink", "detach", "unpublish", "forget"}
)

// crashAfter has the manager die after a step, as kill -9 would have it.
func (b *harness) crashAfter(step string, during func()) {
	b.t.Helper()
	b.step = func(name string) error {
		if name == step {
			panic("killed after " + step)
		}
		return nil
	}
	func() {
		defer func() {
			if recover() == nil {
				b.t.Errorf("step %s never came", step)
			}
		}()
		during()
	}()
	b.restart()
}

// consistent fails unless exactly the named containers are there, whole and distinct.
func (b *harness) consistent(want ...string) {
	b.t.Helper()
	if len(b.List()) != len(want) || len(b.devices()) != len(want) ||
		len(b.dp.Attached()) != len(want) || len(b.dir.Objects()) != len(want) {
		b.t.Errorf("want %v, have %+v, devices %v, attached %v, published %v", want, b.List(),
			b.devices(), b.dp.Attached(), b.dir.Objects())
	}
	seen := map[any]bool{}
	for _, c := range want {
		if err := b.check(c); err != nil {
			b.t.Errorf("check %s: %v", c, err)
		}
		info, _ := b.Get(c)
		for _, v := range []any{info.IPv4, info.IPv6, info.Slot} {
			if seen[v] {
				b.t.Errorf("%v given twice", v)
			}
			seen[v] = true
		}
	}
}

func TestCrashDuringAdd(t *testing.T) {
	for _, step := range addSteps {
		t.Run(step, func(t *testing.T) {
			b := newHarness(t)
			ns, _ := endpointtest.NewPod(t)
			ns2, _ := endpointtest.NewPod(t)
			b.add("other", ns2)
			b.crashAfter(step, func() { b.Add(context.Background(), b.request("c1", ns)) })
			if step == "ready" || step == "publish" {
				b.consistent("other", "c1")
			} else {
				b.consistent("other")
			}
			b.add("c1", ns) // the runtime tries again
			b.consistent("other", "c1")
		})
	}
}

func TestCrashDuringAddThenDel(t *testing.T) {
	for _, step := range addSteps {
		t.Run(step, func(t *testing.T) {
			b := newHarness(t)
			ns, _ := endpointtest.NewPod(t)
			b.crashAfter(step, func() { b.Add(context.Background(), b.request("c1", ns)) })
			b.del("c1")
			b.nothingLeft()
		})
	}
}

func TestCrashDuringDel(t *testing.T) {
	for _, step := range delSteps {
		t.Run(step, func(t *testing.T) {
			b := newHarness(t)
			ns, _ := endpointtest.NewPod(t)
			ns2, _ := endpointtest.NewPod(t)
			b.add("other", ns2)
			b.add("c1", ns)
			b.crashAfter(step,
				func() {
					b.Del(context.Background(),
						DelRequest{Attachment: Attachment{"c1", "eth0"}})
				})
			b.consistent("other")
			b.del("c1")
			b.consistent("other")
		})
	}
}

func TestCrashDuringRebuild(t *testing.T) {
	for _, step := range append(delSteps, addSteps...) {
		t.Run(step, func(t *testing.T) {
			b := newHarness(t)
			ns, _ := endpointtest.NewPod(t)
			first := b.add("c1", ns)
			link := b.link(first)
			if err := netlink.LinkDel(link); err != nil {
				t.Fatal(err)
			}
			b.crashAfter(step, func() { b.Add(context.Background(), b.request("c1", ns)) })
			b.add("c1", ns)
			b.consistent("c1")
		})
	}
}

func TestFailureDuringAddLeavesNothing(t *testing.T) {
	for _, step := range addSteps {
		t.Run(step, func(t *testing.T) {
			b := newHarness(t)
			ns, _ := endpointtest.NewPod(t)
			boom := errors.New("boom")
			b.step = func(name string) error {
				if name == step {
					return boom
				}
				return nil
			}
			if _, err := b.Add(context.Background(), b.request("c1", ns)); !errors.Is(err, boom) {
				t.Fatalf("got %v", err)
			}
			b.nothingLeft()
		})
	}
}

func TestCancelledAddLeavesNothing(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	ctx, cancel := context.WithCancel(context.Background())
	b.step = func(name string) error {
		if name == "host" {
			cancel()
		}
		return nil
	}
	if _, err := b.Add(ctx, b.request("c1", ns)); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	b.nothingLeft()
}

func TestRestoreKeepsAndMends(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	res := b.add("c1", ns)
	link := b.link(res)
	if err := errors.Join(
		netlink.RouteDel(hostRoute(link, res.IPv4)),
		netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: res.IPv6.AsSlice()}),
	); err != nil {
		t.Fatal(err)
	}
	*b.dp = endpointtest.Datapath{}
	b.dir.DeleteEndpoint("shop/c1")
	b.restart()
	b.consistent("c1")
	if got, _ := b.Get("c1"); got.Slot != res.Slot || got.IPv4 != res.IPv4 || got.MAC != res.MAC {
		t.Errorf("restored as %+v, was %+v", got, res.Info)
	}
}

func TestRestoreFreesWhatIsGone(t *testing.T) {
	for _, tc := range []struct {
		name string
		lose func(b *harness, res *AddResult, ns *os.File)
	}{
		{"host veth", func(b *harness, res *AddResult, _ *os.File) {
			link := b.link(res)
			if err := netlink.LinkDel(link); err != nil {
				b.t.Fatal(err)
			}
		}},
		{"boot", func(b *harness, res *AddResult, _ *os.File) {
			b.rewrite(res.ID, func(rec map[string]any) { rec["boot"] = "another" })
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newHarness(t)
			ns, file := endpointtest.NewPod(t)
			res := b.add("c1", ns)
			tc.lose(b, res, file)
			b.restart()
			b.nothingLeft()
		})
	}
}

// rewrite changes a record on disk.
func (b *harness) rewrite(id string, change func(map[string]any)) {
	b.t.Helper()
	path := b.disk.recordPath(id)
	data, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	rec := map[string]any{}
	if err := json.Unmarshal(data, &rec); err != nil {
		b.t.Fatal(err)
	}
	change(rec)
	if data, err = json.Marshal(rec); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func TestRestoreWhenAttachFails(t *testing.T) {
	b := newHarness(t)
	nsA, _ := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	b.add("a", nsA)
	b.add("b", nsB)
	broken, _ := b.Get("a")
	b.dp.Fail = func(_ string, ep datapath.Endpoint) error {
		if ep.HostIf == broken.HostIf {
			return errors.New("no memory")
		}
		return nil
	}
	m, err := NewManager(b.opt)
	if err != nil {
		t.Fatal(err)
	}
	b.Manager = m
	if err := m.Restore(context.Background()); err == nil ||
		!strings.Contains(err.Error(), "attach datapath: no memory") {
		t.Fatalf("got %v", err)
	}
	if err := errors.Join(m.Status(), b.check("b")); err != nil {
		t.Errorf("the others suffer: %v", err)
	}
	if err := b.check("a"); !errors.Is(err, ErrUnhealthy) ||
		!strings.Contains(err.Error(), "datapath is not attached") {
		t.Errorf("got %v", err)
	}
	b.dp.Fail = nil
	if err := errors.Join(m.Sync(context.Background()), b.check("a")); err != nil {
		t.Error(err)
	}
}

func TestDamagedRecords(t *testing.T) {
	for _, tc := range []struct{ name, content string }{
		{"empty", ""},
		{"half", `{"id":"`},
		{"other container", `{"version":1,"id":"0000000000","containerID":"x","ifName":"eth0"}`},
		{"no version", `{}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newHarness(t)
			ns, _ := endpointtest.NewPod(t)
			res := b.add("c1", ns)
			b.dp.DetachEndpoint(res.Datapath()) // as the agent's prune does
			if err := os.WriteFile(b.disk.recordPath(res.ID), []byte(tc.content),
				0o600); err != nil {
				t.Fatal(err)
			}
			b.restart()
			aside := b.disk.recordPath(res.ID) + ".damaged"
			if _, err := os.Stat(aside); err != nil {
				t.Errorf("not set aside: %v", err)
			}
			os.Remove(aside)
			b.dir.DeleteEndpoint("shop/c1")
			b.nothingLeft()
		})
	}
}

func TestRecordOfANewerVersion(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	res := b.add("c1", ns)
	b.rewrite(res.ID, func(rec map[string]any) { rec["version"] = 3 })
	if _, err := NewManager(b.opt); err == nil || !strings.Contains(err.Error(), "newer Weft") {
		t.Fatalf("got %v", err)
	}
	b.rewrite(res.ID, func(rec map[string]any) { rec["version"] = 1 })
}

func TestContradictingRecords(t *testing.T) {
	b := newHarness(t)
	nsA, _ := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	a, z := b.add("a", nsA), b.add("b", nsB)
	b.rewrite(z.ID, func(rec map[string]any) { rec["ipv4"] = a.IPv4.String() })
	b.restart()
	b.consistent("a")
}

func TestOrphanIsRemoved(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	res := b.add("c1", ns)
	b.dp.DetachEndpoint(res.Datapath())
	if err := os.Remove(b.disk.recordPath(res.ID)); err != nil {
		t.Fatal(err)
	}
	b.dir.DeleteEndpoint("shop/c1")
	foreign := netlink.NewLinkAttrs()
	foreign.Name = "weft0123456789" // the name only: its MAC is not ours
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: foreign, PeerName: "wt-peer"}); err != nil {
		t.Fatal(err)
	}
	b.restart()
	link, err := netlink.LinkByName(foreign.Name)
	if err != nil {
		t.Fatalf("somebody else's interface was removed: %v", err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	b.nothingLeft()
}

// TestCursorOfNetworkSurvives: so do those of networks with pods; an empty one begins anew.
func TestCursorOfNetworkSurvives(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	other, _ := endpointtest.NewPod(t)
	add := func(id, ns string, network uint32, want string) {
		t.Helper()
		req := b.request(id, ns)
		req.NetworkID = network
		if res, err := b.Add(context.Background(), req); err != nil || res.IPv4.String() != want {
			t.Fatalf("%+v, %v: want %s in network %d", res, err, want, network)
		}
	}
	add("stays", other, 7, "10.77.0.2")
	add("c1", ns, 7, "10.77.0.3")
	b.del("c1")
	b.restart()
	add("c1", ns, 7, "10.77.0.4")
	b.del("c1")
	b.del("stays")
	b.restart()
	add("c1", ns, 7, "10.77.0.2")
	b.del("c1")
	b.nothingLeft()
}

func TestCursorSurvives(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	b.add("c1", ns)
	b.del("c1")
	b.restart()
	if res := b.add("c1", ns); res.IPv4.String() != "10.77.0.3" || res.Slot != 2 {
		t.Errorf("after a restart the freed address was reused at once: %v, slot %d", res.IPv4,
			res.Slot)
	}
	b.del("c1")
	if err := os.WriteFile(filepath.Join(b.opt.StateDir, "ipam.json"), []byte("{"),
		0o600); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.add("c1", ns)
}
