package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/store"
)

// world is everything that an agent stands on, faked.
type world struct {
	mu       sync.Mutex
	snapshot *store.Snapshot
	changed  func(*store.Snapshot)
	nodes    []datapath.Node
	nodesErr error
	pruned   []datapath.Endpoint
	closed   bool
	masks    []*masquerade
	restore  error
	sync     error
	events   chan datapath.FlowEvent
	linksErr error
}

func newWorld() *world {
	return &world{snapshot: store.NewSnapshot(), events: make(chan datapath.FlowEvent, 8)}
}

func nodeObject(name, addr, cidr string) *v1alpha1.Node {
	return &v1alpha1.Node{
		Metadata: v1alpha1.ObjectMeta{Name: name},
		Spec:     v1alpha1.NodeSpec{Addresses: []netip.Addr{netip.MustParseAddr(addr)}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}},
	}
}

// put changes the store, as a person who edits a file does.
func (w *world) put(change func(*store.Snapshot)) {
	w.mu.Lock()
	next := store.NewSnapshot()
	for name, node := range w.snapshot.Nodes {
		next.Nodes[name] = node
	}
	for name, ep := range w.snapshot.Endpoints {
		next.Endpoints[name] = ep
	}
	change(next)
	w.snapshot = next
	changed := w.changed
	w.mu.Unlock()
	if changed != nil {
		changed(next)
	}
}

// fakeStore is the world as a store.
type fakeStore struct{ *world }

func (s fakeStore) Snapshot() (*store.Snapshot, error) { return s.snapshot, nil }
func (s fakeStore) Watch(ctx context.Context, changed func(*store.Snapshot)) error {
	s.mu.Lock()
	s.changed = changed
	snapshot := s.snapshot
	s.mu.Unlock()
	changed(snapshot)
	<-ctx.Done()
	return nil
}
func (s fakeStore) PutEndpoint(*v1alpha1.Endpoint) error { return nil }
func (s fakeStore) DeleteEndpoint(string) error          { return nil }

// fakeDatapath is the world as a datapath.
type fakeDatapath struct{ *world }

func (d fakeDatapath) AttachEndpoint(datapath.Endpoint) error { return nil }
func (d fakeDatapath) DetachEndpoint(datapath.Endpoint) error { return nil }
func (d fakeDatapath) Close() error                           { d.mu.Lock(); d.closed = true; d.mu.Unlock(); return nil }
func (d fakeDatapath) Prune(keep []datapath.Endpoint) error   { d.pruned = keep; return nil }
func (d fakeDatapath) SetNodes(_ context.Context, nodes []datapath.Node) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes = nodes
	return d.nodesErr
}
func (d fakeDatapath) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (d fakeDatapath) Events(ctx context.Context, handle func(datapath.FlowEvent)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-d.events:
			handle(event)
		}
	}
}
func (d fakeDatapath) EventStats() (datapath.EventStats, error) {
	return datapath.EventStats{Suppressed: 3}, nil
}
func (d fakeDatapath) Counters() ([]datapath.Counter, error) {
	return []datapath.Counter{
		{Slot: 1, Direction: "egress", Verdict: "forward", Traffic: datapath.Traffic{Packets: 5, Bytes: 500}},
		{Slot: 1, Direction: "egress", Verdict: "drop", Reason: "spoofed_ip", Traffic: datapath.Traffic{Packets: 2, Bytes: 84}},
	}, nil
}
func (d fakeDatapath) Flows(limit int) ([]datapath.Flow, error) {
	return []datapath.Flow{{Src: netip.MustParseAddrPort("10.1.0.2:1"), Dst: netip.MustParseAddrPort("10.2.0.2:80"), Protocol: 6}}, nil
}
func (d fakeDatapath) Trace(from datapath.Endpoint, to netip.AddrPort, protocol uint8) (*datapath.Trace, error) {
	return &datapath.Trace{Verdict: "forward", NextHop: fmt.Sprint(from.Slot, to, protocol)}, nil
}
func (d fakeDatapath) ModeStatus() datapath.ModeStatus {
	return datapath.ModeStatus{Asked: "auto", Active: "hybrid", Why: "of the test"}
}
func (d fakeDatapath) Links() ([]datapath.LinkStatus, error) { return nil, nil }

// fakeEndpoints is the world as an endpoint manager with one endpoint.
type fakeEndpoints struct{ *world }

var web = endpoint.Info{ID: "0a1b", Namespace: "demo", Pod: "web", Slot: 1, IPv4: netip.MustParseAddr("10.1.0.2"), HostIf: "weft0"}

func (e fakeEndpoints) Restore(context.Context) error { return e.restore }
func (e fakeEndpoints) Sync(context.Context) error    { return e.sync }
func (e fakeEndpoints) Status() error                 { return nil }
func (e fakeEndpoints) List() []endpoint.Info         { return []endpoint.Info{web} }
func (e fakeEndpoints) Get(name string) (endpoint.Info, bool) {
	return web, name == "demo/web" || name == "web"
}
func (e fakeEndpoints) BySlot(slot uint16) (endpoint.Info, bool)   { return web, slot == 1 }
func (e fakeEndpoints) ByIP(addr netip.Addr) (endpoint.Info, bool) { return web, addr == web.IPv4 }

func (w *world) seams() seams {
	return seams{
		preflight: func(string, *slog.Logger) error { return nil },
		openStore: func(string) (store.Store, error) { return fakeStore{w}, nil },
		findLinks: func(*config.Config, *v1alpha1.Node) (hostLinks, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return hostLinks{Uplinks: []string{"wire"}, MTU: 1450}, w.linksErr
		},
		openDatapath: func(*config.Config, *v1alpha1.Node, hostLinks, *slog.Logger) (Datapath, error) {
			return fakeDatapath{w}, nil
		},
		openEndpoints: func(endpoint.Options) (Endpoints, http.Handler, error) {
			return fakeEndpoints{w}, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "cni") }), nil
		},
		masquerade: func(m *masquerade) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.masks = append(w.masks, m)
			return nil
		},
	}
}

func testConfig(t *testing.T) *config.Config {
	cfg := config.Default()
	cfg.Node, cfg.Metrics.Listen = "a", ""
	cfg.Paths = config.Paths{Run: filepath.Join(t.TempDir(), "run"), State: t.TempDir(), BPF: t.TempDir()}
	return cfg
}

// start runs an agent and returns its client and a way to end it.
func (w *world) start(t *testing.T, cfg *config.Config) (*admin.Client, func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	tail := &LogTail{}
	go func() {
		done <- run(ctx, cfg, Options{Version: "test", LogTail: tail, Log: slog.New(slog.NewTextHandler(tail, nil))}, w.seams())
	}()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { stop() })
	client := admin.NewClient(cfg.Socket())
	eventually(t, "the socket", func() bool { _, err := client.Ready(ctx); return err == nil })
	return client, stop
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("%s never came", what)
}

func ready(client *admin.Client) bool {
	state, err := client.Ready(context.Background())
	return err == nil && state.Ready
}

func TestLife(t *testing.T) {
	w, ctx := newWorld(), context.Background()
	cfg := testConfig(t)
	client, stop := w.start(t, cfg)
	status, err := client.Status(ctx)
	if err != nil || status.Ready || !strings.Contains(status.Waiting, "Node object a in /etc/weft/objects") && status.Waiting != "starting" {
		t.Fatalf("before its Node object: %+v %v", status, err)
	}
	if _, err := client.Endpoints(ctx); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("endpoints before: %v", err)
	}
	if code, body := cniCall(t, cfg, "status"); code != 503 || !strings.Contains(body, `"code": 50`) && !strings.Contains(body, `"code":50`) {
		t.Errorf("cni before: %d %s", code, body)
	}
	w.put(func(s *store.Snapshot) {
		s.Nodes["a"], s.Nodes["b"] = nodeObject("a", "192.0.2.1", "10.1.0.0/24"), nodeObject("b", "192.0.2.2", "10.2.0.0/24")
	})
	eventually(t, "ready", func() bool { return ready(client) })
	status, err = client.Status(ctx)
	if err != nil || status.Endpoints != 1 || status.Nodes != 2 || status.MTU != 1450 || status.Mode.Active != "hybrid" || len(status.Problems) != 0 {
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
}

func cniCall(t *testing.T, cfg *config.Config, verb string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", cfg.Socket())
	}}}
	response, err := client.Post("http://weft/v1/cni/"+verb, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

func upWorld() *world {
	w := newWorld()
	w.snapshot.Nodes["a"], w.snapshot.Nodes["b"] = nodeObject("a", "192.0.2.1", "10.1.0.0/24"), nodeObject("b", "192.0.2.2", "10.2.0.0/24")
	w.snapshot.Endpoints["demo/db"] = &v1alpha1.Endpoint{
		Metadata: v1alpha1.ObjectMeta{Namespace: "demo", Name: "db"},
		Spec:     v1alpha1.EndpointSpec{NodeName: "b", Addresses: []netip.Addr{netip.MustParseAddr("10.2.0.2")}},
	}
	return w
}

func TestAPI(t *testing.T) {
	w, ctx := upWorld(), context.Background()
	client, _ := w.start(t, testConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	endpoints, err := client.Endpoints(ctx)
	if err != nil || len(endpoints) != 1 || endpoints[0].Name() != "demo/web" || len(endpoints[0].Traffic) != 2 {
		t.Errorf("endpoints %+v %v", endpoints, err)
	}
	nodes, err := client.Nodes(ctx)
	if err != nil || len(nodes) != 2 || !nodes[0].Self || nodes[1].Endpoints != 1 {
		t.Errorf("nodes %+v %v", nodes, err)
	}
	drops, err := client.Drops(ctx, false)
	if err != nil || len(drops) != 1 || drops[0].Endpoint != "demo/web" || drops[0].Text == "" {
		t.Errorf("drops %+v %v", drops, err)
	}
	if all, err := client.Drops(ctx, true); err != nil || len(all) != len(datapath.Reasons()) {
		t.Errorf("all drops %d %v", len(all), err)
	}
	table, err := client.FlowTable(ctx, 10)
	if err != nil || table[0].Source.Name() != "demo/web" || table[0].Destination.Name() != "demo/db" {
		t.Errorf("flow table %+v %v", table, err)
	}
	trace, err := client.Trace(ctx, admin.TraceRequest{From: "web", To: "10.2.0.2:53", Protocol: "udp"})
	if err != nil || trace.NextHop != "1 10.2.0.2:53 17" || trace.ToName != "demo/db" {
		t.Errorf("trace %+v %v", trace, err)
	}
	for want, request := range map[string]admin.TraceRequest{
		"no endpoint \"x\"":        {From: "x", To: "10.0.0.1:1"},
		"is not ADDRESS:PORT":      {From: "web", To: "10.0.0.1"},
		"has no IPv6 address":      {From: "web", To: "[fd00::1]:1"},
		"unknown protocol \"foo\"": {From: "web", To: "10.0.0.1:1", Protocol: "foo"},
	} {
		if _, err := client.Trace(ctx, request); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("trace %+v: %v", request, err)
		}
	}
	dump, err := client.Sysdump(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"status", "endpoints", "nodes", "drops", "flowtable", "flows", "config", "log", "counters", "version"} {
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
	eventually(t, "the log's follower", func() bool { s, err := client.Status(ctx); return err == nil && s.Events.Followers == 1 })
	w.events <- datapath.FlowEvent{
		Type: datapath.EventDrop, Verdict: "drop", Reason: "spoofed_ip", Slot: 1, Direction: "egress", Protocol: 17,
		Src: netip.MustParseAddrPort("10.2.0.2:1"), Dst: netip.MustParseAddrPort("10.2.0.2:2"),
	}
	var got []flows.Flow
	eventually(t, "the record", func() bool {
		got = nil
		query := admin.FlowQuery{Filter: flows.Filter{From: []string{"demo/web"}, To: []string{"demo/db"}}}
		err := client.Flows(ctx, query, func(f flows.Flow) error { got = append(got, f); return nil })
		return err == nil && len(got) == 1
	})
	if got[0].DropReason != "spoofed_ip" || got[0].DropText == "" || got[0].Source.Node != "a" {
		t.Errorf("record %+v", got[0])
	}
	stop()
	if text, err := os.ReadFile(cfg.Flows.Log); err != nil || !bytes.Contains(text, []byte(`"drop_reason_desc":"spoofed_ip"`)) {
		t.Errorf("log file %s %v", text, err)
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	w, cfg := upWorld(), testConfig(t)
	_, stop := w.start(t, cfg)
	err := run(context.Background(), cfg, Options{}, upWorld().seams())
	var locked *LockedError
	if !errors.As(err, &locked) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d holds", os.Getpid())) {
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
		return err == nil && strings.Contains(all, "restart the agent") && strings.Contains(all, "pod is odd") &&
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
		return err == nil && len(status.Problems) == 1 && strings.Contains(status.Problems[0], "metrics.listen")
	})
	listener.Close()
	eventually(t, "the metrics", func() bool {
		response, err := http.Get("http://" + cfg.Metrics.Listen + "/metrics")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return bytes.Contains(body, []byte(`weft_drops_total{direction="egress",reason="spoofed_ip"} 2`))
	})
}
