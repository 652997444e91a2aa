package demo

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"
)

//go:embed page.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"left":     func(t *table, column int) bool { return column < t.Left },
	"mark":     mark,
	"code":     code,
	"combined": func(values []string) string { return strings.Join(values, " · ") },
}).Parse(pageText))

// page is what report.html shows.
type page struct {
	Machine  string
	Date     string
	OK       bool
	Checks   []Check
	Passed   int
	Failed   []Check
	Facts    []fact
	Sections []*section
}

// page gathers the story for the report.
func (d *demo) page(report *Report, began time.Time) *page {
	failed := report.Failed()
	return &page{
		Machine: machine(), Date: began.UTC().Format("2 January 2006, 15:04 UTC"),
		OK: report.OK(), Checks: report.Checks, Passed: len(report.Checks) - len(failed),
		Failed: failed,
		Facts:  d.facts, Sections: d.sections,
	}
}

// write renders the page. It needs nothing outside itself.
func (p *page) write(w io.Writer) error {
	if err := pageTemplate.Execute(w, p); err != nil {
		return fmt.Errorf("write report as HTML: %w", err)
	}
	return nil
}

// mark is the class of a table's cell that says how something went.
func mark(cell string) string {
	switch {
	case strings.HasPrefix(cell, "ok "):
		return "good"
	case strings.HasPrefix(cell, "FAILED"):
		return "bad"
	}
	return ""
}

// code sets what a paragraph has between backquotes apart.
func code(text string) template.HTML {
	var out strings.Builder
	for i, part := range strings.Split(text, "`") {
		if i%2 == 1 {
			out.WriteString("<code>" + template.HTMLEscapeString(part) + "</code>")
			continue
		}
		out.WriteString(template.HTMLEscapeString(part))
	}
	return template.HTML(out.String())
}
