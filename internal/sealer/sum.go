package sealer

import (
	"encoding/binary"
	"math/bits"
)

var (
	be = binary.BigEndian
	ne = binary.NativeEndian
)

// The Internet checksum (RFC 1071) in the machine's byte order: a sum of 16-bit words may be taken
// over wider words, and in either order as long as what is added to it is too.

// sum adds b to s. What is summed before must be of even length.
func sum(b []byte, s uint64) uint64 {
	var c uint64
	for len(b) >= 64 {
		w := b[:64]
		s, c = bits.Add64(s, ne.Uint64(w), 0)
		s, c = bits.Add64(s, ne.Uint64(w[8:]), c)
		s, c = bits.Add64(s, ne.Uint64(w[16:]), c)
		s, c = bits.Add64(s, ne.Uint64(w[24:]), c)
		s, c = bits.Add64(s, ne.Uint64(w[32:]), c)
		s, c = bits.Add64(s, ne.Uint64(w[40:]), c)
		s, c = bits.Add64(s, ne.Uint64(w[48:]), c)
		s, c = bits.Add64(s, ne.Uint64(w[56:]), c)
		s += c
		b = b[64:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, ne.Uint64(b), 0)
		s += c
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s, c = bits.Add64(s, ne.Uint64(last[:]), 0)
		s += c
	}
	return s
}

// fold makes 16 bits of a sum.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}

// word is a big-endian number as the summand that it is in a packet.
func word(v uint16) uint64 {
	var b [2]byte
	be.PutUint16(b[:], v)
	return uint64(ne.Uint16(b[:]))
}

// pseudo is the sum of the pseudo-header of an IP packet: what a checksum field has that somebody
// else is to finish. The destination is the header's: not right behind a routing header.
func pseudo(ip []byte, protocol uint8, length int) uint64 {
	rest := word(uint16(protocol)) + word(uint16(length))
	if ip[0]>>4 == 4 {
		return sum(ip[12:20], rest)
	}
	return sum(ip[8:40], rest)
}
