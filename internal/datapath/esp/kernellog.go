package esp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const kernelLogPath = "/dev/kmsg"

// forkMessage is what the kernel logs when the VM generation ID has changed
// (drivers/char/random.c).
const forkMessage = "random: crng reseeded due to virtual machine fork"

// kernelLog reads the kernel's log, one record at a time.
type kernelLog struct{ *os.File }

func openKernelLog(path string) (*kernelLog, error) {
	// Not blocking, so that Go waits for it as for a socket, and reading ends when it is closed.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &kernelLog{os.NewFile(uintptr(fd), path)}, nil
}

// history reads to the present end and returns the number of the last fork's record, 0 for none.
func (l *kernelLog) history() (last uint64, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", l.Name(), err)
	}
	record := make([]byte, 8<<10)
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Read(int(fd), record)
			switch {
			case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR),
				errors.Is(err, unix.EINVAL):
				continue // overwritten meanwhile, or longer than any of a fork
			case errors.Is(err, unix.EAGAIN):
				return true
			case err != nil || n == 0:
				failed = err
				return true
			}
			if seq, ok := forkRecord(string(record[:n])); ok {
				last = max(last, seq)
			}
		}
	})
	return last, errors.Join(err, failed)
}

// follow calls forked with the number of each fork's record until ctx ends.
func (l *kernelLog) follow(ctx context.Context, forked func(seq uint64) error) error {
	defer context.AfterFunc(ctx, func() { _ = l.SetReadDeadline(time.Unix(1, 0)) })()
	record := make([]byte, 8<<10)
	for {
		n, err := l.Read(record)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINVAL):
			continue
		case err != nil:
			return fmt.Errorf("read %s: %w", l.Name(), err)
		}
		if seq, ok := forkRecord(string(record[:n])); ok {
			if err := forked(seq); err != nil {
				return err
			}
		}
	}
}

// forkRecord says whether a record of /dev/kmsg (PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,…];TEXT) is
// the kernel's own of a fork, and which number it has. What user space writes there never has
// facility 0.
func forkRecord(record string) (seq uint64, ok bool) {
	head, text, _ := strings.Cut(record, ";")
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Split(head, ",")
	if line != forkMessage || len(fields) < 4 {
		return 0, false
	}
	priority, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil || priority>>3 != 0 {
		return 0, false
	}
	seq, err = strconv.ParseUint(fields[1], 10, 64)
	return seq, err == nil
}
