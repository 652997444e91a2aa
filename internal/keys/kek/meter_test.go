package kek

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestMeter is held to what a real KEK tells of its calls.
func TestMeter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kek")
	if _, err := CreateKeyFile(path); err != nil {
		t.Fatal(err)
	}
	meter := NewMeter()
	key, err := Open(t.Context(), "file://"+path,
		Options{Observe: meter.Observe, Audit: meter.Audit, RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	if s := meter.Health(); s.Failing != "" || !s.LastOK.IsZero() ||
		len(s.Requests) != len(meteredOps) || len(s.Requests[0].Outcomes) != len(Outcomes()) {
		t.Errorf("at first %+v", s)
	}
	bind := Binding{Cluster: "c", Epoch: 1}
	blob, _, err := key.Wrap(t.Context(), make([]byte, DEKSize), bind)
	if err != nil {
		t.Fatal(err)
	}
	if s := meter.Health(); s.Failing != "" || s.LastOK.IsZero() ||
		s.Requests[0].Outcomes["ok"] != 1 || s.Requests[0].Buckets[9] != 1 {
		t.Errorf("after a wrap %+v", s)
	}
	// Refused before the KMS is asked.
	if _, err := key.Unwrap(t.Context(), blob, Binding{Cluster: "c", Epoch: 2}); !errors.Is(err,
		ErrWrongBinding) {
		t.Error(err)
	}
	if s := meter.Health(); s.Failing != "wrong_binding" || s.Since.IsZero() || s.LastError == "" {
		t.Errorf("after a wrong binding %+v", s)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, err = key.Unwrap(t.Context(), blob, bind)
	name := Outcome(err)
	s := meter.Health()
	if name == "ok" || s.Failing != name || s.LastErrorKind != name || s.LastError != err.Error() ||
		s.Requests[1].Outcomes[name] != 1 {
		t.Errorf("after %v: %+v", err, s)
	}
	meter.Observe(Attempt{Op: "unwrap", Outcome: "ok", Elapsed: time.Hour})
	if s := meter.Health(); s.Failing != "" || !s.Since.IsZero() || s.LastErrorKind != name ||
		s.Requests[1].Seconds < 3600 {
		t.Errorf("after it was good again %+v", s)
	}
}
