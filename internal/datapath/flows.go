package datapath

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
)

// Idle times after which a flow is over; the C side's TIMEOUT_* in bpf/lib/consts.h.
var flowTimeouts = map[uint8]time.Duration{
	bpf.StateSynSent: 60 * time.Second, bpf.StateSynReceived: 60 * time.Second, bpf.StateEstablished: 7440 * time.Second,
	bpf.StateClosing: 7440 * time.Second, bpf.StateClosed: 30 * time.Second, bpf.StateNew: 60 * time.Second,
	bpf.StateReplied: 300 * time.Second,
}

// Flows reads at most limit rows of the flow table, in no order.
func (d *Datapath) Flows(limit int) ([]Flow, error) {
	rows := []Flow{}
	now := monotonicNow()
	err := d.eachFlow(func(f tableFlow) bool {
		rows = append(rows, f.decode(now))
		return len(rows) < limit
	})
	return rows, err
}

// tableFlow is a row of the flow table with its key, as either family's map has it.
type tableFlow struct {
	key      any // *bpf.Key4 or *bpf.Key6
	table    *ebpf.Map
	src, dst netip.AddrPort // the source is the one that sent first
	proto    uint8
	flow     bpf.Flow
}

// eachFlow visits the flow table until visit returns false. A table that changes as fast as it is
// read ends the walk early; the next one goes on.
func (d *Datapath) eachFlow(visit func(tableFlow) bool) error {
	var f bpf.Flow
	var k4 bpf.Key4
	entries := d.maps.Flows4.Iterate()
	for entries.Next(&k4, &f) {
		a := netip.AddrPortFrom(bpf.FromBE32(k4.A), bpf.Ntohs(k4.Pa))
		b := netip.AddrPortFrom(bpf.FromBE32(k4.B), bpf.Ntohs(k4.Pb))
		key := k4
		if !visit(orient(tableFlow{&key, d.maps.Flows4, a, b, k4.Proto, f})) {
			return nil
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	var k6 bpf.Key6
	entries = d.maps.Flows6.Iterate()
	for entries.Next(&k6, &f) {
		a := netip.AddrPortFrom(bpf.FromAddr(k6.A), bpf.Ntohs(k6.Pa))
		b := netip.AddrPortFrom(bpf.FromAddr(k6.B), bpf.Ntohs(k6.Pb))
		key := k6
		if !visit(orient(tableFlow{&key, d.maps.Flows6, a, b, k6.Proto, f})) {
			return nil
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	return nil
}

// orient puts the end that sent first into src.
func orient(f tableFlow) tableFlow {
	if f.flow.Flags&bpf.FlowFirstIs1 != 0 {
		f.src, f.dst = f.dst, f.src
	}
	return f
}

// totals returns what each side sent, the first sender's first.
func (f tableFlow) totals() (forward, reply Traffic) {
	first := 0
	if f.flow.Flags&bpf.FlowFirstIs1 != 0 {
		first = 1
	}
	half := f.flow.Half
	return Traffic{half[first].Packets, half[first].Bytes}, Traffic{half[1-first].Packets, half[1-first].Bytes}
}

func (f tableFlow) decode(now uint64) Flow {
	out := Flow{
		Src: f.src, Dst: f.dst, Protocol: f.proto, State: bpf.FlowStateNames.Of(f.flow.State),
		Age: since(now, f.flow.FirstNs), Idle: since(now, f.flow.LastNs), ViaStack: f.flow.Flags&bpf.FlowViaStack != 0,
	}
	out.Forward, out.Reply = f.totals()
	return out
}

// ended is the flow's last event, when it timed out.
func (f tableFlow) ended() FlowEvent {
	out := FlowEvent{
		Time: time.Now(), Type: EventEnd, Verdict: bpf.VerdictNames[bpf.VerdictLocal], Hook: bpf.HookNames.Of(f.flow.Hook),
		Slot: f.flow.Slot, Direction: bpf.DirectionNames.Of(f.flow.Direction), Src: f.src, Dst: f.dst, Protocol: f.proto,
	}
	if f.flow.Flags&bpf.FlowViaStack != 0 {
		out.Verdict = bpf.VerdictNames[bpf.VerdictStack]
	}
	out.Forward, out.Reply = f.totals()
	return out
}

func since(now, then uint64) time.Duration {
	if then > now {
		return 0
	}
	return time.Duration(now - then)
}

// collectFlows removes flows that have timed out and reports their end, and those whose endpoint is gone. The programs
// ignore such entries by themselves; this gives their places in the table back.
func (d *Datapath) collectFlows(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.table.soon:
			d.sweepFlows()
		case <-tick.C:
			if err := d.dropIdleFlows(); err != nil {
				d.log.Warn("collect idle flows", "err", err)
			}
			d.sweepFlows()
		}
	}
}

func (d *Datapath) dropIdleFlows() error {
	now := monotonicNow()
	var idle []tableFlow
	err := d.eachFlow(func(f tableFlow) bool {
		if since(now, f.flow.LastNs) > flowTimeouts[f.flow.State] {
			idle = append(idle, f)
		}
		return true
	})
	for _, f := range idle {
		err = errors.Join(err, bpf.DeleteKey(f.table, f.key))
		if f.flow.Flags&bpf.FlowEnded == 0 {
			select {
			case d.ended <- f.ended():
			default: // nobody follows events, or not fast enough: the same rule as in the kernel
			}
		}
	}
	return err
}
