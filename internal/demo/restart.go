package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

const (
	// streamPPS is each UDP stream's rate, streamBytes each TCP stream's per second: steady,
	// and no more than two cores carry beside an agent that loads its programs.
	streamPPS   = 1000
	streamBytes = 5 << 20
	// quiet is how long the streams run before, without and after the agent, each.
	quiet = 1500 * time.Millisecond
	// leastShare of the packets due must have been sent for a count of none lost to mean anything.
	leastShare = 0.5
)

// stream is one TCP and one UDP stream of a family between two pods.
type stream struct {
	family string
	tcp    *traffic.TCPStream
	udp    *traffic.UDPStream
}

// outage is what happened to the agent, in seconds since the streams began: when it was
// told to go, when it was gone, when the next one was started and when that was ready.
type outage struct {
	told, gone, started, ready float64
	pids                       [2]int
	hooks                      [2]int
	pings                      traffic.PingReport
}

// killAgent kills the agent with SIGKILL under load and starts it again.
func (d *demo) killAgent(ctx context.Context) error {
	return d.underLoad(ctx, "kill9", "killed with -9", (*lab.Node).KillAgent)
}

// restartAgent ends the agent politely under load and starts it again.
func (d *demo) restartAgent(ctx context.Context) error {
	return d.underLoad(ctx, "restart", "stopped with SIGTERM", (*lab.Node).StopAgent)
}

// underLoad runs the streams, ends and starts the agent beneath them, and judges.
func (d *demo) underLoad(ctx context.Context, name, how string,
	end func(*lab.Node, context.Context) error) error {
	streams, err := d.startStreams(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	sampling := sample(streams, began)
	o, err := d.interrupt(ctx, began, end)
	seconds := time.Since(began).Seconds()
	tcp, udp := stopStreams(streams)
	lines := sampling.stop()
	if err != nil {
		return err
	}
	d.say("From %s on node a to %s on node b run, over IPv4 and IPv6, a UDP stream of %d packets/s and a TCP stream. After %.1f s the agent of node a (pid %d) is %s, and no agent runs for %.1f s; a new one (pid %d) takes over what is pinned. It is ready after %.1f s.",
		sender, receiver, streamPPS, o.told, o.pids[0], how, o.started-o.gone, o.pids[1],
		o.ready-o.started)
	d.showTable(streamTable(streams, tcp, udp))
	if name == "kill9" {
		d.add(block{SVG: timeline(lines, o)})
	}
	d.judge(name, streams, tcp, udp, seconds)
	d.check(name+"-agent", o.pids[0] != o.pids[1] && o.hooks[0] == o.hooks[1] && o.pings.OK(),
		"pid %d, then %d; %d hooks before, %d after; without an agent %d of %d pings were answered",
		o.pids[0], o.pids[1], o.hooks[0], o.hooks[1], o.pings.Received, o.pings.Sent)
	return nil
}

// startStreams starts both streams of both families.
func (d *demo) startStreams(ctx context.Context) (streams []*stream, err error) {
	defer func() {
		if err != nil {
			stopStreams(streams)
		}
	}()
	from, to := d.lab.Pod(sender), d.lab.Pod(receiver)
	for _, family := range []int{4, 6} {
		s := &stream{family: fmt.Sprintf("v%d", family)}
		streams = append(streams, s)
		src, dst := from.Addr(family), netip.AddrPortFrom(to.Addr(family), 0)
		if s.udp, err = traffic.StartUDP(ctx,
			traffic.UDPOptions{From: from.NetNS, To: to.NetNS, Src: src, Dst: dst,
				PPS: streamPPS}); err != nil {
			return streams, err
		}
		if s.tcp, err = traffic.StartTCP(ctx,
			traffic.TCPOptions{From: from.NetNS, To: to.NetNS, Src: src, Dst: dst,
				BytesPerSecond: streamBytes}); err != nil {
			return streams, err
		}
	}
	return streams, nil
}

// stopStreams stops what runs and returns what was seen, in the streams' order.
func stopStreams(streams []*stream) ([]traffic.TCPReport, []traffic.UDPReport) {
	tcp, udp := make([]traffic.TCPReport, len(streams)), make([]traffic.UDPReport, len(streams))
	for i, s := range streams {
		if s.udp != nil {
			udp[i] = s.udp.Stop()
		}
		if s.tcp != nil {
			tcp[i] = s.tcp.Stop()
		}
	}
	return tcp, udp
}

// interrupt ends the agent of node a, pings while none runs, and starts it again.
func (d *demo) interrupt(ctx context.Context, began time.Time,
	end func(*lab.Node, context.Context) error) (outage, error) {
	var o outage
	node, from, to := d.lab.Node(nodeA), d.lab.Pod(sender), d.lab.Pod(receiver)
	var err error
	if o.hooks[0], err = hooks(ctx, node); err != nil {
		return o, err
	}
	if err := pause(ctx, quiet); err != nil {
		return o, err
	}
	o.pids[0] = node.PID()
	o.told = time.Since(began).Seconds()
	if err := end(node, ctx); err != nil {
		return o, err
	}
	gone := time.Now()
	o.gone = gone.Sub(began).Seconds()
	if pid := node.PID(); pid != 0 {
		return o, fmt.Errorf("the agent still runs, pid %d", pid)
	}
	if o.pings, err = traffic.Ping(ctx, from.NetNS,
		traffic.PingOptions{Dst: to.IPv4, Count: 5}); err != nil {
		return o, err
	}
	if err := pause(ctx, quiet-time.Since(gone)); err != nil {
		return o, err
	}
	o.started = time.Since(began).Seconds()
	if err := node.StartAgent(ctx); err != nil {
		return o, err
	}
	o.ready, o.pids[1] = time.Since(began).Seconds(), node.PID()
	if err := pause(ctx, quiet); err != nil {
		return o, err
	}
	o.hooks[1], err = hooks(ctx, node)
	return o, err
}

// judge holds each stream to losing nothing.
func (d *demo) judge(name string, streams []*stream, tcp []traffic.TCPReport,
	udp []traffic.UDPReport, seconds float64) {
	sent, lost := uint64(0), uint64(0)
	for i, s := range streams {
		u, t := udp[i], tcp[i]
		enough := float64(u.Sent) >= leastShare*streamPPS*seconds
		detail := fmt.Sprintf("%d lost of %d packets, %d refused by the sender's kernel, %d corrupt, longest gap %s", u.Lost, u.Sent, u.SendErrors, u.Corrupt, ms(u.MaxGap))
		if !enough {
			detail += fmt.Sprintf("; too few to tell: %.0f were due", streamPPS*seconds)
		}
		d.check(name+"-udp-"+s.family, u.Lost == 0 && u.SendErrors == 0 && u.Corrupt == 0 && enough,
			"%s", detail)
		whole := t.Received == t.Sent && t.Sent > 0 && !t.Corrupt && t.Resets == 0
		detail = fmt.Sprintf("%.1f MB sent, %.1f MB received and compared, %d resets, longest stall %s", mb(t.Sent), mb(t.Received), t.Resets, ms(t.MaxStall))
		if t.Error != "" {
			detail += ": " + t.Error
		}
		d.check(name+"-tcp-"+s.family, whole, "%s", detail)
		sent, lost = sent+u.Sent, lost+u.Lost
	}
	if name == "kill9" {
		d.fact(fmt.Sprintf("%d of %d", lost, sent),
			"packets lost while the agent was killed and started again")
	}
}

// streamTable has a row per stream.
func streamTable(streams []*stream, tcp []traffic.TCPReport, udp []traffic.UDPReport) *table {
	t := &table{Header: []string{"STREAM", "SENT", "RECEIVED", "LOST", "LONGEST GAP"}, Left: 1}
	for i, s := range streams {
		u, c := udp[i], tcp[i]
		t.Rows = append(t.Rows,
			[]string{"UDP IP" + s.family, fmt.Sprintf("%d packets", u.Sent),
				fmt.Sprintf("%d packets", u.Received), fmt.Sprint(u.Lost), ms(u.MaxGap)},
			[]string{"TCP IP" + s.family, fmt.Sprintf("%.1f MB", mb(c.Sent)),
				fmt.Sprintf("%.1f MB", mb(c.Received)),
				fmt.Sprintf("%d bytes", c.Sent-min(c.Sent, c.Received)), ms(c.MaxStall)})
	}
	return t
}

func ms(t time.Duration) string {
	return fmt.Sprintf("%.0f ms",
		float64(t)/float64(time.Millisecond))
}

func mb(bytes uint64) float64 { return float64(bytes) / 1e6 }

// pause waits unless ctx ends.
func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return errors.Join(ctx.Err(), context.Cause(ctx))
	case <-time.After(length):
		return nil
	}
}
