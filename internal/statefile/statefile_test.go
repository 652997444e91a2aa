package statefile

import (
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

// TestRemoveTemporaries: what a killed writer left goes, and nothing else.
func TestRemoveTemporaries(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.json", "a.json.123.tmp", "a.json.456.tmp", "a.json.damaged", "b.json.123.tmp"} {
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
