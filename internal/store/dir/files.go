package dir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"weft.dev/weft/api/v1alpha1"
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

// encode fills in an object's defaults and writes it as YAML, if it is a good one.
func encode(o v1alpha1.Object) ([]byte, error) {
	o.SetDefaults()
	var problems []error
	for _, p := range o.Validate() {
		problems = append(problems, p)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return yaml.Marshal(o)
}

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
	return dir, syncDir(d.path)
}

// create makes a file that was not there, in one step: whoever finds it finds it whole, also after a crash.
func create(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	removeStaleTemps(dir, time.Now())
	temp, err := writeTemp(dir, data, mode)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := os.Link(temp, path); errors.Is(err, fs.ErrExist) {
		return store.ErrExists
	} else if err != nil {
		return err
	}
	return syncDir(dir)
}

// remove removes a file, if it is there, for good.
func remove(path string) error {
	err := os.Remove(path)
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func writeTemp(dir string, data []byte, mode fs.FileMode) (string, error) {
	f, err := os.CreateTemp(dir, tempPattern)
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// syncDir makes the names in a directory survive a crash.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
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
