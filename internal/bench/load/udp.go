package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netns"
)

// udpBuffer is the receiver's socket buffer in bytes.
const udpBuffer = 8 << 20

// UDP sends datagrams through ordinary sockets and returns how many
// arrive per second.
func UDP(ctx context.Context, from, to Peer, payload int,
	dur time.Duration) (report.Sample, error) {
	at := netip.AddrPortFrom(to.IP, firstPort)
	var w workers
	var sent, received atomic.Uint64
	in, err := udpSocket(to.NS, func(fd int) error { return unix.Bind(fd, sockaddr(at)) })
	if err != nil {
		return nil, err
	}
	defer unix.Close(in)
	out, err := udpSocket(from.NS, func(fd int) error { return unix.Connect(fd, sockaddr(at)) })
	if err != nil {
		return nil, err
	}
	defer unix.Close(out)
	w.start(to.NS,
		func() error { return udpLoop(&w.phase, traffic.NewBatch(payload).Receive, in, &received) })
	w.start(from.NS,
		func() error { return udpLoop(&w.phase, traffic.NewBatch(payload).Send, out, &sent) })
	var r, s uint64
	m, err := w.measureCPU(ctx, rrWarm, dur,
		func() { r, s = received.Load(), sent.Load() },
		func() { r, s = received.Load()-r, sent.Load()-s })
	if err != nil {
		return nil, fmt.Errorf("UDP %s to %s: %w", from.IP, to.IP, err)
	}
	if r == 0 {
		return nil, fmt.Errorf("UDP %s to %s: none of %d datagrams arrived", from.IP, to.IP, s)
	}
	return report.Sample{
		"kpps":              float64(r) / m.wall.Seconds() / 1e3,
		"loss":              max(0, 1-float64(r)/float64(s)),
		"cpu_us_per_packet": float64(m.cpu.Microseconds()) / float64(r),
	}, nil
}

// udpSocket opens a socket in a namespace and binds or connects it.
func udpSocket(ns string, attach func(fd int) error) (fd int, err error) {
	err = netns.Do(ns, func() error {
		if fd, err = newSocket(unix.SOCK_DGRAM); err != nil {
			return err
		}
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpBuffer)
		if err == nil {
			err = attach(fd)
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("prepare UDP socket: %w", err)
		}
		return nil
	})
	return fd, err
}

// udpLoop sends or receives batches until the run stops. A full queue or a receiver
// that is not there yet are part of a flood's life.
func udpLoop(p *phase, batch func(fd int) (int, error), fd int, count *atomic.Uint64) error {
	for !p.stopped() {
		n, err := batch(fd)
		if err != nil && !transient(err) && !errors.Is(err, unix.ENOBUFS) &&
			!errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("UDP socket: %w", err)
		}
		count.Add(uint64(n))
	}
	return nil
}
