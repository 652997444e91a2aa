package dir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config/strictyaml"
	"weft.dev/weft/internal/store"
)

// file is a file to read, as it was when it was listed.
type file struct {
	path string
	info fs.FileInfo
}

// cached is what a file held.
type cached struct {
	version version
	read    time.Time
	source  *store.Source
}

// version changes when a file's contents do.
type version struct {
	dev, inode   uint64
	size         int64
	mtime, ctime syscall.Timespec
}

// settled is how old a change must be for its time to tell it from a later one:
// some file systems keep time in whole seconds.
const settled = 2 * time.Second

// list finds the files to read in dir and its sub-directories, in a stable order. Each directory is
// named to before first.
func list(dir string, before func(dir string)) (files, dirs []file, errs []store.ObjectError) {
	before(dir)
	files, dirs, errs = listOne(dir)
	for _, sub := range dirs {
		before(sub.path)
		f, _, e := listOne(sub.path)
		files = append(files, f...)
		errs = append(errs, e...)
	}
	return files, dirs, errs
}

// aliased says whether two of some files or directories are the same one, by a link or a mount.
func aliased(found []file) bool {
	type inode struct{ dev, number uint64 }
	seen := make(map[inode]bool, len(found))
	for _, f := range found {
		v := versionOf(f.info)
		at := inode{v.dev, v.inode}
		if seen[at] {
			return true
		}
		seen[at] = true
	}
	return false
}

// listOne finds the files and directories directly in dir.
func listOne(dir string) (files, dirs []file, errs []store.ObjectError) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs,
			store.ObjectError{File: dir,
				Msg: fmt.Sprintf("directory cannot be read: %s", reason(err))})
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if ignored(e.Name()) {
			continue
		}
		info, err := os.Stat(path) // follows links
		switch {
		case err == nil && info.IsDir():
			dirs = append(dirs, file{path, info})
		case !isYAML(e.Name()):
		case errors.Is(err, fs.ErrNotExist) && !isLink(path): // just removed
		case errors.Is(err, fs.ErrNotExist):
			errs = append(errs,
				store.ObjectError{File: path,
					Msg: "is a symbolic link to nothing: correct or remove it"})
		case err != nil:
			errs = append(errs,
				store.ObjectError{File: path, Msg: fmt.Sprintf("cannot be read: %s", reason(err))})
		case !info.Mode().IsRegular():
			errs = append(errs,
				store.ObjectError{File: path,
					Msg: fmt.Sprintf("is %s, not a regular file: remove it",
						describe(info.Mode()))})
		default:
			files = append(files, file{path, info})
		}
	}
	return files, dirs, errs
}

func ignored(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".tmp")
}

func isYAML(name string) bool {
	return strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml")
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

func describe(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}

// reason is an error without the path that is named anyway.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// read decodes a file, or takes it from the cache when it is the same.
func (d *Dir) read(f file) (cached, error) {
	v := versionOf(f.info)
	old, ok := d.cache[f.path]
	if ok && old.version == v && old.read.Sub(time.Unix(v.ctime.Unix())) > settled {
		return old, nil
	}
	now := time.Now()
	data, err := readFile(f.path)
	if err != nil {
		return cached{}, err
	}
	objects, errs := store.Decode(f.path, data)
	objects, foreign := d.belonging(f.path, objects)
	source := &store.Source{Objects: objects, Errors: append(errs, foreign...),
		Empty: len(bytes.TrimSpace(data)) == 0}
	return cached{version: v, read: now, source: source}, nil
}

// agentKinds are the kinds of objects in the sub-directories that agents write to. No other is read
// from there: who may publish endpoints does not thereby say what may travel in cleartext, or which
// addresses a node has.
var agentKinds = map[string]string{
	endpointsDir:  v1alpha1.KindEndpoint,
	identitiesDir: v1alpha1.KindIdentity,
	keysDir:       v1alpha1.KindEpoch,
}

// belonging are the objects that may be in a file's directory, with an error for each of the
// others.
func (d *Dir) belonging(path string,
	objects []store.Declared) (good []store.Declared, errs []store.ObjectError) {
	sub := d.agentsDir(filepath.Dir(path))
	want, restricted := agentKinds[sub]
	if !restricted {
		return objects, nil
	}
	for _, o := range objects {
		kind := o.Object.Type().Kind
		if kind == want {
			good = append(good, o)
			continue
		}
		errs = append(errs, store.ObjectError{File: path, Line: o.Line, Field: "kind",
			Msg: fmt.Sprintf("is %s, and only objects of kind %s are read from %s/, which agents write: move it to another directory", kind, want, sub)})
	}
	return good, errs
}

// agentsDir says which of the agents' sub-directories a directory is, whatever links lead to it, or
// "".
func (d *Dir) agentsDir(dir string) string {
	for sub := range agentKinds {
		path := filepath.Join(d.path, sub)
		if path == dir {
			return sub
		}
		a, errA := os.Stat(path)
		b, errB := os.Stat(dir)
		if errA == nil && errB == nil && os.SameFile(a, b) {
			return sub
		}
	}
	return ""
}

// readFile reads a regular file that is not too large. It does not block should
// the file have become a pipe meanwhile.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, fmt.Errorf("cannot be read: %s", reason(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %s", reason(err))
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("is %s, not a regular file: remove it", describe(info.Mode()))
	}
	// One byte more than is allowed, for store.Decode to refuse.
	data, err := io.ReadAll(io.LimitReader(f, strictyaml.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %s", reason(err))
	}
	return data, nil
}

func versionOf(info fs.FileInfo) version {
	v := version{size: info.Size()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		v.dev, v.inode, v.mtime, v.ctime = uint64(s.Dev), s.Ino, s.Mtim, s.Ctim
	}
	return v
}
