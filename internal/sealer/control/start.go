package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/sibling"
)

// Program is the process's binary.
const Program = "weft-sealer"

// Options of Start.
type Options struct {
	Binary     string       // empty: as sibling.Find finds Program
	Tap        *os.File     // stays the caller's to close
	SocketPath string       // in a directory that only root may write to; see Publish
	Log        *slog.Logger // gets what the process says; nil: nobody does
}

// Process is one that this process has started.
type Process struct {
	*Client
	path string
	exit error
	dead chan struct{}
}

// unpublished is where a process is reached before Publish.
func unpublished(path string) string { return path + ".new" }

// Start starts weft-sealer and connects to it. It runs in a session of its own and outlives the
// caller. It has no keys yet, does not read the tap before Begin, and is not found at its socket's
// path before Publish: whoever is there is left alone.
func Start(ctx context.Context, opts Options) (*Process, error) {
	binary := opts.Binary
	if binary == "" {
		var err error
		if binary, err = sibling.Find(Program); err != nil {
			return nil, err
		}
	}
	socket, err := bind(unpublished(opts.SocketPath))
	if err != nil {
		return nil, err
	}
	defer socket.Close() //nolint:errcheck // nothing is written to it
	p, err := start(ctx, binary, socket, opts)
	if err != nil {
		os.Remove(unpublished(opts.SocketPath)) //nolint:errcheck // nobody serves it
	}
	return p, err
}

func start(ctx context.Context, binary string, socket *os.File, opts Options) (*Process, error) {
	says, err := newLines(opts.Log)
	if err != nil {
		return nil, err
	}
	cmd, err := run(binary, opts.Tap, socket, says.write)
	says.begun()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	p := &Process{path: opts.SocketPath, dead: make(chan struct{})}
	go func() {
		p.exit = cmd.Wait()
		close(p.dead)
	}()
	if p.Client, err = p.connect(ctx); err != nil {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-p.dead
		return nil, errors.Join(err, p.exit)
	}
	return p, nil
}

// connect waits for the process to listen, or to end without.
func (p *Process) connect(ctx context.Context) (*Client, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	return DialUnpublished(ctx, p.path)
}

// Publish has Dial find the process at its socket's path, in place of whoever was there.
func (p *Process) Publish() error {
	if err := os.Rename(unpublished(p.path), p.path); err != nil {
		return fmt.Errorf("publish the socket of %s: %w", Program, err)
	}
	return nil
}

// Wait returns when the process has ended and been reaped: nil if it ended as it was asked to.
func (p *Process) Wait() error {
	<-p.dead
	return p.exit
}

// bind makes the socket. The process listens on it, not this one: whoever connects is told the
// credentials of who called listen.
func bind(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket of %s: %w", Program, err)
	}
	socket := os.NewFile(uintptr(fd), path)
	fail := func(err error) (*os.File, error) {
		socket.Close() //nolint:errcheck // nothing was written to it
		return nil, fmt.Errorf("make socket of %s at %s: %w", Program, path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	// The mode that the file gets: umask is the whole process's, but this is the descriptor's.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return fail(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return fail(err)
	}
	return socket, nil
}

// Godebug keeps the Go runtime from looking for changes of the CPU limit, for which it opens files
// at any time: the filter of the process's system calls would end it.
const Godebug = "GODEBUG=updatemaxprocs=0"

// run starts the binary by a descriptor: the process's uid need not be able to reach its path.
func run(binary string, tap, socket, stderr *os.File) (*exec.Cmd, error) {
	file, err := os.Open(binary)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read from
	// Out of the way of the descriptors that the process is given.
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 64)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // only read from
	cmd := &exec.Cmd{
		Path:       "/proc/self/fd/" + strconv.Itoa(fd),
		Args:       []string{binary},
		Dir:        "/",
		Env:        []string{"GOTRACEBACK=none", Godebug},
		ExtraFiles: []*os.File{tap, socket},
		Stderr:     stderr,
		SysProcAttr: &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: UID, Gid: GID, Groups: []uint32{}},
			Setsid:     true,
		},
	}
	return cmd, startUnlimited(cmd)
}

var limits sync.Mutex

// startUnlimited starts a process that may lock all of its memory, if this one may grant that
// (CAP_SYS_RESOURCE). Else it locks what has keys and packets in it, which takes some MB at most.
func startUnlimited(cmd *exec.Cmd) error {
	limits.Lock()
	defer limits.Unlock()
	var before unix.Rlimit
	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &all, &before); err == nil {
		defer unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &before, nil) //nolint:errcheck // lower: allowed
	}
	return cmd.Start()
}
