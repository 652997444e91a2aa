package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// WriteBenchfmt writes the report as benchstat reads it: a line for each repeat of a test in a
// variant, so that it can tell a difference from noise.
func (r *Report) WriteBenchfmt(w io.Writer) error {
	var b strings.Builder
	// benchstat sets apart what differs in a key: time and build, which it is to compare, are none.
	fmt.Fprintf(&b, "# %s\ncpu: %s\nkernel: %s\n", r.Machine.Line(), r.Machine.CPU,
		r.Machine.Kernel)
	for _, metric := range metrics {
		if metric.Better != 0 {
			fmt.Fprintf(&b, "Unit %s better=%s\n", metric.Name,
				map[int]string{+1: "higher", -1: "lower"}[metric.Better])
		}
	}
	for _, test := range r.tests() {
		for _, variant := range r.variantsOf(test) {
			r.benchLines(&b, test, variant)
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report for benchstat: %w", err)
	}
	return nil
}

// benchLines writes the repeats of one test in one variant.
func (r *Report) benchLines(b *strings.Builder, test, variant string) {
	var lines []string
	for _, metric := range r.metricsOf(test) {
		row, ok := r.Row(test, variant, metric.Name)
		if !ok {
			continue
		}
		values := row.Values
		if values == nil {
			values = []float64{row.Median}
		}
		for i, v := range values {
			if i == len(lines) {
				lines = append(lines,
					fmt.Sprintf("BenchmarkWeft/test=%s/variant=%s 1", test, variant))
			}
			lines[i] += " " + strconv.FormatFloat(significant(v, 6), 'f', -1, 64) + " " +
				metric.Name
		}
	}
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
}
