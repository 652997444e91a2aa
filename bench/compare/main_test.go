package main

import (
	"testing"

	"weft.dev/weft/internal/bench/report"
)

func made(variant string, value float64) *report.Report {
	return &report.Report{Rows: []report.Row{{Test: "rr1", Variant: variant, Metric: "rate",
		Median: value}, {Test: "rr1", Variant: "gone", Metric: "rate", Median: 1}}}
}

func TestCompare(t *testing.T) {
	c := compare(
		[]*report.Report{made("xdp", 100), made("xdp", 200), made("xdp", 50)},
		[]*report.Report{made("auto-xdp", 110), made("auto-xdp", 210), made("auto-xdp", 25)},
		map[string]string{"xdp": "auto-xdp", "gone": "away"})
	if len(c.Rows) != 1 {
		t.Fatalf("%d rows, want the one that both have", len(c.Rows))
	}
	want := Row{Test: "rr1", Variant: "auto-xdp", Metric: "rate", Before: Side{100, 50, 200, 3},
		After: Side{110, 25, 210, 3}, Ratio: 1.05, Low: 0.775, High: 1.075}
	got := c.Rows[0]
	for _, p := range [][2]*float64{{&got.Ratio, &want.Ratio}, {&got.Low, &want.Low},
		{&got.High, &want.High}} {
		if *p[0] < *p[1]-1e-9 || *p[0] > *p[1]+1e-9 {
			t.Errorf("%g, want %g", *p[0], *p[1])
		}
		*p[0] = *p[1]
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
