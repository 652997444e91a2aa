package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"weft.dev/weft/internal/datapath"
)

// TestBudgets: what each endpoint's share refused it is shown under its name, the node's own under
// none, and a slot that nobody has any more not at all.
func TestBudgets(t *testing.T) {
	source := newFake()
	source.snapshot.FlowShare = 100
	source.snapshot.Budgets = []datapath.Budget{
		{Slot: 1, Direction: "egress", Flows: 7, FlowsEvicted: 1, FlowsRefused: 2,
			FragmentsEvicted: 3, EventsSuppressed: 4, ErrorsSuppressed: 5},
		{Slot: 0, Direction: "ingress", Flows: 6},
		{Slot: 9, Direction: "egress", Flows: 99, FlowsEvicted: 99},
	}
	want := `
# HELP weft_endpoint_events_suppressed_total Flow events of an endpoint that the rate limit held back.
# TYPE weft_endpoint_events_suppressed_total counter
weft_endpoint_events_suppressed_total{direction="egress",endpoint="0a",namespace="demo",pod="web"} 4
weft_endpoint_events_suppressed_total{direction="ingress",endpoint="",namespace="",pod=""} 0
# HELP weft_endpoint_flow_entries Entries of the flow table that an endpoint holds, for flows that it began (egress) or others began towards it (ingress). Without an endpoint: the node's own.
# TYPE weft_endpoint_flow_entries gauge
weft_endpoint_flow_entries{direction="egress",endpoint="0a",namespace="demo",pod="web"} 7
weft_endpoint_flow_entries{direction="ingress",endpoint="",namespace="",pod=""} 6
# HELP weft_endpoint_flows_evicted_total Flows of an endpoint that gave way to new ones before their time.
# TYPE weft_endpoint_flows_evicted_total counter
weft_endpoint_flows_evicted_total{direction="egress",endpoint="0a",namespace="demo",pod="web"} 1
weft_endpoint_flows_evicted_total{direction="ingress",endpoint="",namespace="",pod=""} 0
# HELP weft_endpoint_flows_refused_total Flows of an endpoint that found no place in the flow table; their packets were forwarded.
# TYPE weft_endpoint_flows_refused_total counter
weft_endpoint_flows_refused_total{direction="egress",endpoint="0a",namespace="demo",pod="web"} 2
weft_endpoint_flows_refused_total{direction="ingress",endpoint="",namespace="",pod=""} 0
# HELP weft_endpoint_fragments_evicted_total Datagrams of an endpoint that were forgotten before all of their fragments can have come.
# TYPE weft_endpoint_fragments_evicted_total counter
weft_endpoint_fragments_evicted_total{direction="egress",endpoint="0a",namespace="demo",pod="web"} 3
weft_endpoint_fragments_evicted_total{direction="ingress",endpoint="",namespace="",pod=""} 0
# HELP weft_endpoint_icmp_errors_suppressed_total ICMP errors about an endpoint's packets that the rate limit held back.
# TYPE weft_endpoint_icmp_errors_suppressed_total counter
weft_endpoint_icmp_errors_suppressed_total{direction="egress",endpoint="0a",namespace="demo",pod="web"} 5
weft_endpoint_icmp_errors_suppressed_total{direction="ingress",endpoint="",namespace="",pod=""} 0
# HELP weft_flow_share Entries of the flow table, per family, that each endpoint and direction never loses to another.
# TYPE weft_flow_share gauge
weft_flow_share 100
`
	err := testutil.CollectAndCompare(NewCollector(source, nil), strings.NewReader(want),
		"weft_endpoint_events_suppressed_total", "weft_endpoint_flow_entries",
		"weft_endpoint_flows_evicted_total", "weft_endpoint_flows_refused_total",
		"weft_endpoint_fragments_evicted_total",
		"weft_endpoint_icmp_errors_suppressed_total", "weft_flow_share")
	if err != nil {
		t.Error(err)
	}
}
