package dir

import (
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
	e := *epoch
	e.SetDefaults()
	var problems []error
	for _, p := range e.Validate() {
		problems = append(problems, p)
	}
	if err := errors.Join(problems...); err != nil {
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
