package metrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/flows"
)

type fake struct {
	snapshot Snapshot
	err      error
}

func (f *fake) Metrics() (Snapshot, error) { return f.snapshot, f.err }

func row(slot uint16, direction, verdict, reason string, packets uint64) datapath.Counter {
	return datapath.Counter{Slot: slot, Direction: direction, Verdict: verdict, Reason: reason,
		Traffic: datapath.Traffic{Packets: packets, Bytes: packets * 100}}
}

func newFake() *fake {
	return &fake{snapshot: Snapshot{
		Ready: true, Nodes: 2, ObjectErrors: 1,
		Mode:      datapath.ModeStatus{Asked: "auto", Active: "tc"},
		Endpoints: map[uint16]Endpoint{1: {"0a", "demo", "web"}},
		Counters: []datapath.Counter{
			row(1, "egress", "forward", "", 10), row(1, "egress", "drop", "spoofed_ip", 3),
			row(1, "egress", "drop", "no_route", 2), row(0, "ingress", "drop", "malformed", 4),
			row(9, "egress", "forward", "", 99),
		},
		Events: datapath.EventStats{Suppressed: 5, Lost: 6},
		Flows: flows.Stats{Seen: map[flows.Kind]uint64{{Type: "drop", Verdict: "DROPPED"}: 7},
			Lost: 8},
	}}
}

func TestCollector(t *testing.T) {
	collector := NewCollector(newFake(), []string{"malformed", "no_route", "spoofed_ip", "never"})
	want := `
# HELP weft_drops_total Packets dropped on this node, by reason. Every reason is present, also at 0.
# TYPE weft_drops_total counter
weft_drops_total{direction="egress",reason="malformed"} 0
weft_drops_total{direction="egress",reason="never"} 0
weft_drops_total{direction="egress",reason="no_route"} 2
weft_drops_total{direction="egress",reason="spoofed_ip"} 3
weft_drops_total{direction="ingress",reason="malformed"} 4
weft_drops_total{direction="ingress",reason="never"} 0
weft_drops_total{direction="ingress",reason="no_route"} 0
weft_drops_total{direction="ingress",reason="spoofed_ip"} 0
# HELP weft_endpoint_packets_total Packets from (egress) and to (ingress) an endpoint, by verdict.
# TYPE weft_endpoint_packets_total counter
weft_endpoint_packets_total{direction="egress",endpoint="0a",namespace="demo",pod="web",verdict="drop"} 5
weft_endpoint_packets_total{direction="egress",endpoint="0a",namespace="demo",pod="web",verdict="forward"} 10
# HELP weft_endpoint_drops_total Packets of an endpoint that were dropped, by reason. Reasons that never happened are absent.
# TYPE weft_endpoint_drops_total counter
weft_endpoint_drops_total{direction="egress",endpoint="0a",namespace="demo",pod="web",reason="no_route"} 2
weft_endpoint_drops_total{direction="egress",endpoint="0a",namespace="demo",pod="web",reason="spoofed_ip"} 3
# HELP weft_mode The datapath's mode: asked for and active. Always 1.
# TYPE weft_mode gauge
weft_mode{active="tc",asked="auto"} 1
# HELP weft_store_object_errors Objects in the store that are wrong and therefore ignored.
# TYPE weft_store_object_errors gauge
weft_store_object_errors 1
# HELP weft_flow_events_suppressed_total Flow events that the datapath's rate limit held back.
# TYPE weft_flow_events_suppressed_total counter
weft_flow_events_suppressed_total 5
# HELP weft_flow_events_lost_total Flow events that found the ring buffer full.
# TYPE weft_flow_events_lost_total counter
weft_flow_events_lost_total 6
`
	err := testutil.CollectAndCompare(collector, strings.NewReader(want), "weft_drops_total",
		"weft_endpoint_packets_total",
		"weft_endpoint_drops_total", "weft_mode", "weft_store_object_errors",
		"weft_flow_events_suppressed_total", "weft_flow_events_lost_total")
	if err != nil {
		t.Error(err)
	}
}

func dropTotal(t *testing.T, collector prometheus.Collector) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var total float64
	for _, family := range families {
		if family.GetName() == "weft_drops_total" {
			for _, metric := range family.Metric {
				total += metric.GetCounter().GetValue()
			}
		}
	}
	return total
}

func TestDropsNeverShrink(t *testing.T) {
	source := newFake()
	collector := NewCollector(source, nil)
	if got := dropTotal(t, collector); got != 9 {
		t.Fatalf("first %v", got)
	}
	source.snapshot.Counters = []datapath.Counter{row(1, "egress", "drop", "spoofed_ip", 1)}
	if got := dropTotal(t, collector); got != 10 {
		t.Errorf("after the slot was used again: %v", got)
	}
	source.snapshot.Counters, source.err = nil, errors.New("map is gone")
	if got := dropTotal(t, collector); got != 10 {
		t.Errorf("after a failed read: %v", got)
	}
}

func TestHandler(t *testing.T) {
	ready := false
	handler := Handler(NewRegistry(newFake(), []string{"never"}),
		func() (bool, string) { return ready, "waiting for Node object a" })
	for _, test := range []struct {
		path string
		code int
		body string
	}{
		{"/metrics", 200, `weft_drops_total{direction="egress",reason="never"} 0`},
		{"/metrics", 200, "process_resident_memory_bytes"},
		{"/metrics", 200, "weft_build_info{"},
		{"/healthz", 200, "ok"},
		{"/readyz", 503, "waiting for Node object a"},
		{"/nothing", 404, ""},
	} {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, test.path, nil))
		if recorder.Code != test.code || !strings.Contains(recorder.Body.String(), test.body) {
			t.Errorf("%s: %d %.200s", test.path, recorder.Code, recorder.Body)
		}
	}
	ready = true
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if recorder.Code != 200 {
		t.Errorf("readyz %d", recorder.Code)
	}
}
