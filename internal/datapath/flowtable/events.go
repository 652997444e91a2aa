package flowtable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// EventsLinger is how long the reader of events looks again by itself after the last one: longer
// than the datapath leaves it asleep (EVENTS_QUIET in bpf/lib/consts.h, rounded up to the kernel's
// tick, 10 ms at most).
const EventsLinger = 20 * time.Millisecond

// Events hands every flow event to handle, in order, until ctx ends. There must be one reader at a
// time.
func (t *Table) Events(ctx context.Context, handle func(Event)) error {
	reader, err := ringbuf.NewReader(t.maps.Events)
	if err != nil {
		return fmt.Errorf("open event ring: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { reader.Close() })
	defer stop()
	defer reader.Close()
	// One event at a time, also those of flows that timed out, which have another source.
	var one sync.Mutex
	deliver := func(e Event) {
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
			case e := <-t.ended:
				deliver(e)
			}
		}
	})
	return t.readEvents(reader, deliver)
}

// readEvents ends when the reader is closed. It sleeps for good only when there was no event for
// EventsLinger.
func (t *Table) readEvents(reader *ringbuf.Reader, deliver func(Event)) error {
	var record ringbuf.Record
	awake := time.Now().Add(EventsLinger)
	reader.SetDeadline(awake)
	for {
		err := reader.ReadInto(&record)
		switch {
		case errors.Is(err, ringbuf.ErrClosed):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			// Events may have been found when the deadline passed, and moved it.
			if !time.Now().Before(awake) {
				reader.SetDeadline(time.Time{})
			}
			continue
		case err != nil:
			return fmt.Errorf("read event ring: %w", err)
		}
		awake = time.Now().Add(EventsLinger)
		reader.SetDeadline(awake)
		var e bpf.Event
		if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &e); err != nil {
			t.log.Warn("flow event of unknown layout", "bytes", len(record.RawSample))
			continue
		}
		deliver(decodeEvent(&e))
	}
}

func decodeEvent(e *bpf.Event) Event {
	out := Event{
		Time:      wallTime(e.TimeNs),
		Type:      []EventType{EventNew, EventEnd, EventDrop}[min(e.Type, 2)],
		Verdict:   bpf.VerdictNames.Of(e.Verdict),
		Hook:      bpf.HookNames.Of(e.Hook),
		Slot:      e.Slot,
		Network:   e.Network,
		Direction: bpf.DirectionNames.Of(e.Direction),
		Protocol:  e.Proto,
		TCPFlags:  e.TcpFlags,
		Rule:      e.Rule,
		Length:    e.Len,
		Forward:   Traffic{e.Forward.Packets, e.Forward.Bytes},
		Reply:     Traffic{e.Reply.Packets, e.Reply.Bytes},
	}
	if e.Family == 0 {
		out.EtherType = bpf.Ntohs(e.Ethertype)
	} else {
		out.Src = netip.AddrPortFrom(bpf.FromAddr(e.Src), bpf.Ntohs(e.Sport))
		out.Dst = netip.AddrPortFrom(bpf.FromAddr(e.Dst), bpf.Ntohs(e.Dport))
	}
	if e.Reason != 0 {
		out.Reason = bpf.Reason(e.Reason).String()
	}
	return out
}

// MonotonicNow is CLOCK_MONOTONIC, the clock of the BPF programs' times, in nanoseconds.
func MonotonicNow() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

func wallTime(ns uint64) time.Time {
	return time.Now().Add(-time.Duration(int64(MonotonicNow()) - int64(ns)))
}
