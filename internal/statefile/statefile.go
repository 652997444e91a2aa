// Package statefile writes small files that must be whole after a crash, and keeps
// those that are not.
package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// damaged ends the name of a file that was set aside, temporary that of one that is being written.
const (
	damaged   = ".damaged"
	temporary = ".tmp"
)

// reached is told of every step, for tests that end there as a crash would.
var reached = func(step string) {}

// Write replaces a file that only its owner may read: after a crash, or a loss of power, either the
// old or the new content is there. A writer that is killed leaves a temporary file beside it; see
// RemoveTemporaries.
func Write(path string, data []byte) error { return WriteMode(path, data, 0o600) }

// WriteMode is Write for a file of any mode, whatever the umask.
func WriteMode(path string, data []byte, mode fs.FileMode) error {
	temp, err := Temporary(filepath.Dir(path), patternOf(path), data, mode)
	if err != nil {
		return err
	}
	return Move(temp, path)
}

// WriteVolatile is Write for what may be lost with the machine's power, and is quicker.
func WriteVolatile(path string, data []byte) error {
	temp, err := write(filepath.Dir(path), patternOf(path), data, 0o600,
		func(*os.File) error { return nil })
	if err != nil {
		return err
	}
	return rename(temp, path)
}

// Create makes a file that was not there: whoever finds it finds it whole, also after a crash. The
// error is fs.ErrExist if there was one.
func Create(path string, data []byte, mode fs.FileMode) error {
	temp, err := Temporary(filepath.Dir(path), patternOf(path), data, mode)
	if err != nil {
		return err
	}
	return Link(temp, path)
}

func patternOf(path string) string { return filepath.Base(path) + ".*" + temporary }

// Temporary writes a new file, named after a pattern as by os.CreateTemp, and returns its path once
// the content is on disk. The caller gives it to Move or Link, or removes it.
func Temporary(dir, pattern string, data []byte, mode fs.FileMode) (string, error) {
	return write(dir, pattern, data, mode, (*os.File).Sync)
}

func write(dir, pattern string, data []byte, mode fs.FileMode,
	sync func(*os.File) error) (string, error) {
	f, err := os.CreateTemp(dir, pattern)
	if err != nil {
		return "", err
	}
	reached("made")
	if _, err = f.Write(data); err == nil {
		reached("written")
		err = errors.Join(f.Chmod(mode), sync(f))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	reached("on disk")
	return f.Name(), nil
}

// Move puts a temporary file in the place of another, or removes it on failure.
func Move(temp, path string) error {
	if err := rename(temp, path); err != nil {
		return err
	}
	reached("renamed")
	return SyncDir(filepath.Dir(path))
}

func rename(temp, path string) error {
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// Link gives a temporary file a name that is free, and removes it if it is not. By a rename that
// does not replace, so that whoever is killed leaves no second name of a key; by a link where a
// file system has no such rename, as NFS.
func Link(temp, path string) error {
	err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if err != nil {
		if !errors.Is(err, fs.ErrExist) {
			err = os.Link(temp, path)
		}
		if errTemp := os.Remove(temp); err != nil {
			return errors.Join(&os.LinkError{Op: "link", Old: temp, New: path, Err: err}, errTemp)
		}
	}
	reached("linked")
	return SyncDir(filepath.Dir(path))
}

// RemoveTemporaries removes what writers of a file, or of the files that a pattern names, left when
// they were killed. It is for a start, when nobody writes.
func RemoveTemporaries(pattern string) error {
	list, _ := filepath.Glob(pattern + ".*" + temporary) // the pattern is ours, so never bad
	var failed error
	for _, path := range list {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("remove what a killed writer left: %w", err))
		}
	}
	return failed
}

// SyncDir makes names in a directory durable.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// IsAt says whether an open file is still the one at a path: nobody has removed or replaced it. A
// lock on one that is not guards nothing.
func IsAt(f *os.File, path string) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	found, err := os.Stat(path)
	return err == nil && os.SameFile(held, found)
}

// SetAside gives a file that cannot be read a name of its own beside the old one, which it
// returns. One that was set aside before stays.
func SetAside(path string) (string, error) {
	to := path + damaged
	for n := 1; ; n++ {
		_, err := os.Lstat(to)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("set %s aside: %w", path, err)
		}
		to = fmt.Sprintf("%s%s.%d", path, damaged, n)
	}
	if err := os.Rename(path, to); err != nil {
		return "", fmt.Errorf("set damaged file aside: %w", err)
	}
	return to, SyncDir(filepath.Dir(path))
}

// Aside lists what was set aside of the files that a path or pattern names.
func Aside(pattern string) []string {
	list, _ := filepath.Glob(pattern + damaged + "*") // the pattern is ours, so never bad
	return list
}
