package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

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

func TestCollectorKeepsOrder(t *testing.T) {
	c := NewCollector([]string{"pps64", "rr1"}, []string{"gen", "iptables", "xdp"})
	c.Add("rr1", "xdp", Sample{"p50_us": 20})
	c.Add("pps64", "xdp", Sample{"pps": 3, "loss": 0})
	c.Add("pps64", "iptables", Sample{"pps": 1})
	c.Add("pps64", "xdp", Sample{"pps": 5, "loss": 0})
	want := []Row{
		{"pps64", "iptables", "pps", "packets/s", 1, 1, 1, 1, []float64{1}},
		{"pps64", "xdp", "pps", "packets/s", 4, 3, 5, 2, []float64{3, 5}},
		{"pps64", "xdp", "loss", "share", 0, 0, 0, 2, []float64{0, 0}},
		{"rr1", "xdp", "p50_us", "µs", 20, 20, 20, 1, []float64{20}},
	}
	if diff := cmp.Diff(want, c.Rows()); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

func TestFormatValue(t *testing.T) {
	cases := map[float64]string{
		0: "0", 0.0123456: "0.0123", 1.236: "1.24", 12.34: "12.3", 312.6: "313", 4321: "4321",
		43210: "43.2 k", 5.2e6: "5.20 M", -1.5: "-1.50",
	}
	for v, want := range cases {
		if got := formatValue(v); got != want {
			t.Errorf("formatValue(%g) = %q, want %q", v, got, want)
		}
	}
}

func TestRatioTurnsCosts(t *testing.T) {
	r := &Report{Rows: []Row{
		{Test: "rr1", Variant: "xdp", Metric: "p50_us", Median: 20},
		{Test: "rr1", Variant: "tc", Metric: "p50_us", Median: 30},
		{Test: "pps64", Variant: "xdp", Metric: "pps", Median: 4},
		{Test: "pps64", Variant: "tc", Metric: "pps", Median: 2},
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

func TestWriteJSONFormat(t *testing.T) {
	var out bytes.Buffer
	r := &Report{Machine: Machine{CPU: "x"},
		Rows: []Row{{"pps64", "xdp", "pps", "packets/s", 2000000.123456, 1, 3, 5, nil}}}
	if err := r.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Machine map[string]any
		Rows    []map[string]any
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{{
		"test": "pps64", "variant": "xdp", "metric": "pps", "unit": "packets/s",
		"median": 2e6, "min": 1.0, "max": 3.0, "n": 5.0,
	}}
	if diff := cmp.Diff(want, got.Rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	for _, key := range []string{"cpu", "cores", "kernel", "date", "go", "weft"} {
		if _, ok := got.Machine[key]; !ok {
			t.Errorf("machine lacks %q", key)
		}
	}
}

func TestWriteJSONWithoutRows(t *testing.T) {
	var out bytes.Buffer
	if err := (&Report{}).WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"rows": []`) {
		t.Errorf("rows of an empty report are not an empty list:\n%s", out.String())
	}
}
