package report

import (
	"fmt"
	"slices"
	"strings"
)

// Metric is what a row measures and in which unit.
type Metric struct {
	Name string
	Unit string
	// Better is +1 when more is better, -1 when less is, 0 when it only informs.
	Better int
}

// The metrics, in the order in which a test's rows are shown.
var metrics = []Metric{
	{"pps", "packets/s", +1},
	{"ns_per_packet", "ns", -1},
	{"net_ns_per_packet", "ns", -1},
	{"loss", "share", -1},
	{"same_cpu", "share", 0},
	{"cpu_share", "share", 0},
	{"gbit_s", "Gbit/s", +1},
	{"cpu_s_per_gb", "s/GB", -1},
	{"transactions_s", "1/s", +1},
	{"requests_s", "1/s", +1},
	{"p50_us", "µs", -1},
	{"p99_us", "µs", -1},
	{"cpu_us_per_transaction", "µs", -1},
	{"cpu_us_per_request", "µs", -1},
	{"failures", "requests", 0},
	{"flood_flows_s", "1/s", 0},
	{"flood_pps", "packets/s", 0},
	{"flood_ns_per_packet", "ns", 0},
	{"flows_lost", "flows", 0},
	{"connections_s", "1/s", +1},
	{"cpu_us_per_connection", "µs", -1},
	{"kpps", "kpackets/s", +1},
	{"cpu_us_per_packet", "µs", -1},
	{"seal_ns", "ns", -1},
	{"open_ns", "ns", -1},
	{"aes_ns", "ns", -1},
	{"ghash_ns", "ns", -1},
	{"compile_ms", "ms", -1},
	{"enter_ms", "ms", -1},
	{"add_ms", "ms", -1},
	{"del_ms", "ms", -1},
	{"rss_mib", "MiB", -1},
	{"ready_s", "s", -1},
}

// FindMetric returns the metric's definition; an unknown name is a bug of the
// package and comes back without a unit.
func FindMetric(name string) Metric {
	for _, m := range metrics {
		if m.Name == name {
			return m
		}
	}
	return Metric{Name: name}
}

// Sample is what one run of one test measured, by metric name.
type Sample map[string]float64

// String renders a sample for the progress line, in the metrics' order.
func (s Sample) String() string {
	var parts []string
	for _, m := range metrics {
		if v, ok := s[m.Name]; ok {
			parts = append(parts, fmt.Sprintf("%s %s", m.Name, formatValue(v)))
		}
	}
	return strings.Join(parts, "  ")
}

// summary condenses values; the median of an even number is the mean of the middle two.
func summary(values []float64) (median, low, high float64) {
	if len(values) == 0 {
		return 0, 0, 0
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	median = sorted[n/2]
	if n%2 == 0 {
		median = (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return median, sorted[0], sorted[n-1]
}

// Collector gathers Samples and keeps tests and variants in the order of the run.
type Collector struct {
	tests, variants []string
	values          map[[3]string][]float64 // test, variant, metric
}

// NewCollector is for tests and variants in the order of the run.
func NewCollector(tests, variants []string) *Collector {
	return &Collector{tests: tests, variants: variants, values: map[[3]string][]float64{}}
}

// Add records one run's Sample.
func (c *Collector) Add(test, variant string, s Sample) {
	for name, value := range s {
		key := [3]string{test, variant, name}
		c.values[key] = append(c.values[key], value)
	}
}

// Rows condenses everything recorded so far.
func (c *Collector) Rows() []Row {
	var rows []Row
	for _, test := range c.tests {
		for _, m := range metrics {
			for _, variant := range c.variants {
				values := c.values[[3]string{test, variant, m.Name}]
				if len(values) == 0 {
					continue
				}
				median, low, high := summary(values)
				rows = append(rows, Row{
					Test: test, Variant: variant, Metric: m.Name, Unit: m.Unit,
					Median: median, Min: low, Max: high, N: len(values), Values: values,
				})
			}
		}
	}
	return rows
}
