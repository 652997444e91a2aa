package kek_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/kek/kektest"
)

func keyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kek")
	if _, err := kek.CreateKeyFile(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func openFile(t *testing.T, path string, opts kek.Options) kek.KEK {
	t.Helper()
	k, err := kek.Open(t.Context(), "file://"+path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kek")
	print, err := kek.CreateKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	kektest.Run(t, kektest.Target{
		Open: func(t *testing.T, opts kek.Options) kek.KEK { return openFile(t, path, opts) },
		Rotate: func(t *testing.T) {
			if err := os.Rename(path, path+"."+print); err != nil {
				t.Fatal(err)
			}
			if print, err = kek.CreateKeyFile(path); err != nil {
				t.Fatal(err)
			}
		},
		Down: func(t *testing.T) func() {
			away := path + ".away"
			if err := os.Rename(path, away); err != nil {
				t.Fatal(err)
			}
			return func() { _ = os.Rename(away, path) }
		},
		DownKind:  kek.ErrConfig,
		Principal: "uid ",
		Skip: map[string]string{
			"disabled key":          "does not apply: a file is there or not",
			"denied":                "does not apply: see TestFileRefused",
			"throttled":             "does not apply: no service",
			"throttled for a while": "does not apply: no service",
			"slow":                  "does not apply: no service",
		},
	})
}

func TestFileRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(path string) error
		want  string
	}{
		{"missing", os.Remove, "does not exist"},
		{"readable for the group", func(p string) error { return os.Chmod(p, 0o640) }, "mode 0640"},
		{"readable for all", func(p string) error { return os.Chmod(p, 0o604) }, "mode 0604"},
		{"too short", func(p string) error { return os.Truncate(p, 31) }, "has 31 bytes"},
		{"too long", func(p string) error { return os.Truncate(p, 33) }, "has 33 bytes"},
		{"a directory",
			func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
			"not a regular file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := keyFile(t)
			k := openFile(t, path, kek.Options{})
			if err := c.spoil(path); err != nil {
				t.Fatal(err)
			}
			_, openErr := kek.Open(t.Context(), "file://"+path, kek.Options{})
			_, _, wrapErr := k.Wrap(t.Context(), make([]byte, kek.DEKSize),
				kek.Binding{Cluster: "c", Epoch: 1})
			for op, err := range map[string]error{"open": openErr, "wrap": wrapErr} {
				if !errors.Is(err, kek.ErrConfig) || !strings.Contains(err.Error(), c.want) ||
					!strings.Contains(err.Error(), path) ||
					!strings.Contains(err.Error(), "(fix: ") {
					t.Errorf("%s: want ErrConfig with %q, the file and a fix, got %v", op, c.want,
						err)
				}
			}
		})
	}
}

// Nodes get a new key file one after the other: each keeps the other key beside its own and unwraps
// what either wrapped.
func TestFileReplacedNodeByNode(t *testing.T) {
	a, b := keyFile(t), keyFile(t)
	ka, kb := openFile(t, a, kek.Options{}), openFile(t, b, kek.Options{})
	bind := kek.Binding{Cluster: "c", Epoch: 1}
	blob, version, err := ka.Wrap(t.Context(), make([]byte, kek.DEKSize), bind)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kb.Unwrap(t.Context(), blob, bind); !errors.Is(err, kek.ErrNotFound) ||
		!strings.Contains(err.Error(), b+"."+version) {
		t.Fatalf("want ErrNotFound that names the file, got %v", err)
	}
	key, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b+"."+version, key, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := kb.Unwrap(t.Context(), blob, bind); err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b+"."+version, other, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := kb.Unwrap(t.Context(), blob, bind); !errors.Is(err, kek.ErrConfig) {
		t.Errorf("misnamed key: want ErrConfig, got %v", err)
	}
}

// TestFileDoesNotLetABlobChooseAFile: what a blob says of its key is a fingerprint, or nothing is
// read by it.
func TestFileDoesNotLetABlobChooseAFile(t *testing.T) {
	path := keyFile(t)
	k := openFile(t, path, kek.Options{})
	bind := kek.Binding{Cluster: "c", Epoch: 1}
	blob, version, err := k.Wrap(t.Context(), make([]byte, kek.DEKSize), bind)
	if err != nil {
		t.Fatal(err)
	}
	for _, forged := range []string{"old", "x/../../kek", "", strings.ToUpper(version) + "0"} {
		changed := strings.Replace(string(blob), version, forged, 1)
		if changed == string(blob) {
			t.Fatalf("%s does not hold the version %s", blob, version)
		}
		if _, err := k.Unwrap(t.Context(), []byte(changed), bind); !errors.Is(err, kek.ErrCorrupt) {
			t.Errorf("version %q: want ErrCorrupt, got %v", forged, err)
		}
	}
}

// TestFileWrapsAnewEachTime: with a nonce of before, AES-GCM tells the difference of two keys and
// how to forge.
func TestFileWrapsAnewEachTime(t *testing.T) {
	k := openFile(t, keyFile(t), kek.Options{})
	seen := map[string]bool{}
	for range 8 {
		blob, _, err := k.Wrap(t.Context(), make([]byte, kek.DEKSize),
			kek.Binding{Cluster: "c", Epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		if seen[string(blob)] {
			t.Fatalf("the same key was wrapped to the same bytes: %s", blob)
		}
		seen[string(blob)] = true
	}
}

func TestKeyFileIsNeverOverwritten(t *testing.T) {
	path := keyFile(t)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kek.CreateKeyFile(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("want fs.ErrExist, got %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the key changed: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"", "unknown scheme"},
		{"/etc/weft/kek", "unknown scheme"},
		{"s3://bucket", `unknown scheme "s3"`},
		{"file://etc/weft/kek", "absolute path"},
		{"file:kek", "absolute path"},
		{"file:///etc/weft/kek?mode=0644", `unknown parameter "mode"`},
		{"file://root:secret@/etc/weft/kek", "user or password"},
		{"file:///a\x00b", "not a URL"},
	} {
		_, err := kek.Open(context.Background(), c.url, kek.Options{})
		if !errors.Is(err, kek.ErrConfig) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "(fix: ") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: want ErrConfig with %q and a fix, got %v", c.url, c.want, err)
		}
	}
}

func TestWrapRefuses(t *testing.T) {
	k := openFile(t, keyFile(t), kek.Options{})
	if _, _, err := k.Wrap(t.Context(), make([]byte, 16), kek.Binding{Cluster: "c"}); err == nil {
		t.Error("a DEK of 16 bytes was wrapped")
	}
	for _, cluster := range []string{"", "a b", "a\x00b", strings.Repeat("x", 129)} {
		if _, _, err := k.Wrap(t.Context(), make([]byte, kek.DEKSize),
			kek.Binding{Cluster: cluster}); !errors.Is(err, kek.ErrConfig) {
			t.Errorf("cluster %q: want ErrConfig, got %v", cluster, err)
		}
	}
}
