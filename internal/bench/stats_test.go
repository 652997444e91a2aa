package bench

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSummary(t *testing.T) {
	cases := []struct {
		name              string
		values            []float64
		median, low, high float64
	}{
		{"none", nil, 0, 0, 0},
		{"one", []float64{4}, 4, 4, 4},
		{"odd", []float64{9, 1, 5}, 5, 1, 9},
		{"even", []float64{4, 1, 3, 2}, 2.5, 1, 4},
		{"negative", []float64{-3, -1, -2}, -2, -3, -1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			median, low, high := summary(c.values)
			if median != c.median || low != c.low || high != c.high {
				t.Errorf("got %g %g %g, want %g %g %g", median, low, high, c.median, c.low, c.high)
			}
		})
	}
}

func TestQuantile(t *testing.T) {
	hundred := make([]uint32, 100)
	for i := range hundred {
		hundred[i] = uint32(i + 1)
	}
	cases := []struct {
		name   string
		sorted []uint32
		q      float64
		want   uint32
	}{
		{"empty", nil, 0.5, 0},
		{"one", []uint32{7}, 0.99, 7},
		{"median of 100", hundred, 0.5, 50},
		{"p99 of 100", hundred, 0.99, 99},
		{"maximum", hundred, 1, 100},
		{"minimum", hundred, 0, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := quantile(c.sorted, c.q); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestCollectorKeepsOrder(t *testing.T) {
	c := newCollector([]string{"pps64", "rr1"}, []string{"gen", "iptables", "xdp"})
	c.add("rr1", "xdp", sample{"p50_us": 20})
	c.add("pps64", "xdp", sample{"pps": 3, "loss": 0})
	c.add("pps64", "iptables", sample{"pps": 1})
	c.add("pps64", "xdp", sample{"pps": 5, "loss": 0})
	want := []Row{
		{"pps64", "iptables", "pps", "packets/s", 1, 1, 1, 1},
		{"pps64", "xdp", "pps", "packets/s", 4, 3, 5, 2},
		{"pps64", "xdp", "loss", "share", 0, 0, 0, 2},
		{"rr1", "xdp", "p50_us", "µs", 20, 20, 20, 1},
	}
	if diff := cmp.Diff(want, c.rows()); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

func TestRecordSubtractsGenerator(t *testing.T) {
	p := &plan{rows: newCollector([]string{"pps64"}, []string{"gen", "xdp"})}
	p.record(test{name: "pps64"}, map[string]sample{
		"gen": {"ns_per_packet": 200}, "xdp": {"ns_per_packet": 450},
	})
	r := Report{Rows: p.rows.rows()}
	if row, ok := r.Row("pps64", "xdp", "net_ns_per_packet"); !ok || row.Median != 250 {
		t.Errorf("net cost is %v (there: %t), want 250", row.Median, ok)
	}
	if _, ok := r.Row("pps64", "gen", "net_ns_per_packet"); ok {
		t.Error("the generator has a net cost of its own")
	}
}

func TestSpanOf(t *testing.T) {
	at := func(ms int, counted uint64) look {
		return look{at: time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond), counted: counted, cpu: time.Duration(ms) * time.Millisecond}
	}
	cases := []struct {
		name  string
		looks []look
		want  genWindow
	}{
		{"nothing read", nil, genWindow{}},
		{"nothing moved", []look{at(0, 5), at(10, 5), at(20, 5)}, genWindow{}},
		{"shorter than its edges", []look{at(0, 0), at(10, 10), at(20, 20)}, genWindow{}},
		{
			"set-up, run, end",
			[]look{at(0, 0), at(10, 0), at(20, 100), at(40, 300), at(60, 500), at(80, 700), at(100, 900), at(120, 900)},
			genWindow{counted: 400, wall: 40 * time.Millisecond, cpu: 40 * time.Millisecond},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := spanOf(c.looks); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestFormatValue(t *testing.T) {
	cases := map[float64]string{
		0: "0", 0.0123456: "0.0123", 1.236: "1.24", 12.34: "12.3", 312.6: "313", 4321: "4321", 43210: "43.2 k", 5.2e6: "5.20 M", -1.5: "-1.50",
	}
	for v, want := range cases {
		if got := formatValue(v); got != want {
			t.Errorf("formatValue(%g) = %q, want %q", v, got, want)
		}
	}
}

func TestRatioTurnsCosts(t *testing.T) {
	r := &Report{Rows: []Row{
		{Test: "rr1", Variant: "xdp", Metric: "p50_us", Median: 20}, {Test: "rr1", Variant: "tc", Metric: "p50_us", Median: 30},
		{Test: "pps64", Variant: "xdp", Metric: "pps", Median: 4}, {Test: "pps64", Variant: "tc", Metric: "pps", Median: 2},
		{Test: "pps64", Variant: "auto", Metric: "pps", Median: 0},
	}}
	cases := []struct {
		test, variant, metric string
		want                  float64
		ok                    bool
	}{
		{"rr1", "xdp", "p50_us", 1.5, true},
		{"pps64", "xdp", "pps", 2, true},
		{"pps64", "auto", "pps", 0, false},
		{"pps64", "stack", "pps", 0, false},
	}
	for _, c := range cases {
		if got, ok := r.Ratio(c.test, c.variant, "tc", c.metric); got != c.want || ok != c.ok {
			t.Errorf("%s/%s: ratio %g (%t), want %g (%t)", c.test, c.variant, got, ok, c.want, c.ok)
		}
	}
}
