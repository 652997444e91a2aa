// Package plot draws charts as SVG that needs nothing outside itself.
package plot

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// Canvas collects SVG elements.
type Canvas struct{ strings.Builder }

// style is a page's own style sheet.
const style = `text{font-family:"DejaVu Sans","Helvetica Neue",Arial,sans-serif;fill:#222}` +
	`.title{font-size:24px;font-weight:bold}.panel{font-size:15px;font-weight:bold}` +
	`.note{font-size:11.5px;fill:#555}.legend{font-size:12.5px}.axis{font-size:11px;fill:#555}` +
	`.group{font-size:11.5px}.value{font-size:9.5px;fill:#333}`

// Open begins a page.
func (c *Canvas) Open(width, height float64, title string) {
	fmt.Fprintf(c,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img">`+"\n",
		width, height, width, height)
	fmt.Fprintf(c, "<title>%s</title>\n<style>%s</style>\n", html.EscapeString(title), style)
	fmt.Fprintf(c, `<rect width="100%%" height="100%%" fill="#ffffff"/>`+"\n")
}

// Close ends it.
func (c *Canvas) Close() { c.WriteString("</svg>\n") }

// Text writes one line; class is one of the style sheet's, anchor start, middle or end.
func (c *Canvas) Text(x, y float64, class, anchor, s string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y,
		class, anchor, html.EscapeString(s))
}

// Rect draws a filled rectangle; tip is shown when the pointer rests on it.
func (c *Canvas) Rect(b Box, fill, tip string) {
	fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s">`, b.X, b.Y, b.W,
		b.H, fill)
	if tip != "" {
		fmt.Fprintf(c, "<title>%s</title>", html.EscapeString(tip))
	}
	c.WriteString("</rect>\n")
}

// Line draws a straight line.
func (c *Canvas) Line(x1, y1, x2, y2 float64, stroke string, width float64) {
	fmt.Fprintf(c,
		`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%g"/>`+"\n", x1,
		y1, x2, y2, stroke, width)
}

// Dot draws a point of a curve.
func (c *Canvas) Dot(x, y float64, fill, tip string) {
	fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="3.2" fill="%s"><title>%s</title></circle>`+"\n",
		x, y, fill, html.EscapeString(tip))
}

// Point is a place on the page.
type Point struct{ X, Y float64 }

// Curve joins points.
func (c *Canvas) Curve(points []Point, stroke string) {
	var at []string
	for _, p := range points {
		at = append(at, fmt.Sprintf("%.1f,%.1f", p.X, p.Y))
	}
	fmt.Fprintf(c, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n",
		strings.Join(at, " "), stroke)
}

// Legend explains colours in one row and returns where the next one may begin.
func (c *Canvas) Legend(x, y float64, colour, text string) float64 {
	c.Rect(Box{x, y, 14, 14}, colour, "")
	c.Text(x+20, y+11.5, "legend", "start", text)
	return x + 20 + 7.2*float64(len([]rune(text))) + 22
}

// Box is a rectangle on the page.
type Box struct{ X, Y, W, H float64 }

// Axis maps values to heights of a plot.
type Axis struct {
	Plot Box
	top  float64 // largest value shown
	step float64 // between grid lines
}

// NewAxis chooses round grid lines that hold a value.
func NewAxis(most float64, plot Box) Axis {
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
	return Axis{plot, step * math.Ceil(most*1.001/step), step}
}

// Y is a value's height.
func (a Axis) Y(v float64) float64 {
	return a.Plot.Y + a.Plot.H*(1-math.Min(math.Max(v, 0), a.top)/a.top)
}

// Grid draws the lines with their values, and the plot's floor.
func (a Axis) Grid(c *Canvas) {
	right := a.Plot.X + a.Plot.W
	for i := 0; float64(i)*a.step <= a.top*1.0001; i++ {
		v, colour := float64(i)*a.step, "#e4e4e4"
		if i == 0 {
			colour = "#333"
		}
		c.Line(a.Plot.X, a.Y(v), right, a.Y(v), colour, 1)
		c.Text(a.Plot.X-6, a.Y(v)+4, "axis", "end", strconv.FormatFloat(v, 'f', -1, 32))
	}
}
