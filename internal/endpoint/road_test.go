package endpoint

import (
	"context"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/endpoint/endpointtest"
	"weft.dev/weft/internal/netdev"
)

func roadPod(value string) *v1alpha1.Pod {
	pod := &v1alpha1.Pod{}
	if value != "" {
		pod.Metadata.Annotations = map[string]string{v1alpha1.RoadAnnotation: value}
	}
	return pod
}

// TestRoad follows a pod's annotation through its life: what the datapath is asked for, what restarts keep.
func TestRoad(t *testing.T) {
	b := newBed(t)
	expect := func(what string, xdp bool, asker string) {
		t.Helper()
		for range 2 {
			info, _ := b.Get("a")
			if info.XDPRoad() != xdp || info.RoadAsker() != asker {
				t.Errorf("%s: %+v, asker %q", what, info, info.RoadAsker())
			}
			for _, ep := range b.dp.Attached() {
				if ep.XDPRoad != xdp {
					t.Errorf("%s: attached %+v", what, ep)
				}
			}
			b.restart()
		}
	}
	b.pods["shop/a"] = roadPod("xdp")
	path, _ := endpointtest.NewPod(t)
	b.add("a", path)
	expect("added", true, "annotation ebpf.xdp/road")
	for _, change := range []struct {
		name  string
		pod   *v1alpha1.Pod
		xdp   bool
		asker string
	}{
		{"no annotation", roadPod(""), false, ""},
		{"again", roadPod("xdp"), true, "annotation ebpf.xdp/road"},
		{"the declaration is gone", nil, true, "annotation ebpf.xdp/road"},
		{"no such road", roadPod("XDP"), false, `annotation ebpf.xdp/road is "XDP": want "xdp"`},
	} {
		b.pods["shop/a"] = change.pod
		if err := b.Sync(context.Background()); err != nil {
			t.Error(change.name, err)
		}
		expect(change.name, change.xdp, change.asker)
	}
}

// TestRoadOfOldRecord restores endpoints that an agent recorded which gave every pod a second interface: it
// stays with those only whose pods ask for it, from the first moment.
func TestRoadOfOldRecord(t *testing.T) {
	for _, tt := range []struct {
		name string
		pod  *v1alpha1.Pod
		want bool
	}{{"asks", roadPod("xdp"), true}, {"does not ask", roadPod(""), false}, {"not declared", nil, false}} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			path, _ := endpointtest.NewPod(t)
			second := netdev.SecondHostIf(b.add("a", path).HostIf)
			attrs := netlink.NewLinkAttrs()
			attrs.Name = second
			pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "wt-tx"}
			if err := netlink.LinkAdd(pair); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = netlink.LinkDel(pair) })
			b.pods["shop/a"] = tt.pod
			before := b.dp.Attaches()
			b.restart()
			if n := b.dp.Attaches() - before; n != 1 {
				t.Errorf("attached %d times", n)
			}
			for _, ep := range b.dp.Attached() {
				if ep.XDPRoad != tt.want {
					t.Errorf("attached %+v", ep)
				}
			}
		})
	}
}

// TestRoadRefused: a request that cannot be met is refused by name.
func TestRoadRefused(t *testing.T) {
	b := newBed(t)
	path, _ := endpointtest.NewPod(t)
	for _, tt := range []struct {
		road    string
		chained bool
		want    string
	}{
		{"tc", false, `road: "tc" is not a road: want "xdp"`},
		{"xdp", true, "road: an interface of another CNI plugin cannot have the XDP road"},
	} {
		req := b.request("a", path)
		req.Road, req.Chained = tt.road, tt.chained
		if _, err := b.Add(context.Background(), req); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q, chained %v: %v", tt.road, tt.chained, err)
		}
	}
}
