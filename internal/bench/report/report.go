// Package report is what a benchmark has measured: medians with their spread, and how they are
// shown.
package report

// Generator names the rows of a packet-rate test's generator alone; it is no variant to choose.
const Generator = "gen"

// Machine names where and with what a report was measured.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Date   string `json:"date"` // RFC 3339, UTC, start of the run
	Go     string `json:"go"`
	Weft   string `json:"weft"`
	// Congestion is the machine's default congestion control of TCP.
	Congestion string `json:"congestion,omitempty"`
	// Load is the one-minute load average before the run; on a shared machine
	// it says how much to trust absolute figures.
	Load float64 `json:"load"`
	// Repeats and Seconds are how each row was made.
	Repeats int     `json:"repeats"`
	Seconds float64 `json:"seconds"`
}

// Row is one metric of one test in one variant over all repeats.
type Row struct {
	Test    string  `json:"test"`
	Variant string  `json:"variant"`
	Metric  string  `json:"metric"`
	Unit    string  `json:"unit"`
	Median  float64 `json:"median"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
	N       int     `json:"n"`

	// Values are what each repeat measured; a report that was read from a file has none.
	Values []float64 `json:"-"`
}

// Report is a finished benchmark run.
type Report struct {
	Machine Machine `json:"machine"`
	Rows    []Row   `json:"rows"`

	// View is how it is shown; a report that was read from a file has none.
	View *View `json:"-"`
}

// Row returns the row of a test, variant and metric.
func (r *Report) Row(test, variant, metric string) (Row, bool) {
	for _, row := range r.Rows {
		if row.Test == test && row.Variant == variant && row.Metric == metric {
			return row, true
		}
	}
	return Row{}, false
}

// view is how the report is shown, if only as plain tables.
func (r *Report) view() *View {
	if r.View == nil {
		return &View{}
	}
	return r.View
}
