package datapath

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// Events hands every flow event to handle, in order, until ctx ends. There must be one reader at a time.
func (d *Datapath) Events(ctx context.Context, handle func(FlowEvent)) error {
	reader, err := ringbuf.NewReader(d.maps.Events)
	if err != nil {
		return fmt.Errorf("open event ring: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { reader.Close() })
	defer stop()
	defer reader.Close()
	// One event at a time, also those of flows that timed out, which have another source.
	var one sync.Mutex
	deliver := func(e FlowEvent) {
		one.Lock()
		defer one.Unlock()
		handle(e)
	}
	ctx, cancel := context.WithCancel(ctx)
	var timedOut sync.WaitGroup
	defer timedOut.Wait()
	defer cancel()
	timedOut.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-d.ended:
				deliver(e)
			}
		}
	})
	var record ringbuf.Record
	for {
		if err := reader.ReadInto(&record); err != nil {
			if errors.Is(err, ringbuf.ErrClosed) {
				return nil
			}
			return fmt.Errorf("read event ring: %w", err)
		}
		var e bpfEvent
		if err := binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &e); err != nil {
			d.log.Warn("flow event of unknown layout", "bytes", len(record.RawSample))
			continue
		}
		deliver(decodeEvent(&e))
	}
}

func decodeEvent(e *bpfEvent) FlowEvent {
	out := FlowEvent{
		Time:      wallTime(e.TimeNs),
		Type:      []EventType{EventNew, EventEnd, EventDrop}[min(e.Type, 2)],
		Verdict:   nameOf(verdictNames, e.Verdict),
		Hook:      nameOf(hookNames, e.Hook),
		Slot:      e.Slot,
		Direction: nameOf(directionNames, e.Direction),
		Protocol:  e.Proto,
		TCPFlags:  e.TcpFlags,
		Length:    e.Len,
		Forward:   Traffic{e.Forward.Packets, e.Forward.Bytes},
		Reply:     Traffic{e.Reply.Packets, e.Reply.Bytes},
	}
	if e.Family == 0 {
		out.EtherType = ntohs(e.Ethertype)
	} else {
		out.Src = netip.AddrPortFrom(fromAddr(e.Src), ntohs(e.Sport))
		out.Dst = netip.AddrPortFrom(fromAddr(e.Dst), ntohs(e.Dport))
	}
	if e.Reason != 0 {
		out.Reason = Reason(e.Reason).String()
	}
	return out
}

// monotonicNow is CLOCK_MONOTONIC, the clock of the BPF programs' times, in nanoseconds.
func monotonicNow() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

func wallTime(ns uint64) time.Time {
	return time.Now().Add(-time.Duration(int64(monotonicNow()) - int64(ns)))
}
