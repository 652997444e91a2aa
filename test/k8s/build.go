package k8s

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// source is the directory of the module that names kube-apiserver's version.
func source() string {
	_, self, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(self), "testdata", "apiserver")
}

// Binary builds kube-apiserver from its module, unless the cache has it for the very same versions.
// That takes 10 minutes and more, and several gigabytes of Go's build cache.
func Binary(t testing.TB) string {
	t.Helper()
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		raw, err := os.ReadFile(filepath.Join(source(), name))
		if err != nil {
			t.Fatal(err)
		}
		h.Write(raw)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cache = filepath.Join(cache, "weft", "k8s")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(cache, "kube-apiserver-"+hex.EncodeToString(h.Sum(nil)[:8]))
	// Tests of several packages run at once: one of them builds.
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("lock kube-apiserver's cache: %v", err)
	}
	if _, err := os.Stat(binary); err == nil {
		return binary
	}
	half := binary + ".new"
	build := exec.Command("go", "build", "-trimpath", "-ldflags", linked, "-o", half,
		"k8s.io/kubernetes/cmd/kube-apiserver")
	build.Dir, build.Env = source(),
		append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kube-apiserver, whose modules `scripts/fetch k8s` fetches: %v: %s", err, out)
	}
	if err := os.Rename(half, binary); err != nil {
		t.Fatal(err)
	}
	return binary
}

// linked tells the server which version it is, or it takes itself for v0.0.0 and does not serve
// what that version has not got.
const linked = "-s -w -X k8s.io/component-base/version.gitVersion=v1.35.4" +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=35"
