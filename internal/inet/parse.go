package inet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// maxTags bounds the VLAN tags and maxExtensions the IPv6 extension headers that are followed.
const (
	maxTags       = 4
	maxExtensions = 8
)

// Headers is what a frame's headers say.
type Headers struct {
	// Src and Dst are invalid for a frame that is not IP.
	Src, Dst netip.Addr
	Protocol uint8
	// Fragment says that the packet is one of several; Later that it is not the first of them,
	// so that ports are unknown.
	Fragment, Later bool
	// SrcPort and DstPort are UDP's or TCP's.
	SrcPort, DstPort uint16
	// Payload is what follows the UDP header, else what follows the IP headers.
	Payload []byte
}

// IP says whether the frame carries IP.
func (h *Headers) IP() bool { return h.Src.IsValid() }

// Parse reads an Ethernet frame. Frames of other protocols than IP are no error. Of a packet that
// ends behind its addresses, what could be read is returned beside the error.
func Parse(frame []byte) (Headers, error) {
	if len(frame) < EthernetLen {
		return Headers{}, fmt.Errorf("a frame of %d bytes has no Ethernet header", len(frame))
	}
	kind, rest := binary.BigEndian.Uint16(frame[12:]), frame[EthernetLen:]
	for range maxTags {
		if kind != unix.ETH_P_8021Q && kind != unix.ETH_P_8021AD {
			break
		}
		if len(rest) < VLANTagLen {
			return Headers{}, errors.New("the frame ends within its VLAN tag")
		}
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[VLANTagLen:]
	}
	switch kind {
	case unix.ETH_P_IP:
		return parseIPv4(rest)
	case unix.ETH_P_IPV6:
		return parseIPv6(rest)
	}
	return Headers{}, nil
}

func parseIPv4(b []byte) (Headers, error) {
	if len(b) < IPv4Len || b[0]>>4 != 4 {
		return Headers{}, fmt.Errorf("not an IPv4 header: %d bytes", len(b))
	}
	length := int(b[0]&15) * 4
	if length < IPv4Len || length > len(b) {
		return Headers{}, fmt.Errorf("an IPv4 header of %d bytes in %d", length, len(b))
	}
	h := Headers{
		Src: netip.AddrFrom4([4]byte(b[12:16])), Dst: netip.AddrFrom4([4]byte(b[16:20])),
		Protocol: b[9],
	}
	fragment := binary.BigEndian.Uint16(b[6:])
	h.Later = fragment&fragmentOffset != 0
	h.Fragment = h.Later || fragment&MoreFragments != 0
	// Short frames are padded: what is behind the packet is none of it. A total length of 0 is
	// that of a packet too large for the field.
	if total := int(binary.BigEndian.Uint16(b[2:])); total >= length && total < len(b) {
		b = b[:total]
	}
	h.transport(b[length:])
	return h, nil
}

func parseIPv6(b []byte) (Headers, error) {
	if len(b) < IPv6Len || b[0]>>4 != 6 {
		return Headers{}, fmt.Errorf("not an IPv6 header: %d bytes", len(b))
	}
	h := Headers{
		Src: netip.AddrFrom16([16]byte(b[8:24])), Dst: netip.AddrFrom16([16]byte(b[24:40])),
		Protocol: b[6],
	}
	if total := int(binary.BigEndian.Uint16(b[4:])); total > 0 && total < len(b)-IPv6Len {
		b = b[:IPv6Len+total]
	}
	rest, err := h.extensions(b[IPv6Len:])
	if err != nil {
		return h, err
	}
	h.transport(rest)
	return h, nil
}

// extensions walks the extension headers up to the transport's.
func (h *Headers) extensions(b []byte) ([]byte, error) {
	for range maxExtensions {
		length := 0
		switch h.Protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			if len(b) < 2 {
				return nil, errors.New("the packet ends within an IPv6 extension header")
			}
			length = 8 + int(b[1])*8
		case unix.IPPROTO_FRAGMENT:
			length = 8
			if len(b) < length {
				return nil, errors.New("the packet ends within its fragment header")
			}
			fragment := binary.BigEndian.Uint16(b[2:])
			h.Later = h.Later || fragment&0xfff8 != 0
			h.Fragment = h.Fragment || h.Later || fragment&1 != 0
		default:
			return b, nil
		}
		if len(b) < length {
			return nil, errors.New("the packet ends within an IPv6 extension header")
		}
		h.Protocol, b = b[0], b[length:]
		if h.Later {
			return b, nil
		}
	}
	return nil, fmt.Errorf("more than %d IPv6 extension headers", maxExtensions)
}

// transport reads ports, where there are any.
func (h *Headers) transport(b []byte) {
	h.Payload = b
	if h.Later || len(b) < 4 || h.Protocol != unix.IPPROTO_UDP && h.Protocol != unix.IPPROTO_TCP {
		return
	}
	h.SrcPort, h.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if h.Protocol == unix.IPPROTO_UDP && len(b) >= UDPLen {
		h.Payload = b[UDPLen:]
	}
}

// SkipIPv4 takes the IPv4 header off what a raw socket has received.
func SkipIPv4(b []byte) ([]byte, bool) {
	if len(b) < IPv4Len || len(b) < int(b[0]&15)*4 {
		return nil, false
	}
	return b[int(b[0]&15)*4:], true
}
