package demo

import (
	"context"
	"fmt"
	"html"
	"html/template"
	"strings"
	"time"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
)

// sampleEvery is the width of the plot's steps.
const sampleEvery = 100 * time.Millisecond

// line is one stream's packets received per second over time.
type line struct {
	name   string
	points []point
}

type point struct{ at, rate float64 }

// sampler looks at running streams.
type sampler struct {
	done, ended chan struct{}
	lines       []line
}

// sample begins to look at the UDP streams' receivers.
func sample(streams []*stream, began time.Time) *sampler {
	s := &sampler{done: make(chan struct{}), ended: make(chan struct{})}
	for _, st := range streams {
		s.lines = append(s.lines, line{name: "UDP IP" + st.family})
	}
	go func() {
		defer close(s.ended)
		ticker := time.NewTicker(sampleEvery)
		defer ticker.Stop()
		last := make([]uint64, len(streams))
		at := began
		for {
			select {
			case <-s.done:
				return
			case now := <-ticker.C:
				for i, st := range streams {
					received := st.udp.Report().Received
					s.lines[i].points = append(s.lines[i].points, point{now.Sub(began).Seconds(), float64(received-last[i]) / now.Sub(at).Seconds()})
					last[i] = received
				}
				at = now
			}
		}
	}()
	return s
}

// stop ends the looking and returns what was seen.
func (s *sampler) stop() []line {
	close(s.done)
	<-s.ended
	return s.lines
}

// hooks counts the programs that a node's agent has attached.
func hooks(ctx context.Context, n *lab.Node) (int, error) {
	status, err := admin.NewClient(n.Socket).Status(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask the agent of node %s: %w", n.Name, err)
	}
	return len(status.Links), nil
}

// The plot's measures in SVG units, and its lines' colours.
const (
	plotWidth, plotHeight = 1000.0, 210.0
	plotLeft, plotRight   = 52.0, 12.0
	plotTop, plotBottom   = 30.0, 34.0
)

var lineColours = []string{"#0072b2", "#d55e00"}

// timeline draws packets per second over time, the time without an agent shaded.
func timeline(lines []line, o outage) template.HTML {
	end, most := 0.0, 1.0
	for _, l := range lines {
		for _, p := range l.points {
			end, most = max(end, p.at), max(most, p.rate)
		}
	}
	if end == 0 {
		return ""
	}
	top := 500.0
	for top < most {
		top += 500
	}
	x := func(at float64) float64 { return plotLeft + at/end*(plotWidth-plotLeft-plotRight) }
	y := func(rate float64) float64 { return plotHeight - plotBottom - rate/top*(plotHeight-plotTop-plotBottom) }
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img" font-family="inherit" font-size="12"><title>Packets received per second</title>`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&svg, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#f6e3d5"/>`+"\n", x(o.gone), plotTop, x(o.ready)-x(o.gone), plotHeight-plotTop-plotBottom)
	label(&svg, (x(o.gone)+x(o.ready))/2, plotTop+15, "middle", "#8a4b1f", fmt.Sprintf("no agent ready, %.1f s", o.ready-o.gone))
	for rate := 0.0; rate <= top; rate += 500 {
		fmt.Fprintf(&svg, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", plotLeft, y(rate), plotWidth-plotRight, y(rate))
		label(&svg, plotLeft-8, y(rate)+4, "end", "#555", fmt.Sprintf("%.0f", rate))
	}
	for second := 0.0; second <= end; second++ {
		label(&svg, x(second), plotHeight-plotBottom+17, "middle", "#555", fmt.Sprintf("%.0f s", second))
	}
	label(&svg, plotLeft, 18, "start", "#222", "Packets received per second")
	for i, l := range lines {
		colour := lineColours[i%len(lineColours)]
		var points []string
		for _, p := range l.points {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(p.at), y(p.rate)))
		}
		fmt.Fprintf(&svg, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.8"/>`+"\n", strings.Join(points, " "), colour)
		label(&svg, plotWidth-plotRight-float64(len(lines)-1-i)*90, 18, "end", colour, l.name)
	}
	svg.WriteString("</svg>")
	return template.HTML(svg.String())
}

func label(svg *strings.Builder, x, y float64, anchor, colour, text string) {
	fmt.Fprintf(svg, `<text x="%.1f" y="%.1f" text-anchor="%s" style="fill:%s">%s</text>`+"\n", x, y, anchor, colour, html.EscapeString(text))
}
