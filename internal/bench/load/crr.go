package load

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/bench/report"
)

// CRR opens a connection, sends one byte each way and closes it, n at a time, and
// returns the rate and CPU cost. Each of the n has a port of its own, so that no
// run comes near the end of the client's port range.
func CRR(ctx context.Context, from, to Peer, n int, dur time.Duration) (report.Sample, error) {
	var w workers
	counts := make([]uint64, n)
	for i := range n {
		if err := w.crrLoop(from, to, i, &counts[i]); err != nil {
			w.stop()
			return nil, err
		}
	}
	m, err := w.measureCPU(ctx, rrWarm, dur, func() {}, func() {})
	if err != nil {
		return nil, fmt.Errorf("connections %s to %s: %w", from.IP, to.IP, err)
	}
	var total uint64
	for _, c := range counts {
		total += c
	}
	if total == 0 {
		return nil, fmt.Errorf("connections %s to %s: none ended", from.IP, to.IP)
	}
	return report.Sample{
		"connections_s":         float64(total) / m.wall.Seconds(),
		"cpu_us_per_connection": float64(m.cpu.Microseconds()) / float64(total),
	}, nil
}

// crrLoop starts one client and one server thread.
func (w *workers) crrLoop(from, to Peer, i int, count *uint64) error {
	at := netip.AddrPortFrom(to.IP, uint16(firstPort+i))
	l, err := listenIn(to.NS, at)
	if err != nil {
		return err
	}
	w.start(to.NS, func() error {
		defer unix.Close(l)
		for {
			conn, err := accept(l, &w.phase)
			if err != nil || conn < 0 {
				return err
			}
			if err := answerOnce(conn, &w.phase); err != nil {
				return err
			}
		}
	})
	w.start(from.NS, func() error {
		for !w.phase.stopped() {
			if err := askOnce(at, &w.phase); err != nil {
				return ignoreStopped(&w.phase, "connection", err)
			}
			if w.phase.measuring() {
				*count++
			}
		}
		return nil
	})
	return nil
}

// answerOnce serves one connection.
func answerOnce(fd int, p *phase) error {
	defer unix.Close(fd)
	var buf [1]byte
	n, err := transfer(p, func() (int, error) { return unix.Read(fd, buf[:]) })
	if err != nil || n == 0 {
		return ignoreStopped(p, "read request", err)
	}
	if _, err := transfer(p, func() (int, error) { return unix.Write(fd, buf[:]) }); err != nil {
		return ignoreStopped(p, "write response", err)
	}
	return nil
}

// askOnce is one connection's life, seen from the client.
func askOnce(to netip.AddrPort, p *phase) error {
	fd, err := dial(to)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var buf [1]byte
	if _, err := transfer(p, func() (int, error) { return unix.Write(fd, buf[:]) }); err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	n, err := transfer(p, func() (int, error) { return unix.Read(fd, buf[:]) })
	if err != nil {
		return fmt.Errorf("read response: %w", err)
	}
	if n == 0 && !p.stopped() {
		return fmt.Errorf("read response: closed without an answer")
	}
	return nil
}
