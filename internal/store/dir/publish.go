package dir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/statefile"
	"weft.dev/weft/internal/store"
)

// maxBase is the length of the longest file name before a hash replaces its end.
const maxBase = 200

// PutEndpoint implements store.Store: when it returns, the endpoint is on disk,
// whole, and survives a crash.
func (d *Dir) PutEndpoint(ep *v1alpha1.Endpoint) error {
	e := *ep
	data, err := store.Encode(&e)
	key := e.Metadata.Key()
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
	if err := remove(path); err != nil {
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
	path := filepath.Join(d.path, endpointsDir, name)
	if old, err := readFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	dir, err := d.ensureDir(endpointsDir, publicDir)
	if err != nil {
		return err
	}
	temp, err := statefile.Temporary(dir, tempPattern, data, publicFile)
	if err != nil {
		return err
	}
	return statefile.Move(temp, path)
}
