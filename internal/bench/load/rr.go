package load

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/netns"
)

// rrWarm is how long request/response runs before the clock starts.
const rrWarm = 200 * time.Millisecond

// maxSamples bounds the latencies kept per connection.
const maxSamples = 1 << 20

// RR exchanges one byte each way over n connections as fast as it goes, with every
// CPU kept awake, and returns latency, rate and CPU cost.
func RR(ctx context.Context, from, to Peer, n int, dur time.Duration) (report.Sample, error) {
	stop, err := KeepAwake(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	return new(workers).rr(ctx, from, to, n, dur)
}

// RRBesideBulk is RR while one stream sends from the same pod to the same pod as fast as it goes,
// which keeps the CPUs awake. It also returns what the stream has reached.
func RRBesideBulk(ctx context.Context, from, to Peer, n int,
	dur time.Duration) (report.Sample, error) {
	var w workers
	var received atomic.Uint64
	if err := w.bulkStream(from, to, n, "", &received); err != nil {
		w.stop()
		return nil, err
	}
	began := time.Now()
	s, err := w.rr(ctx, from, to, n, dur)
	if err == nil && received.Load() == 0 {
		err = fmt.Errorf("request/response beside bulk, %s to %s: the stream stood still", from.IP,
			to.IP)
	}
	if err != nil {
		return nil, err
	}
	s["gbit_s"] = float64(received.Load()) * 8 / time.Since(began).Seconds() / 1e9
	return s, nil
}

// rr runs n connections beside what the workers do already.
func (w *workers) rr(ctx context.Context, from, to Peer, n int,
	dur time.Duration) (report.Sample, error) {
	latencies := make([][]uint32, n)
	counts := make([]uint64, n)
	for i := range n {
		latencies[i] = make([]uint32, 0, maxSamples/n)
		if err := w.rrConn(from, to, i, &latencies[i], &counts[i]); err != nil {
			w.stop()
			return nil, err
		}
	}
	m, err := w.measureCPU(ctx, rrWarm, dur, func() {}, func() {})
	if err != nil {
		return nil, fmt.Errorf("request/response %s to %s: %w", from.IP, to.IP, err)
	}
	all := slices.Concat(latencies...)
	slices.Sort(all)
	var total uint64
	for _, c := range counts {
		total += c
	}
	if total == 0 {
		return nil, fmt.Errorf("request/response %s to %s: no transaction ended", from.IP, to.IP)
	}
	return report.Sample{
		"transactions_s":         float64(total) / m.wall.Seconds(),
		"p50_us":                 float64(Quantile(all, 0.50)) / 1e3,
		"p99_us":                 float64(Quantile(all, 0.99)) / 1e3,
		"cpu_us_per_transaction": float64(m.cpu.Microseconds()) / float64(total),
	}, nil
}

// rrConn starts the two threads of one connection.
func (w *workers) rrConn(from, to Peer, i int, latencies *[]uint32, count *uint64) error {
	at := netip.AddrPortFrom(to.IP, uint16(firstPort+i))
	if err := w.serveOne(to.NS, at,
		func(conn int) error { return echo(conn, &w.phase) }); err != nil {
		return err
	}
	w.start(from.NS, func() error {
		conn, err := dial(at)
		if err != nil {
			return err
		}
		defer unix.Close(conn)
		return ask(conn, &w.phase, latencies, count)
	})
	return nil
}

// listenIn listens inside a namespace.
func listenIn(ns string, at netip.AddrPort) (fd int, err error) {
	err = netns.Do(ns, func() error {
		fd, err = listen(at)
		return err
	})
	return fd, err
}

// echo returns every byte until the client hangs up or the run stops.
func echo(fd int, p *phase) error {
	var buf [1]byte
	for {
		n, err := transfer(p, func() (int, error) { return unix.Read(fd, buf[:]) })
		if n == 0 || p.stopped() {
			return ignoreStopped(p, "read request", err)
		}
		if _, err := transfer(p,
			func() (int, error) { return unix.Write(fd, buf[:]) }); err != nil {
			return ignoreStopped(p, "write response", err)
		}
	}
}

// ask sends requests until the run stops and records each one's time while measuring.
func ask(fd int, p *phase, latencies *[]uint32, count *uint64) error {
	var buf [1]byte
	for !p.stopped() {
		start := time.Now()
		if _, err := transfer(p,
			func() (int, error) { return unix.Write(fd, buf[:]) }); err != nil {
			return ignoreStopped(p, "write request", err)
		}
		n, err := transfer(p, func() (int, error) { return unix.Read(fd, buf[:]) })
		if err != nil || n == 0 {
			return ignoreStopped(p, "read response", err)
		}
		if !p.measuring() {
			continue
		}
		*count++
		if len(*latencies) < cap(*latencies) {
			*latencies = append(*latencies, uint32(min(time.Since(start).Nanoseconds(), 1<<32-1)))
		}
	}
	return nil
}

// ignoreStopped drops what goes wrong because the run is over.
func ignoreStopped(p *phase, what string, err error) error {
	if p.stopped() {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s: connection closed early", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Quantile returns the q-quantile of sorted values by the nearest-rank rule.
func Quantile(sorted []uint32, q float64) uint32 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}
