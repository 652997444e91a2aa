package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Client speaks with a running process. It is safe for concurrent use; operations go one after
// another. Each fails with ErrClosed once one of them did not get its whole answer in time.
type Client struct {
	mu    sync.Mutex
	conn  *net.UnixConn // nil: closed
	buf   []byte
	pidfd *os.File
	pid   int
	done  chan struct{}
}

// Dial reaches the process that serves the socket. The peer has to be of the process's uid by the
// kernel's word (SO_PEERCRED), else ErrNotSealer. Without one it fails with ECONNREFUSED or
// fs.ErrNotExist: a published process listens.
func Dial(ctx context.Context, path string) (*Client, error) {
	return dial(ctx, path, UID, unix.EAGAIN)
}

// DialUnpublished reaches a process between Start and Publish, waiting until it listens or ctx
// ends.
func DialUnpublished(ctx context.Context, path string) (*Client, error) {
	return dial(ctx, unpublished(path), UID, unix.EAGAIN, unix.ECONNREFUSED)
}

// dial tries again after the errors that pass: EAGAIN is a full queue.
func dial(ctx context.Context, path string, uid uint32, pass ...unix.Errno) (*Client, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", path)
		if err == nil {
			return newClient(conn.(*net.UnixConn), uid)
		}
		passes := func(errno unix.Errno) bool { return errors.Is(err, errno) }
		if !slices.ContainsFunc(pass, passes) {
			return nil, fmt.Errorf("dial weft-sealer: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("dial weft-sealer: %w", err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// bounded is ctx with the usual time limit where it has none.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, Timeout)
}

func newClient(conn *net.UnixConn, uid uint32) (*Client, error) {
	cred, pidfd, err := peer(conn)
	if err == nil {
		err = unix.SetNonblock(pidfd, true) // so that the runtime's poller watches it
	}
	if err == nil && cred.Uid != uid {
		unix.Close(pidfd) //nolint:errcheck // nothing was written to it
		err = fmt.Errorf("dial weft-sealer: pid %d has uid %d, not %d: %w", cred.Pid, cred.Uid, uid,
			ErrNotSealer)
	}
	if err != nil {
		conn.Close() //nolint:errcheck // nothing was written to it
		return nil, err
	}
	c := &Client{
		conn: conn, buf: make([]byte, maxMessage), pid: int(cred.Pid),
		pidfd: os.NewFile(uintptr(pidfd), "pidfd"), done: make(chan struct{}),
	}
	go c.watch()
	return c, nil
}

// peer is who listens at the other end: of the moment it called listen, so a later process of the
// same pid is not meant.
func peer(conn *net.UnixConn) (cred *unix.Ucred, pidfd int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, -1, fmt.Errorf("ask for credentials of weft-sealer: %w", err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if failed == nil {
			pidfd, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, -1, fmt.Errorf("ask for credentials of weft-sealer: %w", err)
	}
	return cred, pidfd, nil
}

// watch closes done when the process has ended, unless Close comes first.
func (c *Client) watch() {
	raw, err := c.pidfd.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
	if err == nil {
		close(c.done)
	}
}

// PID is the process's, as this process's pid namespace numbers it.
func (c *Client) PID() int { return c.pid }

// Done is closed once the process has ended, whoever started it; after Close no more.
func (c *Client) Done() <-chan struct{} { return c.done }

// Kill ends the process at once. Keys are gone with its memory.
func (c *Client) Kill() error {
	select {
	case <-c.done:
		return nil
	default:
	}
	raw, err := c.pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("kill weft-sealer: %w", err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
	})
	if err = errors.Join(err, failed); err != nil && failed != unix.ESRCH {
		return fmt.Errorf("kill weft-sealer: %w", err)
	}
	return nil
}

// Close ends the connection, not the process. Neither Done nor Kill tell or do anything after it.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.close()
	c.pidfd.Close() //nolint:errcheck // nothing is written to it
	return err
}

func (c *Client) close() error {
	if c.conn == nil {
		return nil
	}
	conn := c.conn
	c.conn = nil
	clear(c.buf)
	return conn.Close()
}

// Hello asks the process who it is.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	var hello Hello
	err := c.call(ctx, opHello, 0, nil, func(payload []byte, _ int) (err error) {
		hello, err = decodeHello(payload)
		return err
	})
	return hello, err
}

// Configure sets what is not a key.
func (c *Client) Configure(ctx context.Context, config Config) error {
	return c.call(ctx, opConfigure, 1, func(b []byte) []byte {
		return appendConfig(b, config)
	}, nil)
}

// Install gives the process keys. A key that it has (same fingerprint) changes nothing, another
// fingerprint replaces the SA's key, its window included. The keys stay the caller's to wipe.
func (c *Client) Install(ctx context.Context, keys ...Key) error {
	for len(keys) > 0 {
		n := min(len(keys), keysPerMessage)
		err := c.call(ctx, opInstall, n, func(b []byte) []byte {
			for i := range keys[:n] {
				b = appendKey(b, &keys[i])
			}
			return b
		}, nil)
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// Remove has the process forget keys; when it returns, nothing is sealed or opened with them any
// more and they are zeroed there. What is held under another fingerprint stays.
func (c *Client) Remove(ctx context.Context, keys ...Held) error {
	for len(keys) > 0 {
		n := min(len(keys), heldPerMessage)
		err := c.call(ctx, opRemove, n, func(b []byte) []byte {
			for _, key := range keys[:n] {
				b = appendHeld(b, key)
			}
			return b
		}, nil)
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// List names all keys that the process holds, in no order.
func (c *Client) List(ctx context.Context) ([]Held, error) {
	var held []Held
	err := c.call(ctx, opList, 0, nil, func(payload []byte, n int) error {
		if len(payload) != n*heldLen {
			return errLength
		}
		for ; len(payload) > 0; payload = payload[heldLen:] {
			held = append(held, decodeHeld(payload))
		}
		return nil
	})
	return held, err
}

// Export is a copy of all keys that the process holds, for the caller to wipe, and its tap, for
// the caller to close. The process keeps both.
func (c *Client) Export(ctx context.Context) ([]Key, *os.File, error) {
	var keys []Key
	var tap *os.File
	c.mu.Lock()
	defer c.mu.Unlock()
	tap, err := c.exchange(ctx, opExport, 0, nil, func(payload []byte, n int) error {
		if len(payload) != n*keyLen {
			return errLength
		}
		if len(keys)+n > MaxKeys {
			return fmt.Errorf("more than %d keys", MaxKeys)
		}
		keys = growKeys(keys, n)
		for ; len(payload) > 0; payload = payload[keyLen:] {
			keys = append(keys, Key{})
			decodeKey(payload, &keys[len(keys)-1])
		}
		return nil
	})
	if err == nil && tap == nil {
		err = fmt.Errorf("export from weft-sealer: no tap: %w", ErrRefused)
	}
	if err != nil {
		Wipe(keys)
		if tap != nil {
			tap.Close() //nolint:errcheck // nothing was written to it
		}
		return nil, nil, err
	}
	return keys, tap, nil
}

// growKeys makes room for n more, and wipes what it moves away from.
func growKeys(keys []Key, n int) []Key {
	if cap(keys)-len(keys) >= n {
		return keys
	}
	grown := make([]Key, len(keys), 2*len(keys)+n)
	copy(grown, keys)
	Wipe(keys)
	return grown
}

// Begin has the process read the tap; again changes nothing.
func (c *Client) Begin(ctx context.Context) error { return c.call(ctx, opBegin, 0, nil, nil) }

// Stats is what the process has done since it was started.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	var stats Stats
	err := c.call(ctx, opStats, 0, nil, func(payload []byte, _ int) (err error) {
		stats, err = decodeStats(payload)
		return err
	})
	return stats, err
}

// Quit has the process finish the frame that it is at and end. When it returns, the process reads
// and writes no more frames; Done says when it has ended.
func (c *Client) Quit(ctx context.Context) error { return c.call(ctx, opQuit, 0, nil, nil) }
