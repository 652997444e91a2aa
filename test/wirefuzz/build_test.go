package wirefuzz

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
)

// header is an IP header: what is 0 is as usual.
type header struct {
	src, dst netip.Addr
	proto    uint8 // of what follows, before any extension headers
	ttl      uint8
	tos      uint8
	options  []byte // IPv4, a multiple of 4 bytes
	frag     uint16 // IPv4's flags and offset
	id       uint16
}

// wrap puts the header before a payload.
func (h header) wrap(payload []byte) []byte {
	if h.ttl == 0 {
		h.ttl = inet.DefaultTTL
	}
	if h.src.Is6() || h.dst.Is6() {
		h.src, h.dst = netip.AddrFrom16(h.src.As16()), netip.AddrFrom16(h.dst.As16())
	}
	return inet.Packet{
		Src: h.src, Dst: h.dst, TOS: h.tos, TTL: h.ttl, ID: h.id, Fragment: h.frag,
		Options: h.options, Protocol: h.proto, Payload: payload,
	}.IP()
}

// finish writes the checksum of a transport segment.
func finish(src, dst netip.Addr, proto uint8, segment []byte) []byte {
	inet.SetTransportChecksum(src, dst, proto, segment)
	return segment
}

// ethernet puts a link header before an IP packet: 12 bytes of addresses, which may be nil, and the
// type.
func ethernet(macs, ip []byte) []byte {
	kind := uint16(unix.ETH_P_IP)
	if len(ip) > 0 && ip[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	return inet.Ethernet(append(bytes.Clone(macs), make([]byte, 12-len(macs))...), nil, kind, ip)
}

// tagged puts a VLAN tag into a frame, before those that it has.
func tagged(frame []byte, kind, tci uint16) []byte {
	return inet.Tag(frame, inet.VLANTag{TPID: kind, TCI: tci})
}

// transport is a segment of a protocol with text in it.
func transport(proto uint8, src, dst netip.Addr, sport, dport uint16, text []byte) []byte {
	s := text
	switch proto {
	case unix.IPPROTO_TCP:
		s = inet.TCP(inet.TCPHeader{
			SrcPort: sport, DstPort: dport, Seq: 1, Flags: inet.SYN, Window: 0xffff,
		}, text)
	case unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE:
		s = inet.UDP(sport, dport, text)
	case unix.IPPROTO_SCTP: // a DATA chunk
		s = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, sport), dport)
		s = append(s, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0)
		s = append(binary.BigEndian.AppendUint16(s, uint16(4+len(text))), text...)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		s = inet.Echo(proto == unix.IPPROTO_ICMP, 1, 1, text)
	}
	return finish(src, dst, proto, bytes.Clone(s))
}

// wrapESP puts an ESP packet into UDP and IP: over IPv4 without a checksum (RFC 3948).
func wrapESP(macs []byte, src, dst netip.Addr, port uint16, esp []byte) []byte {
	frame := datagram(macs, src, dst, port, espPort, esp, 64)
	if src.Is4() {
		clear(frame[inet.EthernetLen+inet.IPv4Len:][6:8])
	}
	return frame
}
