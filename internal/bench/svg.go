package bench

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
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

// routeColours tell the variants apart: grey without Weft, and Okabe and Ito's palette,
// which the colour-blind can read too.
var routeColours = map[string]string{
	VariantPlain: "#c4c4c4", VariantIPTables: "#7a7a7a", VariantStack: "#e69f00", VariantTC: "#56b4e9",
	VariantXDPGeneric: "#cc79a7", VariantXDP: "#0072b2", VariantAuto: "#009e73",
	VariantXDPRoad: "#d55e00", VariantBare: "#a6cbe3",
}

// bar is one place of a panel: a test's metric under a label.
type bar struct{ label, test, metric string }

// panel is one chart: for each bar label, one bar per variant.
type panel struct {
	title string
	unit  string
	scale float64 // values are divided by it to be in unit
	wide  bool    // takes the page's whole width
	curve bool    // lines over the labels instead of bars
	bars  []bar
}

// routePanels lists every chart of Route; those without a row are left out.
func routePanels() []panel {
	pps := []bar{{"64 B", "pps64", "pps"}, {"64 B, 1024 flows", "pps64-flows1k", "pps"}, {"1400 B", "pps1400", "pps"}}
	net := slices.Clone(pps)
	for i := range net {
		net[i].metric = "net_ns_per_packet"
	}
	tcp := []bar{
		{"1 stream", "tcp1-remote", "gbit_s"}, {"4 streams", "tcp4-remote", "gbit_s"},
		{"1, MTU on the wire", "tcp1-remote-wiremtu", "gbit_s"}, {"4, MTU on the wire", "tcp4-remote-wiremtu", "gbit_s"},
		{"1, same node", "tcp1-local", "gbit_s"}, {"4, same node", "tcp4-local", "gbit_s"},
	}
	cpu := slices.Clone(tcp)
	for i := range cpu {
		cpu[i].metric = "cpu_s_per_gb"
	}
	var scale []bar
	for _, n := range []string{"1", "10", "100", "1000"} {
		scale = append(scale, bar{n, "scale-" + n, "ns_per_packet"})
	}
	return []panel{
		{title: "Packets forwarded by one core", unit: "million packets/s", scale: 1e6, bars: pps},
		{title: "Cost of a packet, generator subtracted", unit: "ns/packet", scale: 1, bars: net},
		{title: "Bulk TCP", unit: "Gbit/s", scale: 1, wide: true, bars: tcp},
		{title: "CPU of bulk TCP, both ends", unit: "CPU s/GB", scale: 1, wide: true, bars: cpu},
		{title: "Request/response, 1 connection", unit: "µs", scale: 1, wide: true, bars: []bar{
			{"p50", "rr1", "p50_us"}, {"p99", "rr1", "p99_us"}, {"p50, same node", "rr1-local", "p50_us"}, {"p99, same node", "rr1-local", "p99_us"},
		}},
		{title: "Request/response, 16 connections", unit: "µs", scale: 1, bars: []bar{{"p50", "rr16", "p50_us"}, {"p99", "rr16", "p99_us"}}},
		{title: "Transactions", unit: "thousand/s", scale: 1e3, bars: []bar{
			{"1 connection", "rr1", "transactions_s"}, {"16 connections", "rr16", "transactions_s"}, {"1, same node", "rr1-local", "transactions_s"},
		}},
		{title: "New connections (connect, 1 byte each way, close)", unit: "thousand/s", scale: 1e3, bars: []bar{{"16 at a time", "crr16", "connections_s"}}},
		{title: "UDP through sockets, 64 B frames", unit: "thousand packets/s", scale: 1, bars: []bar{{"received", "udp64", "kpps"}}},
		{title: "Cost of a packet by number of endpoints on the node", unit: "ns/packet, generator included", scale: 1, curve: true, bars: scale},
		{title: "CNI plugin", unit: "ms", scale: 1, bars: []bar{{"ADD", "cni-add", "add_ms"}, {"DEL", "cni-add", "del_ms"}}},
		{title: "Agent's memory, 100 endpoints", unit: "MiB resident", scale: 1, bars: []bar{{"RSS", "agent", "rss_mib"}}},
	}
}

// WriteSVG draws the report: a panel per group of metrics, medians as bars and the
// spread from minimum to maximum as whiskers. The file needs nothing outside itself.
func (r *Report) WriteSVG(w io.Writer) error {
	shown := slices.DeleteFunc(r.look().panels(), func(p panel) bool { return !r.hasPanel(p) })
	height := headerHeight + footerHeight
	var body canvas
	for i := 0; i < len(shown); {
		y := height - footerHeight
		row := shown[i : i+1]
		if !shown[i].wide && i+1 < len(shown) && !shown[i+1].wide {
			row = shown[i : i+2]
		}
		r.drawRow(&body, row, y)
		height += panelHeight + panelGap
		i += len(row)
	}
	var c canvas
	c.open(height, r.look().title)
	r.drawHeader(&c, shown)
	c.WriteString(body.String())
	c.text(pageMargin, height-footerHeight/2, "note", "start",
		"Bars: medians. Whiskers: minimum to maximum over the repeats. Variants ran one after the other within each repeat.")
	c.WriteString("</svg>\n")
	if _, err := io.WriteString(w, c.String()); err != nil {
		return fmt.Errorf("write report as SVG: %w", err)
	}
	return nil
}

// drawRow draws one wide panel or up to two side by side.
func (r *Report) drawRow(c *canvas, row []panel, y float64) {
	full := pageWidth - 2*pageMargin
	width := (full - panelGap) / 2
	if row[0].wide {
		width = full
	}
	for i, p := range row {
		r.drawPanel(c, p, box{pageMargin + float64(i)*(width+panelGap), y, width, panelHeight})
	}
}

// hasPanel says whether any bar of a panel has a row.
func (r *Report) hasPanel(p panel) bool {
	return slices.ContainsFunc(p.bars, func(b bar) bool { return len(r.barVariants(b)) > 0 })
}

// barVariants lists the variants that have a row for a bar, without the generator.
func (r *Report) barVariants(b bar) []string {
	return slices.DeleteFunc(slices.Clone(r.look().order), func(v string) bool {
		_, ok := r.Row(b.test, v, b.metric)
		return !ok
	})
}

// drawHeader draws title, machine and legend.
func (r *Report) drawHeader(c *canvas, shown []panel) {
	c.text(pageMargin, 40, "title", "start", r.look().title)
	c.text(pageMargin, 62, "note", "start", r.Machine.line())
	var used []string
	for _, p := range shown {
		for _, b := range p.bars {
			used = append(used, r.barVariants(b)...)
		}
	}
	look := r.look()
	x := pageMargin
	for _, v := range look.order {
		if !slices.Contains(used, v) {
			continue
		}
		c.rect(x, 80, 14, 14, look.colours[v], "")
		c.text(x+20, 91.5, "legend", "start", look.legends[v])
		x += 20 + 7.2*float64(len([]rune(look.legends[v]))) + 22
	}
}

// routeLegends says what a variant is.
var routeLegends = map[string]string{
	VariantPlain: "plain kernel", VariantIPTables: "iptables", VariantStack: "Weft stack", VariantTC: "Weft tc",
	VariantXDPGeneric: "Weft xdp-generic", VariantXDP: "Weft xdp", VariantAuto: "Weft auto",
	VariantXDPRoad: "Weft XDP road", VariantBare: "bare XDP forwarder",
}

// canvas collects SVG elements.
type canvas struct{ strings.Builder }

// style is the page's own style sheet.
const style = `text{font-family:"DejaVu Sans","Helvetica Neue",Arial,sans-serif;fill:#222}` +
	`.title{font-size:24px;font-weight:bold}.panel{font-size:15px;font-weight:bold}` +
	`.note{font-size:11.5px;fill:#555}.legend{font-size:12.5px}.axis{font-size:11px;fill:#555}` +
	`.group{font-size:11.5px}.value{font-size:9.5px;fill:#333}`

func (c *canvas) open(height float64, title string) {
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img">`+"\n",
		pageWidth, height, pageWidth, height)
	fmt.Fprintf(c, "<title>%s</title>\n<style>%s</style>\n", html.EscapeString(title), style)
	fmt.Fprintf(c, `<rect width="100%%" height="100%%" fill="#ffffff"/>`+"\n")
}

func (c *canvas) text(x, y float64, class, anchor, s string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, html.EscapeString(s))
}

// rect draws a filled rectangle; tip is shown when the pointer rests on it.
func (c *canvas) rect(x, y, w, h float64, fill, tip string) {
	fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s">`, x, y, w, h, fill)
	if tip != "" {
		fmt.Fprintf(c, "<title>%s</title>", html.EscapeString(tip))
	}
	c.WriteString("</rect>\n")
}

func (c *canvas) line(x1, y1, x2, y2 float64, stroke string, width float64) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%g"/>`+"\n", x1, y1, x2, y2, stroke, width)
}
