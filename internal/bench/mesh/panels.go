package mesh

import (
	"fmt"

	"weft.dev/weft/internal/bench/report"
)

// Panels are the charts of what Measure returns, by its Loads' names as tests.
func Panels() []report.Panel {
	panel := func(rate int, title, metric, unit string, scale float64) report.Panel {
		p := report.Panel{Title: "As many as go: " + title, Unit: unit, Scale: scale}
		if rate > 0 {
			p.Title = fmt.Sprintf("%d requests/s: %s", rate, title)
		}
		for _, size := range bodies {
			p.Bars = append(p.Bars, report.Bar{
				Label: fmt.Sprintf("%d KiB", size), Test: Load{size, rate}.Name(), Metric: metric,
			})
		}
		return p
	}
	var panels []report.Panel
	for _, rate := range rates {
		panels = append(panels,
			panel(rate, "answers", "requests_s", "thousand/s", 1e3),
			panel(rate, "CPU time of a request", "cpu_us_per_request", "µs", 1),
			panel(rate, "median", "p50_us", "ms", 1e3),
			panel(rate, "99th percentile", "p99_us", "ms", 1e3))
	}
	return panels
}
