package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"weft.dev/weft/internal/plot"
)

// Room around a panel's plot for title, axis and labels.
const (
	plotTop    = 50.0
	plotBottom = 26.0
	plotLeft   = 46.0
)

// drawPanel draws one chart into a box.
func (r *Report) drawPanel(c *plot.Canvas, p Panel, in plot.Box) {
	better := FindMetric(p.Bars[0].Metric).Better
	hint := map[int]string{+1: ", more is better", -1: ", less is better"}[better]
	c.Text(in.X, in.Y+16, "panel", "start", p.Title)
	c.Text(in.X, in.Y+33, "note", "start", p.Unit+hint+r.generatorNote(p))
	bars := slices.DeleteFunc(slices.Clone(p.Bars),
		func(b Bar) bool { return len(r.barVariants(b)) == 0 })
	room := plot.Box{X: in.X + plotLeft, Y: in.Y + plotTop, W: in.W - plotLeft,
		H: in.H - plotTop - plotBottom}
	most := 0.0
	for _, b := range bars {
		for _, v := range r.barVariants(b) {
			row, _ := r.Row(b.Test, v, b.Metric)
			most = math.Max(most, row.Max/p.Scale)
		}
	}
	a := plot.NewAxis(most, room)
	a.Grid(c)
	if p.Curve {
		r.drawCurves(c, p, bars, a)
	} else {
		r.drawBars(c, p, bars, a)
	}
}

// generatorNote tells a packet-rate panel's reader how fast the generator alone is.
func (r *Report) generatorNote(p Panel) string {
	b := p.Bars[0]
	row, ok := r.Row(b.Test, Generator, b.Metric)
	if !ok {
		return ""
	}
	return fmt.Sprintf("; generator alone %s", shortValue(row.Median/p.Scale))
}

// drawBars draws a group of bars per label.
func (r *Report) drawBars(c *plot.Canvas, p Panel, bars []Bar, a plot.Axis) {
	slot := a.Plot.W / float64(len(bars))
	for i, b := range bars {
		variants := r.barVariants(b)
		// Few bars stay slim: a panel with one group is not a wall of colour.
		width := math.Min(slot*0.86/float64(len(variants)), 44)
		x := a.Plot.X + slot*(float64(i)+0.5) - width*float64(len(variants))/2
		for _, v := range variants {
			row, _ := r.Row(b.Test, v, b.Metric)
			r.drawBar(c, a, row, p, plot.Box{X: x, W: width}, b.Label)
			x += width
		}
		c.Text(a.Plot.X+slot*(float64(i)+0.5), a.Plot.Y+a.Plot.H+17, "group", "middle", b.Label)
	}
}

// drawBar draws one median with its whisker and value.
func (r *Report) drawBar(c *plot.Canvas, a plot.Axis, row Row, p Panel, at plot.Box, label string) {
	median, low, high := row.Median/p.Scale, row.Min/p.Scale, row.Max/p.Scale
	y, base := a.Y(median), a.Plot.Y+a.Plot.H
	tip := fmt.Sprintf("%s, %s: %s (%s to %s, n=%d) %s", label, row.Variant, shortValue(median),
		shortValue(low), shortValue(high), row.N, p.Unit)
	c.Rect(plot.Box{X: at.X + 1, Y: y, W: at.W - 2, H: math.Max(base-y, 0.5)},
		r.view().Colours[row.Variant], tip)
	mid := at.X + at.W/2
	if high > low {
		c.Line(mid, a.Y(low), mid, a.Y(high), "#222", 1.1)
		for _, v := range []float64{low, high} {
			c.Line(mid-3, a.Y(v), mid+3, a.Y(v), "#222", 1.1)
		}
	}
	c.Text(mid, a.Y(math.Max(high, median))-4, "value", "middle", shortValue(median))
}

// drawCurves draws a line per variant over the labels, with whiskers at its points.
func (r *Report) drawCurves(c *plot.Canvas, p Panel, bars []Bar, a plot.Axis) {
	slot := a.Plot.W / float64(len(bars))
	for i, b := range bars {
		c.Text(a.Plot.X+slot*(float64(i)+0.5), a.Plot.Y+a.Plot.H+17, "group", "middle", b.Label)
	}
	var labelled []float64
	for _, v := range r.view().Order {
		var points []plot.Point
		for i, b := range bars {
			row, ok := r.Row(b.Test, v, b.Metric)
			if !ok {
				continue
			}
			x, y := a.Plot.X+slot*(float64(i)+0.5), a.Y(row.Median/p.Scale)
			points = append(points, plot.Point{X: x, Y: y})
			c.Line(x, a.Y(row.Min/p.Scale), x, a.Y(row.Max/p.Scale), r.view().Colours[v], 1.4)
			c.Dot(x, y, r.view().Colours[v],
				fmt.Sprintf("%s, %s: %s %s", b.Label, v, shortValue(row.Median/p.Scale), p.Unit))
			if i == len(bars)-1 && apart(labelled, y) {
				c.Text(x+8, y+3, "value", "start", shortValue(row.Median/p.Scale))
				labelled = append(labelled, y)
			}
		}
		c.Curve(points, r.view().Colours[v])
	}
}

// apart says whether a label at y would stay clear of the others.
func apart(others []float64, y float64) bool {
	return !slices.ContainsFunc(others, func(o float64) bool { return math.Abs(o-y) < 9 })
}

// shortValue renders a number in at most four characters where it can.
func shortValue(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}
