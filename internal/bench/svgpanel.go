package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// box is a rectangle on the page.
type box struct{ x, y, w, h float64 }

// Room around a panel's plot for title, axis and labels.
const (
	plotTop    = 50.0
	plotBottom = 26.0
	plotLeft   = 46.0
)

// axis maps values to heights of a plot.
type axis struct {
	top  float64 // largest value shown
	step float64 // between grid lines
	plot box
}

func (a axis) y(v float64) float64 {
	return a.plot.y + a.plot.h*(1-math.Min(math.Max(v, 0), a.top)/a.top)
}

// niceAxis chooses round grid lines that hold a value.
func niceAxis(most float64, plot box) axis {
	if most <= 0 {
		most = 1
	}
	raw := most / 4
	scale := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * scale
	for _, s := range []float64{1, 2, 2.5, 5} {
		if s*scale >= raw {
			step = s * scale
			break
		}
	}
	return axis{top: step * math.Ceil(most*1.001/step), step: step, plot: plot}
}

// drawPanel draws one chart into a box.
func (r *Report) drawPanel(c *canvas, p panel, in box) {
	better := findMetric(p.bars[0].metric).better
	hint := map[int]string{+1: ", more is better", -1: ", less is better"}[better]
	c.text(in.x, in.y+16, "panel", "start", p.title)
	c.text(in.x, in.y+33, "note", "start", p.unit+hint+r.generatorNote(p))
	bars := slices.DeleteFunc(slices.Clone(p.bars), func(b bar) bool { return len(r.barVariants(b)) == 0 })
	plot := box{in.x + plotLeft, in.y + plotTop, in.w - plotLeft, in.h - plotTop - plotBottom}
	most := 0.0
	for _, b := range bars {
		for _, v := range r.barVariants(b) {
			row, _ := r.Row(b.test, v, b.metric)
			most = math.Max(most, row.Max/p.scale)
		}
	}
	a := niceAxis(most, plot)
	drawGrid(c, a)
	if p.curve {
		r.drawCurves(c, p, bars, a)
	} else {
		r.drawBars(c, p, bars, a)
	}
	c.line(plot.x, plot.y+plot.h, plot.x+plot.w, plot.y+plot.h, "#333", 1)
}

// generatorNote tells a packet-rate panel's reader how fast the generator alone is.
func (r *Report) generatorNote(p panel) string {
	b := p.bars[0]
	row, ok := r.Row(b.test, variantGen, b.metric)
	if !ok {
		return ""
	}
	return fmt.Sprintf("; generator alone %s", shortValue(row.Median/p.scale))
}

func drawGrid(c *canvas, a axis) {
	for v := 0.0; v <= a.top*1.0001; v += a.step {
		y := a.y(v)
		c.line(a.plot.x, y, a.plot.x+a.plot.w, y, "#e4e4e4", 1)
		c.text(a.plot.x-6, y+4, "axis", "end", strconv.FormatFloat(significant(v, 6), 'f', -1, 64))
	}
}

// drawBars draws a group of bars per label.
func (r *Report) drawBars(c *canvas, p panel, bars []bar, a axis) {
	slot := a.plot.w / float64(len(bars))
	for i, b := range bars {
		variants := r.barVariants(b)
		// Few bars stay slim: a panel with one group is not a wall of colour.
		width := math.Min(slot*0.86/float64(len(variants)), 44)
		x := a.plot.x + slot*(float64(i)+0.5) - width*float64(len(variants))/2
		for _, v := range variants {
			row, _ := r.Row(b.test, v, b.metric)
			r.drawBar(c, a, row, p, box{x: x, w: width}, b.label)
			x += width
		}
		c.text(a.plot.x+slot*(float64(i)+0.5), a.plot.y+a.plot.h+17, "group", "middle", b.label)
	}
}

// drawBar draws one median with its whisker and value.
func (r *Report) drawBar(c *canvas, a axis, row Row, p panel, at box, label string) {
	median, low, high := row.Median/p.scale, row.Min/p.scale, row.Max/p.scale
	y, base := a.y(median), a.plot.y+a.plot.h
	tip := fmt.Sprintf("%s, %s: %s (%s to %s, n=%d) %s", label, row.Variant, shortValue(median), shortValue(low), shortValue(high), row.N, p.unit)
	c.rect(at.x+1, y, at.w-2, math.Max(base-y, 0.5), r.look().colours[row.Variant], tip)
	mid := at.x + at.w/2
	if high > low {
		c.line(mid, a.y(low), mid, a.y(high), "#222", 1.1)
		for _, v := range []float64{low, high} {
			c.line(mid-3, a.y(v), mid+3, a.y(v), "#222", 1.1)
		}
	}
	c.text(mid, a.y(math.Max(high, median))-4, "value", "middle", shortValue(median))
}

// drawCurves draws a line per variant over the labels, with whiskers at its points.
func (r *Report) drawCurves(c *canvas, p panel, bars []bar, a axis) {
	slot := a.plot.w / float64(len(bars))
	for i, b := range bars {
		c.text(a.plot.x+slot*(float64(i)+0.5), a.plot.y+a.plot.h+17, "group", "middle", b.label)
	}
	var labelled []float64
	for _, v := range r.look().order {
		var points []string
		for i, b := range bars {
			row, ok := r.Row(b.test, v, b.metric)
			if !ok {
				continue
			}
			x, y := a.plot.x+slot*(float64(i)+0.5), a.y(row.Median/p.scale)
			points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
			c.line(x, a.y(row.Min/p.scale), x, a.y(row.Max/p.scale), r.look().colours[v], 1.4)
			fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="3.2" fill="%s"><title>%s, %s: %s %s</title></circle>`+"\n",
				x, y, r.look().colours[v], b.label, v, shortValue(row.Median/p.scale), p.unit)
			if i == len(bars)-1 && apart(labelled, y) {
				c.text(x+8, y+3, "value", "start", shortValue(row.Median/p.scale))
				labelled = append(labelled, y)
			}
		}
		fmt.Fprintf(c, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), r.look().colours[v])
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
