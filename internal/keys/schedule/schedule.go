// Package schedule derives the keys of one direction between two nodes. It does no I/O and keeps
// nothing.
//
// Both nodes of a TLS 1.3 session take its exporter, bound to the epoch's number; with the epoch's
// data-encryption key as salt that gives a pseudorandom key, and from that come one key and salt
// per lane and a public fingerprint:
//
//	PRK = HKDF-Extract(SHA-256, salt = DEK, ikm = exporter)
//	SA  = HKDF-Expand(PRK, "weft sa v1" ‖ 0 ‖ from ‖ 0 ‖ to ‖ 0 ‖ epoch number (8) ‖ lane (1), 36) → key 32 ‖ salt 4
//	ID  = HKDF-Expand(PRK, "weft sa id v1" ‖ 0 ‖ from ‖ 0 ‖ to ‖ 0 ‖ epoch number (8), 8), never 0
//
// So a direction's keys need two things that no single thief has: the session between the two
// nodes, which their certificates open, and the right to unwrap the epoch's key.
package schedule

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Sizes and labels of the key schedule.
const (
	// ExporterLabel names the TLS exporter's value.
	ExporterLabel = "EXPORTER-weft-sa-v1"
	// ExporterSize is how much of it is taken.
	ExporterSize = 32
	// DEKSize is the size of an epoch's data-encryption key.
	DEKSize = 32
	// KeySize and SaltSize are those of AES-256-GCM in ESP (RFC 4106).
	KeySize  = 32
	SaltSize = 4
	// MaxLanes is how many lanes a direction can have: the SPI holds six bits of it.
	MaxLanes = 64

	labelSA = "weft sa v1"
	labelID = "weft sa id v1"
)

// Errors that a caller may want to tell apart.
var (
	// ErrInput is about a value that no correct caller passes.
	ErrInput = errors.New("wrong input to the key schedule")
	// ErrZeroID is a fingerprint that came out as 0, which means "no keys" everywhere: once in 2^64
	// sessions. A new session gives another one.
	ErrZeroID = errors.New("the fingerprint of the keys came out as 0: another session gives another one")
)

// LaneKey is the key of one lane of a direction.
type LaneKey struct {
	Lane uint8
	Key  [KeySize]byte
	Salt [SaltSize]byte
}

// Direction is all keys with which From seals and To opens in one epoch.
type Direction struct {
	From, To string
	// Number is the epoch's full number.
	Number uint64
	// ID is the public fingerprint, never 0. Both ends keep it, so that they can compare what they
	// have.
	ID    uint64
	Lanes []LaneKey
	// VMGeneration is the machine's when the session began, which whoever ran it sets; see
	// handshake.Config.
	VMGeneration uint64
}

// Zero overwrites the keys. The fingerprint stays, since it is public.
func (d *Direction) Zero() {
	if d == nil {
		return
	}
	for i := range d.Lanes {
		clear(d.Lanes[i].Key[:])
		clear(d.Lanes[i].Salt[:])
	}
}

// String leaves the keys out, so that a Direction in a log line gives nothing away.
func (d Direction) String() string {
	return fmt.Sprintf("%s→%s epoch %d id %016x lanes %d", d.From, d.To, d.Number, d.ID,
		len(d.Lanes))
}

// GoString is String: %#v must not print keys either.
func (d Direction) GoString() string { return d.String() }

// Format makes every verb print String: %x would print the keys' bytes else.
func (d Direction) Format(state fmt.State, _ rune) { _, _ = state.Write([]byte(d.String())) }

// Secret is the pseudorandom key that one session gives for one epoch.
type Secret struct {
	number uint64
	prk    []byte
}

// ExporterContext is the context value of the TLS exporter for an epoch.
func ExporterContext(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }

// New extracts the secret of a session for an epoch. It neither keeps nor overwrites dek and
// exporter.
func New(dek, exporter []byte, number uint64) (*Secret, error) {
	if len(dek) != DEKSize {
		return nil, fmt.Errorf("%w: the data-encryption key has %d bytes, not %d", ErrInput,
			len(dek), DEKSize)
	}
	if len(exporter) != ExporterSize {
		return nil, fmt.Errorf("%w: the exporter's value has %d bytes, not %d", ErrInput,
			len(exporter), ExporterSize)
	}
	// A zeroed buffer is what a bug with a freed key looks like; no random key is all zeros.
	if allZero(dek) || allZero(exporter) {
		return nil, fmt.Errorf("%w: a secret is all zeros", ErrInput)
	}
	if number == 0 {
		return nil, fmt.Errorf("%w: epochs count from 1", ErrInput)
	}
	prk, err := hkdf.Extract(sha256.New, exporter, dek)
	if err != nil {
		return nil, fmt.Errorf("extract: %w", err)
	}
	return &Secret{number: number, prk: prk}, nil
}

// Zero overwrites the secret; it derives nothing afterwards.
func (s *Secret) Zero() {
	if s != nil {
		clear(s.prk)
		s.prk = nil
	}
}

// String gives nothing away.
func (s Secret) String() string { return fmt.Sprintf("secret of epoch %d", s.number) }

// GoString is String.
func (s Secret) GoString() string { return s.String() }

// Format makes every verb print String.
func (s Secret) Format(state fmt.State, _ rune) { _, _ = state.Write([]byte(s.String())) }

// ID derives the fingerprint of a direction's keys.
func (s *Secret) ID(from, to string) (uint64, error) {
	info, err := s.info(labelID, from, to)
	if err != nil {
		return 0, err
	}
	raw, err := hkdf.Expand(sha256.New, s.prk, string(info), 8)
	if err != nil {
		return 0, fmt.Errorf("expand the fingerprint: %w", err)
	}
	id := binary.BigEndian.Uint64(raw)
	if id == 0 {
		return 0, ErrZeroID
	}
	return id, nil
}

// Direction derives the keys of all lanes with which from seals towards to. The caller zeroes them.
func (s *Secret) Direction(from, to string, lanes int) (*Direction, error) {
	if lanes < 1 || lanes > MaxLanes {
		return nil, fmt.Errorf("%w: %d lanes, not 1 to %d", ErrInput, lanes, MaxLanes)
	}
	id, err := s.ID(from, to)
	if err != nil {
		return nil, err
	}
	info, err := s.info(labelSA, from, to)
	if err != nil {
		return nil, err
	}
	d := &Direction{From: from, To: to, Number: s.number, ID: id, Lanes: make([]LaneKey, lanes)}
	for lane := range d.Lanes {
		raw, err := hkdf.Expand(sha256.New, s.prk, string(append(info, byte(lane))),
			KeySize+SaltSize)
		if err != nil {
			d.Zero()
			return nil, fmt.Errorf("expand lane %d: %w", lane, err)
		}
		d.Lanes[lane].Lane = uint8(lane)
		copy(d.Lanes[lane].Key[:], raw)
		copy(d.Lanes[lane].Salt[:], raw[KeySize:])
		clear(raw)
	}
	return d, nil
}

// info is the part of HKDF's info that all values of a direction share. A name never holds a 0
// byte, so no two pairs of names give the same bytes.
func (s *Secret) info(label, from, to string) ([]byte, error) {
	if len(s.prk) == 0 {
		return nil, fmt.Errorf("%w: the secret was zeroed", ErrInput)
	}
	for _, name := range []string{from, to} {
		if name == "" || len(name) > 253 || strings.ContainsRune(name, 0) {
			return nil, fmt.Errorf("%w: %q is not a node's name", ErrInput, name)
		}
	}
	if from == to {
		return nil, fmt.Errorf("%w: a direction from %q to itself", ErrInput, from)
	}
	info := make([]byte, 0, len(label)+len(from)+len(to)+3+8+1)
	info = append(append(info, label...), 0)
	info = append(append(info, from...), 0)
	info = append(append(info, to...), 0)
	return binary.BigEndian.AppendUint64(info, s.number), nil
}

func allZero(b []byte) bool {
	var or byte
	for _, v := range b {
		or |= v
	}
	return or == 0
}

// WireNumbers is how many epochs the SPI tells apart.
const WireNumbers = 15

// WireNumber is an epoch's number as it stands in the SPI: 1 to 15.
func WireNumber(epoch uint64) uint8 { return uint8(1 + (epoch-1)%WireNumbers) }
