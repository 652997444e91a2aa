package startup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/statefile"
)

// The files of an instance's run directory, besides the admin socket.
const (
	lockName = "agent.lock"
	pidName  = "agent.pid"
)

// LockedError says that another agent holds an instance.
type LockedError struct {
	Path string
	PID  int
}

// Error names the holder.
func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("another agent runs for this instance: it holds %s", e.Path)
	}
	return fmt.Sprintf("another agent runs for this instance: pid %d holds %s", e.PID, e.Path)
}

// Lock is held for as long as the agent lives; the kernel drops it with the process.
type Lock struct {
	dir  string
	file *os.File
}

// TakeLock takes an instance, or fails with a *LockedError.
func TakeLock(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create run directory: %w", err)
	}
	path := filepath.Join(dir, lockName)
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open lock file: %w", err)
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			defer file.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, &LockedError{Path: path, PID: holder(file)}
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !statefile.IsAt(file, path) {
			// A cleanup removed it between our open and our lock: what we hold guards nothing.
			file.Close()
			continue
		}
		if err := writePID(file, dir); err != nil {
			file.Close()
			return nil, err
		}
		return &Lock{dir: dir, file: file}, nil
	}
}

// Running is the pid of the agent that holds an instance, 0 if none does. It leaves no trace.
func Running(dir string) int {
	file, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return 0
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err,
		unix.EWOULDBLOCK) {
		return 0
	}
	return holder(file)
}

func writePID(file *os.File, dir string) error {
	text := []byte(strconv.Itoa(os.Getpid()) + "\n")
	if err := file.Truncate(0); err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	if _, err := file.WriteAt(text, 0); err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, pidName), text, 0o644); err != nil {
		return fmt.Errorf("write pid file: %w", err)
	}
	return nil
}

func holder(file *os.File) int {
	text, err := io.ReadAll(io.LimitReader(file, 32))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// Release gives the instance up. The lock file stays for the next agent.
func (l *Lock) Release() {
	os.Remove(filepath.Join(l.dir, pidName))
	l.file.Close()
}

// Remove gives the instance up and takes its files away, and the directory when it is empty.
func (l *Lock) Remove() error {
	var errs []error
	for _, name := range []string{pidName, lockName} {
		if err := os.Remove(filepath.Join(l.dir, name)); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	l.file.Close()
	return errors.Join(append(errs, RemoveEmpty(l.dir))...)
}

// RemoveEmpty removes a directory unless something is still in it: the default
// instance's directories also hold those of the named ones.
func RemoveEmpty(dir string) error {
	err := os.Remove(dir)
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) ||
		errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}
