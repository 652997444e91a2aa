package dir

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/statefile"
	"weft.dev/weft/internal/store"
)

// appliedDir is the sub-directory that PutObject writes to, each object in a file of its own.
const appliedDir = "applied"

var _ store.Editor = (*Dir)(nil)

// PutObject implements store.Editor. What people have declared in a file of their own is theirs to
// edit.
func (d *Dir) PutObject(o v1alpha1.Object) error {
	kind, key := o.Type().Kind, o.Meta().Key()
	data, err := store.Encode(o)
	if err != nil {
		return fmt.Errorf("write %s %s: %w", kind, key, err)
	}
	path := d.appliedPath(kind, key)
	elsewhere, err := d.declaredAt(kind, key)
	if err != nil {
		return fmt.Errorf("write %s %s: %w", kind, key, err)
	}
	if elsewhere = slices.DeleteFunc(elsewhere,
		func(at store.Declared) bool { return at.File == path }); len(elsewhere) > 0 {
		return fmt.Errorf("write %s %s: it is declared at %s:%d: edit it there, or remove it from there first", kind, key, elsewhere[0].File, elsewhere[0].Line)
	}
	if _, err := d.ensureDir(appliedDir, publicDir); err != nil {
		return fmt.Errorf("write %s %s in store.dir: %w", kind, key, err)
	}
	temp, err := statefile.Temporary(filepath.Dir(path), tempPattern, data, publicFile)
	if err == nil {
		err = statefile.Move(temp, path)
	}
	if err != nil {
		return fmt.Errorf("write %s %s in store.dir: %w", kind, key, err)
	}
	return nil
}

// DeleteObject implements store.Editor: it removes a file that holds this one object.
func (d *Dir) DeleteObject(kind, key string) error {
	places, err := d.declaredAt(kind, key)
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", kind, key, err)
	}
	if len(places) == 0 {
		return fmt.Errorf("delete %s %s: %w", kind, key, store.ErrNotFound)
	}
	for _, at := range places {
		if !d.agents(at.File) && at.File != d.appliedPath(kind, key) {
			return fmt.Errorf("delete %s %s: it is declared at %s:%d: remove it from there", kind,
				key, at.File, at.Line)
		}
	}
	for _, at := range places {
		if err := remove(at.File); err != nil {
			return fmt.Errorf("delete %s %s from store.dir: %w", kind, key, err)
		}
	}
	return nil
}

// agents says whether a file is one that agents wrote.
func (d *Dir) agents(file string) bool { return d.agentsDir(filepath.Dir(file)) != "" }

// declaredAt is where an object is declared now.
func (d *Dir) declaredAt(kind, key string) ([]store.Declared, error) {
	d.readMu.Lock()
	defer d.readMu.Unlock()
	if err := d.readAll(func(string) {}); err != nil {
		return nil, err
	}
	return d.history.Places(kind, key), nil
}

// appliedPath is another one for every object.
func (d *Dir) appliedPath(kind, key string) string {
	ns, name, namespaced := strings.Cut(key, "/")
	if !namespaced {
		ns, name = "", key
	}
	return filepath.Join(d.path, appliedDir, strings.ToLower(kind)+"--"+fileName(ns, name))
}
