// Package kektest holds one table of behaviour that every KEK provider must show, run against real
// counterparts where they can be had.
package kektest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/kek"
)

// Target is one provider and its counterpart. A hook that is nil needs an entry in Skip that says
// why.
type Target struct {
	// Open opens the KEK against the healthy counterpart.
	Open func(t *testing.T, opts kek.Options) kek.KEK
	// Rotate makes a new version of the key.
	Rotate func(t *testing.T)
	// Disable, Deny, Throttle, Slow and Down cause that fault until undo is called. Slow means 10 s
	// for each answer.
	Disable, Deny, Throttle, Slow, Down func(t *testing.T) (undo func())
	// DownKind is the error's kind while the counterpart is away; nil means kek.ErrUnreachable.
	DownKind error
	// Principal is part of the identity that Check must report; empty: anything.
	Principal string
	// Skip holds, by subtest, the reason why the counterpart cannot show a behaviour.
	Skip map[string]string
}

var (
	created = time.Date(2026, 11, 23, 12, 0, 0, 5e6, time.UTC)
	expires = created.Add(72 * time.Hour)

	here         = kek.Binding{Cluster: "loom", Epoch: 7, Created: created, Expires: expires}
	otherEpoch   = kek.Binding{Cluster: "loom", Epoch: 8, Created: created, Expires: expires}
	otherCluster = kek.Binding{Cluster: "shuttle", Epoch: 7, Created: created, Expires: expires}
	longerLife   = kek.Binding{Cluster: "loom", Epoch: 7, Created: created,
		Expires: expires.Add(time.Millisecond)}
	laterStart = kek.Binding{Cluster: "loom", Epoch: 7, Created: created.Add(time.Hour),
		Expires: expires}
	untimed = kek.Binding{Cluster: "loom", Epoch: 7}
)

// Run runs the whole table.
func Run(t *testing.T, target Target) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Target)
	}{
		{"round trip", roundTrip},
		{"other epoch", otherBinding(otherEpoch)},
		{"other cluster", otherBinding(otherCluster)},
		{"longer life", otherBinding(longerLife)},
		{"later start", otherBinding(laterStart)},
		{"older format", olderFormat},
		{"corrupt blob", corrupt},
		{"rotated version", rotated},
		{"check", check},
		{"disabled key",
			fault(func(t Target) func(*testing.T) func() { return t.Disable }, kek.ErrDisabled)},
		{"denied", fault(func(t Target) func(*testing.T) func() { return t.Deny }, kek.ErrDenied)},
		{"throttled",
			fault(func(t Target) func(*testing.T) func() { return t.Throttle }, kek.ErrThrottled)},
		{"throttled for a while", throttledForAWhile},
		{"slow", slow},
		{"unreachable", unreachable},
		{"hooks", hooks},
	} {
		t.Run(c.name, func(t *testing.T) {
			if why := target.Skip[c.name]; why != "" {
				t.Skip(why)
			}
			c.run(t, target)
		})
	}
}

// once is for tests of single faults: no retries.
func once() kek.Options { return kek.Options{RetryFor: -1} }

func newDEK() []byte {
	dek := make([]byte, kek.DEKSize)
	_, _ = rand.Read(dek)
	return dek
}

func wrap(t *testing.T, k kek.KEK, bind kek.Binding) (dek, blob []byte, version string) {
	t.Helper()
	dek = newDEK()
	blob, version, err := k.Wrap(t.Context(), dek, bind)
	if err != nil {
		t.Fatalf("wrap: %v", err)
	}
	if version == "" {
		t.Error("wrap reports no version")
	}
	if bytes.Contains(blob, dek) {
		t.Error("the blob holds the DEK in clear")
	}
	return dek, blob, version
}

func mustUnwrap(t *testing.T, k kek.KEK, blob, dek []byte, bind kek.Binding) {
	t.Helper()
	got, err := k.Unwrap(t.Context(), blob, bind)
	if err != nil {
		t.Fatalf("unwrap: %v", err)
	}
	if !bytes.Equal(got, dek) {
		t.Fatal("unwrapped another DEK than was wrapped")
	}
}

func roundTrip(t *testing.T, target Target) {
	k := target.Open(t, once())
	dek, blob, _ := wrap(t, k, here)
	mustUnwrap(t, k, blob, dek, here)
	_, again, _ := wrap(t, k, here)
	if bytes.Equal(blob, again) {
		t.Error("two wraps look alike")
	}
	// Another node, and a restart: nothing is remembered in the process.
	mustUnwrap(t, target.Open(t, once()), blob, dek, here)
}

// otherBinding: the blob itself names its binding, and forging that name does not help: the KMS or
// the inner hash refuses it.
func otherBinding(other kek.Binding) func(*testing.T, Target) {
	return func(t *testing.T, target Target) {
		k := target.Open(t, once())
		_, blob, _ := wrap(t, k, here)
		if _, err := k.Unwrap(t.Context(), blob, other); !errors.Is(err, kek.ErrWrongBinding) {
			t.Errorf("moved blob: want ErrWrongBinding, got %v", err)
		}
		forged := edit(t, blob, func(e map[string]any) {
			e["cluster"], e["epoch"] = other.Cluster, other.Epoch
			e["created"], e["expires"] = other.Created.UnixMilli(), other.Expires.UnixMilli()
		})
		if _, err := k.Unwrap(t.Context(), forged, other); !errors.Is(err, kek.ErrWrongBinding) &&
			!errors.Is(err, kek.ErrCorrupt) {
			t.Errorf("moved blob with forged names: want ErrWrongBinding or ErrCorrupt, got %v",
				err)
		}
	}
}

// olderFormat: a blob that does not bind the epoch's times is read whatever they are, and one that
// does cannot be made one.
func olderFormat(t *testing.T, target Target) {
	k := target.Open(t, once())
	dek, blob, _ := wrap(t, k, untimed)
	mustUnwrap(t, k, blob, dek, here)
	if kek.BindsTimes(blob) {
		t.Error("it is said to bind the epoch's times")
	}
	_, timed, _ := wrap(t, k, here)
	if !kek.BindsTimes(timed) {
		t.Error("today's is said not to bind the epoch's times")
	}
	forged := edit(t, timed, func(e map[string]any) { e["format"] = 1 })
	if _, err := k.Unwrap(t.Context(), forged, longerLife); !errors.Is(err, kek.ErrWrongBinding) &&
		!errors.Is(err, kek.ErrCorrupt) {
		t.Errorf("a blob that was made one of the older format: want ErrWrongBinding or ErrCorrupt, got %v", err)
	}
}

func edit(t *testing.T, blob []byte, change func(map[string]any)) []byte {
	t.Helper()
	var e map[string]any
	if err := json.Unmarshal(blob, &e); err != nil {
		t.Fatal(err)
	}
	change(e)
	out, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func corrupt(t *testing.T, target Target) {
	k := target.Open(t, once())
	_, blob, _ := wrap(t, k, here)
	damaged := map[string][]byte{
		"empty":     nil,
		"no JSON":   []byte("x"),
		"truncated": blob[:len(blob)/2],
		"huge":      bytes.Repeat([]byte(" "), 1<<20),
		"ciphertext flipped": edit(t, blob, func(e map[string]any) {
			s := []byte(e["ciphertext"].(string))
			i := len(s) / 2
			if s[i] == 'A' {
				s[i] = 'B'
			} else {
				s[i] = 'A'
			}
			e["ciphertext"] = string(s)
		}),
		"ciphertext short": edit(t, blob, func(e map[string]any) { e["ciphertext"] = "AAAA" }),
		"no ciphertext":    edit(t, blob, func(e map[string]any) { e["ciphertext"] = "" }),
		"other format":     edit(t, blob, func(e map[string]any) { e["format"] = 99 }),
	}
	for name, b := range damaged {
		if _, err := k.Unwrap(t.Context(), b, here); !errors.Is(err, kek.ErrCorrupt) {
			t.Errorf("%s: want ErrCorrupt, got %v", name, err)
		}
	}
	foreign := edit(t, blob, func(e map[string]any) { e["provider"] = "elsewhere" })
	if _, err := k.Unwrap(t.Context(), foreign, here); !errors.Is(err, kek.ErrWrongKEK) {
		t.Errorf("foreign provider: want ErrWrongKEK, got %v", err)
	}
}

func rotated(t *testing.T, target Target) {
	k := target.Open(t, once())
	dek, blob, before := wrap(t, k, here)
	target.Rotate(t)
	mustUnwrap(t, k, blob, dek, here)
	dek2, blob2, after := wrap(t, k, otherEpoch)
	if before == after {
		t.Errorf("version %q did not change with the rotation", after)
	}
	mustUnwrap(t, k, blob2, dek2, otherEpoch)
	mustUnwrap(t, k, blob, dek, here)
	now, err := k.Version(t.Context())
	if err != nil || now != after {
		t.Errorf("Version: want %q, got %q, %v", after, now, err)
	}
}

func check(t *testing.T, target Target) {
	r, err := target.Open(t, once()).Check(t.Context())
	if err != nil {
		t.Fatalf("check: %v (%+v)", err, r)
	}
	if r.Version == "" || r.KEK == "" || !strings.Contains(r.Identity.Principal, target.Principal) {
		t.Errorf("incomplete report: %+v", r)
	}
	t.Logf("%+v", r)
}

// fault: both directions report the kind, the text says what to do, and all is well when the fault
// is gone.
func fault(hook func(Target) func(*testing.T) func(), kind error) func(*testing.T, Target) {
	return func(t *testing.T, target Target) {
		k, patient := target.Open(t, once()), target.Open(t,
			kek.Options{RetryFor: 20 * time.Second})
		dek, blob, _ := wrap(t, k, here)
		mustUnwrap(t, patient, blob, dek, here)
		undo := hook(target)(t)
		_, err := k.Unwrap(t.Context(), blob, here)
		wantKind(t, "unwrap", err, kind)
		_, _, err = k.Wrap(t.Context(), newDEK(), here)
		wantKind(t, "wrap", err, kind)
		undo()
		// Without being opened again.
		mustUnwrap(t, patient, blob, dek, here)
	}
}

func wantKind(t *testing.T, op string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: want %q, got %v", op, kind, err)
		return
	}
	if s := err.Error(); !strings.Contains(s, "(fix: ") || strings.Contains(s, "\n") {
		t.Errorf("%s: not one line with a fix: %q", op, s)
	}
	t.Logf("%s: %v", op, err)
}

// throttledForAWhile: the caller sees nothing of a fault that passes within its budget.
func throttledForAWhile(t *testing.T, target Target) {
	k := target.Open(t, kek.Options{RetryFor: 20 * time.Second})
	dek, blob, _ := wrap(t, k, here)
	undo := target.Throttle(t)
	time.AfterFunc(600*time.Millisecond, undo)
	mustUnwrap(t, k, blob, dek, here)
}

// slow: an answer that takes 10 s ends at the caller's deadline, or at the attempt's own, as
// unreachable.
func slow(t *testing.T, target Target) {
	opts := once()
	opts.AttemptTimeout = 300 * time.Millisecond
	impatient, patient := target.Open(t, opts), target.Open(t, once())
	_, blob, _ := wrap(t, patient, here)
	defer target.Slow(t)()

	_, err := impatient.Unwrap(t.Context(), blob, here)
	wantKind(t, "unwrap, attempt's timeout", err, kek.ErrUnreachable)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = patient.Unwrap(ctx, blob, here)
	wantKind(t, "unwrap, caller's deadline", err, kek.ErrUnreachable)
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err = patient.Unwrap(ctx, blob, here); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: want context.Canceled, got %v", err)
	}
}

func unreachable(t *testing.T, target Target) {
	kind := target.DownKind
	if kind == nil {
		kind = kek.ErrUnreachable
	}
	fault(func(t Target) func(*testing.T) func() { return t.Down }, kind)(t, target)
}

// hooks: one audit record an operation, one observation an attempt, and never a key in them.
func hooks(t *testing.T, target Target) {
	var mu sync.Mutex
	var records []audit.Record
	attempts := map[string]int{}
	opts := once()
	opts.Node = "a"
	opts.Audit = func(r audit.Record) { mu.Lock(); defer mu.Unlock(); records = append(records, r) }
	opts.Observe = func(a kek.Attempt) { mu.Lock(); defer mu.Unlock(); attempts[a.Op+" "+a.Outcome]++ }
	k := target.Open(t, opts)
	dek, blob, version := wrap(t, k, here)
	mustUnwrap(t, k, blob, dek, here)
	_, _ = k.Unwrap(t.Context(), blob, otherEpoch)

	mu.Lock()
	defer mu.Unlock()
	if len(records) != 3 || attempts["wrap ok"] != 1 || attempts["unwrap ok"] != 1 {
		t.Fatalf("records %+v, attempts %v", records, attempts)
	}
	for i, outcome := range []string{"ok", "ok", "wrong_binding"} {
		if r := records[i]; r.Outcome != outcome || r.Node != "a" || r.KEK != k.URL() || i < 2 &&
			r.KEKVersion != version {
			t.Errorf("record %d: %+v", i, r)
		}
	}
	line, err := json.Marshal(records)
	if err != nil || bytes.Contains(line, dek) {
		t.Errorf("audit records: %v", err)
	}
}
