package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// identitiesDir is the sub-directory of identities, one file for each number: its name
// is what makes a number be given once.
const identitiesDir = "identities"

var _ store.IdentityStore = (*Dir)(nil)

// Identities implements store.IdentityStore.
func (d *Dir) Identities() ([]*v1alpha1.Identity, error) {
	s, err := d.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("read identities: %w", err)
	}
	return slices.Collect(maps.Values(s.Identities)), nil
}

// Identity implements store.IdentityStore. It reads the file, not what was read before.
func (d *Dir) Identity(number uint32) (*v1alpha1.Identity, error) {
	path := d.identityPath(number)
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read identity %d: %w", number, err)
	}
	objects, problems := store.Decode(path, data)
	for _, o := range objects {
		if i, ok := o.Object.(*v1alpha1.Identity); ok && i.Number() == number {
			return i, nil
		}
	}
	for _, p := range problems {
		return nil, fmt.Errorf("read identity %d: %w", number, p)
	}
	return nil, fmt.Errorf("read identity %d: %s holds something else: remove it", number, path)
}

// CreateIdentity implements store.IdentityStore. A file's name is taken once, and only by one that
// is whole and on disk.
func (d *Dir) CreateIdentity(identity *v1alpha1.Identity) error {
	i := *identity
	data, err := store.Encode(&i)
	if err != nil {
		return fmt.Errorf("create identity %q: %w", i.Metadata.Name, err)
	}
	if _, err = d.ensureDir(identitiesDir, publicDir); err == nil {
		err = create(d.identityPath(i.Number()), data, publicFile)
	}
	if err != nil {
		return fmt.Errorf("create identity %s in store.dir: %w", i.Metadata.Name, err)
	}
	return nil
}

func (d *Dir) identityPath(number uint32) string {
	return filepath.Join(d.path, identitiesDir, strconv.FormatUint(uint64(number), 10)+".yaml")
}
