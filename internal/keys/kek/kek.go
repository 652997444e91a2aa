// Package kek wraps and unwraps epochs' data-encryption keys (DEKs) with a key-encryption key (KEK)
// that belongs to the user: a key in AWS KMS, Google Cloud KMS, Azure Key Vault, Vault or OpenBao,
// or a file. The KEK never leaves its KMS; a node gets at a DEK only with its own cloud identity.
//
// Every wrapped DEK is bound to a cluster and an epoch. Callers see one behaviour for all
// providers: the same kinds of error, a timeout for each attempt, retries with backoff and jitter,
// hooks for metrics and for the audit log. No key byte is ever logged or put into an error.
package kek

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"weft.dev/weft/internal/keys/audit"
)

// DEKSize is the length of a data-encryption key in bytes.
const DEKSize = 32

// Binding names what a wrapped DEK is for. A blob that was wrapped with one binding does not unwrap
// with another.
type Binding struct {
	Cluster string
	Epoch   uint64
	// Created and Expires are the epoch's times, to the millisecond. Without them a blob is of the
	// older format, which does not bind them.
	Created, Expires time.Time
}

// timed says whether the binding holds the epoch's times.
func (b Binding) timed() bool { return !b.Created.IsZero() || !b.Expires.IsZero() }

// format is the envelope's for a binding.
func (b Binding) format() int {
	if b.timed() {
		return blobFormat
	}
	return untimedFormat
}

// untimed is what blobs of the older format are bound to.
func (b Binding) untimed() Binding { return Binding{Cluster: b.Cluster, Epoch: b.Epoch} }

// KEK wraps and unwraps DEKs. It is safe for concurrent use.
type KEK interface {
	// Wrap seals a DEK of DEKSize bytes. version names the KEK's version that did it, in the
	// provider's own words.
	Wrap(ctx context.Context, dek []byte, bind Binding) (blob []byte, version string, err error)
	// Unwrap opens what Wrap made with the same binding. The caller zeroes the DEK after use.
	Unwrap(ctx context.Context, blob []byte, bind Binding) (dek []byte, err error)
	// URL is the KEK's address without secrets, fit for logs and status.
	URL() string
	// Version is the version that Wrap would use now: a change means that the KEK was rotated. It
	// costs one call (two with AWS).
	Version(ctx context.Context) (string, error)
	// Check does a whole round trip with a throwaway DEK, tries to unwrap it for another epoch, and
	// asks whom the KMS takes this process for.
	Check(ctx context.Context) (Report, error)
	// Close frees what the provider holds.
	Close() error
}

// Identity is whom the KMS takes this process for.
type Identity struct {
	// Provider is the URL's scheme.
	Provider string `json:"provider"`
	// Principal is the cloud's name for the caller: an ARN, a service account, an object ID, a
	// display name; "unknown" if it cannot be learned.
	Principal string `json:"principal"`
	// Source says where the credentials came from, if known.
	Source string `json:"source,omitempty"`
	// Note is anything else worth knowing, such as why the principal is unknown.
	Note string `json:"note,omitempty"`
}

// Report is what Check found.
type Report struct {
	KEK      string        `json:"kek"`
	Version  string        `json:"version"`
	Identity Identity      `json:"identity"`
	Wrap     time.Duration `json:"wrapNanos"`
	Unwrap   time.Duration `json:"unwrapNanos"`
}

// Options tune how a KEK is called. The zero value is fit for production.
type Options struct {
	// Node is this node's name, for audit records.
	Node string
	// AttemptTimeout bounds one call to the KMS. Default 10 s.
	AttemptTimeout time.Duration
	// RetryFor bounds how long unreachable and throttled calls are tried again, within the caller's
	// context. Default 30 s; negative: one attempt.
	RetryFor time.Duration
	// Observe is called after every attempt, for metrics.
	Observe func(Attempt)
	// Audit is called after every operation, whatever its outcome. It must not block for long.
	Audit func(audit.Record)
}

// Open makes a KEK from its URL. It does not call the KMS, but checks everything that can be
// checked without: a wrong URL is an error now.
func Open(ctx context.Context, rawURL string, opts Options) (KEK, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, configError("keys.kek", "is not a URL",
			"write it as file:///etc/weft/kek, awskms://…, gcpkms://…, azurekeyvault://… or hashivault://…")
	}
	open, ok := providers[u.Scheme]
	if !ok {
		return nil, configError("keys.kek", fmt.Sprintf("has the unknown scheme %q", u.Scheme),
			"use one of "+strings.Join(Schemes(), ", "))
	}
	if u.User != nil {
		return nil, configError("keys.kek", "holds a user or password",
			"take it out of the URL: credentials come from the environment (see docs/kms)")
	}
	p, err := open(ctx, u)
	if err != nil {
		return nil, err
	}
	return newCaller(p, u, opts), nil
}

// Schemes lists the URL schemes that Open knows.
func Schemes() []string {
	var s []string
	for name := range providers {
		s = append(s, name)
	}
	slices.Sort(s)
	return s
}

// A provider is one kind of KMS. It makes single attempts and says by an *Error's Kind what went
// wrong; the caller type does all else.
type provider interface {
	encrypt(ctx context.Context, dek []byte,
		bind Binding) (ciphertext []byte, version string, err error)
	decrypt(ctx context.Context, ciphertext []byte, version string,
		bind Binding) (dek []byte, err error)
	identity(ctx context.Context) (Identity, error)
	close() error
}

type openFunc func(ctx context.Context, u *url.URL) (provider, error)

var providers = map[string]openFunc{
	"file":          openFile,
	"awskms":        openAWS,
	"azurekeyvault": openAzure,
	"gcpkms":        openGCP,
	"hashivault":    openVault,
}

// additionalData is the binding as AES-GCM's additional data, for providers that take such:
// unambiguous, since no cluster's name holds a zero byte.
func (b Binding) additionalData() []byte {
	if !b.timed() {
		aad := append([]byte("weft dek v1\x00"), b.Cluster...)
		return binary.BigEndian.AppendUint64(append(aad, 0), b.Epoch)
	}
	aad := append([]byte("weft dek v2\x00"), b.Cluster...)
	aad = binary.BigEndian.AppendUint64(append(aad, 0), b.Epoch)
	aad = binary.BigEndian.AppendUint64(aad, uint64(b.Created.UnixMilli()))
	return binary.BigEndian.AppendUint64(aad, uint64(b.Expires.UnixMilli()))
}

func (b Binding) validate() error {
	if b.Cluster == "" || len(b.Cluster) > 128 ||
		strings.ContainsFunc(b.Cluster, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return configError("keys.cluster", fmt.Sprintf("%q is not a name", b.Cluster),
			"use 1 to 128 printable ASCII characters without spaces")
	}
	return nil
}

// allowParams returns an error that names the first query parameter that is not in allowed or has
// several values.
func allowParams(u *url.URL, allowed ...string) error {
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return configError("keys.kek", "has a malformed query",
			"write parameters as ?name=value&name=value")
	}
	for name, values := range q {
		if !slices.Contains(allowed, name) {
			fix := "take it out"
			if len(allowed) > 0 {
				fix = "use one of " + strings.Join(allowed, ", ")
			}
			return configError("keys.kek", fmt.Sprintf("has the unknown parameter %q", name), fix)
		}
		if len(values) != 1 {
			return configError("keys.kek", fmt.Sprintf("has %d values for %q", len(values), name),
				"give one")
		}
	}
	return nil
}
