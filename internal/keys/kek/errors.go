package kek

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
)

// Kinds of failure, the same for every provider; test with errors.Is.
var (
	// ErrUnreachable: no answer, no connection, a timeout or a fault on the KMS's side. Retried.
	ErrUnreachable = errors.New("KMS unreachable")
	// ErrThrottled: the KMS refuses the rate of calls. Retried.
	ErrThrottled = errors.New("throttled by the KMS")
	// ErrDenied: the KMS knows the caller and refuses it.
	ErrDenied = errors.New("access denied")
	// ErrCredentials: there are no credentials, or the KMS does not accept them (expired, wrong
	// audience, clock wrong).
	ErrCredentials = errors.New("no valid credentials")
	// ErrDisabled: the key is disabled, destroyed or scheduled for deletion.
	ErrDisabled = errors.New("key disabled")
	// ErrNotFound: no such key in that account, project, vault or region.
	ErrNotFound = errors.New("key not found")
	// ErrWrongRegion: the key is in another region than the one asked.
	ErrWrongRegion = errors.New("wrong region")
	// ErrCorrupt: the blob is damaged or was not made by this key.
	ErrCorrupt = errors.New("wrapped key is corrupt")
	// ErrWrongBinding: the blob was wrapped for another cluster or epoch.
	ErrWrongBinding = errors.New("wrapped key is for another cluster or epoch")
	// ErrReplayed: the epoch is of before: somebody has put it back. No KMS is asked.
	ErrReplayed = errors.New("an epoch of before was put back")
	// ErrWrongKEK: the blob was wrapped by another kind of KMS than the one configured.
	ErrWrongKEK = errors.New("wrapped by another KMS")
	// ErrConfig: the URL, a parameter or a local file is wrong.
	ErrConfig = errors.New("configuration")
)

// kinds lists every kind with the word that metrics and audit records use for it.
var kinds = []struct {
	err  error
	word string
}{
	{ErrUnreachable, "unreachable"}, {ErrThrottled, "throttled"}, {ErrDenied, "denied"},
	{ErrCredentials, "credentials"},
	{ErrDisabled, "disabled"}, {ErrNotFound, "not_found"}, {ErrWrongRegion, "wrong_region"},
	{ErrCorrupt, "corrupt"},
	{ErrWrongBinding, "wrong_binding"}, {ErrReplayed, "replayed"}, {ErrWrongKEK, "wrong_kek"},
	{ErrConfig, "config"},
}

// Outcomes lists every word that Outcome can return, for metrics with fixed labels.
func Outcomes() []string {
	words := []string{"ok", "canceled", "other"}
	for _, k := range kinds {
		words = append(words, k.word)
	}
	return words
}

// Outcome is the word for an error's kind: "ok" for nil, "canceled" if the caller gave up, "other"
// for what has no kind.
func Outcome(err error) string {
	if err == nil {
		return "ok"
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.word
		}
	}
	if errors.Is(err, context.Canceled) {
		return "canceled"
	}
	return "other"
}

// Error is a failure with its kind and what to do about it.
type Error struct {
	// Kind is one of the Err… values above.
	Kind error
	// Subject is what was done to what, such as "unwrap epoch 7 of cluster default with
	// awskms:///alias/weft".
	Subject string
	// Fix says what the user can do; may be empty.
	Fix string
	// Err is the cause in the provider's words; may be nil.
	Err error
}

// Replayed is the refusal of an epoch of before.
func Replayed(epoch uint64, why string) *Error {
	return &Error{Kind: ErrReplayed, Subject: fmt.Sprintf("epoch %d", epoch), Err: errors.New(why),
		Fix: fixes[ErrReplayed]}
}

// Error returns the whole story in one line.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Subject != "" {
		b.WriteString(e.Subject + ": ")
	}
	b.WriteString(e.Kind.Error())
	if e.Err != nil {
		b.WriteString(": " + oneLine(e.Err.Error()))
	}
	if e.Fix != "" {
		b.WriteString(" (fix: " + e.Fix + ")")
	}
	return b.String()
}

// Unwrap lets errors.Is find both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// oneLine keeps an SDK's multi-line error readable in a log: its lines joined, without rulers, cut
// at a length.
func oneLine(s string) string {
	words := slices.DeleteFunc(strings.Fields(s),
		func(w string) bool { return len(w) > 3 && strings.Trim(w, "-") == "" })
	s = strings.Join(words, " ")
	if len(s) > 600 {
		s = s[:600] + "…"
	}
	return s
}

// configError is an error about one field: what is wrong with it and how to put it right.
func configError(field, what, fix string) error {
	return &Error{Kind: ErrConfig, Err: fmt.Errorf("%s %s", field, what), Fix: fix}
}

// kindOf finds out what a failure without a provider's own code is about: the network, a timeout,
// the caller's own context.
func kindOf(err error) error {
	var kekErr *Error
	var netErr net.Error
	switch {
	case errors.As(err, &kekErr):
		return kekErr.Kind
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, net.ErrClosed):
		return ErrUnreachable
	}
	return nil
}

// unreachableText finds an outage in an error that is only text: some SDKs drop what they wrap.
func unreachableText(msg string) bool {
	for _, s := range []string{"dial tcp", "dial unix", "no such host", "connection refused",
		"connection reset", "i/o timeout", "deadline exceeded", "unexpected EOF"} {
		if strings.Contains(msg, s) {
			return true
		}
	}
	return false
}

// fixes is what to do about each kind where the provider says nothing better.
var fixes = map[error]string{
	ErrUnreachable:  "check the way from this node to the KMS: DNS, proxy, private endpoint, firewall; the live epoch goes on until its hard TTL",
	ErrThrottled:    "raise the KMS's request quota, or set a longer keys.maxAge",
	ErrDenied:       "give this node's identity the right to encrypt and decrypt with the key (see docs/kms)",
	ErrCredentials:  "check this node's workload identity and its clock (see docs/kms)",
	ErrDisabled:     "enable the key again, or cancel its deletion, or point keys.kek at another key",
	ErrNotFound:     "check the key's name, account or project, and region in keys.kek",
	ErrWrongRegion:  "set the key's own region in keys.kek",
	ErrCorrupt:      "rotate to a new epoch: weft keys rotate",
	ErrReplayed:     "find out who put the epoch's file there, and remove it; then: weft keys rotate",
	ErrWrongBinding: "do not copy epochs between clusters; check keys.cluster, then: weft keys rotate",
	ErrWrongKEK:     "use the same keys.kek on every node, then: weft keys rotate",
}
