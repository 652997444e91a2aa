package encryptcheck

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
)

// Frame is a captured frame with its Ethernet header.
type Frame struct {
	Interface string
	// Outgoing says that the machine sent it, not received it.
	Outgoing bool
	// Length is the frame's, Data its bytes, which may be fewer.
	Length int
	Data   []byte
}

const (
	captureBuffer = 64 << 20
	maxFrame      = 1<<16 + 64
	// pollEvery bounds how long the end of a capture goes unnoticed.
	pollEvery = 50 * time.Millisecond
	// drainLimit bounds how long a capture that has ended reads what was kept.
	drainLimit = 2 * time.Second
)

// Capture receives copies of what passes interfaces.
type Capture struct {
	sockets []*socket
	lost    atomic.Uint64
}

type socket struct {
	fd   int
	name string
}

// Open begins to capture on interfaces of a network namespace; an empty path is the caller's own.
// Frames are kept from here on, and read by Run.
//
// A packet socket sees what the stack sends and receives. Frames that a program in native XDP takes
// or sends never become the stack's: see TapXDP.
func Open(netNS string, interfaces ...string) (*Capture, error) {
	if len(interfaces) == 0 {
		return nil, errors.New("open capture: no interface is named")
	}
	c := &Capture{}
	err := netns.Do(netNS, func() error {
		for _, name := range interfaces {
			fd, err := openSocket(name)
			if err != nil {
				return fmt.Errorf("capture on %s: %w", name, err)
			}
			c.sockets = append(c.sockets, &socket{fd, name})
		}
		return nil
	})
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// openSocket opens a packet socket on an interface of the current namespace.
func openSocket(name string) (int, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	// Protocol 0 receives nothing until bind names interface and protocol at once.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open packet socket (as root?): %w", err)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, captureBuffer)
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(fd,
		&unix.SockaddrLinklayer{Protocol: all, Ifindex: iface.Index}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind packet socket: %w", err)
	}
	return fd, nil
}

// Run hands every frame to handle, one at a time, until ctx ends and what was captured until then
// has been read. Data is valid only during the call.
func (c *Capture) Run(ctx context.Context, handle func(Frame)) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make([]error, len(c.sockets))
	for i, s := range c.sockets {
		wg.Go(func() {
			errs[i] = s.read(ctx, func(f Frame) {
				mu.Lock()
				defer mu.Unlock()
				handle(f)
			})
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// read reads until ctx has ended and the socket is empty, on a busy wire for drainLimit.
func (s *socket) read(ctx context.Context, handle func(Frame)) error {
	buf := make([]byte, maxFrame)
	var ended time.Time
	for {
		if ctx.Err() != nil && ended.IsZero() {
			ended = time.Now()
		}
		if !ended.IsZero() && time.Since(ended) > drainLimit {
			return nil
		}
		n, from, err := unix.Recvfrom(s.fd, buf, unix.MSG_TRUNC)
		switch {
		case err == nil:
			ll, _ := from.(*unix.SockaddrLinklayer)
			handle(Frame{s.name, ll != nil && ll.Pkttype == unix.PACKET_OUTGOING, n,
				buf[:min(n, len(buf))]})
		case errors.Is(err, unix.EAGAIN) && !ended.IsZero():
			return nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR),
			errors.Is(err, unix.ENETDOWN): // a link may come up again
			fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
			if _, err := unix.Poll(fds, int(pollEvery.Milliseconds())); err != nil &&
				!errors.Is(err, unix.EINTR) {
				return fmt.Errorf("capture on %s: %w", s.name, err)
			}
		default:
			return fmt.Errorf("capture on %s: %w", s.name, err)
		}
	}
}

// Lost is how many frames the kernel could not keep because they were not read in time.
func (c *Capture) Lost() uint64 {
	for _, s := range c.sockets {
		// Reading them sets the kernel's counters to 0.
		if stats, err := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET,
			unix.PACKET_STATISTICS); err == nil {
			c.lost.Add(uint64(stats.Drops))
		}
	}
	return c.lost.Load()
}

// Close ends the capture. It must not be called while Run runs.
func (c *Capture) Close() {
	for _, s := range c.sockets {
		unix.Close(s.fd)
	}
	c.sockets = nil
}
