// Package metrics shows the datapath's counters, and the agent's own health, to
// Prometheus. The counters are read from the maps at each scrape; nothing polls.
package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/version"
)

// Endpoint is who is behind a slot.
type Endpoint struct {
	ID, Namespace, Pod string
}

// Snapshot is everything that one scrape shows.
type Snapshot struct {
	Ready        bool
	Mode         datapath.ModeStatus
	Counters     []datapath.Counter
	Endpoints    map[uint16]Endpoint
	Nodes        int
	ObjectErrors int
	Events       datapath.EventStats
	// Budgets are what endpoints hold of the shared tables, FlowShare what of the flow table is
	// each one's own.
	Budgets   []datapath.Budget
	FlowShare uint32
	Flows     flows.Stats
	// Encryption is nil when packets travel in cleartext.
	Encryption *Encryption
}

// Source gives a snapshot. An error of one part leaves it empty and is counted.
type Source interface {
	Metrics() (Snapshot, error)
}

// directions that every drop reason is shown for, also at zero.
var directions = []string{"egress", "ingress"}

// Collector reads a Source at scrape time.
type Collector struct {
	source  Source
	reasons []string

	mu     sync.Mutex
	errors float64
	// drops only ever grow, also when an endpoint and its counters go away.
	drops map[dropKey]uint64
	seen  map[counterKey]uint64
	// sealed does the same for keys.
	sealed sealed
}

type dropKey struct{ reason, direction string }

type counterKey struct {
	slot                       uint16
	direction, verdict, reason string
}

var (
	endpointLabels = []string{"endpoint", "namespace", "pod", "direction", "verdict"}

	packetsDesc = desc("weft_endpoint_packets_total",
		"Packets from (egress) and to (ingress) an endpoint, by verdict.", endpointLabels...)
	bytesDesc = desc("weft_endpoint_bytes_total",
		"Bytes of the frames from (egress) and to (ingress) an endpoint, by verdict.",
		endpointLabels...)
	epDropsDesc = desc("weft_endpoint_drops_total",
		"Packets of an endpoint that were dropped, by reason. Reasons that never happened are absent.",
		"endpoint", "namespace", "pod", "direction", "reason")
	dropsDesc = desc("weft_drops_total",
		"Packets dropped on this node, by reason. Every reason is present, also at 0.", "reason",
		"direction")
	suppressedDesc = desc("weft_flow_events_suppressed_total",
		"Flow events that the datapath's rate limit held back.")
	lostDesc = desc("weft_flow_events_lost_total",
		"Flow events that found the ring buffer full.")
	seenDesc = desc("weft_flow_events_total",
		"Flow events that the agent read, by type and verdict.", "type", "verdict")
	followersDesc = desc("weft_flow_followers", "Readers that follow the flow log now.")
	skippedDesc   = desc("weft_flow_follower_lost_total",
		"Flow records that were not delivered to a reader that was too slow.")
	endpointsDesc = desc("weft_endpoints", "Endpoints of this node.")
	nodesDesc     = desc("weft_nodes", "Nodes that the agent knows, itself included.")
	modeDesc      = desc("weft_mode", "The datapath's mode: asked for and active. Always 1.",
		"asked", "active")
	readyDesc = desc("weft_ready",
		"1 when the datapath has been synchronised since the agent started.")
	objectsDesc = desc("weft_store_object_errors",
		"Objects in the store that are wrong and therefore ignored.")
	errorsDesc = desc("weft_scrape_errors_total",
		"Scrapes at which a part of the datapath could not be read.")
	buildDesc = desc("weft_build_info", "The agent's version. Always 1.", "version", "commit",
		"goversion", "kernel")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// NewCollector makes a Collector. reasons are the labels of all drop reasons.
func NewCollector(source Source, reasons []string) *Collector {
	return &Collector{source: source, reasons: reasons, drops: map[dropKey]uint64{},
		seen: map[counterKey]uint64{}}
}

// NewRegistry makes a registry with the Collector and those of Go and the process.
func NewRegistry(source Source, reasons []string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		NewCollector(source, reasons),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return registry
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		packetsDesc, bytesDesc, epDropsDesc, dropsDesc, suppressedDesc, lostDesc, seenDesc,
		followersDesc,
		skippedDesc, endpointsDesc, nodesDesc, modeDesc, readyDesc, objectsDesc, errorsDesc,
		buildDesc,
	} {
		ch <- desc
	}
	describeBudgets(ch)
	describeEncryption(ch)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	snapshot, err := c.source.Metrics()
	if err != nil {
		c.errors++
	}
	c.node(ch, snapshot)
	c.endpoints(ch, snapshot)
	c.budgets(ch, snapshot)
	c.nodeDrops(ch, snapshot.Counters)
	c.encryption(ch, snapshot.Encryption)
}

func (c *Collector) node(ch chan<- prometheus.Metric, s Snapshot) {
	gauge(ch, endpointsDesc, float64(len(s.Endpoints)))
	gauge(ch, nodesDesc, float64(s.Nodes))
	gauge(ch, objectsDesc, float64(s.ObjectErrors))
	gauge(ch, followersDesc, float64(s.Flows.Followers))
	ready := 0.0
	if s.Ready {
		ready = 1
	}
	gauge(ch, readyDesc, ready)
	if s.Mode.Active != "" {
		gauge(ch, modeDesc, 1, string(s.Mode.Asked), string(s.Mode.Active))
	}
	build := version.Get()
	gauge(ch, buildDesc, 1, build.Version, build.Commit, build.Go, build.Kernel)
	counter(ch, errorsDesc, c.errors)
	counter(ch, suppressedDesc, float64(s.Events.Suppressed))
	counter(ch, lostDesc, float64(s.Events.Lost))
	counter(ch, skippedDesc, float64(s.Flows.Lost))
	for kind, count := range s.Flows.Seen {
		counter(ch, seenDesc, float64(count), kind.Type, kind.Verdict)
	}
}

// endpoints sums an endpoint's counters over the drop reasons, which have a metric of their own.
func (c *Collector) endpoints(ch chan<- prometheus.Metric, s Snapshot) {
	totals := map[counterKey]datapath.Traffic{}
	for _, row := range s.Counters {
		endpoint, known := s.Endpoints[row.Slot]
		if !known {
			continue
		}
		key := counterKey{slot: row.Slot, direction: row.Direction, verdict: row.Verdict}
		total := totals[key]
		total.Packets += row.Packets
		total.Bytes += row.Bytes
		totals[key] = total
		if row.Reason != "" && row.Packets > 0 {
			counter(ch, epDropsDesc, float64(row.Packets), endpoint.ID, endpoint.Namespace,
				endpoint.Pod, row.Direction, row.Reason)
		}
	}
	for key, total := range totals {
		endpoint := s.Endpoints[key.slot]
		labels := []string{endpoint.ID, endpoint.Namespace, endpoint.Pod, key.direction,
			key.verdict}
		counter(ch, packetsDesc, float64(total.Packets), labels...)
		counter(ch, bytesDesc, float64(total.Bytes), labels...)
	}
}

// nodeDrops adds what each counter grew by since the last scrape; a counter that
// shrank belongs to a new endpoint in an old slot and counts from zero.
func (c *Collector) nodeDrops(ch chan<- prometheus.Metric, counters []datapath.Counter) {
	if counters != nil {
		now := make(map[counterKey]uint64, len(counters))
		for _, row := range counters {
			if row.Reason == "" {
				continue
			}
			key := counterKey{row.Slot, row.Direction, row.Verdict, row.Reason}
			now[key] += row.Packets
		}
		for key, packets := range now {
			grown := packets
			if before := c.seen[key]; before <= packets {
				grown = packets - before
			}
			c.drops[dropKey{key.reason, key.direction}] += grown
		}
		c.seen = now
	}
	for _, reason := range c.reasons {
		for _, direction := range directions {
			key := dropKey{reason, direction}
			c.drops[key] += 0
		}
	}
	for key, packets := range c.drops {
		counter(ch, dropsDesc, float64(packets), key.reason, key.direction)
	}
}

func gauge(ch chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

func counter(ch chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, labels...)
}
