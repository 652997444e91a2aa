// Package load is traffic through sockets between two pods, as fast as it goes: bulk TCP, UDP,
// request/response and connections, each by threads of its own with what it costs in CPU time.
package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
)

// firstPort is the first port that traffic tests listen on; each stream has its own.
const firstPort = 21000

// ioTimeout bounds every blocking call, so that workers see the end of their run.
const ioTimeout = 200 * time.Millisecond

// stallTimeout is how long a connection may make no progress before the run fails.
const stallTimeout = 5 * time.Second

// Peer is one end: a pod.
type Peer struct {
	NS string // path of its network namespace
	IP netip.Addr
}

// phase is where a traffic run is; workers read it once per transaction.
type phase struct{ v atomic.Int32 }

const (
	phaseWarm int32 = iota
	phaseMeasure
	phaseStop
)

func (p *phase) measuring() bool { return p.v.Load() == phaseMeasure }
func (p *phase) stopped() bool   { return p.v.Load() == phaseStop }

// workers are the threads of one traffic run. Each runs on a locked thread inside
// its pod's namespace and uses blocking system calls: nothing of the runtime's
// network poller is on the measured path.
type workers struct {
	phase phase
	wg    sync.WaitGroup
	mu    sync.Mutex
	errs  []error
}

// start runs fn as a worker in a namespace.
func (w *workers) start(ns string, fn func() error) {
	w.wg.Go(func() {
		if err := netns.Do(ns, fn); err != nil {
			w.mu.Lock()
			w.errs = append(w.errs, err)
			w.mu.Unlock()
			w.phase.v.Store(phaseStop)
		}
	})
}

// serveOne listens at an address and has a thread hand the first connection to serve.
func (w *workers) serveOne(ns string, at netip.AddrPort, serve func(conn int) error) error {
	l, err := listenIn(ns, at)
	if err != nil {
		return err
	}
	w.start(ns, func() error {
		defer unix.Close(l)
		conn, err := accept(l, &w.phase)
		if err != nil || conn < 0 {
			return err
		}
		defer unix.Close(conn)
		return serve(conn)
	})
	return nil
}

// measure lets the workers warm up, calls begin, waits for dur, calls end and stops
// them. It returns how long the measured part took.
func (w *workers) measure(ctx context.Context, warm, dur time.Duration, begin,
	end func() error) (time.Duration, error) {
	defer w.stop()
	if err := w.sleep(ctx, warm); err != nil {
		return 0, err
	}
	if err := begin(); err != nil {
		return 0, err
	}
	start := time.Now()
	w.phase.v.CompareAndSwap(phaseWarm, phaseMeasure)
	if err := w.sleep(ctx, dur); err != nil {
		return 0, err
	}
	wall := time.Since(start)
	err := end()
	w.stop()
	return wall, errors.Join(err, errors.Join(w.errs...))
}

// stop ends the workers and waits for them.
func (w *workers) stop() {
	w.phase.v.Store(phaseStop)
	w.wg.Wait()
}

// sleep waits, but not beyond the first failed worker or ctx's end.
func (w *workers) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-tick.C:
			if w.phase.stopped() {
				w.wg.Wait()
				return errors.Join(w.errs...)
			}
		}
	}
}

// sockaddr converts an address for the system calls.
func sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// newSocket opens a blocking IPv4 socket whose calls return after ioTimeout.
func newSocket(kind int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open socket: %w", err)
	}
	tv := unix.NsecToTimeval(ioTimeout.Nanoseconds())
	for _, opt := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, opt, &tv); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("set socket timeout: %w", err)
		}
	}
	return fd, nil
}

// listen opens a listening TCP socket.
func listen(at netip.AddrPort) (int, error) {
	fd, err := newSocket(unix.SOCK_STREAM)
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, sockaddr(at))
	}
	if err == nil {
		err = unix.Listen(fd, 128)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen on %s: %w", at, err)
	}
	return fd, nil
}

// accept waits for a connection until the run stops; then it returns -1 and no error.
func accept(fd int, p *phase) (int, error) {
	for !p.stopped() {
		conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err == nil {
			return conn, prepareConn(conn)
		}
		if !transient(err) && !errors.Is(err, unix.ECONNABORTED) {
			return -1, fmt.Errorf("accept: %w", err)
		}
	}
	return -1, nil
}

// prepareConn sets what an accepted connection does not inherit.
func prepareConn(fd int) error {
	tv := unix.NsecToTimeval(ioTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("set socket timeout: %w", err)
	}
	return noDelay(fd)
}

// noDelay sends small writes at once.
func noDelay(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("set TCP_NODELAY: %w", err)
	}
	return nil
}

// dial connects a TCP socket.
func dial(to netip.AddrPort) (int, error) {
	fd, err := newSocket(unix.SOCK_STREAM)
	if err != nil {
		return -1, err
	}
	tv := unix.NsecToTimeval(stallTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("set connect timeout: %w", err)
	}
	if err := connect(fd, sockaddr(to)); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connect to %s: %w", to, err)
	}
	return fd, noDelay(fd)
}

// connect connects a blocking socket. A signal of the Go runtime may interrupt the
// wait, not the connecting: a second call waits on.
func connect(fd int, to unix.Sockaddr) error {
	for {
		err := unix.Connect(fd, to)
		switch {
		case errors.Is(err, unix.EISCONN):
			return nil
		case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EALREADY):
			return err
		}
	}
}

// transient tells a call that only timed out or was interrupted from one that failed.
func transient(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
}

// transfer repeats a read or write over timeouts until the run stops or nothing has
// moved for stallTimeout. It returns 0 at the end of the stream or the run.
func transfer(p *phase, op func() (int, error)) (int, error) {
	var deadline time.Time
	for {
		n, err := op()
		if err == nil || !transient(err) {
			return n, err
		}
		if p.stopped() {
			return 0, nil
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(stallTimeout)
		} else if time.Now().After(deadline) {
			return 0, fmt.Errorf("no progress for %s", stallTimeout)
		}
	}
}
