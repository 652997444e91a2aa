package encryptcheck

import (
	"slices"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
)

// The ICMP messages that quote a packet: RFC 792 (destination unreachable, source quench, redirect,
// time exceeded, parameter problem), RFC 4443 (1 to 4), RFC 4861 (redirect).
var (
	quoting4 = []uint8{3, 4, 5, 11, 12}
	quoting6 = []uint8{1, 2, 3, 4}
)

const (
	redirect6         = 137
	redirect6Len      = 40 // ahead of its options, whose lengths count 8 bytes
	optionRedirected  = 4
	optionRedirectLen = 8
)

// quoted is the packet that an ICMP message is about, as far as the message quotes it.
func quoted(p *inet.Headers) (inet.Headers, bool) {
	b := p.Payload
	if p.Later || len(b) < inet.ICMPLen {
		return inet.Headers{}, false
	}
	kind := uint16(unix.ETH_P_IP)
	switch {
	case p.Protocol == unix.IPPROTO_ICMP && slices.Contains(quoting4, b[0]):
		b = b[inet.ICMPLen:]
	case p.Protocol == unix.IPPROTO_ICMPV6 && slices.Contains(quoting6, b[0]):
		kind, b = unix.ETH_P_IPV6, b[inet.ICMPLen:]
	case p.Protocol == unix.IPPROTO_ICMPV6 && b[0] == redirect6:
		kind, b = unix.ETH_P_IPV6, redirected6(b)
	default:
		return inet.Headers{}, false
	}
	// A quote that is cut says its addresses all the same.
	q, _ := inet.Parse(inet.Ethernet(make([]byte, 6), make([]byte, 6), kind, b))
	return q, q.IP()
}

// redirected6 is what the redirected header option of an IPv6 redirect quotes (RFC 4861, 4.6.3).
func redirected6(b []byte) []byte {
	if len(b) < redirect6Len {
		return nil
	}
	for b = b[redirect6Len:]; len(b) >= optionRedirectLen; {
		length := int(b[1]) * 8
		if b[0] == optionRedirected {
			return b[optionRedirectLen:]
		}
		if length == 0 || length > len(b) {
			return nil
		}
		b = b[length:]
	}
	return nil
}

// betweenOthers is the kind of a packet whose addresses are no pod's. An error of a node's or of a
// router's makes the pod's packet readable that it quotes.
func (d *Detector) betweenOthers(p *inet.Headers) Kind {
	if _, sealed := ParseESP(*p, d.rules.Port); sealed {
		return Sealed
	}
	if q, ok := quoted(p); ok {
		if kind := d.kind(&q); kind == Allowed || kind == Plain {
			return kind
		}
	}
	return Other
}
