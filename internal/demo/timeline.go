package demo

import (
	"context"
	"fmt"
	"html/template"
	"time"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/plot"
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
					s.lines[i].points = append(s.lines[i].points,
						point{now.Sub(began).Seconds(),
							float64(received-last[i]) / now.Sub(at).Seconds()})
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
	room := plot.Box{X: plotLeft, Y: plotTop, W: plotWidth - plotLeft - plotRight,
		H: plotHeight - plotTop - plotBottom}
	x := func(at float64) float64 { return room.X + at/end*room.W }
	const title = "Packets received per second"
	var c plot.Canvas
	c.Open(plotWidth, plotHeight, title)
	c.Rect(plot.Box{X: x(o.gone), Y: room.Y, W: x(o.ready) - x(o.gone), H: room.H}, "#f6e3d5", "")
	c.Text((x(o.gone)+x(o.ready))/2, plotTop+15, "note", "middle",
		fmt.Sprintf("no agent ready, %.1f s", o.ready-o.gone))
	axis := plot.NewAxis(most, room)
	axis.Grid(&c)
	for second := 0.0; second <= end; second++ {
		c.Text(x(second), plotHeight-plotBottom+17, "axis", "middle", fmt.Sprintf("%.0f s", second))
	}
	c.Text(plotLeft, 18, "panel", "start", title)
	next := plotWidth / 2
	for i, l := range lines {
		var points []plot.Point
		for _, p := range l.points {
			points = append(points, plot.Point{X: x(p.at), Y: axis.Y(p.rate)})
		}
		c.Curve(points, lineColours[i%len(lineColours)])
		next = c.Legend(next, 7, lineColours[i%len(lineColours)], l.name)
	}
	c.Close()
	return template.HTML(c.String())
}
