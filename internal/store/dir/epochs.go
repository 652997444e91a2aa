package dir

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/statefile"
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

// CreateEpoch implements store.EpochStore. A file's name is taken once, and only by one that is
// whole and on disk.
func (d *Dir) CreateEpoch(epoch *v1alpha1.Epoch) error {
	e := *epoch
	data, err := store.Encode(&e)
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
	dir, err := d.ensureDir(keysDir, secretDir)
	if err == nil {
		err = create(filepath.Join(dir, e.Metadata.Name+".yaml"), data, secretFile)
	}
	if err != nil {
		return fmt.Errorf("create epoch %d in store.dir: %w", e.Spec.Number, err)
	}
	return nil
}

// ReplaceEpoch implements store.EpochStore. The two files change places in one step: readers see
// the one or the other, and a file that is gone does not come back.
func (d *Dir) ReplaceEpoch(epoch *v1alpha1.Epoch, old []byte) error {
	e := *epoch
	data, err := store.Encode(&e)
	if err != nil {
		return fmt.Errorf("replace epoch %d: %w", e.Spec.Number, err)
	}
	if err := d.exchange(e.Metadata.Name+".yaml", data, old); err != nil {
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
	temp, err := statefile.Temporary(dir, tempPattern, data, secretFile)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.ENOENT):
		return store.ErrChanged
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		// A file system that cannot, such as NFS: one that is deleted in this very moment comes
		// back, to be deleted again.
		err = os.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	return statefile.SyncDir(dir)
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

// DeleteEpoch implements store.EpochStore.
func (d *Dir) DeleteEpoch(number uint64) error {
	path := filepath.Join(d.path, keysDir, v1alpha1.EpochName(number)+".yaml")
	if err := remove(path); err != nil {
		return fmt.Errorf("delete epoch %d from store.dir: %w", number, err)
	}
	return nil
}
