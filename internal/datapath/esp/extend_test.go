package esp

import (
	"errors"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestExtendSAs moves the end of keys in use: sealing and opening go on, with counter and window,
// until the new end.
func TestExtendSAs(t *testing.T) {
	b := newSABed(t, "auto")
	end := time.Now().Add(5 * time.Second)
	for _, out := range []bool{true, false} {
		for lane := range uint8(2) {
			sa := testSA(out, 7, 1)
			sa.Lane, sa.Expires = lane, end
			must(t, b.InstallSA(sa))
		}
		other := testSA(out, 9, 2) // nobody extends it
		other.Epoch, other.Expires = 2, end
		must(t, b.InstallSA(other))
	}
	b.take(t, firstSA)
	b.commit(t, firstSA, 9)
	later := end.Add(5 * time.Second)
	for _, out := range []bool{true, false} {
		if err := b.ExtendSAs("b", out, 1, 8, later); !errors.Is(err, ErrNoSA) {
			t.Errorf("the fingerprint of other keys (out %t): %v", out, err)
		}
		must(t, b.ExtendSAs("b", out, 1, 7, later))
		must(t, b.ExtendSAs("b", out, 1, 7, end)) // never shortens
	}
	b.extended(t, 7, later)
	b.extended(t, 9, end)
	time.Sleep(time.Until(end) + 100*time.Millisecond)
	if n, reason := b.take(t, firstSA); reason != 0 || n != 2 {
		t.Errorf("sealing, extended: number %d, %s, want 2", n, reason)
	}
	if _, reason := b.admit(t, firstSA, 9); reason != bpf.ReasonEspReplayed {
		t.Errorf("opening 9 again, extended: %s, want the window to be there still", reason)
	}
	if n, reason := b.admit(t, firstSA, 10); reason != 0 || n != 10 {
		t.Errorf("opening, extended: number %d, %s", n, reason)
	}
	if _, reason := b.take(t, saKey(1, 2, 0)); reason != bpf.ReasonKeyExpired {
		t.Errorf("sealing, not extended: %s", reason)
	}
	if err := b.ExtendSAs("b", true, 2, 9, later.Add(time.Hour)); !errors.Is(err, ErrSAExpired) {
		t.Errorf("keys that have ended: %v", err)
	}
	if _, reason := b.take(t, saKey(1, 2, 0)); reason != bpf.ReasonKeyExpired {
		t.Errorf("keys that have ended came back: %s", reason)
	}
	time.Sleep(time.Until(later) + 100*time.Millisecond)
	if _, reason := b.take(t, firstSA); reason != bpf.ReasonKeyExpired {
		t.Errorf("sealing after the extension: %s", reason)
	}
	if _, reason := b.admit(t, firstSA, 11); reason != bpf.ReasonKeyExpired {
		t.Errorf("opening after the extension: %s", reason)
	}
}

// extended holds all SAs with a fingerprint to end at a time.
func (b *saHarness) extended(t *testing.T, id uint64, until time.Time) {
	t.Helper()
	list, err := b.SAs()
	must(t, err)
	found := 0
	for _, sa := range list {
		if sa.ID != id {
			continue
		}
		found++
		if d := sa.Expires.Sub(until).Abs(); d > time.Second {
			t.Errorf("%+v: ends %s away from what was asked for", sa, d)
		}
	}
	if found == 0 {
		t.Errorf("no SA with fingerprint %d", id)
	}
}

func TestExtendSAsRefuses(t *testing.T) {
	b := newSABed(t, "auto")
	must(t, b.InstallSA(testSA(true, 7, 1)))
	later := time.Now().Add(2 * time.Hour)
	for name, row := range map[string]struct {
		node  string
		out   bool
		epoch uint8
		want  error
	}{
		"unknown node":    {"nobody", true, 1, ErrUnknownNode},
		"other direction": {"b", false, 1, ErrNoSA},
		"other epoch":     {"b", true, 2, ErrNoSA},
	} {
		if err := b.ExtendSAs(row.node, row.out, row.epoch, 7, later); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", name, err, row.want)
		}
	}
	must(t, b.RemoveSAs("b", true, 1))
	if err := b.ExtendSAs("b", true, 1, 7, later); !errors.Is(err, ErrNoSA) {
		t.Errorf("removed: %v", err)
	}
	plain := &Associations{}
	if err := plain.ExtendSAs("b", true, 1, 7, later); !errors.Is(err, ErrEncryptionOff) {
		t.Errorf("without encryption: %v", err)
	}
}
