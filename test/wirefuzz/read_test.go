package wirefuzz

import (
	"encoding/binary"
	"net/netip"
)

// This file and the checksum in it are the oracle's: it shares no code with internal/inet, which
// builds the frames, nor with the datapath, which is judged.

// packet is what a frame says, read from its bytes and from nothing else.
type packet struct {
	tags     []uint16 // VLAN IDs, the outermost first
	ip       bool     // an IP header was found where the type promised one
	src, dst netip.Addr
	proto    uint8
	// bad is why no honest sender builds such a frame, empty if one could.
	bad      string
	fragment bool
	// quoted says that the packet is an ICMP error; of holds the ends of the packet that it quotes,
	// if it does.
	quoted bool
	of     [2]netip.Addr
	// control is ICMPv6 that speaks for a link: router and neighbour discovery, redirects.
	control bool
}

func be16(b []byte) int { return int(binary.BigEndian.Uint16(b)) }

// read reads a frame. tag is one that the device keeps beside the frame.
func read(frame []byte, tag *uint16) (p packet) {
	if tag != nil {
		p.tags = append(p.tags, *tag&0xfff)
	}
	if len(frame) < 14 {
		p.bad = "runt"
		return p
	}
	kind, at := be16(frame[12:]), 14
	for kind == 0x8100 || kind == 0x88a8 {
		if len(frame) < at+4 {
			p.bad = "ends inside a tag"
			return p
		}
		p.tags = append(p.tags, binary.BigEndian.Uint16(frame[at:])&0xfff)
		kind, at = be16(frame[at+2:]), at+4
	}
	switch kind {
	case 0x0800:
		p.read4(frame[at:])
	case 0x86dd:
		p.read6(frame[at:])
	}
	return p
}

func (p *packet) read4(b []byte) {
	if len(b) < 20 {
		p.bad = "ends inside the IP header"
		return
	}
	p.ip, p.proto = true, b[9]
	p.src, _ = netip.AddrFromSlice(b[12:16])
	p.dst, _ = netip.AddrFromSlice(b[16:20])
	head, total := int(b[0]&15)*4, be16(b[2:])
	if b[0]>>4 != 4 || head < 20 || total < head || total > len(b) {
		p.bad = "version or lengths"
		return
	}
	if sum16(b[:head]) != 0xffff {
		p.bad = "header checksum"
		return
	}
	for o := b[20:head]; len(o) > 0 && o[0] != 0; {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			p.bad = "options"
			return
		}
		if o[0] == 131 || o[0] == 137 {
			p.bad = "source route"
			return
		}
		o = o[o[1]:]
	}
	offset, more := be16(b[6:])&0x1fff, b[6]&0x20 != 0
	p.fragment = offset != 0 || more
	if offset == 0 {
		p.transport(b[head:total], 1)
	}
}

func (p *packet) read6(b []byte) {
	if len(b) < 40 {
		p.bad = "ends inside the IP header"
		return
	}
	p.ip = true
	p.src, _ = netip.AddrFromSlice(b[8:24])
	p.dst, _ = netip.AddrFromSlice(b[24:40])
	if total := 40 + be16(b[4:]); b[0]>>4 != 6 || total > len(b) {
		p.bad = "version or lengths"
		return
	}
	next, rest := b[6], b[40:40+be16(b[4:])]
	for n, all := 1, 0; ; n++ {
		size := 8
		switch next {
		case 0, 43, 60, 135:
			if len(rest) >= 8 {
				size = int(rest[1])*8 + 8
			}
		case 51:
			if len(rest) >= 8 {
				size = int(rest[1])*4 + 8
			}
		case 44:
		default:
			p.proto = next
			p.transport(rest, 58)
			return
		}
		if all += size; len(rest) < size || all > 320 || n > 6 {
			p.bad = "extension headers"
			return
		}
		if next == 43 && rest[2] == 0 {
			p.bad = "source route"
			return
		}
		if next == 44 {
			p.fragment = p.fragment || be16(rest[2:])&^6 != 0
			if be16(rest[2:])&^7 != 0 { // a later one
				p.proto = rest[0]
				return
			}
		}
		next, rest = rest[0], rest[size:]
	}
}

// transport reads the header behind IP's; icmp is ICMP's number in this family.
func (p *packet) transport(b []byte, icmp uint8) {
	switch p.proto {
	case 6:
		if len(b) < 20 || b[12]>>4 < 5 || int(b[12]>>4)*4 > len(b) {
			p.bad = "TCP header"
		}
	case 17:
		if len(b) < 8 || be16(b[4:]) < 8 || !p.fragment && be16(b[4:]) > len(b) {
			p.bad = "UDP header"
		}
	case icmp:
		if len(b) < 8 {
			p.bad = "ICMP header"
			return
		}
		v4error := icmp == 1 && (b[0] == 3 || b[0] == 4 || b[0] == 5 || b[0] == 11 || b[0] == 12)
		p.control = icmp == 58 && b[0] >= 133 && b[0] <= 137
		p.quoted = v4error || icmp == 58 && b[0] < 128
		if q := b[8:]; p.quoted && icmp == 1 && len(q) >= 20 && q[0]>>4 == 4 {
			p.of[0], _ = netip.AddrFromSlice(q[12:16])
			p.of[1], _ = netip.AddrFromSlice(q[16:20])
		} else if p.quoted && icmp == 58 && len(q) >= 40 && q[0]>>4 == 6 {
			p.of[0], _ = netip.AddrFromSlice(q[8:24])
			p.of[1], _ = netip.AddrFromSlice(q[24:40])
		}
	}
}

// sum16 is the Internet checksum before it is turned over.
func sum16(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
