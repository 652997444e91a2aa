package secmem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestSecret(t *testing.T) {
	data := []byte("a secret of some bytes")
	want := bytes.Clone(data)
	s, err := Take(data)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, make([]byte, len(data))) {
		t.Error("what was taken is still there")
	}
	got, err := s.Copy()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("copy is %q, %v", got, err)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", s, s, s, s); strings.Contains(text, "bytes") {
		t.Errorf("printed as %s", text)
	}
	s.Release()
	s.Release()
	if err := s.Use(func([]byte) error { return nil }); !errors.Is(err, ErrReleased) {
		t.Errorf("used after release: %v", err)
	}
}

func TestRandomDiffers(t *testing.T) {
	a, err := Random(32)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Release()
	b, err := Random(32)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	x, _ := a.Copy()
	y, _ := b.Copy()
	if bytes.Equal(x, y) || bytes.Equal(x, make([]byte, 32)) {
		t.Error("random secrets are not")
	}
	if _, err := New(0); err == nil {
		t.Error("made an empty secret")
	}
}

// TestPagesAreOutOfDumps reads the kernel's own account of the pages.
func TestPagesAreOutOfDumps(t *testing.T) {
	s, err := New(32)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	if err := s.Locked(); err != nil {
		t.Skipf("memory cannot be locked here: %v", err)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skipf("no smaps: %v", err)
	}
	start := fmt.Sprintf("%x-", &s.pages[0])
	start = strings.TrimPrefix(start, "0x")
	_, rest, found := strings.Cut(string(maps), "\n"+start)
	if !found {
		t.Skip("the pages were merged with their neighbours")
	}
	_, flags, _ := strings.Cut(rest, "VmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	for _, want := range []string{" lo", " dd"} { // locked, do not dump
		if !strings.Contains(flags, want) {
			t.Errorf("flags of the pages are%s: want%s", flags, want)
		}
	}
}
