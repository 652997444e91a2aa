// Package prebuilt builds programs that tests run, from modules of their own, once for each state
// of these, and keeps them in the cache of the user.
package prebuilt

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Program is one, and what it is built of.
type Program struct {
	// Name begins its file's name, in a directory of Weft's cache.
	Name, Directory string
	// Source is the directory of its module, Files what there decides about it.
	Source string
	Files  []string
	// Build is what `go build` gets besides, its package last.
	Build []string
	// GoFlags is GOFLAGS for that.
	GoFlags string
	// Fetch is the command that fetches its modules, for people.
	Fetch string
}

// Path is where it is, or would be once it is built.
func (p Program) Path(t testing.TB) string {
	t.Helper()
	h := sha256.New()
	for _, name := range p.Files {
		raw, err := os.ReadFile(filepath.Join(p.Source, name))
		if err != nil {
			t.Fatalf("read the source of %s: %v", p.Name, err)
		}
		h.Write(raw)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "weft", p.Directory)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(cache, p.Name+"-"+hex.EncodeToString(h.Sum(nil)[:8]))
}

// Binary builds it, unless the cache has it for the very same source and versions.
func (p Program) Binary(t testing.TB) string {
	t.Helper()
	binary := p.Path(t)
	// Tests of several packages run at once: one of them builds.
	lock, err := os.OpenFile(filepath.Join(filepath.Dir(binary), "lock"), os.O_CREATE|os.O_RDWR,
		0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("lock the cache of %s: %v", p.Name, err)
	}
	if _, err := os.Stat(binary); err == nil {
		return binary
	}
	half := binary + ".new"
	build := exec.Command("go", append([]string{"build", "-o", half}, p.Build...)...)
	build.Dir, build.Env = p.Source,
		append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+p.GoFlags)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s, whose modules `%s` fetches: %v: %s", p.Name, p.Fetch, err,
			out[max(0, len(out)-2000):])
	}
	if err := os.Rename(half, binary); err != nil {
		t.Fatal(err)
	}
	return binary
}
