package endpoint

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/endpoint/endpointtest"
	"weft.dev/weft/internal/netdev"
)

func datapathPod(value string) *v1alpha1.Pod {
	pod := &v1alpha1.Pod{}
	if value != "" {
		pod.Metadata.Annotations = map[string]string{v1alpha1.DatapathAnnotation: value}
	}
	return pod
}

// TestPodDatapath follows a pod's annotation through its life: what the datapath is asked for, what
// restarts keep.
func TestPodDatapath(t *testing.T) {
	b := newHarness(t)
	expect := func(what string, xdp bool, asker string) {
		t.Helper()
		for range 2 {
			info, _ := b.Get("a")
			if info.XDPDatapath() != xdp || info.DatapathAsker() != asker {
				t.Errorf("%s: %+v, asker %q", what, info, info.DatapathAsker())
			}
			for _, ep := range b.dp.Attached() {
				if ep.XDPDatapath != xdp {
					t.Errorf("%s: attached %+v", what, ep)
				}
			}
			b.restart()
		}
	}
	b.pods["shop/a"] = datapathPod("xdp")
	path, _ := endpointtest.NewPod(t)
	b.add("a", path)
	expect("added", true, "annotation ebpf.xdp/datapath")
	for _, change := range []struct {
		name  string
		pod   *v1alpha1.Pod
		xdp   bool
		asker string
	}{
		{"no annotation", datapathPod(""), false, ""},
		{"again", datapathPod("xdp"), true, "annotation ebpf.xdp/datapath"},
		{"the declaration is gone", nil, true, "annotation ebpf.xdp/datapath"},
		{"no such datapath", datapathPod("XDP"), false,
			`annotation ebpf.xdp/datapath is "XDP": want "xdp"`},
	} {
		b.pods["shop/a"] = change.pod
		if err := b.Sync(context.Background()); err != nil {
			t.Error(change.name, err)
		}
		expect(change.name, change.xdp, change.asker)
	}
}

// TestDatapathOfOldRecord restores endpoints that an agent recorded which gave every pod a second
// interface: it stays with those only whose pods ask for it, from the first moment.
func TestDatapathOfOldRecord(t *testing.T) {
	for _, tt := range []struct {
		name string
		pod  *v1alpha1.Pod
		want bool
	}{{"asks", datapathPod("xdp"), true}, {"does not ask", datapathPod(""), false},
		{"not declared", nil, false}} {
		t.Run(tt.name, func(t *testing.T) {
			b := newHarness(t)
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
				if ep.XDPDatapath != tt.want {
					t.Errorf("attached %+v", ep)
				}
			}
		})
	}
}

// TestPodDatapathRefused: a request that cannot be met is refused with a reason of its own.
func TestPodDatapathRefused(t *testing.T) {
	b := newHarness(t)
	path, _ := endpointtest.NewPod(t)
	for _, tt := range []struct {
		path    string
		chained bool
		want    string
	}{
		{"tc", false, `datapath: "tc" is no datapath to ask for: want "xdp"`},
		{"xdp", true, "datapath: an interface of another CNI plugin cannot have the XDP datapath"},
	} {
		req := b.request("a", path)
		req.PodDatapath, req.Chained = tt.path, tt.chained
		if _, err := b.Add(context.Background(), req); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q, chained %v: %v", tt.path, tt.chained, err)
		}
	}
}

// TestFormerNamesInRecords reads what a record says of the XDP datapath under the names that its
// fields had first.
func TestFormerNamesInRecords(t *testing.T) {
	b := newHarness(t)
	path, _ := endpointtest.NewPod(t)
	b.add("a", path)
	files, err := filepath.Glob(filepath.Join(b.opt.StateDir, "endpoints", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("records %v, %v", files, err)
	}
	for key, asks := range map[string]func(record) string{
		"road":    func(r record) string { return r.PodDatapath }, // glossary: format
		"cniRoad": func(r record) string { return r.CNIDatapath }, // glossary: format
	} {
		data, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(data, &fields); err != nil {
			t.Fatal(err)
		}
		fields[key] = "xdp"
		if data, err = json.Marshal(fields); err != nil {
			t.Fatal(err)
		}
		old := filepath.Join(t.TempDir(), "old.json")
		if err := os.WriteFile(old, data, 0o600); err != nil {
			t.Fatal(err)
		}
		rec, err := readRecord(old, fields["id"].(string))
		if err != nil || asks(rec) != "xdp" || !rec.XDPDatapath() {
			t.Errorf("%s: %+v, %v", key, rec, err)
		}
	}
}
