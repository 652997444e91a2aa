package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Image is the name of the image that is on every node.
const Image = "weft.test/pod:1"

// image writes the archive of an image (the format of `docker save`) whose one layer has one
// program, test/k8s/pod, and returns its path.
func image(t testing.TB, dir string) string {
	t.Helper()
	program := filepath.Join(dir, "pod")
	build(t, program, "./test/k8s/pod")
	binary, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	layer := archive(t, file{"pod", 0o755, binary})
	config := marshal(t, map[string]any{"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/pod"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(layer)}}})
	manifest := marshal(t, []any{map[string]any{"Config": sum(config) + ".json",
		"RepoTags": []string{Image}, "Layers": []string{"layer.tar"}}})
	path := filepath.Join(dir, "pod.tar")
	if err := os.WriteFile(path, archive(t, file{sum(config) + ".json", 0o644, config},
		file{"layer.tar", 0o644, layer}, file{"manifest.json", 0o644, manifest}),
		0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// build builds a program of this module, or of one that it names as a tool.
func build(t testing.TB, program, from string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", program, from)
	cmd.Dir = root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s, whose modules `make fetch` fetches: %v: %s", from, err, out)
	}
}

// root is that of this module.
func root() string {
	_, self, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(self), "..", "..", "..")
}

// file is one of an archive.
type file struct {
	name string
	mode int64
	data []byte
}

func archive(t testing.TB, files ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))})
		if err == nil {
			_, err = w.Write(f.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func sum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func marshal(t testing.TB, value any) []byte {
	t.Helper()
	out, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
