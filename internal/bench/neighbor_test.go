package bench

import (
	"testing"
	"time"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/lab/traffic"
)

// TestAlikeRunInTurns: tests that want harnesses of one size run test after test within each
// repeat, others one by one.
func TestAlikeRunInTurns(t *testing.T) {
	for group, want := range map[string]int{"neighbor": 3, "scale": 1} {
		tests, err := routeSuite().choose([]string{group})
		if err != nil {
			t.Fatal(err)
		}
		if got := alike(tests); got != want {
			t.Errorf("%s: the first %d of %d tests run in turns, want %d", group, got, len(tests),
				want)
		}
	}
}

func TestNeighborCompare(t *testing.T) {
	begin := time.Now()
	before := neighborLook{
		at: begin, flood: traffic.FloodReport{Sent: 1000, CPU: time.Second},
		victim:   datapath.Budget{Flows: 1000, FlowsEvicted: 3},
		neighbor: datapath.Budget{Flows: 500, FlowsEvicted: 70},
	}
	after := neighborLook{
		at: begin.Add(2 * time.Second), flood: traffic.FloodReport{Sent: 5000,
			CPU: 2 * time.Second},
		victim: addBudgets([]datapath.Budget{{Flows: 900, FlowsEvicted: 5},
			{Flows: 10, FlowsRefused: 4}}),
		neighbor: datapath.Budget{Flows: 600, FlowsEvicted: 1970},
	}
	s := report.Sample{}
	before.compare(after, neighborFlood, s)
	for name, want := range map[string]float64{"flows_lost": 6, "flood_pps": 2000,
		"flood_flows_s": 1000, "flood_ns_per_packet": 250_000} {
		if s[name] != want {
			t.Errorf("%s is %v, want %v", name, s[name], want)
		}
	}
	for name := range s {
		if report.FindMetric(name).Unit == "" {
			t.Errorf("%s has no unit", name)
		}
	}
	idle := report.Sample{}
	if before.compare(after, neighborIdle, idle); len(idle) != 1 {
		t.Errorf("without a flood: %v", idle)
	}
}
