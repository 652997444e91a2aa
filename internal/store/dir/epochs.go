package dir

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// keysDir is the sub-directory of epochs and of the leader's lock.
const keysDir = "keys"

var _ store.EpochStore = (*Dir)(nil)

// Epochs implements store.EpochStore.
func (d *Dir) Epochs() ([]*v1alpha1.Epoch, error) {
	s, err := d.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("read epochs: %w", err)
	}
	keys := filepath.Join(d.path, keysDir)
	for _, e := range s.Errors {
		if e.File == keys {
			return nil, fmt.Errorf("read epochs: %w", e)
		}
	}
	return slices.SortedFunc(maps.Values(s.Epochs), func(a, b *v1alpha1.Epoch) int {
		return cmp.Compare(a.Spec.Number, b.Spec.Number)
	}), nil
}

// CreateEpoch implements store.EpochStore. The file is linked to its name, which
// works once, only when it is whole and on disk.
func (d *Dir) CreateEpoch(epoch *v1alpha1.Epoch) error {
	e, err := checkEpoch(epoch)
	if err != nil {
		return fmt.Errorf("create epoch %d: %w", e.Spec.Number, err)
	}
	s, err := d.Snapshot()
	if err != nil {
		return fmt.Errorf("create epoch %d: %w", e.Spec.Number, err)
	}
	// It may have been declared in a file of another name.
	if s.Epochs[e.Metadata.Key()] != nil {
		return fmt.Errorf("create epoch %d: %w", e.Spec.Number, store.ErrExists)
	}
	data, err := yaml.Marshal(&e)
	if err == nil {
		err = d.link(e.Metadata.Name+".yaml", data)
	}
	if err != nil {
		return fmt.Errorf("create epoch %d in store.dir: %w", e.Spec.Number, err)
	}
	return nil
}

func checkEpoch(epoch *v1alpha1.Epoch) (v1alpha1.Epoch, error) {
	e := *epoch
	e.SetDefaults()
	var problems []error
	for _, p := range e.Validate() {
		problems = append(problems, p)
	}
	return e, errors.Join(problems...)
}

// ReplaceEpoch implements store.EpochStore. The two files change places in one step: readers see the one or the
// other, and a file that is gone does not come back.
func (d *Dir) ReplaceEpoch(epoch *v1alpha1.Epoch, old []byte) error {
	e, err := checkEpoch(epoch)
	if err != nil {
		return fmt.Errorf("replace epoch %d: %w", e.Spec.Number, err)
	}
	data, err := yaml.Marshal(&e)
	if err == nil {
		err = d.exchange(e.Metadata.Name+".yaml", data, old)
	}
	if err != nil {
		return fmt.Errorf("replace epoch %d in store.dir: %w", e.Spec.Number, err)
	}
	return nil
}

// exchange replaces a file of keysDir that holds an epoch with a wrapped key.
func (d *Dir) exchange(name string, data, old []byte) error {
	dir := filepath.Join(d.path, keysDir)
	path := filepath.Join(dir, name)
	if !holdsWrapped(path, old) {
		return store.ErrChanged
	}
	temp, err := writeTemp(dir, data)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := os.Chmod(temp, 0o600); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.ENOENT):
		return store.ErrChanged
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		// A file system that cannot, such as NFS: one that is deleted in this very moment comes back, to be deleted again.
		err = os.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

// holdsWrapped says whether a file is an epoch with this wrapped key.
func holdsWrapped(path string, wrapped []byte) bool {
	data, err := readFile(path)
	if err != nil {
		return false
	}
	objects, _ := store.Decode(path, data)
	for _, o := range objects {
		if e, ok := o.Object.(*v1alpha1.Epoch); ok && bytes.Equal(e.Spec.Wrapped, wrapped) {
			return true
		}
	}
	return false
}

// link makes a file of keysDir exclusively.
func (d *Dir) link(name string, data []byte) error {
	dir, err := d.ensureKeys()
	if err != nil {
		return err
	}
	removeStaleTemps(dir, time.Now())
	temp, err := writeTemp(dir, data)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	err = os.Chmod(temp, 0o600)
	if err == nil {
		err = os.Link(temp, filepath.Join(dir, name))
	}
	if errors.Is(err, fs.ErrExist) {
		return store.ErrExists
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

// ensureKeys makes keysDir, which only the agents need to read.
func (d *Dir) ensureKeys() (string, error) {
	dir := filepath.Join(d.path, keysDir)
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return dir, nil
	}
	if err != nil {
		return "", err
	}
	return dir, syncDir(d.path)
}

// DeleteEpoch implements store.EpochStore.
func (d *Dir) DeleteEpoch(number uint64) error {
	path := filepath.Join(d.path, keysDir, v1alpha1.EpochName(number)+".yaml")
	err := os.Remove(path)
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete epoch %d from store.dir: %w", number, err)
	}
	return nil
}
