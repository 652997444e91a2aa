package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// logFile is the file in use. It only ever grows; a full one gets another name.
type logFile struct {
	path    string
	maxSize int64
	keep    int

	file *os.File
	size int64
	// torn: the last line may be incomplete, since a write failed or a crash came between.
	torn bool
}

// append puts records on disk. After an error nothing or a part of them is there, and they may be given again.
func (f *logFile) append(batch []Record) error {
	data, err := encode(batch)
	if err != nil {
		return err
	}
	if err := f.open(); err != nil {
		return err
	}
	if f.size > 0 && f.size+int64(len(data)) > f.maxSize {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if f.torn {
		data = append([]byte{'\n'}, data...)
	}
	f.torn = true
	n, err := f.file.Write(data)
	f.size += int64(n)
	if err == nil {
		err = f.file.Sync()
	}
	if err != nil {
		// Somebody may have moved or removed it: begin anew next time.
		return errors.Join(fmt.Errorf("write audit log: %w", err), f.close())
	}
	f.torn = false
	return nil
}

// open opens the file, again when somebody has moved it away.
func (f *logFile) open() error {
	if f.file != nil {
		held, err := f.file.Stat()
		if found, errFound := os.Lstat(f.path); err == nil && errFound == nil && os.SameFile(held, found) {
			return nil
		}
		if err := f.close(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", f.path)
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = file.Chmod(0o600)
	}
	if err == nil && info.Size() > 0 {
		var last [1]byte
		_, err = file.ReadAt(last[:], info.Size()-1)
		f.torn = last[0] != '\n'
	}
	if err == nil && info.Size() == 0 {
		f.torn, err = false, syncDir(filepath.Dir(f.path)) // its name, too, shall survive
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open audit log: %w", err), file.Close())
	}
	f.file, f.size = file, info.Size()
	return nil
}

// rotate gives the full file the name .1, that one .2 and so on; the oldest goes.
func (f *logFile) rotate() error {
	if err := f.close(); err != nil {
		return err
	}
	for i := f.keep; i > 0; i-- {
		from := f.path
		if i > 1 {
			from = numbered(f.path, i-1)
		}
		if err := os.Rename(from, numbered(f.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("put full audit log aside: %w", err)
		}
	}
	return f.open()
}

func (f *logFile) close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	if err != nil {
		return fmt.Errorf("close audit log: %w", err)
	}
	return nil
}

func numbered(path string, i int) string { return path + "." + strconv.Itoa(i) }

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Read reads an audit log's files, the oldest record first, and gives the last of them; 0 is all. Lines that a
// crash has torn are left out.
func Read(path string, last int) ([]Record, error) {
	out := []Record{}
	files := []string{path}
	for i := 1; ; i++ {
		if _, err := os.Stat(numbered(path, i)); err != nil {
			break
		}
		files = append(files, numbered(path, i))
	}
	for i := len(files) - 1; i >= 0; i-- {
		records, err := readFile(files[i])
		if err != nil {
			return nil, fmt.Errorf("read audit log: %w", err)
		}
		out = append(out, records...)
		if last > 0 && len(out) > last {
			out = append([]Record(nil), out[len(out)-last:]...)
		}
	}
	return out, nil
}

func readFile(path string) ([]Record, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var out []Record
	for lines := bufio.NewReader(file); ; {
		line, err := lines.ReadBytes('\n')
		var r Record
		if len(line) > 1 && json.Unmarshal(line, &r) == nil {
			out = append(out, r)
		}
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
