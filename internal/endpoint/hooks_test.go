package endpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint/endpointtest"
	"weft.dev/weft/internal/netdev"
)

// hookedOrDown fails if an interface of Weft's is up and not attached.
func (b *harness) hookedOrDown(when string) {
	b.t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		b.t.Fatal(err)
	}
	var attached []string
	for _, ep := range b.dp.Attached() {
		attached = append(attached, ep.HostIf)
	}
	for _, l := range links {
		if isHostSide(l) && netdev.IsUp(l) && !slices.Contains(attached, l.Attrs().Name) {
			b.t.Errorf("%s: %s is up and not hooked", when, l.Attrs().Name)
		}
	}
}

// TestNeverUpWithoutHooks kills the manager after every step of ADD, DEL and of making anew, and
// looks before each.
func TestNeverUpWithoutHooks(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps []string
		do    func(b *harness, ns string)
	}{
		{"add", addSteps,
			func(b *harness, ns string) { b.Add(context.Background(), b.request("c1", ns)) }},
		{"del", delSteps, func(b *harness, ns string) {
			b.Del(context.Background(), DelRequest{Attachment: Attachment{"c1", "eth0"}})
		}},
		{"make anew", append(slices.Clone(delSteps), addSteps...), func(b *harness, ns string) {
			inPod(b.t, ns,
				func() error { return netlink.LinkSetDown(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}) })
			b.Add(context.Background(), b.request("c1", ns))
		}},
	} {
		for _, last := range tc.steps {
			t.Run(tc.name+" "+last, func(t *testing.T) {
				b := newHarness(t)
				ns, _ := endpointtest.NewPod(t)
				if tc.name != "add" {
					b.add("c1", ns)
				}
				b.dp.Fail = func(op string, _ datapath.Endpoint) error { b.hookedOrDown("before " + op); return nil }
				b.step = func(name string) error {
					b.hookedOrDown("after step " + name)
					if name == last {
						panic("killed")
					}
					return nil
				}
				func() {
					defer func() {
						if recover() == nil {
							t.Errorf("step %s never came", last)
						}
					}()
					tc.do(b, ns)
				}()
				b.hookedOrDown("after the kill")
				b.restart()
				b.hookedOrDown("after the restart")
			})
		}
	}
}

// hiddenPod is a pod whose namespace is reached by a link that tests can take away.
func hiddenPod(t *testing.T) (path, target string, ns *os.File) {
	t.Helper()
	target, ns = endpointtest.NewPod(t)
	path = filepath.Join(t.TempDir(), "netns", "pod")
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755),
		os.Symlink(target, path)); err != nil {
		t.Fatal(err)
	}
	return path, target, ns
}

// TestUnseenNamespaceIsKept: a path that leads nowhere says as much about the agent's mounts as
// about the pod.
func TestUnseenNamespaceIsKept(t *testing.T) {
	for name, hide := range map[string]func(path string) error{
		"path missing":      os.Remove,
		"directory missing": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"empty file of a mount that was not passed on": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600))
		},
		"another namespace": func(path string) error {
			other, _ := endpointtest.NewPod(t)
			return errors.Join(os.Remove(path), os.Symlink(other, path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t)
			path, target, _ := hiddenPod(t)
			res := b.add("c1", path)
			link := b.link(res)
			if err := errors.Join(hide(path),
				netlink.RouteDel(hostRoute(link, res.IPv4))); err != nil {
				t.Fatal(err)
			}
			*b.dp = endpointtest.Datapath{}
			m, err := NewManager(b.opt)
			if err != nil {
				t.Fatal(err)
			}
			b.Manager = m
			if err := m.Restore(context.Background()); !errors.Is(err, errUnseen) ||
				!strings.Contains(err.Error(), "shop/c1") {
				t.Errorf("restore: %v", err)
			}
			if got, ok := b.Get("c1"); !ok || got.IPv4 != res.IPv4 || len(b.dp.Attached()) != 1 ||
				len(b.devices()) != 1 || len(b.dir.Objects()) != 1 {
				t.Fatalf("not kept: %+v, attached %v, published %v", got, b.dp.Attached(),
					b.dir.Objects())
			}
			if err := (&veth{Info: res.Info,
				host: &netlink.Handle{}}).verifyHostSide(link); err != nil {
				t.Errorf("the node's side was not repaired: %v", err)
			}
			if err := m.Unseen(); !errors.Is(err, errUnseen) {
				t.Errorf("unseen: %v", err)
			}
			if err := m.Sync(context.Background()); !errors.Is(err, errUnseen) {
				t.Errorf("sync no longer says so: %v", err)
			}
			os.Mkdir(filepath.Dir(path), 0o755)
			os.Remove(path)
			if err := errors.Join(os.Symlink(target, path), m.Sync(context.Background()),
				m.Unseen(), b.check("c1")); err != nil {
				t.Errorf("seen again: %v", err)
			}
		})
	}
}

// TestUnseenNamespaceThatGoes: once the node's end goes, so does the endpoint.
func TestUnseenNamespaceThatGoes(t *testing.T) {
	b := newHarness(t)
	path, _, ns := hiddenPod(t)
	b.add("c1", path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(b.opt)
	if err != nil {
		t.Fatal(err)
	}
	b.Manager = m
	if err := m.Restore(context.Background()); !errors.Is(err, errUnseen) {
		t.Fatalf("restore: %v", err)
	}
	ns.Close() // the last reference
	for deadline := time.Now().Add(2 * time.Minute); len(b.devices()) > 0 &&
		time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if err := m.Sync(context.Background()); err != nil {
		t.Error(err)
	}
	b.nothingLeft()
}

// TestUnseenDoesNotHideTheOthers: one pod that cannot be seen does not make the node's view wrong.
func TestUnseenDoesNotHideTheOthers(t *testing.T) {
	b := newHarness(t)
	path, _, _ := hiddenPod(t)
	ns, _ := endpointtest.NewPod(t)
	b.add("hidden", path)
	b.add("seen", ns)
	os.Remove(path)
	m, err := NewManager(b.opt)
	if err != nil {
		t.Fatal(err)
	}
	b.Manager = m
	if err := m.Restore(context.Background()); !errors.Is(err, errUnseen) {
		t.Errorf("restore: %v", err)
	}
	if err := errors.Join(m.Unseen(), b.check("seen")); err != nil {
		t.Error(err)
	}
}

// TestUnfilteredPodIsUnhealthy: CHECK finds a hook or a map entry that is gone, and ADD and Sync
// attach it in place.
func TestUnfilteredPodIsUnhealthy(t *testing.T) {
	for name, mend := range map[string]func(b *harness, ns string) error{
		"add":  func(b *harness, ns string) error { b.add("c1", ns); return nil },
		"sync": func(b *harness, _ string) error { b.check("c1"); return b.Sync(context.Background()) },
		"mend": func(b *harness, _ string) error { return b.Mend(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t)
			ns, _ := endpointtest.NewPod(t)
			res := b.add("c1", ns)
			before := b.link(res)
			b.dp.DetachEndpoint(res.Datapath())
			if err := b.check("c1"); !errors.Is(err, ErrUnhealthy) ||
				!strings.Contains(err.Error(),
					"datapath is not attached: from_pod is not attached to "+res.HostIf) {
				t.Errorf("check: %v", err)
			}
			if err := mend(b, ns); err != nil {
				t.Error(err)
			}
			after, err := netlink.LinkByName(res.HostIf)
			if err != nil || after.Attrs().Index != before.Attrs().Index ||
				len(b.dp.Attached()) != 1 {
				t.Errorf("the pod's interface was made anew: %v, attached %v", err, b.dp.Attached())
			}
			if err := b.check("c1"); err != nil {
				t.Errorf("after mending: %v", err)
			}
		})
	}
}

// TestUnattachableStaysUnhealthy: when the hooks cannot be had, nothing says that all is well.
func TestUnattachableStaysUnhealthy(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	res := b.add("c1", ns)
	b.dp.DetachEndpoint(res.Datapath())
	b.dp.Fail = func(op string, _ datapath.Endpoint) error {
		if op == "attach" {
			return errors.New("no memory")
		}
		return nil
	}
	if err := b.check("c1"); !errors.Is(err, ErrUnhealthy) {
		t.Errorf("check: %v", err)
	}
	if err := b.Sync(context.Background()); err == nil ||
		!strings.Contains(err.Error(), "no memory") {
		t.Errorf("sync: %v", err)
	}
	if _, err := b.Add(context.Background(), b.request("c1", ns)); err == nil ||
		!strings.Contains(err.Error(), "no memory") {
		t.Errorf("add: %v", err)
	}
	b.hookedOrDown("after a failed ADD")
}

// TestMendRoutes: routes and neighbours that somebody removed come back; an interface that is down
// stays so.
func TestMendRoutes(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	res := b.add("c1", ns)
	link := b.link(res)
	err := errors.Join(
		netlink.RouteDel(hostRoute(link, res.IPv4)), netlink.RouteDel(hostRoute(link, res.IPv6)),
		netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: res.IPv4.AsSlice()}),
		b.Mend(context.Background()), b.check("c1"))
	if err != nil {
		t.Error(err)
	}
	if err := errors.Join(netlink.LinkSetDown(link), b.Mend(context.Background())); err != nil {
		t.Error(err)
	}
	if link, err = netlink.LinkByName(res.HostIf); err != nil || netdev.IsUp(link) {
		t.Errorf("up again: %v", err)
	}
	if err := errors.Join(netlink.LinkDel(link), b.Mend(context.Background())); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
}

// TestMendReadsTablesOnce: a look costs one reading of the node's tables, however many endpoints
// there are, and one by name looks at no other endpoint.
func TestMendReadsTablesOnce(t *testing.T) {
	b := newHarness(t)
	readings := 0
	b.tables = func(h *netlink.Handle) (*hostTables, error) { readings++; return readHost(h) }
	var names []string
	for _, container := range containers(5) {
		ns, _ := endpointtest.NewPod(t)
		res := b.add(container, ns)
		link := b.link(res)
		if err := netlink.RouteDel(hostRoute(link, res.IPv4)); err != nil {
			t.Fatal(err)
		}
		names = append(names, res.HostIf)
	}
	broken := func() (list []string) {
		for _, container := range containers(5) {
			if b.check(container) != nil {
				list = append(list, container)
			}
		}
		return list
	}
	for _, tc := range []struct {
		hostIfs  []string
		readings int
		broken   []string
	}{
		{[]string{"weft0000000000"}, 0, containers(5)},
		{[]string{names[1]}, 1, []string{"c0", "c2", "c3", "c4"}},
		{[]string{netdev.SecondHostIf(names[3]), names[4]}, 1, []string{"c0", "c2"}},
		{nil, 1, nil},
		{nil, 1, nil},
	} {
		readings = 0
		if err := b.Mend(context.Background(), tc.hostIfs...); err != nil {
			t.Error(err)
		}
		if got := broken(); readings != tc.readings || !slices.Equal(got, tc.broken) {
			t.Errorf("mend %v: %d readings, want %d; still broken %v, want %v", tc.hostIfs,
				readings, tc.readings, got, tc.broken)
		}
	}
}

// TestSecondInterfaceWithoutRecord: a pod's second interface is removed with its first when no
// record names them.
func TestSecondInterfaceWithoutRecord(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	res := b.add("c1", ns)
	for _, name := range []string{netdev.SecondHostIf(res.HostIf), "wefx0123456789"} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = name, GatewayMAC
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs,
			PeerName: "p" + name[:12]}); err != nil {
			t.Fatal(err)
		}
	}
	b.restart()
	if _, err := netlink.LinkByName(netdev.SecondHostIf(res.HostIf)); err != nil {
		t.Errorf("that of an endpoint was removed: %v", err)
	}
	if _, err := netlink.LinkByName("wefx0123456789"); err == nil {
		t.Error("that of no endpoint stays")
	}
	b.dp.DetachEndpoint(res.Datapath())
	if err := os.WriteFile(b.disk.recordPath(res.ID), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.restart()
	if _, err := netlink.LinkByName(netdev.SecondHostIf(res.HostIf)); err == nil {
		t.Error("that of a damaged record stays")
	}
	if problems := b.Problems(); len(problems) != 1 ||
		!strings.Contains(problems[0], b.disk.recordPath(res.ID)+".damaged") {
		t.Errorf("problems: %q", problems)
	}
	os.Remove(b.disk.recordPath(res.ID) + ".damaged")
	b.dir.DeleteEndpoint("shop/c1")
}
