package report

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/perf/benchfmt"
)

// TestBenchfmt has benchstat's own reader read what is written for it.
func TestBenchfmt(t *testing.T) {
	c := NewCollector([]string{"pps64", "rr1"}, []string{"iptables", "xdp"})
	c.Add("pps64", "xdp", Sample{"pps": 3e6, "loss": 0})
	c.Add("pps64", "xdp", Sample{"pps": 5.5e6, "loss": 0.25})
	c.Add("rr1", "iptables", Sample{"p50_us": 0.125})
	r := &Report{Machine: Machine{CPU: "Example CPU", Kernel: "6.18.0", Weft: "v0.1.0"},
		Rows: c.Rows()}
	r.Rows = append(r.Rows, Row{Test: "rr1", Variant: "from-a-file", Metric: "p50_us", Median: 7})
	var text bytes.Buffer
	if err := r.WriteBenchfmt(&text); err != nil {
		t.Fatal(err)
	}
	type line struct {
		Name   string
		Values map[string]float64
	}
	var got []line
	in := benchfmt.NewReader(&text, "report")
	for in.Scan() {
		switch record := in.Result().(type) {
		case *benchfmt.Result:
			l := line{string(record.Name.Full()), map[string]float64{}}
			for _, v := range record.Values {
				l.Values[v.Unit] = v.Value
			}
			got = append(got, l)
			if cpu := record.GetConfig("cpu"); cpu != "Example CPU" || len(record.Config) != 2 {
				t.Errorf("measured on %q, keys %v", cpu, record.Config)
			}
		case *benchfmt.SyntaxError:
			t.Error(record)
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	want := []line{
		{"Weft/test=pps64/variant=xdp", map[string]float64{"pps": 3e6, "loss": 0}},
		{"Weft/test=pps64/variant=xdp", map[string]float64{"pps": 5.5e6, "loss": 0.25}},
		{"Weft/test=rr1/variant=iptables", map[string]float64{"p50_us": 0.125}},
		{"Weft/test=rr1/variant=from-a-file", map[string]float64{"p50_us": 7}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for unit, better := range map[string]string{"pps": "higher", "p50_us": "lower"} {
		found := in.Units().Get(unit, "better")
		if found == nil || found.Value != better {
			t.Errorf("%s: %v is better, want %s", unit, found, better)
		}
	}
}
