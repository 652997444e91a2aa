package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestSetAsideKeepsEarlierOnes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	want := []string{path + ".damaged", path + ".damaged.1"}
	for i, name := range want {
		if err := Write(path, []byte{byte('0' + i)}); err != nil {
			t.Fatal(err)
		}
		if got, err := SetAside(path); err != nil || got != name {
			t.Errorf("set aside as %q, %v; want %q", got, err, name)
		}
	}
	if got := Aside(path); !slices.Equal(got, want) {
		t.Errorf("aside: %q, want %q", got, want)
	}
	for i, name := range want {
		if data, err := os.ReadFile(name); err != nil || string(data) != string(rune('0'+i)) {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*.tmp")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestWriteLeavesTheOldOneOnFailure(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	if err := os.Mkdir(path, 0o700); err != nil { // a rename onto a directory fails
		t.Fatal(err)
	}
	if err := Write(path, []byte("x")); err == nil {
		t.Error("want an error")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// TestCrash: a writer that ends after any step leaves the old file or the new one, never a part of
// one, and what else it leaves goes with the next start.
func TestCrash(t *testing.T) {
	defer func() { reached = func(string) {} }()
	steps := map[string]struct {
		write func(path string) error
		old   bool     // there is a file before
		steps []string // after which of its steps the new one is there
	}{
		"write": {func(path string) error { return Write(path, []byte("new")) }, true,
			[]string{"renamed"}},
		"create": {func(path string) error { return Create(path, []byte("new"), 0o600) }, false,
			[]string{"linked"}},
	}
	for name, c := range steps {
		for _, step := range []string{"made", "written", "on disk", "renamed", "linked"} {
			t.Run(name+" until "+step, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "state")
				want := ""
				if c.old {
					want = "old"
					if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if crashed := crashAfter(step, func() error { return c.write(path) }); !crashed ||
					slices.Contains(c.steps, step) {
					want = "new"
				}
				got, _ := os.ReadFile(path)
				if err := RemoveTemporaries(path); err != nil {
					t.Error(err)
				}
				again, _ := os.ReadFile(path)
				if string(got) != want || string(again) != want {
					t.Errorf("%q, after a start %q; want %q", got, again, want)
				}
				if left, _ := filepath.Glob(path + "?*"); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		}
	}
}

// crashAfter runs a writer up to a step, as if it was killed there: nothing is cleaned up.
func crashAfter(step string, write func() error) (crashed bool) {
	defer func() { crashed = recover() != nil }()
	reached = func(at string) {
		if at == step {
			panic(at)
		}
	}
	_ = write()
	return false
}

// TestCreate: a file that is there stays, and the mode is the one asked for.
func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	if err := Create(path, []byte("first"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, []byte("second"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	info, err := os.Stat(path)
	data, _ := os.ReadFile(path)
	if err != nil || info.Mode() != 0o640 || string(data) != "first" {
		t.Errorf("%v, %q, %v", info, data, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// TestRemoveTemporaries: what a killed writer left goes, and nothing else.
func TestRemoveTemporaries(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.json", "a.json.123.tmp", "a.json.456.tmp", "a.json.damaged",
		"b.json.123.tmp"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTemporaries(filepath.Join(dir, "a.json")); err != nil {
		t.Error(err)
	}
	var left []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"a.json", "a.json.damaged", "b.json.123.tmp"}; !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}
