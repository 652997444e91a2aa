package dir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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
	// maxBase is the length of the longest file name before a hash replaces its end.
	maxBase = 200
)

// PutEndpoint implements store.Store: when it returns, the endpoint is on disk,
// whole, and survives a crash.
func (d *Dir) PutEndpoint(ep *v1alpha1.Endpoint) error {
	e := *ep
	e.SetDefaults()
	key := e.Metadata.Key()
	var problems []error
	for _, p := range e.Validate() {
		problems = append(problems, p)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("publish endpoint %q: %w", key, err)
	}
	data, err := yaml.Marshal(&e)
	if err != nil {
		return fmt.Errorf("publish endpoint %q: %w", key, err)
	}
	if err := d.write(fileName(e.Metadata.Namespace, e.Metadata.Name), data); err != nil {
		return fmt.Errorf("publish endpoint %q in store.dir: %w", key, err)
	}
	d.ownMu.Lock()
	defer d.ownMu.Unlock()
	d.put[key] = e.Spec.NodeName
	return nil
}

// DeleteEndpoint implements store.Store. An endpoint that another node has
// published meanwhile under the same key is left alone (see SetOwner).
func (d *Dir) DeleteEndpoint(key string) error {
	ns, name, found := strings.Cut(key, "/")
	if !found {
		ns, name = v1alpha1.DefaultNamespace, key
	}
	if v1alpha1.CheckLabel(ns) != "" || v1alpha1.CheckName(name) != "" {
		return fmt.Errorf("withdraw endpoint %q: want NAMESPACE/NAME", key)
	}
	key = ns + "/" + name
	path := filepath.Join(d.path, endpointsDir, fileName(ns, name))
	if node := d.ownerOf(key); node != "" && publishedByOther(path, node) {
		return nil
	}
	err := os.Remove(path)
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("withdraw endpoint %q from store.dir: %w", key, err)
	}
	d.ownMu.Lock()
	defer d.ownMu.Unlock()
	delete(d.put, key)
	return nil
}

func (d *Dir) ownerOf(key string) string {
	d.ownMu.Lock()
	defer d.ownMu.Unlock()
	if d.owner != "" {
		return d.owner
	}
	return d.put[key]
}

// publishedByOther is true when the file holds a good endpoint of another node.
func publishedByOther(path, node string) bool {
	data, err := readFile(path)
	if err != nil {
		return false
	}
	objects, _ := store.Decode(path, data)
	for _, o := range objects {
		if e, ok := o.Object.(*v1alpha1.Endpoint); ok && e.Spec.NodeName != node {
			return true
		}
	}
	return false
}

// fileName is another one for every key: a namespace may have "--" inside, then
// "++", which no name has, stands between the two.
func fileName(ns, name string) string {
	sep := "--"
	if strings.Contains(ns, sep) {
		sep = "++"
	}
	base := ns + sep + name
	if len(base) > maxBase {
		sum := sha256.Sum256([]byte(base))
		base = base[:maxBase] + "+" + hex.EncodeToString(sum[:8])
	}
	return base + ".yaml"
}

// write puts data into a file of endpointsDir: whoever reads sees all or nothing of
// it, also after a crash.
func (d *Dir) write(name string, data []byte) error {
	dir := filepath.Join(d.path, endpointsDir)
	path := filepath.Join(dir, name)
	if old, err := readFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.Mkdir(dir, 0o755); err == nil {
		if err := syncDir(d.path); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	temp, err := writeTemp(dir, data)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return err
	}
	return syncDir(dir)
}

func writeTemp(dir string, data []byte) (string, error) {
	f, err := os.CreateTemp(dir, tempPattern)
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o644)
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
