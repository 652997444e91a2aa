package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weft.dev/weft/internal/datapath"
)

var (
	budgetLabels = []string{"endpoint", "namespace", "pod", "direction"}

	flowEntriesDesc = desc("weft_endpoint_flow_entries",
		"Entries of the flow table that an endpoint holds, for flows that it began (egress) or others began towards it (ingress). Without an endpoint: the node's own.",
		budgetLabels...)
	flowShareDesc = desc("weft_flow_share",
		"Entries of the flow table, per family, that each endpoint and direction never loses to another.")

	// budgetCounters are what an endpoint's share of the shared tables refused it.
	budgetCounters = []struct {
		desc  *prometheus.Desc
		value func(datapath.Budget) uint64
	}{
		{desc("weft_endpoint_flows_evicted_total",
			"Flows of an endpoint that gave way to new ones before their time.", budgetLabels...),
			func(b datapath.Budget) uint64 { return b.FlowsEvicted }},
		{desc("weft_endpoint_flows_refused_total",
			"Flows of an endpoint that found no place in the flow table; their packets were forwarded.", budgetLabels...),
			func(b datapath.Budget) uint64 { return b.FlowsRefused }},
		{desc("weft_endpoint_fragments_evicted_total",
			"Datagrams of an endpoint that were forgotten before all of their fragments can have come.", budgetLabels...),
			func(b datapath.Budget) uint64 { return b.FragmentsEvicted }},
		{desc("weft_endpoint_events_suppressed_total",
			"Flow events of an endpoint that the rate limit held back.", budgetLabels...),
			func(b datapath.Budget) uint64 { return b.EventsSuppressed }},
		{desc("weft_endpoint_icmp_errors_suppressed_total",
			"ICMP errors about an endpoint's packets that the rate limit held back.",
			budgetLabels...),
			func(b datapath.Budget) uint64 { return b.ErrorsSuppressed }},
	}
)

func describeBudgets(ch chan<- *prometheus.Desc) {
	ch <- flowEntriesDesc
	ch <- flowShareDesc
	for _, c := range budgetCounters {
		ch <- c.desc
	}
}

// budgets shows each endpoint's, and the node's own (slot 0) without an endpoint's name.
func (c *Collector) budgets(ch chan<- prometheus.Metric, s Snapshot) {
	if s.FlowShare > 0 {
		gauge(ch, flowShareDesc, float64(s.FlowShare))
	}
	for _, row := range s.Budgets {
		endpoint, known := s.Endpoints[row.Slot]
		if !known && row.Slot != 0 {
			continue
		}
		labels := []string{endpoint.ID, endpoint.Namespace, endpoint.Pod, row.Direction}
		gauge(ch, flowEntriesDesc, float64(row.Flows), labels...)
		for _, c := range budgetCounters {
			counter(ch, c.desc, float64(c.value(row)), labels...)
		}
	}
}
