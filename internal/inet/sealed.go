package inet

// What sealing adds to a packet, in bytes: the outer IP and UDP headers, ESP's header with its IV,
// and the ICV (RFC 4303, 3948, 4106); behind the packet come two bytes and padding to whole words
// of four (RFC 4303 section 2.4).
const (
	sealOverIPv4 = IPv4Len + UDPLen + 16 + 16
	sealOverIPv6 = IPv6Len + UDPLen + 16 + 16
	sealTrailer  = 2
)

// MaxSealedText is the longest text of one sealed packet, its trailer included, that the datapath's
// programs have room for, in bytes; a test of the datapath holds it equal to theirs. Wires beyond
// jumbo frames are not used up.
const MaxSealedText = 9216

// SealedMTU is the largest IP packet, in bytes, that fits a wire of the given MTU when sealed.
func SealedMTU(wire int, outerIPv6 bool) int {
	over := sealOverIPv4
	if outerIPv6 {
		over = sealOverIPv6
	}
	return min((wire-over)&^3, MaxSealedText-8) - sealTrailer
}
