package endpoint

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/endpoint/endpointtest"
)

// BenchmarkAdd is an ADD, with a datapath that costs nothing.
func BenchmarkAdd(b *testing.B) {
	harness := newHarness(b)
	harness.log = slog.New(slog.DiscardHandler)
	ns, _ := endpointtest.NewPod(b)
	var times []time.Duration
	for b.Loop() {
		start := time.Now()
		harness.add("c1", ns)
		times = append(times, time.Since(start))
		harness.del("c1")
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "ms/add-median")
}

// BenchmarkRestore is the start of an agent that has 100 endpoints.
func BenchmarkRestore(b *testing.B) {
	harness := newHarness(b)
	harness.opt.Log = slog.New(slog.DiscardHandler)
	harness.log = harness.opt.Log
	for _, c := range containers(100) {
		ns, _ := endpointtest.NewPod(b)
		harness.add(c, ns)
	}
	for b.Loop() {
		harness.restart()
	}
}
