package logfile

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestRotate: lines are never divided between files, the oldest file goes, and only the owner
// reads.
func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "log")
	f := &File{Path: path, MaxSize: 8, Keep: 2, Sync: true}
	for _, lines := range []string{"a1\na2\n", "b1\n", "c1\nc2\nc3\n", "d1\n", "d2\n"} {
		if err := f.Append([]byte(lines)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{path + ".2", path + ".1", path}
	if got := Files(path); !slices.Equal(got, want) {
		t.Fatalf("files %q, want %q", got, want)
	}
	for i, text := range []string{"b1\n", "c1\nc2\nc3\n", "d1\nd2\n"} {
		if data, err := os.ReadFile(want[i]); err != nil || string(data) != text {
			t.Errorf("%s: %q, %v; want %q", want[i], data, err, text)
		}
		if info, err := os.Stat(want[i]); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", want[i], info.Mode(), err)
		}
	}
}

// TestTorn: a line that a crash tore keeps its place, and the next begins on a line of its own.
func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("a1\na"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := &File{Path: path, MaxSize: 100, Keep: 1}
	for _, line := range []string{"b1\n", "b2\n"} {
		if err := f.Append([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(path); string(data) != "a1\na\nb1\nb2\n" {
		t.Errorf("%q", data)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestAway: lines go to a new file when somebody has moved the old one, and to no directory's
// place.
func TestAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := &File{Path: path, MaxSize: 100, Keep: 1}
	for _, line := range []string{"a\n", "b\n"} {
		if err := f.Append([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path, path+line[:1]); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		if data, _ := os.ReadFile(path + name); string(data) != name+"\n" {
			t.Errorf("%s: %q", name, data)
		}
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Append([]byte("c\n")); err == nil {
		t.Error("a directory was taken for the log")
	}
}
