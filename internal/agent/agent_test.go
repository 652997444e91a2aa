package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/startup"
	"weft.dev/weft/internal/store"
)

func TestLife(t *testing.T) {
	w, ctx := newWorld(), context.Background()
	cfg := testConfig(t)
	client, stop := w.start(t, cfg)
	eventually(t, "the agent to wait for its Node object", func() bool {
		status, err := client.Status(ctx)
		return err == nil && !status.Ready &&
			strings.Contains(status.Waiting, "Node object a in /etc/weft/objects")
	})
	if _, err := client.Endpoints(ctx); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("endpoints before: %v", err)
	}
	if code, body := cniCall(t, cfg, "status"); code != 503 ||
		!strings.Contains(body, `"code": 50`) && !strings.Contains(body, `"code":50`) {
		t.Errorf("cni before: %d %s", code, body)
	}
	w.put(func(s *store.Snapshot) {
		s.Nodes["a"], s.Nodes["b"] = nodeObject("a", "192.0.2.1", "10.1.0.0/24"), nodeObject("b",
			"192.0.2.2", "10.2.0.0/24")
	})
	eventually(t, "ready", func() bool { return ready(client) })
	status, err := client.Status(ctx)
	if err != nil || status.Endpoints != 1 || status.Nodes != 2 || status.MTU != 1450 ||
		status.Mode.Active != "tc" || len(status.Problems) != 0 {
		t.Errorf("status %+v %v", status, err)
	}
	if len(w.pruned) != 1 || w.pruned[0].Slot != 1 {
		t.Errorf("pruned to %v", w.pruned)
	}
	if code, body := cniCall(t, cfg, "add"); code != 200 || body != "cni" {
		t.Errorf("cni after: %d %s", code, body)
	}
	w.put(func(s *store.Snapshot) { s.Nodes["c"] = nodeObject("c", "192.0.2.3", "10.3.0.0/24") })
	eventually(t, "the third node", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.nodes) == 2 && w.nodes[0].Name == "b" && w.nodes[1].Name == "c"
	})
	if err := stop(); err != nil {
		t.Errorf("end %v", err)
	}
	if !w.closed {
		t.Error("the datapath is still open")
	}
	if _, err := os.Stat(cfg.Socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket stays: %v", err)
	}
	// Started at once: systemctl start is not to hang for a Node object that is still to be
	// written.
	started, ready := slices.Index(w.told, "READY=1"), slices.Index(w.told, "STATUS=ready")
	waited := slices.IndexFunc(w.told,
		func(s string) bool { return strings.HasPrefix(s, "STATUS=waiting for Node object a") })
	if started < 0 || waited < 0 || ready < max(started, waited) ||
		w.told[len(w.told)-1] != "STOPPING=1" {
		t.Errorf("systemd was told %q", w.told)
	}
}

func cniCall(t *testing.T, cfg *config.Config, verb string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial("unix", cfg.Socket())
		}}}
	response, err := client.Post("http://weft/v1/cni/"+verb, "application/json",
		strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

func upWorld() *world {
	w := newWorld()
	w.snapshot.Nodes["a"], w.snapshot.Nodes["b"] = nodeObject("a", "192.0.2.1",
		"10.1.0.0/24"), nodeObject("b", "192.0.2.2", "10.2.0.0/24")
	w.snapshot.Endpoints["demo/db"] = &v1alpha1.Endpoint{
		Metadata: v1alpha1.ObjectMeta{Namespace: "demo", Name: "db"},
		Spec: v1alpha1.EndpointSpec{NodeName: "b",
			Addresses: []netip.Addr{netip.MustParseAddr("10.2.0.2")}},
	}
	return w
}

// note keeps the order of the first calls.
func (w *world) note(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order) < 4 {
		w.order = append(w.order, call)
	}
}

// TestOrderOfBringUp: nodes and endpoints are in the maps, all of them, before the first pod has
// hooks that look into these.
func TestOrderOfBringUp(t *testing.T) {
	w := upWorld()
	client, stop := w.start(t, testConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if want := []string{"nodes", "endpoints entered", "restored", "pruned"}; !slices.Equal(w.order,
		want) {
		t.Errorf("order %v, want %v", w.order, want)
	}
	if len(w.entered) != 1 {
		t.Errorf("entered %v, want the recorded endpoint", w.entered)
	}
}

func TestAPI(t *testing.T) {
	w, ctx := upWorld(), context.Background()
	client, _ := w.start(t, testConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	endpoints, err := client.Endpoints(ctx)
	if err != nil || len(endpoints) != 1 || endpoints[0].Name() != "demo/web" ||
		len(endpoints[0].Traffic) != 2 {
		t.Errorf("endpoints %+v %v", endpoints, err)
	}
	if status, err := client.Status(ctx); err != nil ||
		!slices.Equal(status.OverBudget,
			[]string{"demo/web, what it began: 4 flows evicted, 1 flows not remembered"}) ||
		len(endpoints[0].Budgets) != 2 {
		t.Errorf("over budget %+v, %+v, %v", status.OverBudget, endpoints[0].Budgets, err)
	}
	nodes, err := client.Nodes(ctx)
	if err != nil || len(nodes) != 2 || !nodes[0].Self || nodes[1].Endpoints != 1 {
		t.Errorf("nodes %+v %v", nodes, err)
	}
	drops, err := client.Drops(ctx, false)
	if err != nil || len(drops) != 1 || drops[0].Endpoint != "demo/web" || drops[0].Text == "" {
		t.Errorf("drops %+v %v", drops, err)
	}
	if all, err := client.Drops(ctx, true); err != nil || len(all) != len(bpf.Reasons()) {
		t.Errorf("all drops %d %v", len(all), err)
	}
	table, err := client.FlowTable(ctx, 10)
	if err != nil || table[0].Source.Name() != "demo/web" ||
		table[0].Destination.Name() != "demo/db" {
		t.Errorf("flow table %+v %v", table, err)
	}
	trace, err := client.Trace(ctx,
		admin.TraceRequest{From: "web", To: "10.2.0.2:53", Protocol: "udp"})
	if err != nil || trace.NextHop != "1 10.2.0.2:53 17" || trace.ToName != "demo/db" {
		t.Errorf("trace %+v %v", trace, err)
	}
	for want, request := range map[string]admin.TraceRequest{
		"no endpoint \"x\"":        {From: "x", To: "10.0.0.1:1"},
		"is not ADDRESS:PORT":      {From: "web", To: "10.0.0.1"},
		"has no IPv6 address":      {From: "web", To: "[fd00::1]:1"},
		"unknown protocol \"foo\"": {From: "web", To: "10.0.0.1:1", Protocol: "foo"},
	} {
		if _, err := client.Trace(ctx, request); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("trace %+v: %v", request, err)
		}
	}
	dump, err := client.Sysdump(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"status", "endpoints", "nodes", "drops", "flowtable", "flows",
		"config", "log", "counters", "version"} {
		if len(dump[part]) == 0 || bytes.Contains(dump[part], []byte(`{"error"`)) {
			t.Errorf("sysdump %s: %s", part, dump[part])
		}
	}
}

func TestFlowLog(t *testing.T) {
	w, ctx := upWorld(), context.Background()
	cfg := testConfig(t)
	cfg.Flows.Log = filepath.Join(t.TempDir(), "flows.jsonl")
	client, stop := w.start(t, cfg)
	eventually(t, "ready", func() bool { return ready(client) })
	eventually(t, "the log's follower",
		func() bool { s, err := client.Status(ctx); return err == nil && s.Events.Followers == 1 })
	w.events <- datapath.FlowEvent{
		Type: datapath.EventDrop, Verdict: "drop", Reason: "spoofed_ip", Slot: 1,
		Direction: "egress", Protocol: 17,
		Src: netip.MustParseAddrPort("10.2.0.2:1"), Dst: netip.MustParseAddrPort("10.2.0.2:2"),
	}
	var got []flows.Flow
	eventually(t, "the record", func() bool {
		got = nil
		query := admin.FlowQuery{Filter: flows.Filter{From: []string{"demo/web"},
			To: []string{"demo/db"}}}
		err := client.Flows(ctx, query,
			func(f flows.Flow) error { got = append(got, f); return nil })
		return err == nil && len(got) == 1
	})
	if got[0].DropReason != "spoofed_ip" || got[0].DropText == "" || got[0].Source.Node != "a" {
		t.Errorf("record %+v", got[0])
	}
	stop()
	if text, err := os.ReadFile(cfg.Flows.Log); err != nil ||
		!bytes.Contains(text, []byte(`"drop_reason_desc":"spoofed_ip"`)) {
		t.Errorf("log file %s %v", text, err)
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	w, cfg := upWorld(), testConfig(t)
	_, stop := w.start(t, cfg)
	err := run(context.Background(), cfg, Options{}, upWorld().seams())
	var locked *startup.LockedError
	if !errors.As(err, &locked) ||
		!strings.Contains(err.Error(), fmt.Sprintf("pid %d holds", os.Getpid())) {
		t.Errorf("second agent: %v", err)
	}
	stop()
	again, _ := upWorld().start(t, cfg)
	eventually(t, "ready again", func() bool { return ready(again) })
}

func TestProblems(t *testing.T) {
	w := upWorld()
	w.nodesErr, w.restore, w.sync = errors.New("no such map"), errors.New("veth is odd"), errors.New("pod is odd")
	client, _ := w.start(t, testConfig(t))
	eventually(t, "the reason", func() bool {
		state, err := client.Ready(context.Background())
		return err == nil && strings.Contains(state.Waiting, "no such map")
	})
	w.mu.Lock()
	w.nodesErr = nil
	w.mu.Unlock()
	eventually(t, "ready after a retry", func() bool { return ready(client) })
	w.put(func(s *store.Snapshot) {
		s.Nodes["a"] = nodeObject("a", "192.0.2.9", "10.1.0.0/24")
		s.Errors = []store.ObjectError{{File: "bad.yaml", Line: 3, Field: "spec", Msg: "is odd"}}
	})
	eventually(t, "the problems", func() bool {
		status, err := client.Status(context.Background())
		all := strings.Join(status.Problems, "\n")
		return err == nil && strings.Contains(all, "restart the agent") &&
			strings.Contains(all, "pod is odd") &&
			len(status.Store.Errors) == 1 && status.Ready
	})
}

func TestAwaitsUplink(t *testing.T) {
	w := upWorld()
	w.linksErr = errors.New("no interface holds the node's address")
	client, _ := w.start(t, testConfig(t))
	eventually(t, "the reason", func() bool {
		state, err := client.Ready(context.Background())
		return err == nil && strings.Contains(state.Waiting, "no interface holds")
	})
	w.mu.Lock()
	w.linksErr = nil
	w.mu.Unlock()
	eventually(t, "ready", func() bool { return ready(client) })
}

// freeAddress is one that nobody listens on now.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestMetricsPortTaken(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t)
	cfg.Metrics.Listen = listener.Addr().String()
	client, _ := upWorld().start(t, cfg)
	eventually(t, "ready all the same", func() bool { return ready(client) })
	eventually(t, "the problem", func() bool {
		status, err := client.Status(context.Background())
		return err == nil && len(status.Problems) == 1 &&
			strings.Contains(status.Problems[0], "metrics.listen")
	})
	listener.Close()
	eventually(t, "the metrics", func() bool {
		response, err := http.Get("http://" + cfg.Metrics.Listen + "/metrics")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return bytes.Contains(body,
			[]byte(`weft_drops_total{direction="egress",reason="spoofed_ip"} 2`))
	})
}
