package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"weft.dev/weft/internal/bench/report"
)

func row(test, variant, metric, unit string, median, low, high float64, n int) report.Row {
	return report.Row{
		Test: test, Variant: variant, Metric: metric, Unit: unit, Median: median, Min: low,
		Max: high, N: n,
	}
}

// fullReport is a report with a plausible row for every bar of every panel.
func fullReport() *report.Report {
	r := &report.Report{View: routeView, Machine: report.Machine{
		CPU: "Example CPU", Cores: 2, Kernel: "6.18.0", Date: "2026-01-02T03:04:05Z", Go: "go1.26",
		Weft: "v0.1.0", Load: 0.12, Repeats: 5, Seconds: 3,
	}}
	base := map[string]float64{
		"pps": 4e5, "net_ns_per_packet": 2200, "ns_per_packet": 2500, "gbit_s": 9,
		"cpu_s_per_gb": 1.2, "p50_us": 25,
		"p99_us": 60, "transactions_s": 42000, "connections_s": 9000, "kpps": 120, "add_ms": 22,
		"del_ms": 12, "rss_mib": 24,
	}
	seen := map[[2]string]bool{}
	for _, p := range routeView.Panels {
		for _, b := range p.Bars {
			if seen[[2]string{b.Test, b.Metric}] {
				continue
			}
			seen[[2]string{b.Test, b.Metric}] = true
			m := report.FindMetric(b.Metric)
			for i, v := range Variants() {
				gain := 1 + 0.7*float64(i)
				if m.Better < 0 {
					gain = 1 / gain
				}
				median := base[b.Metric] * gain
				r.Rows = append(r.Rows,
					row(b.Test, v, m.Name, m.Unit, median, median*0.93, median*1.08, 5))
			}
		}
	}
	r.Rows = append(r.Rows,
		row("pps64", report.Generator, "pps", "packets/s", 5.2e6, 5.1e6, 5.3e6, 5))
	return r
}

func TestWriteMarkdown(t *testing.T) {
	var out bytes.Buffer
	r := &report.Report{View: routeView, Rows: []report.Row{
		row("pps64", "gen", "pps", "packets/s", 5e6, 5e6, 5e6, 3),
		row("pps64", "xdp", "pps", "packets/s", 2e6, 1.9e6, 2.1e6, 3),
		row("pps64", "iptables", "pps", "packets/s", 4e5, 4e5, 4e5, 3),
		row("rr1", "xdp", "p50_us", "µs", 20, 19, 21, 3),
		row("rr1", "tc", "p50_us", "µs", 30, 29, 31, 3),
	}}
	if err := r.WriteMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| variant | pps [packets/s] | × iptables |",
		"| gen | 5.00 M | – |\n| iptables | 400.0 k | 1.00 |\n| xdp | 2.00 M (1.90 M–2.10 M) | 5.00 |",
		"| xdp | 20.0 (19.0–21.0) | 1.50 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
}

func TestWriteSVGIsWellFormed(t *testing.T) {
	cases := map[string]*report.Report{
		"full": fullReport(), "empty": {View: routeView}, "viewless": {},
		"one row": {View: routeView,
			Rows: []report.Row{row("pps64", "xdp", "pps", "packets/s", 2e6, 2e6, 2e6, 1)}},
		"zero": {View: routeView,
			Rows: []report.Row{row("udp64", "xdp", "kpps", "kpackets/s", 0, 0, 0, 1)}},
		"hostile": {View: routeView, Machine: report.Machine{CPU: `<script>"&`},
			Rows: []report.Row{row("rr1", "tc", "p50_us", "µs", 1, 1, 2, 1)}},
	}
	for name, r := range cases {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := r.WriteSVG(&out); err != nil {
				t.Fatal(err)
			}
			if file := os.Getenv("WEFT_BENCH_SVG"); file != "" && name == "full" {
				if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if strings.Contains(out.String(), "NaN") || strings.Contains(out.String(), "Inf") {
				t.Error("a coordinate is not a number")
			}
			for dec := xml.NewDecoder(&out); ; {
				if _, err := dec.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
