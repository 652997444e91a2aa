package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weft.dev/weft/internal/bench/load"
	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab/traffic"
)

// neighbor is what the near node's second pod does while the first one is measured.
type neighbor int

const (
	neighborIdle    neighbor = iota
	neighborPackets          // frames as fast as it can, all of one flow: what the load alone costs
	neighborFlood            // the same, and each frame a flow of its own
)

const (
	// victimFlows is how many flows, UDP both ways, the measured pod holds open beside
	// request/response.
	victimFlows = 1000
	// victimPort is the first source port of those, echoPort where the far pod answers them.
	victimPort, echoPort = 10000, 20010
	// floodFull is how many flows must have given way to others before the clock starts: the table
	// is full then.
	floodFull = 10000
	// floodNice lets the flood have a CPU though request/response takes all it can get, or it would
	// be none.
	floodNice = -20
	// floodPatience is how long that may take.
	floodPatience = time.Minute
)

// runNeighbor is request/response over 16 connections of a pod that holds victimFlows flows, beside
// a neighbour.
func runNeighbor(what neighbor) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (s report.Sample, err error) {
		from, to := remote(b)
		echo, err := traffic.StartEcho(to.NS, echoPort)
		if err != nil {
			return nil, err
		}
		defer echo.Close()
		held, err := traffic.OpenFlows(ctx, traffic.FlowsOptions{
			From: from.NS, Src: from.IP, Dst: netip.AddrPortFrom(to.IP, echoPort), UDP: victimFlows,
			FirstPort: victimPort,
		})
		if err != nil {
			return nil, err
		}
		defer held.Close()
		if err := exchange(ctx, held); err != nil {
			return nil, fmt.Errorf("before the flood: %w", err)
		}
		flood, err := b.startNeighbor(ctx, what)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, flood.stop()) }()
		before, err := b.look(ctx, flood)
		if err != nil {
			return nil, err
		}
		if s, err = load.RR(ctx, from.peer(), to.peer(), 16, dur); err != nil {
			return nil, err
		}
		after, err := b.look(ctx, flood)
		if err != nil {
			return nil, err
		}
		if err := exchange(ctx, held); err != nil {
			return nil, fmt.Errorf("during the flood: %w", err)
		}
		before.compare(after, what, s)
		return s, nil
	}
}

// exchange has each flow carry a datagram and its answer.
func exchange(ctx context.Context, held *traffic.Flows) error {
	ctx, cancel := context.WithTimeout(ctx, floodPatience)
	defer cancel()
	return held.Exchange(ctx)
}

// noise is what the neighbour sends; nil if nothing.
type noise struct{ *traffic.Flood }

func (n noise) stop() error {
	if n.Flood == nil {
		return nil
	}
	_, err := n.Stop()
	return err
}

// startNeighbor has the near node's second pod send, to an address of the far node's range that
// nobody has. It returns once a flood of flows has filled the table.
func (b *harness) startNeighbor(ctx context.Context, what neighbor) (noise, error) {
	if what == neighborIdle {
		return noise{}, nil
	}
	p := b.near[1]
	flood, err := traffic.StartFlood(traffic.FloodOptions{
		NetNS: p.NS, IfName: p.If, SrcMAC: p.MAC, DstMAC: p.GatewayMAC, Src: p.IP,
		Dst:     hostOf(plainPods[1], 4000),
		OneFlow: what == neighborPackets, Nice: floodNice,
	})
	if err != nil {
		return noise{}, err
	}
	n := noise{flood}
	if what == neighborPackets {
		return n, nil
	}
	if err := b.full(ctx, n); err != nil {
		return noise{}, errors.Join(err, n.stop())
	}
	return n, nil
}

// full waits until the flood has filled the flow table.
func (b *harness) full(ctx context.Context, n noise) error {
	first, err := b.look(ctx, n)
	if err != nil {
		return err
	}
	for start := time.Now(); time.Since(start) < floodPatience; time.Sleep(settleEvery) {
		now, err := b.look(ctx, n)
		if err != nil {
			return err
		}
		if now.neighbor.FlowsEvicted > first.neighbor.FlowsEvicted+floodFull {
			return nil
		}
	}
	return fmt.Errorf("the flood has not filled the flow table for %s: %s", floodPatience,
		n.Report())
}

// neighborLook is one reading of the near node's budgets and of the flood.
type neighborLook struct {
	at               time.Time
	flood            traffic.FloodReport
	victim, neighbor datapath.Budget // both directions together
}

func (b *harness) look(ctx context.Context, n noise) (neighborLook, error) {
	l := neighborLook{at: time.Now()}
	if n.Flood != nil {
		l.flood = n.Report()
	}
	endpoints, err := admin.NewClient(b.node.Socket).Endpoints(ctx)
	if err != nil {
		return l, fmt.Errorf("read the near node's budgets: %w", err)
	}
	for _, e := range endpoints {
		switch e.IPv4 {
		case b.near[0].IP:
			l.victim = addBudgets(e.Budgets)
		case b.near[1].IP:
			l.neighbor = addBudgets(e.Budgets)
		}
	}
	return l, nil
}

// addBudgets adds up what both directions hold, lost and were refused, as far as flows go.
func addBudgets(rows []datapath.Budget) (sum datapath.Budget) {
	for _, row := range rows {
		sum.Flows += row.Flows
		sum.FlowsEvicted += row.FlowsEvicted
		sum.FlowsRefused += row.FlowsRefused
	}
	return sum
}

// taken is how many flows an endpoint has entered into the table, but for those that are over.
func taken(b datapath.Budget) float64 { return float64(b.Flows) + float64(b.FlowsEvicted) }

// lost is how many of its flows were evicted or not remembered.
func lost(b datapath.Budget) float64 { return float64(b.FlowsEvicted + b.FlowsRefused) }

// compare adds what has happened between two readings.
func (l neighborLook) compare(now neighborLook, what neighbor, s report.Sample) {
	seconds := now.at.Sub(l.at).Seconds()
	s["flows_lost"] = lost(now.victim) - lost(l.victim)
	if what == neighborIdle {
		return
	}
	sent := float64(now.flood.Sent - l.flood.Sent)
	s["flood_pps"] = sent / seconds
	s["flood_ns_per_packet"] = float64((now.flood.CPU - l.flood.CPU).Nanoseconds()) / max(sent, 1)
	s["flood_flows_s"] = (taken(now.neighbor) - taken(l.neighbor)) / seconds
}
