// Package inet builds and reads Ethernet frames that carry IP, as far as Weft sends and looks at
// them, and counts what sealing adds to a packet.
package inet

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Lengths of headers without options, in bytes.
const (
	EthernetLen = 14
	VLANTagLen  = 4
	IPv4Len     = 20
	IPv6Len     = 40
	TCPLen      = 20
	UDPLen      = 8
	ICMPLen     = 8 // with what an echo or an error has behind type, code and checksum
)

// IPv4's fragment field: flags and offset, which counts in 8 bytes (RFC 791).
const (
	DontFragment   = 0x4000
	MoreFragments  = 0x2000
	fragmentOffset = 0x1fff
)

// Checksum is the Internet checksum (RFC 1071). Over data that contains it, it is 0.
func Checksum(b []byte) uint16 { return ^fold(sum(0, b)) }

// TransportChecksum is the checksum of a segment together with what its protocol adds to it of the
// IP header: a pseudo-header, except for ICMP (RFC 9293, 768, 4443, 792).
func TransportChecksum(src, dst netip.Addr, protocol uint8, segment []byte) uint16 {
	s := sum(0, segment)
	if protocol != unix.IPPROTO_ICMP {
		s = sum(sum(s, src.AsSlice()), dst.AsSlice()) + uint32(len(segment)) + uint32(protocol)
	}
	return ^fold(s)
}

// SetIPv4Checksum writes the checksum of the IPv4 header that a packet begins with.
func SetIPv4Checksum(packet []byte) {
	header := packet[:int(packet[0]&15)*4]
	clear(header[10:12])
	binary.BigEndian.PutUint16(header[10:], Checksum(header))
}

// SetTransportChecksum writes the checksum into a segment of a protocol that has one.
func SetTransportChecksum(src, dst netip.Addr, protocol uint8, segment []byte) {
	at, ok := checksumAt[protocol]
	if !ok || len(segment) < at+2 {
		return
	}
	field := segment[at : at+2]
	clear(field)
	check := TransportChecksum(src, dst, protocol, segment)
	if check == 0 && protocol == unix.IPPROTO_UDP {
		check = 0xffff // 0 says that there is none
	}
	binary.BigEndian.PutUint16(field, check)
}

// checksumAt is where a protocol's header has its checksum.
var checksumAt = map[uint8]int{
	unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6, unix.IPPROTO_ICMP: 2, unix.IPPROTO_ICMPV6: 2,
}

func sum(s uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}
