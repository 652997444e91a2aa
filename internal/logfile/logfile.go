// Package logfile appends whole lines to a file that its owner alone may read, and begins another
// when it is full.
package logfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"weft.dev/weft/internal/statefile"
)

// File is a log file. It only ever grows; a full one gets another name. It is not safe for
// concurrent use.
type File struct {
	Path string
	// MaxSize is how many bytes the file may have before the next is begun.
	MaxSize int64
	// Keep is how many full files are kept beside the one in use, at least one.
	Keep int
	// Sync makes Append return only once the lines are on disk.
	Sync bool

	file *os.File
	size int64
	// torn: the last line may be incomplete, since a write failed or a crash came between.
	torn bool
}

// Append writes whole lines. After an error nothing or a part of them is there, and they may be
// given again: what was torn is ended by a line break first.
func (f *File) Append(lines []byte) error {
	if err := f.Open(); err != nil {
		return err
	}
	if f.size > 0 && f.size+int64(len(lines)) > f.MaxSize {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if f.torn {
		lines = append([]byte{'\n'}, lines...)
	}
	f.torn = true
	n, err := f.file.Write(lines)
	f.size += int64(n)
	if err == nil && f.Sync {
		err = f.file.Sync()
	}
	if err != nil {
		// Somebody may have moved or removed it: begin anew next time.
		return errors.Join(fmt.Errorf("write log: %w", err), f.Close())
	}
	f.torn = false
	return nil
}

// Open opens the file, again when somebody has moved it away. Append does it by itself.
func (f *File) Open() error {
	if f.file != nil {
		held, err := f.file.Stat()
		if found, errFound := os.Lstat(f.Path); err == nil && errFound == nil &&
			os.SameFile(held, found) {
			return nil
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	file, err := os.OpenFile(f.Path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	if err := f.adopt(file); err != nil {
		return errors.Join(fmt.Errorf("open log: %w", err), file.Close())
	}
	return nil
}

// adopt looks at what is in the file already and keeps others out of it.
func (f *File) adopt(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", f.Path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := file.Chmod(0o600); err != nil {
			return err
		}
	}
	f.torn = false
	if info.Size() > 0 {
		var last [1]byte
		if _, err := file.ReadAt(last[:], info.Size()-1); err != nil {
			return err
		}
		f.torn = last[0] != '\n'
	} else if err := statefile.SyncDir(filepath.Dir(f.Path)); err != nil { // its name, too, shall survive
		return err
	}
	f.file, f.size = file, info.Size()
	return nil
}

// rotate gives the full file the name .1, that one .2 and so on; the oldest goes.
func (f *File) rotate() error {
	if err := f.Close(); err != nil {
		return err
	}
	for i := f.Keep; i > 0; i-- {
		if err := os.Rename(numbered(f.Path, i-1), numbered(f.Path, i)); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("put full log aside: %w", err)
		}
	}
	return f.Open()
}

// Close closes the file; the next Append opens it again.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	if err != nil {
		return fmt.Errorf("close log: %w", err)
	}
	return nil
}

// Files are a log's files that are there, the oldest first, and always the one in use.
func Files(path string) []string {
	files := []string{path}
	for i := 1; ; i++ {
		if _, err := os.Stat(numbered(path, i)); err != nil {
			return files
		}
		files = append([]string{numbered(path, i)}, files...)
	}
}

func numbered(path string, i int) string {
	if i == 0 {
		return path
	}
	return path + "." + strconv.Itoa(i)
}
