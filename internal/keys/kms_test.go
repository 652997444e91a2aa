package keys

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/kek"
)

// TestKMSMeter is held to what a real KEK tells of its calls.
func TestKMSMeter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kek")
	if _, err := kek.CreateKeyFile(path); err != nil {
		t.Fatal(err)
	}
	meter := NewKMSMeter()
	key, err := kek.Open(t.Context(), "file://"+path, kek.Options{Observe: meter.Observe, Audit: meter.Audit, RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	if s := meter.Status(); s.Failing != "" || !s.LastOK.IsZero() || len(s.Requests) != len(KMSOps) || len(s.Requests[0].Outcomes) != len(kek.Outcomes()) {
		t.Errorf("at first %+v", s)
	}
	bind := kek.Binding{Cluster: "c", Epoch: 1}
	blob, _, err := key.Wrap(t.Context(), make([]byte, kek.DEKSize), bind)
	if err != nil {
		t.Fatal(err)
	}
	if s := meter.Status(); s.Failing != "" || s.LastOK.IsZero() || s.Requests[0].Outcomes["ok"] != 1 || s.Requests[0].Buckets[len(KMSBuckets)-1] != 1 {
		t.Errorf("after a wrap %+v", s)
	}
	// Refused before the KMS is asked.
	if _, err := key.Unwrap(t.Context(), blob, kek.Binding{Cluster: "c", Epoch: 2}); !errors.Is(err, kek.ErrWrongBinding) {
		t.Error(err)
	}
	if s := meter.Status(); s.Failing != "wrong_binding" || s.Since.IsZero() || s.LastError == "" {
		t.Errorf("after a wrong binding %+v", s)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, err = key.Unwrap(t.Context(), blob, bind)
	name := kek.Outcome(err)
	s := meter.Status()
	if name == "ok" || s.Failing != name || s.LastErrorKind != name || s.LastError != err.Error() || s.Requests[1].Outcomes[name] != 1 {
		t.Errorf("after %v: %+v", err, s)
	}
	meter.Observe(kek.Attempt{Op: "unwrap", Outcome: "ok", Elapsed: time.Hour})
	if s := meter.Status(); s.Failing != "" || !s.Since.IsZero() || s.LastErrorKind != name || s.Requests[1].Seconds < 3600 {
		t.Errorf("after it was good again %+v", s)
	}
}
