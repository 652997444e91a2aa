package datapath

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
)

// Idle times after which a flow is over; the C side's TIMEOUT_* in bpf/lib/consts.h.
var flowTimeouts = map[uint8]time.Duration{
	bpfStateSynSent: 60 * time.Second, bpfStateSynReceived: 60 * time.Second, bpfStateEstablished: 7440 * time.Second,
	bpfStateClosing: 7440 * time.Second, bpfStateClosed: 30 * time.Second, bpfStateNew: 60 * time.Second,
	bpfStateReplied: 300 * time.Second,
}

// Flows reads at most limit rows of the flow table, in no order.
func (d *Datapath) Flows(limit int) ([]Flow, error) {
	rows := []Flow{}
	now := monotonicNow()
	err := d.eachFlow(func(src, dst netip.AddrPort, proto uint8, f *bpfFlow) bool {
		rows = append(rows, decodeFlow(now, src, dst, proto, f))
		return len(rows) < limit
	})
	return rows, err
}

// eachFlow visits the flow table until visit returns false. The source is the one that sent first.
func (d *Datapath) eachFlow(visit func(src, dst netip.AddrPort, proto uint8, f *bpfFlow) bool) error {
	var f bpfFlow
	var k4 bpfKey4
	entries := d.maps.Flows4.Iterate()
	for entries.Next(&k4, &f) {
		a := netip.AddrPortFrom(fromBE32(k4.A), ntohs(k4.Pa))
		b := netip.AddrPortFrom(fromBE32(k4.B), ntohs(k4.Pb))
		if !visitFlow(a, b, k4.Proto, &f, visit) {
			return nil
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	var k6 bpfKey6
	entries = d.maps.Flows6.Iterate()
	for entries.Next(&k6, &f) {
		a := netip.AddrPortFrom(fromAddr(k6.A), ntohs(k6.Pa))
		b := netip.AddrPortFrom(fromAddr(k6.B), ntohs(k6.Pb))
		if !visitFlow(a, b, k6.Proto, &f, visit) {
			return nil
		}
	}
	// A table that changes as fast as it is read ends the walk early; the next one goes on.
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	return nil
}

func visitFlow(a, b netip.AddrPort, proto uint8, f *bpfFlow, visit func(src, dst netip.AddrPort, proto uint8, f *bpfFlow) bool) bool {
	if f.Flags&bpfFlowFirstIs1 != 0 {
		a, b = b, a
	}
	return visit(a, b, proto, f)
}

func decodeFlow(now uint64, src, dst netip.AddrPort, proto uint8, f *bpfFlow) Flow {
	first := 0
	if f.Flags&bpfFlowFirstIs1 != 0 {
		first = 1
	}
	return Flow{
		Src: src, Dst: dst, Protocol: proto, State: nameOf(stateNames, f.State),
		Age: since(now, f.FirstNs), Idle: since(now, f.LastNs), ViaStack: f.Flags&bpfFlowViaStack != 0,
		Forward: Traffic{f.Half[first].Packets, f.Half[first].Bytes},
		Reply:   Traffic{f.Half[1-first].Packets, f.Half[1-first].Bytes},
	}
}

func since(now, then uint64) time.Duration {
	if then > now {
		return 0
	}
	return time.Duration(now - then)
}

// collectFlows removes flows that have timed out. The programs ignore such entries by themselves;
// this only gives their memory back before the LRU has to.
func (d *Datapath) collectFlows(ctx context.Context) {
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := d.dropIdleFlows(); err != nil {
				d.log.Warn("collect idle flows", "err", err)
			}
		}
	}
}

func (d *Datapath) dropIdleFlows() error {
	now := monotonicNow()
	var old4 []bpfKey4
	var old6 []bpfKey6
	var f bpfFlow
	var k4 bpfKey4
	for entries := d.maps.Flows4.Iterate(); entries.Next(&k4, &f); {
		if since(now, f.LastNs) > flowTimeouts[f.State] {
			old4 = append(old4, k4)
		}
	}
	var k6 bpfKey6
	for entries := d.maps.Flows6.Iterate(); entries.Next(&k6, &f); {
		if since(now, f.LastNs) > flowTimeouts[f.State] {
			old6 = append(old6, k6)
		}
	}
	var err error
	for _, k := range old4 {
		err = errors.Join(err, deleteKey(d.maps.Flows4, &k))
	}
	for _, k := range old6 {
		err = errors.Join(err, deleteKey(d.maps.Flows6, &k))
	}
	return err
}
