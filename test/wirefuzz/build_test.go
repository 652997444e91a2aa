package wirefuzz

import (
	"encoding/binary"
	"net/netip"
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
		h.ttl = 64
	}
	if h.src.Is6() || h.dst.Is6() {
		src, dst := h.src.As16(), h.dst.As16()
		b := []byte{0x60 | h.tos>>4, h.tos << 4, 0, 0}
		b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
		b = append(b, h.proto, h.ttl)
		return append(append(append(b, src[:]...), dst[:]...), payload...)
	}
	b := []byte{0x45 + byte(len(h.options)/4), h.tos}
	b = binary.BigEndian.AppendUint16(b, uint16(20+len(h.options)+len(payload)))
	b = binary.BigEndian.AppendUint16(b, h.id)
	b = binary.BigEndian.AppendUint16(b, h.frag)
	b = append(b, h.ttl, h.proto, 0, 0)
	b = append(append(append(b, h.src.AsSlice()...), h.dst.AsSlice()...), h.options...)
	binary.BigEndian.PutUint16(b[10:], ^sum16(b))
	return append(b, payload...)
}

// where a transport's checksum is, by protocol.
var checksums = map[uint8]int{1: 2, 6: 16, 17: 6, 58: 2}

// finish writes the checksum of a transport segment whose field holds 0.
func finish(src, dst netip.Addr, proto uint8, segment []byte) []byte {
	at, known := checksums[proto]
	if !known || len(segment) < at+2 {
		return segment
	}
	all := segment
	if proto != 1 {
		all = append(append([]byte(nil), src.AsSlice()...), dst.AsSlice()...)
		all = append(binary.BigEndian.AppendUint32(all, uint32(len(segment))), 0, 0, 0, proto)
		all = append(all, segment...)
	}
	sum := ^sum16(all)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(segment[at:], sum)
	return segment
}

// ethernet puts a link header before an IP packet: 12 bytes of addresses, which may be nil, and the type.
func ethernet(macs, ip []byte) []byte {
	kind := uint16(0x0800)
	if len(ip) > 0 && ip[0]>>4 == 6 {
		kind = 0x86dd
	}
	frame := append(make([]byte, 0, 14+len(ip)), macs...)
	frame = append(frame, make([]byte, 12-len(frame))...)
	return append(binary.BigEndian.AppendUint16(frame, kind), ip...)
}

// tagged puts a VLAN tag into a frame, before those that it has.
func tagged(frame []byte, kind, tci uint16) []byte {
	out := append([]byte(nil), frame[:12]...)
	out = binary.BigEndian.AppendUint16(out, kind)
	out = binary.BigEndian.AppendUint16(out, tci)
	return append(out, frame[12:]...)
}

// transport is a segment of a protocol with text in it.
func transport(proto uint8, src, dst netip.Addr, sport, dport uint16, text []byte) []byte {
	var s []byte
	ports := func() {
		s = binary.BigEndian.AppendUint16(s, sport)
		s = binary.BigEndian.AppendUint16(s, dport)
	}
	switch proto {
	case 6:
		ports()
		s = append(s, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0)
	case 17, 136:
		ports()
		s = append(binary.BigEndian.AppendUint16(s, uint16(8+len(text))), 0, 0)
	case 132:
		ports()
		s = append(s, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0)
		s = binary.BigEndian.AppendUint16(s, uint16(4+len(text)))
	case 1:
		s = append(s, 8, 0, 0, 0, 0, 1, 0, 1)
	case 58:
		s = append(s, 128, 0, 0, 0, 0, 1, 0, 1)
	}
	return finish(src, dst, proto, append(s, text...))
}

// wrapESP puts an ESP packet into UDP and IP: over IPv4 without a checksum (RFC 3948).
func wrapESP(macs []byte, src, dst netip.Addr, esp []byte) []byte {
	frame := datagram(macs, src, dst, 49152, espPort, esp, 64)
	if src.Is4() {
		frame[14+20+6], frame[14+20+7] = 0, 0
	}
	return frame
}
