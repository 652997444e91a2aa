package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// WriteJSON writes the report in the format that all of Weft's benchmarks share.
func (r *Report) WriteJSON(w io.Writer) error {
	rounded := Report{Machine: r.Machine, Rows: slices.Clone(r.Rows)}
	if rounded.Rows == nil {
		rounded.Rows = []Row{}
	}
	for i := range rounded.Rows {
		row := &rounded.Rows[i]
		for _, v := range []*float64{&row.Median, &row.Min, &row.Max} {
			*v = significant(*v, 6)
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(rounded); err != nil {
		return fmt.Errorf("write report as JSON: %w", err)
	}
	return nil
}

// WriteMarkdown writes one table per test: a line per variant, and beside each
// median its spread and its ratios to the reference variants.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Machine.Line())
	b.WriteString("Each cell: median (min–max). × is the ratio of medians, turned so that more than 1 is better.\n")
	for _, test := range r.tests() {
		r.markdownTest(&b, test)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report as Markdown: %w", err)
	}
	return nil
}

// Line describes the machine in one sentence.
func (m Machine) Line() string {
	congestion := ""
	if m.Congestion != "" {
		congestion = ", TCP " + m.Congestion
	}
	return fmt.Sprintf("%s, %d cores, Linux %s%s, %s, weft %s, %s; %d repeats of %g s each, load %.2f before.",
		m.CPU, m.Cores, m.Kernel, congestion, m.Go, m.Weft, m.Date, m.Repeats, m.Seconds, m.Load)
}

// markdownTest writes one test's table.
func (r *Report) markdownTest(b *strings.Builder, test string) {
	columns := r.metricsOf(test)
	fmt.Fprintf(b, "\n### %s\n\n| variant |", test)
	rule := "|---|"
	for _, m := range columns {
		fmt.Fprintf(b, " %s [%s] |", m.Name, m.Unit)
		rule += "---:|"
		for _, ref := range r.refsFor(test, m) {
			fmt.Fprintf(b, " × %s |", ref.Name)
			rule += "---:|"
		}
	}
	fmt.Fprintf(b, "\n%s\n", rule)
	for _, variant := range r.variantsOf(test) {
		fmt.Fprintf(b, "| %s |", variant)
		for _, m := range columns {
			row, ok := r.Row(test, variant, m.Name)
			fmt.Fprintf(b, " %s |", cell(row, ok))
			for _, ref := range r.refsFor(test, m) {
				fmt.Fprintf(b, " %s |", r.ratioCell(row, ok, ref, m))
			}
		}
		b.WriteString("\n")
	}
}

// refsFor lists the references that a metric's column is compared with.
func (r *Report) refsFor(test string, m Metric) []Reference {
	if m.Better == 0 || m.Name == "loss" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.view().References), func(ref Reference) bool {
		return !slices.ContainsFunc(r.variantsOf(test), func(variant string) bool {
			_, ok := r.Row(test, ref.Of(variant), m.Name)
			return ok
		})
	})
}

// cell renders a row's median and spread.
func cell(row Row, ok bool) string {
	if !ok {
		return "–"
	}
	if row.Min == row.Max {
		return formatValue(row.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", formatValue(row.Median), formatValue(row.Min),
		formatValue(row.Max))
}

// ratioCell renders how much better than the reference a row is.
func (r *Report) ratioCell(row Row, ok bool, ref Reference, m Metric) string {
	ratio, known := r.Ratio(row.Test, row.Variant, ref.Of(row.Variant), m.Name)
	if !ok || !known || row.Variant == Generator {
		return "–"
	}
	return fmt.Sprintf("%.2f", ratio)
}

// Ratio says how many times better than ref a variant's median is: above 1 is
// better for every metric, also where less is better. It is not known when a row is
// missing or a median is not positive.
func (r *Report) Ratio(test, variant, ref, metricName string) (ratio float64, ok bool) {
	a, okA := r.Row(test, variant, metricName)
	b, okB := r.Row(test, ref, metricName)
	if !okA || !okB || a.Median <= 0 || b.Median <= 0 {
		return 0, false
	}
	if FindMetric(metricName).Better < 0 {
		return b.Median / a.Median, true
	}
	return a.Median / b.Median, true
}

// tests, variantsOf and metricsOf list what the report holds, in its own order.
func (r *Report) tests() []string {
	return uniq(r.Rows, func(row Row) (string, bool) { return row.Test, true })
}

func (r *Report) variantsOf(test string) []string {
	found := uniq(r.Rows, func(row Row) (string, bool) { return row.Variant, row.Test == test })
	order := append([]string{Generator}, r.view().Order...)
	slices.SortStableFunc(found,
		func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
	return found
}

func (r *Report) metricsOf(test string) []Metric {
	var out []Metric
	for _, name := range uniq(r.Rows,
		func(row Row) (string, bool) { return row.Metric, row.Test == test }) {
		m := FindMetric(name)
		if m.Unit == "" {
			i := slices.IndexFunc(r.Rows, func(row Row) bool { return row.Metric == name })
			m.Unit = r.Rows[i].Unit
		}
		out = append(out, m)
	}
	return out
}

// uniq lists the distinct keys of the rows that have one, in order of appearance.
func uniq(rows []Row, key func(Row) (string, bool)) []string {
	var out []string
	for _, row := range rows {
		if k, ok := key(row); ok && !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// formatValue renders a number for people: three to four significant digits,
// thousands as k and millions as M.
func formatValue(v float64) string {
	a := math.Abs(v)
	switch {
	case a >= 1e6:
		return strconv.FormatFloat(v/1e6, 'f', 2, 64) + " M"
	case a >= 1e4:
		return strconv.FormatFloat(v/1e3, 'f', 1, 64) + " k"
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case a == 0:
		return "0"
	default:
		return strconv.FormatFloat(significant(v, 3), 'f', -1, 64)
	}
}

// significant rounds to n significant digits.
func significant(v float64, n int) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return v
	}
	scale := math.Pow(10, float64(n)-math.Ceil(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}
