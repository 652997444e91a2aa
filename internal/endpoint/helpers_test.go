package endpoint

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/endpoint/endpointtest"
)

func TestMain(m *testing.M) { endpointtest.Main(m) }

// harness is a node with one manager and what it stands on.
type harness struct {
	*Manager
	t    testing.TB
	opt  Options
	dp   *endpointtest.Datapath
	dir  *endpointtest.Directory
	pods map[string]*v1alpha1.Pod
	// podErr is why declarations cannot be read.
	podErr error
}

func newHarness(t testing.TB, ranges ...string) *harness {
	t.Helper()
	endpointtest.NeedRoot(t)
	if len(ranges) == 0 {
		ranges = []string{"10.77.0.0/24", "fd77::/120"}
	}
	b := &harness{t: t, dp: &endpointtest.Datapath{}, dir: &endpointtest.Directory{},
		pods: map[string]*v1alpha1.Pod{}}
	b.opt = Options{
		StateDir: t.TempDir(), NodeName: "n1", MTU: 1450,
		HostAddrs: []netip.Addr{netip.MustParseAddr("10.77.0.1")},
		Datapath:  b.dp, Directory: b.dir,
		PodSpec: func(key, _ string) (*v1alpha1.Pod, error) { return b.pods[key], b.podErr },
		Log: slog.New(slog.NewTextHandler(testLog{t},
			&slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, r := range ranges {
		b.opt.Ranges = append(b.opt.Ranges, netip.MustParsePrefix(r))
	}
	b.restart()
	t.Cleanup(func() {
		b.step = func(string) error { return nil }
		b.dp.Fail = nil
		b.dir.Break(nil)
		if err := b.RemoveAll(context.Background()); err != nil {
			t.Errorf("remove all: %v", err)
		}
		b.nothingLeft()
	})
	return b
}

// restart is an agent that was killed and started again.
func (b *harness) restart() {
	b.t.Helper()
	m, err := NewManager(b.opt)
	if err != nil {
		b.t.Fatal(err)
	}
	if b.Manager != nil && b.retry != nil {
		b.retry.Stop()
	}
	b.Manager = m
	if err := m.Restore(context.Background()); err != nil {
		b.t.Fatalf("restore: %v", err)
	}
}

func (b *harness) request(container, ns string) AddRequest {
	return AddRequest{Attachment: Attachment{container, "eth0"}, NetNS: ns, Namespace: "shop",
		Pod: container, Network: "weft"}
}

func (b *harness) add(container, ns string) *AddResult {
	b.t.Helper()
	res, err := b.Add(context.Background(), b.request(container, ns))
	if err != nil {
		b.t.Fatalf("add %s: %v", container, err)
	}
	return res
}

func (b *harness) del(container string) {
	b.t.Helper()
	if err := b.Del(context.Background(),
		DelRequest{Attachment: Attachment{container, "eth0"}}); err != nil {
		b.t.Fatalf("del %s: %v", container, err)
	}
}

func (b *harness) check(container string) error {
	return b.Check(context.Background(), CheckRequest{Attachment: Attachment{container, "eth0"}})
}

// link finds the host side of an endpoint's interface.
func (b *harness) link(res *AddResult) netlink.Link {
	b.t.Helper()
	link, err := netlink.LinkByName(res.HostIf)
	if err != nil {
		b.t.Fatal(err)
	}
	return link
}

// devices returns the names of Weft's interfaces on the node.
func (b *harness) devices() []string {
	b.t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, HostIfPrefix) {
			out = append(out, l.Attrs().Name)
		}
	}
	return out
}

// nothingLeft fails unless every trace of every endpoint is gone.
func (b *harness) nothingLeft() {
	b.t.Helper()
	if got := b.devices(); len(got) > 0 {
		b.t.Errorf("interfaces left: %v", got)
	}
	if got := b.List(); len(got) > 0 {
		b.t.Errorf("endpoints left: %+v", got)
	}
	if got := b.dp.Attached(); len(got) > 0 {
		b.t.Errorf("attached endpoints left: %+v", got)
	}
	if got := b.dir.Objects(); len(got) > 0 {
		b.t.Errorf("published endpoints left: %+v", got)
	}
	files, _ := filepath.Glob(filepath.Join(b.opt.StateDir, "endpoints", "*"))
	if len(files) > 0 {
		b.t.Errorf("files left: %v", files)
	}
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, _ := netlink.RouteListFiltered(f, &netlink.Route{Protocol: RouteProtocol},
			netlink.RT_FILTER_PROTOCOL)
		if len(routes) > 0 {
			b.t.Errorf("routes left: %v", routes)
		}
	}
}

// inPod runs fn in a pod's namespace.
func inPod(t testing.TB, ns string, fn func() error) {
	t.Helper()
	f, err := os.Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := inNetNS(f, fn); err != nil {
		t.Fatal(err)
	}
}

// testLog sends a logger's lines to the test's log; lines after its end are dropped.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Log(string(bytes.TrimSpace(p)))
	}
	return len(p), nil
}

func containers(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("c%d", i)
	}
	return out
}
