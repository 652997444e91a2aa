// Package dir is a store.Store on a directory of YAML files.
//
// Files named *.yaml or *.yml in the directory and in its sub-directories (one
// level) are read, each with any number of documents. Hidden files and directories
// and files named *.tmp are not looked at; symbolic links are followed, so that a
// mounted Kubernetes ConfigMap works as it is. Agents publish their endpoints as
// endpoints/NAMESPACE--NAME.yaml.
package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/store"
)

// endpointsDir is the sub-directory that agents publish into.
const endpointsDir = "endpoints"

// Dir is a directory of YAML objects. It is safe for concurrent use.
type Dir struct {
	path   string
	timing timing

	readMu  sync.Mutex
	cache   map[string]cached // by path
	wrong   map[string]string // paths of the listing's own errors: directories, links, unreadable files
	aliased bool              // a file or sub-directory has several names: events name one of them only
	history store.History

	ownMu sync.Mutex
	owner string            // the node that endpoints are published for, if known
	put   map[string]string // node name of each endpoint put, by key
}

var _ store.Store = (*Dir)(nil)

// Open opens the directory of objects at path. It is made when only its last part
// is missing; more than that is taken for a mistyped path.
func Open(path string) (*Dir, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("store.dir: %q: want an absolute path", path)
	}
	d := newDir(path)
	if err := os.Mkdir(d.path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("store.dir: %s is missing and cannot be made: %w", d.path, err)
		}
		return nil, fmt.Errorf("store.dir: %s is missing, and so is the directory around it: make it (mkdir -p %s) or correct store.dir", d.path, d.path)
	}
	if err := d.readable(); err != nil {
		return nil, err
	}
	removeStaleTemps(filepath.Join(d.path, endpointsDir), time.Now())
	return d, nil
}

// Read reads the directory of objects at path once. Unlike Open it makes and removes nothing.
func Read(path string) (*store.Snapshot, error) {
	d := newDir(path)
	if err := d.readable(); err != nil {
		return nil, err
	}
	return d.Snapshot()
}

func newDir(path string) *Dir {
	return &Dir{path: filepath.Clean(path), timing: defaultTiming, cache: map[string]cached{},
		put: map[string]string{}}
}

// Path is the directory.
func (d *Dir) Path() string { return d.path }

// SetOwner makes DeleteEndpoint leave endpoints alone that another node than this
// one published, such as those of a pod that has moved there in the meantime.
func (d *Dir) SetOwner(node string) {
	d.ownMu.Lock()
	defer d.ownMu.Unlock()
	d.owner = node
}

// Seed names nodes that were in use before this agent started: of nodes that collide, they come
// first.
func (d *Dir) Seed(nodes []*v1alpha1.Node) {
	d.readMu.Lock()
	defer d.readMu.Unlock()
	d.history.Seed(nodes)
}

// SeedPolicies names policies that were in use before this agent started: see store.History.
func (d *Dir) SeedPolicies(list []*policy.Policy, files []string) {
	d.readMu.Lock()
	defer d.readMu.Unlock()
	d.history.SeedPolicies(list, files)
}

// SeedObjects names others that were in use then.
func (d *Dir) SeedObjects(list []store.Declared) {
	d.readMu.Lock()
	defer d.readMu.Unlock()
	d.history.SeedObjects(list)
}

// InUse are the objects of some kinds that are in use, and where they came from.
func (d *Dir) InUse(kinds ...string) []store.Declared {
	d.readMu.Lock()
	defer d.readMu.Unlock()
	return d.history.InUse(kinds...)
}

// readable says what is wrong with the directory as a whole.
func (d *Dir) readable() error {
	info, err := os.Stat(d.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("store.dir: %s is missing: make it (mkdir -p %s) or correct store.dir",
			d.path, d.path)
	case err != nil:
		return fmt.Errorf("store.dir: %w", err)
	case !info.IsDir():
		return fmt.Errorf("store.dir: %s is not a directory: name the directory that the objects are in", d.path)
	}
	f, err := os.Open(d.path)
	if err != nil {
		return fmt.Errorf("store.dir: cannot be read: %w", err)
	}
	return f.Close()
}

// Snapshot implements store.Store. What was read before and has not changed since
// is not read again.
func (d *Dir) Snapshot() (*store.Snapshot, error) {
	d.readMu.Lock()
	defer d.readMu.Unlock()
	if err := d.readAll(func(string) {}); err != nil {
		return nil, err
	}
	return d.history.Snapshot(), nil
}

// readAll lists the directory and reads the files that are not what they were, with readMu held.
// Each directory is named to before first.
func (d *Dir) readAll(before func(dir string)) error {
	if err := d.readable(); err != nil {
		return err
	}
	files, dirs, errs := list(d.path, before)
	cache, changed := make(map[string]cached, len(files)), map[string]*store.Source{}
	for _, f := range files {
		c, err := d.read(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since it was listed
		}
		if err != nil {
			errs = append(errs, store.ObjectError{File: f.path, Msg: err.Error()})
			continue
		}
		cache[f.path] = c
		if d.cache[f.path].source != c.source {
			changed[f.path] = c.source
		}
	}
	wrong := map[string]string{}
	for _, e := range errs {
		wrong[e.File] = e.Msg
		if d.wrong[e.File] != e.Msg {
			changed[e.File] = &store.Source{Errors: []store.ObjectError{e}, Directory: true}
		}
	}
	gone := func(path string) bool { return cache[path].source == nil && wrong[path] == "" }
	for path := range d.cache {
		if gone(path) {
			changed[path] = nil
		}
	}
	for path := range d.wrong {
		if gone(path) {
			changed[path] = nil
		}
	}
	d.cache, d.wrong, d.aliased = cache, wrong, aliased(dirs) || aliased(files)
	d.history.Update(changed)
	return nil
}

// readSome reads files that events have named, with readMu held. It is for the directories in which
// each file is whole and an object has one place: elsewhere, what has gone from one file may have
// come into another, and only a listing of all tells. ok is false when it takes one here too.
func (d *Dir) readSome(paths map[string]bool) (ok bool) {
	if d.aliased {
		return false
	}
	// The cache and the history change together: what only one of them knew would never be told.
	changed, read := map[string]*store.Source{}, map[string]cached{}
	for path := range paths {
		if d.wrong[path] != "" || d.wrong[filepath.Dir(path)] != "" {
			return false
		}
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			changed[path] = nil
			continue
		case err != nil || !info.Mode().IsRegular():
			return false
		}
		c, err := d.read(file{path, info})
		if err != nil {
			return false
		}
		changed[path], read[path] = c.source, c
	}
	for path, s := range changed {
		if s == nil {
			delete(d.cache, path)
		}
	}
	maps.Copy(d.cache, read)
	d.history.Update(changed)
	return true
}
