package report

// View is how a report is shown.
type View struct {
	Title string
	// Order is the variants' in tables and panels.
	Order []string
	// References are what the ratios of a column are taken against.
	References       []Reference
	Colours, Legends map[string]string // by variant
	Panels           []Panel           // of the plot
}

// Reference is one variant that others are compared with, or one for each.
type Reference struct {
	Name string
	Of   func(variant string) string
}

// Always is a reference that is the same for all variants.
func Always(variant string) Reference {
	return Reference{variant, func(string) string { return variant }}
}

// Bar is one place of a panel: a test's metric under a label.
type Bar struct{ Label, Test, Metric string }

// Panel is one chart: for each bar's label, one bar per variant.
type Panel struct {
	Title string
	Unit  string
	Scale float64 // values are divided by it to be in Unit
	Wide  bool    // takes the page's whole width
	Curve bool    // lines over the labels instead of bars
	Bars  []Bar
}
