package sealer

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tap is the device's descriptor, which does not block.
type tap struct{ fd int }

// writev sends one frame. RawSyscall, since it does not block: nothing has to be told to the
// scheduler, which costs a sixth of the throughput.
func (t tap) writev(iovs []unix.Iovec) syscall.Errno {
	for {
		_, _, errno := syscall.RawSyscall(unix.SYS_WRITEV, uintptr(t.fd),
			uintptr(unsafe.Pointer(&iovs[0])), uintptr(len(iovs)))
		if errno != unix.EINTR {
			return errno
		}
	}
}

func (t tap) read(b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(t.fd),
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}

// worker reads the tap.
type worker struct {
	tap    tap
	engine *engine
	wake   int // an eventfd: there is something to do besides frames
	stop   atomic.Bool
}

func newWorker(tap tap, engine *engine) (*worker, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	return &worker{tap: tap, engine: engine, wake: wake}, nil
}

// end has run return after the frame that it is at.
func (w *worker) end() {
	w.stop.Store(true)
	w.poke()
}

// poke has run read the tap, if it waits.
func (w *worker) poke() {
	unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) //nolint:errcheck // full: it was written to
}

const (
	// readLen is what one read may bring.
	readLen = headLen + maxIP + 1
	// arenaLen has room for the frames that one batch of opened packets is in, while another is
	// read.
	arenaLen  = 4 << 16
	readAlign = 64
)

// run works until end, or until the tap fails.
func (w *worker) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	arena, err := pages(arenaLen)
	if err != nil {
		return err
	}
	defer release(arena)
	err = w.read(arena)
	w.engine.flush() // not after a panic, in the middle of something
	return err
}

func (w *worker) read(arena []byte) error {
	keys, at := w.engine.keys, 0
	for !w.stop.Load() {
		changes := keys.changes.Load()
		n, errno := w.tap.read(arena[at : at+readLen])
		switch errno {
		case 0:
			at = w.frame(arena, at, n)
		case unix.EINTR:
		case unix.EAGAIN:
			keys.drained.Store(changes)
			w.engine.flush()
			at = 0
			if err := w.wait(); err != nil {
				return err
			}
		default:
			return fmt.Errorf("read from the tap: %w", errno)
		}
	}
	return nil
}

// frame has the engine work on the frame of n bytes at an offset of the arena, and returns where
// the next one may go: behind it if it is still needed.
func (w *worker) frame(arena []byte, at, n int) int {
	kept := w.engine.frame(arena[at:], n)
	if kept {
		at = (at + n + readAlign - 1) &^ (readAlign - 1)
	}
	if at+readLen+slack > len(arena) {
		w.engine.flushOpened()
	}
	if w.engine.glue.n == 0 {
		at = 0
	}
	return at
}

// wait blocks until there is a frame, or poke.
func (w *worker) wait() error {
	fds := [...]unix.PollFd{
		{Fd: int32(w.tap.fd), Events: unix.POLLIN}, {Fd: int32(w.wake), Events: unix.POLLIN},
	}
	if _, err := unix.Poll(fds[:], -1); err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for the tap: %w", err)
	}
	if fds[1].Revents != 0 {
		var count [8]byte
		unix.Read(w.wake, count[:]) //nolint:errcheck // zeroes it; stop says the rest
	}
	return nil
}
