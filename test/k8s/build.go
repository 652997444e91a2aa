package k8s

import (
	"path/filepath"
	"runtime"
	"testing"

	"weft.dev/weft/test/prebuilt"
)

// Binary builds one of Kubernetes' programs from its module, unless the cache has it for the very
// same versions. The first takes 10 minutes and more, and several gigabytes of Go's build cache.
func Binary(t testing.TB, program string) string {
	t.Helper()
	_, self, _, _ := runtime.Caller(0)
	return prebuilt.Program{
		Name: program, Directory: "k8s",
		Source:  filepath.Join(filepath.Dir(self), "testdata", "kubernetes"),
		Files:   []string{"go.mod", "go.sum"},
		Build:   []string{"-trimpath", "-ldflags", linked, "k8s.io/kubernetes/cmd/" + program},
		GoFlags: "-buildvcs=false", Fetch: "scripts/fetch k8s",
	}.Binary(t)
}

// linked tells a program which version it is, or it takes itself for v0.0.0 and does not serve
// what that version has not got.
const linked = "-s -w -X k8s.io/component-base/version.gitVersion=v1.35.4" +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=35"
