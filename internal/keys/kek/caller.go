package kek

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/url"
	"time"

	"weft.dev/weft/internal/keys/audit"
)

const (
	defaultAttemptTimeout = 10 * time.Second
	defaultRetryFor       = 30 * time.Second
	firstBackoff          = 250 * time.Millisecond
	maxBackoff            = 8 * time.Second
)

// ProbeCluster is the cluster of throwaway DEKs (Version, Check): no blob of a real cluster can be
// mistaken for one.
const ProbeCluster = "weft-probe"

// Attempt is one call to the KMS, as metrics see it.
type Attempt struct {
	// Op is wrap, unwrap or identity.
	Op string
	// Provider is the URL's scheme.
	Provider string
	// Outcome is one of Outcomes.
	Outcome string
	Elapsed time.Duration
}

// caller is the KEK that everybody uses: it puts the envelope, timeouts, retries and hooks around a
// provider.
type caller struct {
	p        provider
	provider string
	url      string
	opts     Options
}

func newCaller(p provider, u *url.URL, opts Options) *caller {
	if opts.AttemptTimeout <= 0 {
		opts.AttemptTimeout = defaultAttemptTimeout
	}
	if opts.RetryFor == 0 {
		opts.RetryFor = defaultRetryFor
	}
	return &caller{p: p, provider: u.Scheme, url: publicURL(u), opts: opts}
}

// publicURL leaves out the query: nothing in it identifies the key, and a parameter could hold what
// is nobody's business.
func publicURL(u *url.URL) string {
	public := *u
	public.User, public.RawQuery, public.Fragment = nil, "", ""
	public.ForceQuery = false
	return public.String()
}

// URL returns the KEK's address without secrets.
func (c *caller) URL() string { return c.url }

// Close frees what the provider holds.
func (c *caller) Close() error { return c.p.close() }

// Wrap seals a DEK for one cluster and epoch.
func (c *caller) Wrap(ctx context.Context, dek []byte, bind Binding) ([]byte, string, error) {
	var blob []byte
	version, err := c.audited(audit.OpWrap, bind, func(rec *audit.Record) error {
		if len(dek) != DEKSize {
			return fmt.Errorf("a DEK has %d bytes, not %d", DEKSize, len(dek))
		}
		return c.retry(ctx, rec, func(ctx context.Context) error {
			ciphertext, version, err := c.p.encrypt(ctx, dek, bind)
			if err != nil {
				return err
			}
			rec.KEKVersion = version
			blob, err = encodeBlob(c.provider, version, bind, ciphertext)
			return err
		})
	})
	if err != nil {
		return nil, "", err
	}
	return blob, version, nil
}

// Unwrap opens a blob that Wrap made for the same cluster and epoch.
func (c *caller) Unwrap(ctx context.Context, blob []byte, bind Binding) ([]byte, error) {
	var dek []byte
	_, err := c.audited(audit.OpUnwrap, bind, func(rec *audit.Record) error {
		e, err := decodeBlob(c.provider, bind, blob)
		if err != nil {
			return err
		}
		rec.KEKVersion = e.Version
		bind := bind
		if e.Format == untimedFormat {
			bind = bind.untimed()
		}
		return c.retry(ctx, rec, func(ctx context.Context) error {
			dek, err = c.p.decrypt(ctx, e.Ciphertext, e.Version, bind)
			if err == nil && len(dek) != DEKSize {
				clear(dek)
				return &Error{Kind: ErrCorrupt,
					Err: fmt.Errorf("it holds %d bytes, not a DEK's %d", len(dek), DEKSize)}
			}
			return err
		})
	})
	if err != nil {
		clear(dek)
		return nil, err
	}
	return dek, nil
}

// Version wraps a throwaway DEK and returns the version that did it.
func (c *caller) Version(ctx context.Context) (string, error) {
	dek := make([]byte, DEKSize)
	_, _ = rand.Read(dek) // never fails
	_, version, err := c.Wrap(ctx, dek, Binding{Cluster: ProbeCluster})
	return version, err
}

// Check does a whole round trip and asks who the caller is.
func (c *caller) Check(ctx context.Context) (Report, error) {
	r := Report{KEK: c.url, Identity: c.whoami(ctx)}
	dek := make([]byte, DEKSize)
	_, _ = rand.Read(dek) // never fails
	bind, other := Binding{Cluster: ProbeCluster, Epoch: 1}, Binding{Cluster: ProbeCluster,
		Epoch: 2}

	start := time.Now()
	blob, version, err := c.Wrap(ctx, dek, bind)
	if err != nil {
		return r, err
	}
	r.Version, r.Wrap, start = version, time.Since(start), time.Now()
	back, err := c.Unwrap(ctx, blob, bind)
	if err != nil {
		return r, err
	}
	r.Unwrap = time.Since(start)
	defer clear(back)
	if subtle.ConstantTimeCompare(dek, back) != 1 {
		return r, &Error{Kind: ErrCorrupt, Subject: "check " + c.url,
			Err: errors.New("what was unwrapped is not what was wrapped")}
	}
	return r, c.checkBinding(ctx, blob, other)
}

// checkBinding makes sure that the KMS itself, not only the envelope, refuses a blob of another
// epoch.
func (c *caller) checkBinding(ctx context.Context, blob []byte, other Binding) error {
	var e envelope
	e, err := decodeBlob(c.provider, Binding{Cluster: ProbeCluster, Epoch: 1}, blob)
	if err != nil {
		return err
	}
	forged, err := encodeBlob(c.provider, e.Version, other, e.Ciphertext)
	if err != nil {
		return err
	}
	got, err := c.Unwrap(ctx, forged, other)
	clear(got)
	switch {
	case err == nil:
		err = errors.New("the KMS unwrapped a blob for another epoch than it was wrapped for")
		return &Error{Kind: ErrConfig, Subject: "check " + c.url, Err: err,
			Fix: "use a KMS that binds its ciphertext (see docs/kms)"}
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrWrongBinding), errors.Is(err, ErrDenied):
		return nil // denied: a key policy may ask for a context of its own
	}
	return err
}

// whoami never fails: not knowing the caller must not hide whether the key works.
func (c *caller) whoami(ctx context.Context) Identity {
	ctx, cancel := context.WithTimeout(ctx, c.opts.AttemptTimeout)
	defer cancel()
	start := time.Now()
	id, err := c.p.identity(ctx)
	c.observe("identity", start, err)
	id.Provider = c.provider
	if err != nil {
		id.Note = oneLine(err.Error())
	}
	if id.Principal == "" {
		id.Principal = "unknown"
	}
	return id
}

// audited runs an operation, completes its error with what was done and how to help it, and reports
// it.
func (c *caller) audited(op string, bind Binding,
	do func(*audit.Record) error) (version string, err error) {
	rec := audit.Record{Time: time.Now().UTC(), Node: c.opts.Node, Op: op, Epoch: bind.Epoch,
		KEK: c.url}
	if err = bind.validate(); err == nil {
		err = do(&rec)
	}
	err = c.explain(op, bind, err)
	rec.Outcome, rec.Latency = Outcome(err), time.Since(rec.Time)
	if err != nil {
		rec.Detail = err.Error()
	}
	if bind.Cluster == ProbeCluster {
		rec.Op = audit.OpProbe
	}
	if c.opts.Audit != nil {
		c.opts.Audit(rec)
	}
	return rec.KEKVersion, err
}

// explain turns any failure into an *Error with subject and fix.
func (c *caller) explain(op string, bind Binding, err error) error {
	if err == nil {
		return nil
	}
	subject := fmt.Sprintf("%s epoch %d of cluster %s with %s", op, bind.Epoch, bind.Cluster, c.url)
	var known *Error
	if !errors.As(err, &known) {
		kind := kindOf(err)
		if kind == nil {
			return fmt.Errorf("%s: %w", subject, err)
		}
		known = &Error{Kind: kind, Err: err}
	}
	full := *known
	full.Subject = subject
	if full.Fix == "" {
		full.Fix = fixes[full.Kind]
	}
	return &full
}

// retry makes attempts until one succeeds, fails for good, the budget is spent or the caller gives
// up; the error is the last attempt's.
func (c *caller) retry(ctx context.Context, rec *audit.Record,
	attempt func(context.Context) error) error {
	deadline := time.Now().Add(c.opts.RetryFor)
	for backoff := firstBackoff; ; backoff = min(2*backoff, maxBackoff) {
		rec.Attempts++
		err := c.once(ctx, rec.Op, attempt)
		if kind := kindOf(err); err == nil || kind != ErrUnreachable && kind != ErrThrottled {
			return err
		}
		// Full jitter: nodes that failed together must not come back together.
		wait := time.Duration(mathrand.Int64N(int64(backoff)))
		if c.opts.RetryFor < 0 || time.Now().Add(wait).After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return &Error{Kind: kindOf(err),
				Err: fmt.Errorf("%w; last attempt: %w", context.Cause(ctx), err)}
		case <-time.After(wait):
		}
	}
}

// once makes one attempt within its own timeout.
func (c *caller) once(ctx context.Context, op string, attempt func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.AttemptTimeout)
	defer cancel()
	start := time.Now()
	err := attempt(ctx)
	if err != nil && ctx.Err() != nil && kindOf(err) == nil {
		// SDKs wrap a timeout in errors of their own; whatever they say, there was no answer in
		// time.
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	c.observe(op, start, err)
	return err
}

func (c *caller) observe(op string, start time.Time, err error) {
	if c.opts.Observe != nil {
		c.opts.Observe(Attempt{Op: op, Provider: c.provider, Outcome: outcomeOf(err),
			Elapsed: time.Since(start)})
	}
}

// outcomeOf is Outcome for an error that was not explained yet.
func outcomeOf(err error) string {
	if kind := kindOf(err); kind != nil {
		return Outcome(kind)
	}
	return Outcome(err)
}
