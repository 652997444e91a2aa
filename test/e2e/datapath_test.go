package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
)

// hasSecond says whether a pod has a second interface.
func hasSecond(p *lab.Pod) bool {
	return p.Do(func() error { _, err := net.InterfaceByName("weft-tx"); return err }) == nil
}

// podDatapathOf is what the agent says of an endpoint's datapath.
func podDatapathOf(t *testing.T, l *lab.Lab, p *lab.Pod) datapath.PodDatapath {
	t.Helper()
	endpoints, err := admin.NewClient(l.Node(p.Node).Socket).Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range endpoints {
		if e.Name() == p.Key() {
			return e.PodDatapath
		}
	}
	t.Fatalf("the agent of %s has no endpoint %s", p.Node, p.Key())
	return datapath.PodDatapath{}
}

// TestOrdinaryInterface: in mode auto a pod has one interface, on which it sees what it sends.
func TestOrdinaryInterface(t *testing.T) {
	l := useShared(t)
	client := l.Pod("client")
	links := 0
	if err := client.Do(func() error {
		list, err := netlink.LinkList()
		links = len(list)
		return err
	}); err != nil || links != 2 {
		t.Errorf("%d interfaces beside lo are not one: %v", links-1, err)
	}
	if path := podDatapathOf(t, l,
		client); path != (datapath.PodDatapath{Name: "tc", Why: "mode auto"}) {
		t.Errorf("datapath %+v", path)
	}
	sniff := openEnd(t, client.NetNS, "eth0", false)
	sniff.leaving = true
	if err := reach(t.Context(), client, l.Pod("server")); err != nil {
		t.Error(err)
	}
	requests := 0
	for _, frame := range sniff.received() {
		if bytes.Equal(frame[6:12], mac(client.MAC)) {
			requests++
		}
	}
	if requests < 10 {
		t.Errorf("%d frames of the pod's were seen on its eth0", requests)
	}
}

// TestPodDatapath: who gets the XDP datapath in which mode, and what the agent says about it.
func TestPodDatapath(t *testing.T) {
	l := useShared(t)
	router, a := addRouter(t, l), l.Node("a")
	serveEcho(t, router)
	const by = " (annotation ebpf.xdp/datapath)"
	for _, tt := range []struct {
		mode   string
		second bool
		want   datapath.PodDatapath
	}{
		{"auto", true, datapath.PodDatapath{Name: "xdp", Why: "asked for" + by}},
		{"xdp", false, datapath.PodDatapath{Name: "xdp", Why: "mode xdp" + by}},
		{"tc", false,
			datapath.PodDatapath{Name: "tc",
				Why: "asked for xdp, which pods get in modes auto and xdp: this node's is tc" +
					by,
				Refused: true}},
		{"stack", false,
			datapath.PodDatapath{Name: "stack",
				Why: "asked for xdp, which pods get in modes auto and xdp: this node's is stack" +
					by, Refused: true}},
		{"auto", true, datapath.PodDatapath{Name: "xdp", Why: "asked for" + by}},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": tt.mode}, a)
			if got := podDatapathOf(t, l, router); got != tt.want {
				t.Errorf("datapath %+v, want %+v", got, tt.want)
			}
			if hasSecond(router) != tt.second || hasSecond(l.Pod("client")) {
				t.Errorf("second interfaces: router %v, client %v", hasSecond(router),
					hasSecond(l.Pod("client")))
			}
			s := status(t, a)
			if refused := strings.Contains(strings.Join(s.Problems, "\n"),
				"endpoint shop/router has the datapath"); refused != tt.want.Refused {
				t.Errorf("problems: %q", s.Problems)
			}
			if (s.XDPDatapaths == 1) != tt.second {
				t.Errorf("%d endpoints on the XDP datapath", s.XDPDatapaths)
			}
			for _, p := range []string{"client", "server"} {
				if err := errors.Join(reach(t.Context(), router, l.Pod(p)),
					reach(t.Context(), l.Pod(p), router)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestPodDatapathChange has a pod ask for the XDP datapath and no longer, under load, and an agent
// take over a pod whose second interface an older one gave it unasked: nothing is lost.
func TestPodDatapathChange(t *testing.T) {
	l := useShared(t)
	router, a := addRouter(t, l), l.Node("a")
	serveEcho(t, router)
	load := startLoad(t, path{router, l.Pod("server")}, path{l.Pod("db"), router})
	before := kernelLosses(t, l)
	settled := func(what string, second bool) {
		t.Helper()
		eventually(t, what, func() error {
			if hasSecond(router) != second {
				return fmt.Errorf("the second interface: %v", hasSecond(router))
			}
			if name := podDatapathOf(t, l, router).Name; (name == "xdp") != second {
				return fmt.Errorf("datapath %s", name)
			}
			return nil
		})
		load.flowing(t, what)
	}
	for range 2 {
		declareDatapath(t, l, "xdp", "")
		settled("when the annotation is gone", false)
		declareDatapath(t, l, "", "xdp")
		settled("when it is there again", true)
	}
	if err := a.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	forgetDatapath(t, l, router)
	declareDatapath(t, l, "xdp", "")
	if err := a.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	settled("after the upgrade", false)
	load.nothingLost(t)
	if text := must(t, a.NetNS, "ip", "-o", "link"); strings.Contains(text, ": wefx") {
		t.Errorf("left on the node:\n%s", text)
	}
	if left, _ := filepath.Glob("/sys/fs/bpf/weft/" + a.Instance + "/link-*wefx*"); len(left) > 0 {
		t.Errorf("left of the second interface: %v", left)
	}
	if t.Failed() {
		tellLosses(t, l, before)
	}
}

// declareDatapath changes the router's declaration.
func declareDatapath(t *testing.T, l *lab.Lab, from, to string) {
	t.Helper()
	file := filepath.Join(l.ObjectsDir(), "pods.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	line := func(value string) string {
		if value == "" {
			return "    name: router\n"
		}
		return "    name: router\n    annotations: {ebpf.xdp/datapath: " + value + "}\n"
	}
	normal := strings.Replace(string(text), "    annotations:\n        ebpf.xdp/datapath: xdp\n",
		"", 1)
	normal = strings.Replace(normal, "    annotations: {ebpf.xdp/datapath: xdp}\n", "", 1)
	if (normal == string(text)) != (from == "") || strings.Count(normal, line("")) != 1 {
		t.Fatalf("mend the test, %s is:\n%s", file, text)
	}
	tmp := filepath.Join(l.ObjectsDir(), ".pods.test")
	if err := os.WriteFile(tmp, []byte(strings.Replace(normal, line(""), line(to), 1)),
		0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, file); err != nil {
		t.Fatal(err)
	}
}

// forgetDatapath makes a pod's record one of an agent that knew no paths.
func forgetDatapath(t *testing.T, l *lab.Lab, p *lab.Pod) {
	t.Helper()
	dir := filepath.Join(l.Dir(), p.Node, "state", l.Node(p.Node).Instance, "endpoints")
	file := filepath.Join(dir, strings.TrimPrefix(p.HostIf, "weft")+".json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	record := map[string]any{}
	if err := json.Unmarshal(text, &record); err != nil || record["datapath"] != "xdp" {
		t.Fatalf("datapath %v, %v", record["datapath"], err)
	}
	delete(record, "datapath")
	if text, err = json.Marshal(record); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
