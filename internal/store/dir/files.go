package dir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weft.dev/weft/internal/statefile"
	"weft.dev/weft/internal/store"
)

const (
	tempPattern = ".put-*.tmp"
	// staleTemp is the age at which a temporary file is one that a crash left behind.
	staleTemp = 10 * time.Minute
	// Of directories and files that everybody may read, and of those that only the agents need.
	publicDir, publicFile = 0o755, 0o644
	secretDir, secretFile = 0o700, 0o600
)

// ensureDir makes a sub-directory.
func (d *Dir) ensureDir(name string, mode fs.FileMode) (string, error) {
	dir := filepath.Join(d.path, name)
	err := os.Mkdir(dir, mode)
	if errors.Is(err, fs.ErrExist) {
		return dir, nil
	}
	if err != nil {
		return "", err
	}
	return dir, statefile.SyncDir(d.path)
}

// create makes a file that was not there, in one step.
func create(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	removeStaleTemps(dir, time.Now())
	temp, err := statefile.Temporary(dir, tempPattern, data, mode)
	if err != nil {
		return err
	}
	if err := statefile.Link(temp, path); errors.Is(err, fs.ErrExist) {
		return store.ErrExists
	} else if err != nil {
		return err
	}
	return nil
}

// remove removes a file, if it is there, for good.
func remove(path string) error {
	err := os.Remove(path)
	if err == nil {
		err = statefile.SyncDir(filepath.Dir(path))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeStaleTemps removes what crashed agents left, and leaves alone what another
// agent may be writing now.
func removeStaleTemps(dir string, now time.Time) {
	paths, _ := filepath.Glob(filepath.Join(globEscape(dir), tempPattern))
	for _, p := range paths {
		if info, err := os.Lstat(p); err == nil && now.Sub(info.ModTime()) > staleTemp {
			os.Remove(p)
		}
	}
}

// globEscape makes a path match itself only.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
