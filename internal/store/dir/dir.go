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
	"os"
	"path/filepath"
	"sync"
	"time"

	"weft.dev/weft/api/v1alpha1"
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
	d := &Dir{path: filepath.Clean(path), timing: defaultTiming, cache: map[string]cached{}, put: map[string]string{}}
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

// Path is the directory.
func (d *Dir) Path() string { return d.path }

// SetOwner makes DeleteEndpoint leave endpoints alone that another node than this
// one published, such as those of a pod that has moved there in the meantime.
func (d *Dir) SetOwner(node string) {
	d.ownMu.Lock()
	defer d.ownMu.Unlock()
	d.owner = node
}

// Seed names nodes that were in use before this agent started: of nodes that collide, they come first.
func (d *Dir) Seed(nodes []*v1alpha1.Node) {
	d.readMu.Lock()
	defer d.readMu.Unlock()
	d.history.Seed(nodes)
}

// readable says what is wrong with the directory as a whole.
func (d *Dir) readable() error {
	info, err := os.Stat(d.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("store.dir: %s is missing: make it (mkdir -p %s) or correct store.dir", d.path, d.path)
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
	if err := d.readable(); err != nil {
		return nil, err
	}
	files, errs := list(d.path)
	var objects []store.Declared
	cache := make(map[string]cached, len(files))
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
		if c.empty && d.history.Had(f.path) {
			errs = append(errs, store.ObjectError{File: f.path, Msg: "is empty, as a file that is being written is: remove it if its objects are to go"})
		}
		objects = append(objects, c.objects...)
		errs = append(errs, c.errs...)
	}
	d.cache = cache
	return d.history.Assemble(objects, errs), nil
}
