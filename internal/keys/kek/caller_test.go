package kek

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeKMS answers each decrypt as the next function of script says; the last one goes on for ever.
type fakeKMS struct {
	mu        sync.Mutex
	script    []func(context.Context) error
	calls     int
	whoCares  bool // opens a blob for any binding
	encrypted Binding
}

func (f *fakeKMS) next(ctx context.Context) error {
	f.mu.Lock()
	step := f.script[min(f.calls, len(f.script)-1)]
	f.calls++
	f.mu.Unlock()
	return step(ctx)
}

func (f *fakeKMS) encrypt(ctx context.Context, dek []byte, bind Binding) ([]byte, string, error) {
	f.mu.Lock()
	f.encrypted = bind
	f.mu.Unlock()
	return bytes.Clone(dek), "1", f.next(ctx)
}

func (f *fakeKMS) decrypt(ctx context.Context, ciphertext []byte, _ string,
	bind Binding) ([]byte, error) {
	if err := f.next(ctx); err != nil {
		return nil, err
	}
	if f.mu.Lock(); !f.whoCares && bind != f.encrypted {
		f.mu.Unlock()
		return nil, &Error{Kind: ErrCorrupt}
	}
	f.mu.Unlock()
	return bytes.Clone(ciphertext), nil
}

func (f *fakeKMS) identity(context.Context) (Identity, error) {
	return Identity{}, errors.New("no idea")
}
func (f *fakeKMS) close() error { return nil }

func fine(context.Context) error { return nil }

func fails(kind error) func(context.Context) error {
	return func(context.Context) error { return &Error{Kind: kind, Err: errors.New("so it says")} }
}

// hangs answers after 10 s, unless the caller gives up before.
func hangs(ctx context.Context) error {
	select {
	case <-time.After(10 * time.Second):
		return nil
	case <-ctx.Done():
		return errors.New("the SDK's own words")
	}
}

func newFake(t *testing.T, f *fakeKMS, opts Options) *caller {
	t.Helper()
	u, err := url.Parse("file:///kek?secret=x")
	if err != nil {
		t.Fatal(err)
	}
	return newCaller(f, u, opts)
}

var bindA = Binding{Cluster: "a", Epoch: 1}

func TestRetry(t *testing.T) {
	for _, c := range []struct {
		name   string
		script []func(context.Context) error
		opts   Options
		calls  int // 0: any number above 3
		want   error
	}{
		{"at once", []func(context.Context) error{fine}, Options{}, 1, nil},
		{"unreachable, then there",
			[]func(context.Context) error{fails(ErrUnreachable), fails(ErrUnreachable), fine},
			Options{}, 3, nil},
		{"throttled, then not", []func(context.Context) error{fails(ErrThrottled), fine}, Options{},
			2, nil},
		{"one attempt", []func(context.Context) error{fails(ErrThrottled), fine},
			Options{RetryFor: -1}, 1, ErrThrottled},
		{"denied is for good", []func(context.Context) error{fails(ErrDenied), fine}, Options{}, 1,
			ErrDenied},
		{"disabled is for good", []func(context.Context) error{fails(ErrDisabled), fine}, Options{},
			1, ErrDisabled},
		{"corrupt is for good", []func(context.Context) error{fails(ErrCorrupt), fine}, Options{},
			1, ErrCorrupt},
		{"budget", []func(context.Context) error{fails(ErrUnreachable)}, Options{}, 0,
			ErrUnreachable},
		{"slow once", []func(context.Context) error{hangs, fine},
			Options{AttemptTimeout: time.Second}, 2, nil},
		{"slow, but in time", []func(context.Context) error{hangs},
			Options{AttemptTimeout: 11 * time.Second}, 1, nil},
		{"always slow", []func(context.Context) error{hangs},
			Options{AttemptTimeout: 5 * time.Second}, 0, context.DeadlineExceeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeKMS{script: c.script, whoCares: true}
				k := newFake(t, f, c.opts)
				blob, err := encodeBlob("file", "1", bindA, make([]byte, DEKSize))
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				_, err = k.Unwrap(t.Context(), blob, bindA)
				if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("want %v, got %v", c.want, err)
				}
				if c.calls != 0 && f.calls != c.calls || c.calls == 0 && f.calls <= 3 {
					t.Errorf("%d calls", f.calls)
				}
				if took := time.Since(start); took > 2*defaultRetryFor {
					t.Errorf("took %v of fake time", took)
				}
			})
		})
	}
}

// A caller that gives up gets its answer at once, in the middle of a pause as of an attempt.
func TestRetryCanceled(t *testing.T) {
	for name, step := range map[string]func(context.Context) error{"in a pause": fails(ErrThrottled), "in an attempt": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newFake(t, &fakeKMS{script: []func(context.Context) error{step}}, Options{})
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				start := time.Now()
				if _, _, err := k.Wrap(ctx, make([]byte, DEKSize), bindA); !errors.Is(err,
					context.DeadlineExceeded) {
					t.Errorf("want DeadlineExceeded, got %v", err)
				}
				if took := time.Since(start); took != 3*time.Second {
					t.Errorf("took %v of fake time", took)
				}
			})
		})
	}
}

// 200 nodes ask at once a KMS that serves 50 a second: all get their answer within 30 s, and none
// takes more than one.
func TestNoStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, rate = 200, 50
		var mu sync.Mutex
		tokens, last, served, calls := float64(rate), time.Now(), 0, 0
		limited := func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			calls++
			tokens, last = min(tokens+rate*time.Since(last).Seconds(), rate), time.Now()
			if tokens < 1 {
				return &Error{Kind: ErrThrottled}
			}
			tokens--
			served++
			return nil
		}
		blob, err := encodeBlob("file", "1", bindA, make([]byte, DEKSize))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for range nodes {
			wg.Go(func() {
				k := newFake(t,
					&fakeKMS{script: []func(context.Context) error{limited}, whoCares: true},
					Options{})
				if _, err := k.Unwrap(t.Context(), blob, bindA); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		took := time.Since(start)
		t.Logf("%d nodes in %v of fake time, %d calls, %d served", nodes, took, calls, served)
		if served != nodes || took > 30*time.Second {
			t.Errorf("%d served in %v", served, took)
		}
	})
}

// A KMS that ignores what a blob is bound to must not pass for a good one.
func TestCheckNoticesMissingBinding(t *testing.T) {
	k := newFake(t, &fakeKMS{script: []func(context.Context) error{fine}, whoCares: true},
		Options{})
	r, err := k.Check(t.Context())
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "another epoch") {
		t.Errorf("want ErrConfig, got %v", err)
	}
	if r.Identity.Principal != "unknown" || r.Identity.Note != "no idea" {
		t.Errorf("identity %+v", r.Identity)
	}
	if _, err := newFake(t, &fakeKMS{script: []func(context.Context) error{fine}},
		Options{}).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestURLHidesTheQuery(t *testing.T) {
	if got := newFake(t, &fakeKMS{}, Options{}).URL(); got != "file:///kek" {
		t.Error(got)
	}
}

// Every kind has a word of its own and, where the caller can do something, a fix.
func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range kinds {
		if word := Outcome(&Error{Kind: k.err}); word != k.word || seen[word] ||
			!slices.Contains(Outcomes(), word) {
			t.Errorf("%v: outcome %q", k.err, word)
		}
		seen[k.word] = true
		if fixes[k.err] == "" && k.err != ErrConfig {
			t.Errorf("%v has no fix", k.err)
		}
	}
	for want, err := range map[string]error{"ok": nil, "canceled": context.Canceled,
		"other": errors.New("x")} {
		if got := Outcome(err); got != want {
			t.Errorf("%v: want %q, got %q", err, want, got)
		}
	}
	e := &Error{Kind: ErrDenied, Subject: "unwrap",
		Err: errors.New("a\n  b" + strings.Repeat("x", 1000)), Fix: "ask"}
	if s := e.Error(); strings.Contains(s, "\n") || len(s) > 800 ||
		!strings.HasSuffix(s, "(fix: ask)") {
		t.Errorf("%q", s)
	}
}

func FuzzDecodeBlob(f *testing.F) {
	blob, err := encodeBlob("file", "1", bindA, []byte("x"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(blob)
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, blob []byte) {
		e, err := decodeBlob("file", bindA, blob)
		if err == nil &&
			(e.Provider != "file" || e.Cluster != "a" || e.Epoch != 1 || len(e.Ciphertext) == 0) {
			t.Errorf("let through: %+v", e)
		}
		if err != nil && Outcome(err) == "other" {
			t.Errorf("an error without a kind: %v", err)
		}
	})
}
