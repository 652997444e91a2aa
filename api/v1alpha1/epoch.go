package v1alpha1

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// KindEpoch is the kind of Epoch.
const KindEpoch = "Epoch"

// maxWrapped is the size of the largest wrapped key, in bytes: what a KMS makes of 32 bytes is far
// less.
const maxWrapped = 16 << 10

// maxKEK is the length of the longest KEK URL, and of its version.
const maxKEK = 2048

// maxEpochNumber leaves room to count on, and is exact in any JSON.
const maxEpochNumber = 1 << 48

// epochPrefix begins the name of every epoch.
const epochPrefix = "epoch-"

// Epoch is one data-encryption key's life: the key, wrapped by the key-encryption
// key, and when it was made and ends. Agents make them; nobody else has to.
type Epoch struct {
	TypeMeta `yaml:",inline"`
	Metadata ObjectMeta `yaml:"metadata" json:"metadata"`
	Spec     EpochSpec  `yaml:"spec" json:"spec"`
}

// EpochSpec never changes once the epoch is there.
type EpochSpec struct {
	// Number counts epochs from 1. The object's name is epoch-NUMBER.
	Number uint64 `yaml:"number" json:"number"`
	// Created and Expires bound the epoch: after Expires no packet is sealed or opened with its
	// keys.
	Created Time `yaml:"created" json:"created"`
	Expires Time `yaml:"expires" json:"expires"`
	// KEK is the URL of the key-encryption key that wrapped this one, without secrets.
	KEK string `yaml:"kek" json:"kek"`
	// KEKVersion is the KEK's version, where the KMS tells it.
	KEKVersion string `yaml:"kekVersion,omitempty" json:"kekVersion,omitempty"`
	// Wrapped is the wrapped data-encryption key.
	Wrapped Base64 `yaml:"wrapped" json:"wrapped"`
}

var _ Object = (*Epoch)(nil)

// EpochName is the name of the epoch with this number.
func EpochName(number uint64) string { return epochPrefix + strconv.FormatUint(number, 10) }

// Meta implements Object.
func (e *Epoch) Meta() *ObjectMeta { return &e.Metadata }

// Type implements Object.
func (e *Epoch) Type() *TypeMeta { return &e.TypeMeta }

// SetDefaults implements Object.
func (e *Epoch) SetDefaults() { e.TypeMeta.setDefaults(KindEpoch) }

// Validate implements Object.
func (e *Epoch) Validate() []FieldError {
	v := newValidator(e, KindEpoch)
	if e.Metadata.Namespace != "" {
		v.fail("metadata.namespace", "an Epoch has no namespace: take it away")
	}
	s := &e.Spec
	if name := e.Metadata.Name; CheckName(name) == "" && name != EpochName(s.Number) {
		v.fail("metadata.name", "%s is not the name of epoch number %d: want %s", quote(name),
			s.Number, EpochName(s.Number))
	}
	switch {
	case s.Number == 0:
		v.fail("spec.number", "is missing: epochs count from 1")
	case s.Number > maxEpochNumber:
		v.fail("spec.number", "is %d: want at most %d", s.Number, uint64(maxEpochNumber))
	}
	if s.Created.IsZero() {
		v.fail("spec.created", "is missing: want %s", s.Created.Wanted())
	}
	if s.Expires.IsZero() {
		v.fail("spec.expires", "is missing: want %s", s.Expires.Wanted())
	} else if !s.Expires.After(s.Created.Time) {
		v.fail("spec.expires", "%s is not after spec.created %s", s.Expires, s.Created)
	}
	v.kek(s)
	switch n := len(s.Wrapped); {
	case n == 0:
		v.fail("spec.wrapped", "is missing: want the wrapped key in base64")
	case n > maxWrapped:
		v.fail("spec.wrapped", "is %d bytes: want at most %d", n, maxWrapped)
	}
	return v.errs
}

func (v *validator) kek(s *EpochSpec) {
	if scheme, _, found := strings.Cut(s.KEK, "://"); !found || scheme == "" ||
		len(s.KEK) > maxKEK || hasControl(s.KEK) {
		v.fail("spec.kek",
			"%s is not the URL of a key: want one such as file:///etc/weft/kek, of at most %d bytes", quote(s.KEK), maxKEK)
	}
	if len(s.KEKVersion) > maxKEK || hasControl(s.KEKVersion) {
		v.fail("spec.kekVersion",
			"%s is not the version of a key: want at most %d bytes without control characters",
			quote(s.KEKVersion), maxKEK)
	}
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// Time is a moment, written as RFC 3339 in UTC.
type Time struct{ time.Time }

// String is the time as it is written.
func (t Time) String() string { return t.UTC().Format(time.RFC3339Nano) }

// MarshalText implements encoding.TextMarshaler.
func (t Time) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Time) UnmarshalText(text []byte) error {
	parsed, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return fmt.Errorf("read time: %w", err)
	}
	t.Time = parsed.UTC()
	return nil
}

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) { return []byte(strconv.Quote(t.String())), nil }

// UnmarshalJSON implements json.Unmarshaler.
func (t *Time) UnmarshalJSON(data []byte) error {
	text, err := strconv.Unquote(string(data))
	if err != nil {
		return fmt.Errorf("read time: %w", err)
	}
	return t.UnmarshalText([]byte(text))
}

// Wanted describes a good value.
func (Time) Wanted() string { return "a time, such as 2026-01-31T12:00:00Z" }

// Base64 is bytes, written in standard base64.
type Base64 []byte

// MarshalText implements encoding.TextMarshaler.
func (b Base64) MarshalText() ([]byte, error) {
	return []byte(base64.StdEncoding.EncodeToString(b)), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Base64) UnmarshalText(text []byte) error {
	if len(text) > base64.StdEncoding.EncodedLen(maxWrapped)+4 {
		return errors.New("too long")
	}
	data, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("read base64: %w", err)
	}
	*b = data
	return nil
}

// Wanted describes a good value.
func (Base64) Wanted() string { return fmt.Sprintf("bytes in base64, at most %d", maxWrapped) }
