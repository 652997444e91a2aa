package report

import (
	"fmt"
	"io"
	"slices"

	"weft.dev/weft/internal/plot"
)

// Page measures in SVG units.
const (
	pageWidth    = 1200.0
	pageMargin   = 32.0
	panelGap     = 28.0
	panelHeight  = 300.0
	headerHeight = 118.0
	footerHeight = 34.0
)

// WriteSVG draws the report: a panel per group of metrics, medians as bars and the
// spread from minimum to maximum as whiskers. The file needs nothing outside itself.
func (r *Report) WriteSVG(w io.Writer) error {
	shown := slices.DeleteFunc(slices.Clone(r.view().Panels),
		func(p Panel) bool { return !r.hasPanel(p) })
	height := headerHeight + footerHeight
	var body plot.Canvas
	for i := 0; i < len(shown); {
		y := height - footerHeight
		row := shown[i : i+1]
		if !shown[i].Wide && i+1 < len(shown) && !shown[i+1].Wide {
			row = shown[i : i+2]
		}
		r.drawRow(&body, row, y)
		height += panelHeight + panelGap
		i += len(row)
	}
	var c plot.Canvas
	c.Open(pageWidth, height, r.view().Title)
	r.drawHeader(&c, shown)
	c.WriteString(body.String())
	c.Text(pageMargin, height-footerHeight/2, "note", "start",
		"Bars: medians. Whiskers: minimum to maximum over the repeats. Variants ran one after the other within each repeat.")
	c.Close()
	if _, err := io.WriteString(w, c.String()); err != nil {
		return fmt.Errorf("write report as SVG: %w", err)
	}
	return nil
}

// drawRow draws one wide panel or up to two side by side.
func (r *Report) drawRow(c *plot.Canvas, row []Panel, y float64) {
	full := pageWidth - 2*pageMargin
	width := (full - panelGap) / 2
	if row[0].Wide {
		width = full
	}
	for i, p := range row {
		r.drawPanel(c, p,
			plot.Box{X: pageMargin + float64(i)*(width+panelGap), Y: y, W: width, H: panelHeight})
	}
}

// hasPanel says whether any bar of a panel has a row.
func (r *Report) hasPanel(p Panel) bool {
	return slices.ContainsFunc(p.Bars, func(b Bar) bool { return len(r.barVariants(b)) > 0 })
}

// barVariants lists the variants that have a row for a bar, without the generator.
func (r *Report) barVariants(b Bar) []string {
	return slices.DeleteFunc(slices.Clone(r.view().Order), func(v string) bool {
		_, ok := r.Row(b.Test, v, b.Metric)
		return !ok
	})
}

// drawHeader draws title, machine and legend.
func (r *Report) drawHeader(c *plot.Canvas, shown []Panel) {
	c.Text(pageMargin, 40, "title", "start", r.view().Title)
	c.Text(pageMargin, 62, "note", "start", r.Machine.Line())
	var used []string
	for _, p := range shown {
		for _, b := range p.Bars {
			used = append(used, r.barVariants(b)...)
		}
	}
	look := r.view()
	x := pageMargin
	for _, v := range look.Order {
		if !slices.Contains(used, v) {
			continue
		}
		x = c.Legend(x, 80, look.Colours[v], look.Legends[v])
	}
}
