package flowtable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
)

// Idle times after which a flow is over; the C side's TIMEOUT_* in bpf/lib/consts.h.
var flowTimeouts = map[uint8]time.Duration{
	bpf.StateSynSent: 60 * time.Second, bpf.StateSynReceived: 60 * time.Second,
	bpf.StateEstablished: 7440 * time.Second,
	bpf.StateClosing:     7440 * time.Second, bpf.StateClosed: 30 * time.Second,
	bpf.StateNew:     60 * time.Second,
	bpf.StateReplied: 300 * time.Second,
}

// Table is what the programs note of traffic: flows and who pays for their places in the table,
// counters and events. Its methods are safe for concurrent use.
type Table struct {
	maps       *bpf.Maps
	log        *slog.Logger
	collection *ebpf.Collection // bpf/flows.bpf.c
	soon       chan struct{}
	ended      chan Event // flows that timed out, for Events
}

// Open loads the programs that keep the table.
func Open(m *bpf.Maps, log *slog.Logger) (*Table, error) {
	spec, err := bpf.LoadSpec("flows_xdp")
	if err != nil {
		return nil, err
	}
	collection, err := ebpf.NewCollectionWithOptions(spec,
		ebpf.CollectionOptions{MapReplacements: m.SharedWith(spec)})
	if err != nil {
		return nil, fmt.Errorf("load the flow table's programs: %w", bpf.NotAllowed(err))
	}
	return &Table{m, log, collection, make(chan struct{}, 1), make(chan Event, 1024)}, nil
}

// Close lets go of the programs. The maps are the caller's.
func (t *Table) Close() { t.collection.Close() }

// Flows reads at most limit rows of the flow table, in no order.
func (t *Table) Flows(limit int) ([]Flow, error) {
	rows := []Flow{}
	now := MonotonicNow()
	err := t.Each(func(f Row) bool {
		rows = append(rows, f.decode(now))
		return len(rows) < limit
	})
	return rows, err
}

// Row is a row of the flow table with its key, as either family's map has it.
type Row struct {
	Key      any // *bpf.Key4 or *bpf.Key6
	Map      *ebpf.Map
	Src, Dst netip.AddrPort // the source is the one that sent first
	Proto    uint8
	Flow     bpf.Flow
	Network  uint32
}

// Each visits the flow table until visit returns false. A table that changes as fast as it is
// read ends the walk early; the next one goes on.
func (t *Table) Each(visit func(Row) bool) error {
	var f bpf.Flow
	var k4 bpf.Key4
	entries := t.maps.Flows4.Iterate()
	for entries.Next(&k4, &f) {
		a := netip.AddrPortFrom(bpf.FromBE32(k4.A), bpf.Ntohs(k4.Pa))
		b := netip.AddrPortFrom(bpf.FromBE32(k4.B), bpf.Ntohs(k4.Pb))
		key := k4
		if !visit(orient(Row{&key, t.maps.Flows4, a, b, k4.Proto, f, networkOf(k4.Network)})) {
			return nil
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	var k6 bpf.Key6
	entries = t.maps.Flows6.Iterate()
	for entries.Next(&k6, &f) {
		a := netip.AddrPortFrom(bpf.FromAddr(k6.A), bpf.Ntohs(k6.Pa))
		b := netip.AddrPortFrom(bpf.FromAddr(k6.B), bpf.Ntohs(k6.Pb))
		key := k6
		if !visit(orient(Row{&key, t.maps.Flows6, a, b, k6.Proto, f, networkOf(k6.Network)})) {
			return nil
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	return nil
}

func networkOf(b [3]uint8) uint32 { return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 }

// orient puts the end that sent first into src.
func orient(f Row) Row {
	if f.Flow.Flags&bpf.FlowFirstIs1 != 0 {
		f.Src, f.Dst = f.Dst, f.Src
	}
	return f
}

// totals returns what each side sent, the first sender's first.
func (f Row) totals() (forward, reply Traffic) {
	first := 0
	if f.Flow.Flags&bpf.FlowFirstIs1 != 0 {
		first = 1
	}
	half := f.Flow.Half
	return Traffic{half[first].Packets, half[first].Bytes}, Traffic{half[1-first].Packets,
		half[1-first].Bytes}
}

func (f Row) decode(now uint64) Flow {
	out := Flow{
		Network: f.Network, Src: f.Src, Dst: f.Dst, Protocol: f.Proto,
		State: bpf.FlowStateNames.Of(f.Flow.State),
		Age:   since(now, f.Flow.FirstNs), Idle: since(now, f.Flow.LastNs),
		ViaStack: f.Flow.Flags&bpf.FlowViaStack != 0,
	}
	out.Forward, out.Reply = f.totals()
	return out
}

// ended is the flow's last event, when it timed out.
func (f Row) ended() Event {
	out := Event{
		Time: time.Now(), Type: EventEnd, Verdict: bpf.VerdictNames[bpf.VerdictLocal],
		Hook: bpf.HookNames.Of(f.Flow.Hook),
		Slot: f.Flow.Slot, Direction: bpf.DirectionNames.Of(f.Flow.Direction), Network: f.Network,
		Src: f.Src, Dst: f.Dst, Protocol: f.Proto,
	}
	if f.Flow.Flags&bpf.FlowViaStack != 0 {
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

// Collect removes flows that have timed out and reports their end, and those whose endpoint is
// gone. The programs ignore such entries by themselves; this gives their places in the table back.
func (t *Table) Collect(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.soon:
			t.sweepAll()
		case <-tick.C:
			if err := t.dropIdle(); err != nil {
				t.log.Warn("collect idle flows", "err", err)
			}
			t.sweepAll()
		}
	}
}

func (t *Table) dropIdle() error {
	now := MonotonicNow()
	var idle []Row
	err := t.Each(func(f Row) bool {
		if since(now, f.Flow.LastNs) > flowTimeouts[f.Flow.State] {
			idle = append(idle, f)
		}
		return true
	})
	for _, f := range idle {
		err = errors.Join(err, bpf.DeleteKey(f.Map, f.Key))
		if f.Flow.Flags&bpf.FlowEnded == 0 {
			select {
			case t.ended <- f.ended():
			default: // nobody follows events, or not fast enough: the same rule as in the kernel
			}
		}
	}
	return err
}
