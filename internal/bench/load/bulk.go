package load

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/bench/report"
)

// bulkChunk is the size of one write and one read of a bulk stream.
const bulkChunk = 128 << 10

// bulkWarm lets TCP's slow start end before the clock starts.
const bulkWarm = 400 * time.Millisecond

// Bulk sends TCP streams from one pod to another and returns throughput and CPU cost. congestion is
// the sender's congestion control as in net.ipv4.tcp_available_congestion_control, "" for the
// machine's default.
func Bulk(ctx context.Context, from, to Peer, streams int, congestion string,
	dur time.Duration) (report.Sample, error) {
	var w workers
	received := make([]atomic.Uint64, streams)
	for i := range streams {
		if err := w.bulkStream(from, to, i, congestion, &received[i]); err != nil {
			w.stop()
			return nil, err
		}
	}
	total := func() (n uint64) {
		for i := range received {
			n += received[i].Load()
		}
		return n
	}
	var bytes uint64
	m, err := w.measureCPU(ctx, bulkWarm, dur, func() { bytes = total() },
		func() { bytes = total() - bytes })
	if err != nil {
		return nil, fmt.Errorf("bulk TCP %s to %s: %w", from.IP, to.IP, err)
	}
	if bytes == 0 {
		return nil, fmt.Errorf("bulk TCP %s to %s: nothing arrived", from.IP, to.IP)
	}
	return report.Sample{
		"gbit_s":       float64(bytes) * 8 / m.wall.Seconds() / 1e9,
		"cpu_s_per_gb": m.cpu.Seconds() / (float64(bytes) / 1e9),
	}, nil
}

// cpuSpan is a measured time and the CPU time that the machine spent in it.
type cpuSpan struct{ wall, cpu time.Duration }

// measureCPU is measure with the machine's busy time around it.
func (w *workers) measureCPU(ctx context.Context, warm, dur time.Duration, begin,
	end func()) (cpuSpan, error) {
	var s cpuSpan
	var err error
	s.wall, err = w.measure(ctx, warm, dur, func() (err error) {
		begin()
		s.cpu, err = BusyCPU()
		return err
	}, func() error {
		end()
		now, err := BusyCPU()
		s.cpu = now - s.cpu
		return err
	})
	return s, err
}

// bulkStream starts one stream's two threads.
func (w *workers) bulkStream(from, to Peer, i int, congestion string,
	received *atomic.Uint64) error {
	at := netip.AddrPortFrom(to.IP, uint16(firstPort+i))
	if err := w.serveOne(to.NS, at,
		func(conn int) error { return drain(conn, &w.phase, received) }); err != nil {
		return err
	}
	w.start(from.NS, func() error {
		conn, err := dial(at)
		if err != nil {
			return err
		}
		defer unix.Close(conn)
		if congestion != "" {
			if err := unix.SetsockoptString(conn, unix.IPPROTO_TCP, unix.TCP_CONGESTION,
				congestion); err != nil {
				return fmt.Errorf("set congestion control %s: %w", congestion, err)
			}
		}
		return pour(conn, &w.phase)
	})
	return nil
}

// drain reads until the run stops.
func drain(fd int, p *phase, received *atomic.Uint64) error {
	buf := make([]byte, bulkChunk)
	for !p.stopped() {
		n, err := transfer(p, func() (int, error) { return unix.Read(fd, buf) })
		if p.stopped() {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if n == 0 {
			return nil
		}
		received.Add(uint64(n))
	}
	return nil
}

// pour writes until the run stops.
func pour(fd int, p *phase) error {
	buf := make([]byte, bulkChunk)
	for !p.stopped() {
		_, err := transfer(p, func() (int, error) { return unix.Write(fd, buf) })
		if err != nil && !p.stopped() {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}
