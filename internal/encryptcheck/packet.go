package encryptcheck

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// DefaultPort is the UDP port of ESP in UDP (RFC 3948).
const DefaultPort = 4500

// Lengths of headers, in bytes.
const (
	ethernetHeader = 14
	vlanTag        = 4
	minIPv4        = 20
	ipv6Header     = 40
	udpHeader      = 8
	// espHeader are SPI, sequence number and IV (RFC 4303, RFC 4106).
	espHeader = 16
)

// maxTags bounds the VLAN tags and maxExtensions the IPv6 extension headers that are followed.
const (
	maxTags       = 4
	maxExtensions = 8
)

// Packet is what a frame's headers say.
type Packet struct {
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
func (p *Packet) IP() bool { return p.Src.IsValid() }

// Parse reads an Ethernet frame. Frames of other protocols than IP are no error.
func Parse(frame []byte) (Packet, error) {
	if len(frame) < ethernetHeader {
		return Packet{}, fmt.Errorf("a frame of %d bytes has no Ethernet header", len(frame))
	}
	kind, rest := binary.BigEndian.Uint16(frame[12:]), frame[ethernetHeader:]
	for range maxTags {
		if kind != unix.ETH_P_8021Q && kind != unix.ETH_P_8021AD {
			break
		}
		if len(rest) < vlanTag {
			return Packet{}, fmt.Errorf("the frame ends within its VLAN tag")
		}
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[vlanTag:]
	}
	switch kind {
	case unix.ETH_P_IP:
		return parseIPv4(rest)
	case unix.ETH_P_IPV6:
		return parseIPv6(rest)
	}
	return Packet{}, nil
}

func parseIPv4(b []byte) (Packet, error) {
	if len(b) < minIPv4 || b[0]>>4 != 4 {
		return Packet{}, fmt.Errorf("not an IPv4 header: %d bytes", len(b))
	}
	header := int(b[0]&15) * 4
	if header < minIPv4 || header > len(b) {
		return Packet{}, fmt.Errorf("an IPv4 header of %d bytes in %d", header, len(b))
	}
	p := Packet{Src: netip.AddrFrom4([4]byte(b[12:16])), Dst: netip.AddrFrom4([4]byte(b[16:20])), Protocol: b[9]}
	where := binary.BigEndian.Uint16(b[6:])
	p.Later = where&0x1fff != 0
	p.Fragment = p.Later || where&0x2000 != 0
	// Short frames are padded: what is behind the packet is none of it. A total length of 0 is
	// that of a packet too large for the field.
	if total := int(binary.BigEndian.Uint16(b[2:])); total >= header && total < len(b) {
		b = b[:total]
	}
	p.transport(b[header:])
	return p, nil
}

func parseIPv6(b []byte) (Packet, error) {
	if len(b) < ipv6Header || b[0]>>4 != 6 {
		return Packet{}, fmt.Errorf("not an IPv6 header: %d bytes", len(b))
	}
	p := Packet{Src: netip.AddrFrom16([16]byte(b[8:24])), Dst: netip.AddrFrom16([16]byte(b[24:40])), Protocol: b[6]}
	if total := int(binary.BigEndian.Uint16(b[4:])); total > 0 && total < len(b)-ipv6Header {
		b = b[:ipv6Header+total]
	}
	rest, err := p.extensions(b[ipv6Header:])
	if err != nil {
		return p, err
	}
	p.transport(rest)
	return p, nil
}

// extensions walks the extension headers up to the transport's.
func (p *Packet) extensions(b []byte) ([]byte, error) {
	for range maxExtensions {
		length := 0
		switch p.Protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			if len(b) < 2 {
				return nil, fmt.Errorf("the packet ends within an IPv6 extension header")
			}
			length = 8 + int(b[1])*8
		case unix.IPPROTO_FRAGMENT:
			length = 8
			if len(b) < length {
				return nil, fmt.Errorf("the packet ends within its fragment header")
			}
			where := binary.BigEndian.Uint16(b[2:])
			p.Later = p.Later || where&0xfff8 != 0
			p.Fragment = p.Fragment || p.Later || where&1 != 0
		default:
			return b, nil
		}
		if len(b) < length {
			return nil, fmt.Errorf("the packet ends within an IPv6 extension header")
		}
		p.Protocol, b = b[0], b[length:]
		if p.Later {
			return b, nil
		}
	}
	return nil, fmt.Errorf("more than %d IPv6 extension headers", maxExtensions)
}

// transport reads ports, where there are any.
func (p *Packet) transport(b []byte) {
	p.Payload = b
	if p.Later || len(b) < 4 || p.Protocol != unix.IPPROTO_UDP && p.Protocol != unix.IPPROTO_TCP {
		return
	}
	p.SrcPort, p.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if p.Protocol == unix.IPPROTO_UDP && len(b) >= udpHeader {
		p.Payload = b[udpHeader:]
	}
}

// ESP is the readable part of a sealed packet.
type ESP struct {
	SPI, Seq uint32
	IV       uint64
}

// Epoch is the nibble of the epoch in the SPI, 1 to 15.
func (e ESP) Epoch() uint8 { return uint8(e.SPI >> 28) }

// Lane is the sender's lane.
func (e ESP) Lane() uint8 { return uint8(e.SPI >> 22 & 63) }

// Identity is the number of the workload that sent the packet.
func (e ESP) Identity() uint32 { return e.SPI & (1<<22 - 1) }

// ESP reads a packet of ESP in UDP (RFC 3948) on a port. SPI 0 is not ESP but IKE or a probe.
func (p *Packet) ESP(port uint16) (ESP, bool) {
	if p.Protocol != unix.IPPROTO_UDP || p.Later || p.DstPort != port || len(p.Payload) < espHeader {
		return ESP{}, false
	}
	e := ESP{SPI: binary.BigEndian.Uint32(p.Payload), Seq: binary.BigEndian.Uint32(p.Payload[4:]), IV: binary.BigEndian.Uint64(p.Payload[8:])}
	return e, e.SPI != 0
}
