// Package espref is a plain second implementation of what Weft puts on the wire, for tests to hold
// the datapath against: ESP in tunnel mode (RFC 4303) with AES-GCM and a 16-byte tag (RFC 4106),
// 64-bit sequence numbers, in UDP (RFC 3948). It follows the RFCs and Go's crypto/cipher, shares no
// code with the datapath, and does not try to be fast.
package espref

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
)

// Lengths in bytes.
const (
	HeaderLen = 16 // SPI, lower half of the sequence number, IV
	TagLen    = 16
)

// Next header values of what a tunnel carries.
const (
	NextIPv4  = 4
	NextIPv6  = 41
	NextDummy = 59 // RFC 4303, 2.6: traffic to be thrown away
)

// What Open refuses, to be asked for with errors.Is.
var (
	ErrShort   = errors.New("too short for ESP")
	ErrTag     = errors.New("wrong tag")
	ErrPadding = errors.New("wrong padding")
)

// SA is a security association: one direction's key.
type SA struct {
	SPI  uint32
	Key  []byte // 16, 24 or 32 bytes
	Salt [4]byte
}

// Packet is what one ESP packet says.
type Packet struct {
	SPI     uint32
	Seq     uint64 // in full, also the half that is not sent
	IV      uint64
	Inner   []byte // the packet inside
	Next    uint8  // NextIPv4 or NextIPv6
	Padding int    // length
}

// Seal returns the ESP packet that carries the IP packet inner, with the counter seq as IV, as Weft
// does it.
func (sa *SA) Seal(seq uint64, inner []byte) ([]byte, error) {
	next, err := nextHeader(inner)
	if err != nil {
		return nil, err
	}
	return sa.SealAs(Packet{Seq: seq, IV: seq, Inner: inner, Next: next,
		Padding: Padding(len(inner))})
}

// SealAs returns the ESP packet that p describes, also one that should be refused. p.SPI is ignored
// for the SA's.
func (sa *SA) SealAs(p Packet) ([]byte, error) {
	text := bytes.Clone(p.Inner)
	for i := range p.Padding {
		text = append(text, byte(i+1))
	}
	return sa.SealText(p.Seq, p.IV, append(text, byte(p.Padding), p.Next))
}

// SealText seals text as it is, trailer included.
func (sa *SA) SealText(seq, iv uint64, text []byte) ([]byte, error) {
	aead, err := sa.aead()
	if err != nil {
		return nil, err
	}
	esp := binary.BigEndian.AppendUint32(nil, sa.SPI)
	esp = binary.BigEndian.AppendUint32(esp, uint32(seq))
	esp = binary.BigEndian.AppendUint64(esp, iv)
	return aead.Seal(esp, sa.nonce(iv), text, sa.authenticated(seq)), nil
}

// Open checks and opens an ESP packet whose sequence number's upper half is high.
func (sa *SA) Open(esp []byte, high uint32) (Packet, error) {
	p, text, err := sa.open(esp, high)
	if err != nil {
		return Packet{}, err
	}
	if len(text) < 2 {
		return Packet{}, fmt.Errorf("%d bytes of text: %w", len(text), ErrShort)
	}
	p.Padding, p.Next = int(text[len(text)-2]), text[len(text)-1]
	end := len(text) - 2 - p.Padding
	if end < 0 {
		return Packet{}, fmt.Errorf("%d bytes of padding in %d of text: %w", p.Padding, len(text),
			ErrPadding)
	}
	for i, b := range text[end : len(text)-2] {
		if b != byte(i+1) {
			return Packet{}, fmt.Errorf("byte %d of the padding is %d: %w", i+1, b, ErrPadding)
		}
	}
	p.Inner = text[:end]
	return p, nil
}

// OpenNext is Open for a receiver that has seen highest as the highest sequence number and keeps a
// window of that many: it infers the half that is not sent.
func (sa *SA) OpenNext(esp []byte, highest uint64, window uint32) (Packet, error) {
	if len(esp) < HeaderLen {
		return Packet{}, fmt.Errorf("%d bytes: %w", len(esp), ErrShort)
	}
	return sa.Open(esp, High(binary.BigEndian.Uint32(esp[4:]), highest, window))
}

func (sa *SA) open(esp []byte, high uint32) (Packet, []byte, error) {
	if len(esp) < HeaderLen+TagLen {
		return Packet{}, nil, fmt.Errorf("%d bytes: %w", len(esp), ErrShort)
	}
	p := Packet{
		SPI: binary.BigEndian.Uint32(esp),
		Seq: uint64(high)<<32 | uint64(binary.BigEndian.Uint32(esp[4:])),
		IV:  binary.BigEndian.Uint64(esp[8:]),
	}
	aead, err := sa.aead()
	if err != nil {
		return p, nil, err
	}
	text, err := aead.Open(nil, sa.nonce(p.IV), esp[HeaderLen:], sa.authenticated(p.Seq))
	if err != nil {
		return p, nil, fmt.Errorf("SPI %#x, sequence number %d: %w", p.SPI, p.Seq, ErrTag)
	}
	return p, text, nil
}

func (sa *SA) aead() (cipher.AEAD, error) {
	block, err := aes.NewCipher(sa.Key)
	if err != nil {
		return nil, fmt.Errorf("key of SPI %#x: %w", sa.SPI, err)
	}
	return cipher.NewGCM(block)
}

func (sa *SA) nonce(iv uint64) []byte {
	return binary.BigEndian.AppendUint64(bytes.Clone(sa.Salt[:]), iv)
}

// authenticated is the data that RFC 4106, 5 adds with 64-bit sequence numbers. The SPI is the
// SA's, not the packet's: a packet under another SPI must not open.
func (sa *SA) authenticated(seq uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, sa.SPI), seq)
}

// Padding is how many bytes of padding a packet of that length gets: text and trailer fill words of
// four bytes.
func Padding(inner int) int { return -(inner + 2) & 3 }

// Len is the length of the ESP packet around an inner packet of that length.
func Len(inner int) int { return HeaderLen + inner + Padding(inner) + 2 + TagLen }

// High infers the upper half of a sequence number from its lower one, as RFC 4303, A.2.2 has it.
func High(low uint32, highest uint64, window uint32) uint32 {
	top, high := uint32(highest), uint32(highest>>32)
	bottom := top - window + 1 // of the window; wraps
	switch {
	case top >= window-1 &&
		low < bottom: // the window lies in one half, and low before it: it is of the next
		return high + 1
	case top < window-1 && low >= bottom: // the window began in the half before
		return high - 1
	}
	return high
}

func nextHeader(inner []byte) (uint8, error) {
	if len(inner) > 0 {
		switch inner[0] >> 4 {
		case 4:
			return NextIPv4, nil
		case 6:
			return NextIPv6, nil
		}
	}
	return 0, fmt.Errorf("%d bytes to seal are no IP packet", len(inner))
}
