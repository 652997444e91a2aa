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
	bed := newBed(b)
	bed.log = slog.New(slog.DiscardHandler)
	ns, _ := endpointtest.NewPod(b)
	var times []time.Duration
	for b.Loop() {
		start := time.Now()
		bed.add("c1", ns)
		times = append(times, time.Since(start))
		bed.del("c1")
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "ms/add-median")
}

// BenchmarkRestore is the start of an agent that has 100 endpoints.
func BenchmarkRestore(b *testing.B) {
	bed := newBed(b)
	bed.opt.Log = slog.New(slog.DiscardHandler)
	bed.log = bed.opt.Log
	for _, c := range containers(100) {
		ns, _ := endpointtest.NewPod(b)
		bed.add(c, ns)
	}
	for b.Loop() {
		bed.restart()
	}
}
