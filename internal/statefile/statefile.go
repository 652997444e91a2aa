// Package statefile writes small files that must be whole after a crash, and keeps
// those that are not.
package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// damaged ends the name of a file that was set aside, temporary that of one that is being written.
const (
	damaged   = ".damaged"
	temporary = ".tmp"
)

// Write replaces a file: after a crash, or a loss of power, either the old or the new content is there.
func Write(path string, data []byte) error {
	if err := write(path, data, (*os.File).Sync); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteVolatile is Write for what may be lost with the machine's power, and is quicker.
func WriteVolatile(path string, data []byte) error {
	return write(path, data, func(*os.File) error { return nil })
}

func write(path string, data []byte, sync func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*"+temporary)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = sync(f)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// RemoveTemporaries removes what writers of a file, or of the files that a pattern names, left when they were killed. It is for
// a start, when nobody writes.
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
