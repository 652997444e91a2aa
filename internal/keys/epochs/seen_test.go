package epochs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/statefile"
)

// TestSeenFile holds what is remembered to its rules.
func TestSeenFile(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, err := openSeen(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.first(1, now); !got.Equal(now) {
		t.Errorf("first look: %s", got)
	}
	if got := s.first(1, now.Add(time.Hour)); !got.Equal(now) {
		t.Errorf("second look: %s", got)
	}
	if got := s.first(1, now.Add(-time.Hour)); !got.Equal(now.Add(-time.Hour)) {
		t.Errorf("the clock was put back: %s", got)
	}
	s.keep([]Epoch{{Number: 2}}, now, time.Hour)
	if len(s.Times) != 1 {
		t.Errorf("an epoch that could be used still is forgotten: %v", s.Times)
	}
	s.keep([]Epoch{{Number: 1}}, now.Add(2*time.Hour), time.Hour)
	if len(s.Times) != 1 {
		t.Errorf("an epoch that is there is forgotten: %v", s.Times)
	}
	s.keep([]Epoch{{Number: 2}}, now.Add(2*time.Hour), time.Hour)
	if len(s.Times) != 0 {
		t.Errorf("an epoch that is gone is remembered: %v", s.Times)
	}
}

// TestBrokenSeenFile: one that cannot be read is kept aside beside those before it, and what a
// killed writer left goes.
func TestBrokenSeenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seen")
	for i, text := range []string{`{"1":"2026-01`, `{"one":"2026-01-02T03:04:05Z"}`} {
		left := fmt.Sprintf("%s.%d.tmp", path, i)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600),
			os.WriteFile(left, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if s, err := openSeen(path); err == nil || s == nil {
			t.Errorf("a broken file: %v, %v", s, err)
		}
		aside := statefile.Aside(path)
		if len(aside) != i+1 {
			t.Fatalf("set aside: %q", aside)
		}
		if kept, err := os.ReadFile(aside[i]); err != nil || string(kept) != text {
			t.Errorf("%s: %q, %v", aside[i], kept, err)
		}
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s stays", left)
		}
	}
}

// TestRefuseEpochs holds a node's memory of numbers to its rules.
func TestRefuseEpochs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kek")
	if _, err := kek.CreateKeyFile(path); err != nil {
		t.Fatal(err)
	}
	key, err := kek.Open(t.Context(), "file://"+path, kek.Options{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	wrap := func(number uint64, timed bool) Epoch {
		e := Epoch{Number: number, Created: now, Expires: now.Add(time.Hour)}
		bind := kek.Binding{Cluster: "test", Epoch: number}
		if timed {
			bind = e.Binding("test")
		}
		var err error
		if e.Wrapped, _, err = key.Wrap(t.Context(), make([]byte, kek.DEKSize), bind); err != nil {
			t.Fatal(err)
		}
		return e
	}
	for name, c := range map[string]struct {
		listed  []uint64 // before
		opened  []Epoch
		epoch   Epoch
		refused bool
	}{
		"the first":          {nil, nil, wrap(3, true), false},
		"the first, untimed": {nil, nil, wrap(3, false), false},
		"newer": {[]uint64{3}, []Epoch{wrap(3, true)},
			wrap(4, true), false},
		"older, the newer not opened yet": {[]uint64{3}, nil, wrap(2, true), false},
		"older than one that was used": {[]uint64{3}, []Epoch{wrap(3, true)},
			wrap(2, true), true},
		"known": {[]uint64{2, 3},
			[]Epoch{wrap(2, true), wrap(3, true)}, wrap(2, true), false},
		"untimed, known, timed ones are used": {[]uint64{2, 3}, []Epoch{wrap(3, true)},
			wrap(2, false), false},
		"untimed, newer, as before an upgrade": {[]uint64{3}, []Epoch{wrap(3, false)},
			wrap(4, false), false},
		"untimed, newer, timed ones are used": {[]uint64{3}, []Epoch{wrap(3, true)},
			wrap(4, false), true},
		"untimed, older than one that was seen": {[]uint64{3}, nil, wrap(2, false), true},
		"untimed, older than one that was used": {[]uint64{3}, []Epoch{wrap(3, false)},
			wrap(2, false), true},
		"untimed, a number that was used, unknown": {nil, []Epoch{wrap(3, false)}, wrap(3, false),
			true},
		"timed, a number that was used and unknown": {nil, []Epoch{wrap(3, true)}, wrap(3, true),
			true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "seen")
			s, err := openSeen(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, number := range c.listed {
				s.first(number, now)
				s.listed(number)
			}
			for _, e := range c.opened {
				s.opened(&e)
			}
			for range 2 {
				if err := s.refuse(&c.epoch, s.Highest); (err != nil) != c.refused || c.refused &&
					!errors.Is(err, kek.ErrReplayed) {
					t.Errorf("%v, want refused %t", err, c.refused)
				}
				// The same after a restart.
				if data, err := s.changed(); err != nil || data != nil &&
					statefile.Write(path, data) != nil {
					t.Fatal(err)
				}
				if s, err = openSeen(path); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestSeenFileOfBefore reads the file of a version that remembered times alone.
func TestSeenFileOfBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seen")
	if err := statefile.Write(path,
		[]byte(`{"4":"2026-01-02T03:04:05Z","5":"2026-01-03T03:04:05Z"}`)); err != nil {
		t.Fatal(err)
	}
	s, err := openSeen(path)
	if err != nil || len(s.Times) != 2 || s.Highest != 5 || s.Times[4].Day() != 2 {
		t.Errorf("%+v, %v", s, err)
	}
}
