package wirefuzz

import (
	"encoding/binary"
	"net/netip"

	"weft.dev/weft/internal/inet"
)

// shapes are what random shots are made of. Each makes its parts from the generator's random
// numbers alone; nil is none.
var shapes = []struct {
	name string
	make func(*gen) []*part
}{
	{"any protocol", (*gen).protocols},
	{"IPv4 options", (*gen).options},
	{"IPv6 extension headers", (*gen).extensions},
	{"broken IP header", (*gen).broken},
	{"broken transport header", (*gen).brokenTransport},
	{"fragments", (*gen).fragments},
	{"truncated", (*gen).truncated},
	{"bits flipped", (*gen).flipped},
	{"odd link layer", (*gen).link},
	{"tags of all kinds", (*gen).tags},
	{"ICMP error", (*gen).icmpError},
	{"neighbour and router discovery", (*gen).discovery},
	{"merged", (*gen).merged},
	{"ESP, malformed", (*gen).malformedESP},
	{"ESP, changed", (*gen).changedESP},
	{"ESP, genuine", (*gen).genuineESP},
	{"ESP, replayed", (*gen).replayedESP},
	{"ESP, merged", (*gen).mergedESP},
	{"sealed by a peer", (*gen).sealedByPeer},
	{"no ESP on ESP's port", (*gen).notESP},
}

func (g *gen) protocols() []*part {
	family, src, dst := g.ends()
	proto := choose[uint8](g, 6, 17, 132, 136, 253, 4, 41, 47, 50, 59)
	if g.one(4) {
		proto = map[int]uint8{4: 1, 6: 58}[family]
	}
	id, text := g.mark(g.pick(600))
	ip := header{src: src, dst: dst, proto: proto, ttl: choose[uint8](g, 64, 64, 255, 1, 2),
		tos: byte(g.pick(256))}
	return []*part{g.envelope(g.plain(id,
		ip.wrap(transport(proto, src, dst, uint16(g.pick(1<<16)), uint16(g.pick(1<<16)), text))))}
}

func (g *gen) options() []*part {
	at := g.at
	src, dst := choose(g, sources...).addr(at, 4), choose(g, destinations[:5]...).addr(at, 4)
	hop := choose(g, destinations...).addr(at, 4).As4()
	var o []byte
	switch g.pick(7) {
	case 0:
		o = append([]byte{choose[byte](g, 131, 137), 7, 4}, hop[:]...)
	case 1:
		o = append([]byte{1, 1, choose[byte](g, 131, 137), 11, choose[byte](g, 4, 8, 12)},
			append(hop[:], hop[:]...)...)
	case 2:
		o = append([]byte{7, 11, 4}, make([]byte, 8)...)
	case 3:
		o = append([]byte{68, 12, 5, 0}, make([]byte, 8)...)
	case 4:
		o = []byte{148, 4, 0, 0}
	case 5:
		o = g.bytes(4 + g.pick(37))
	case 6:
		o = []byte{0, 131, 7, 4} // behind the end of the list
	}
	for len(o)%4 != 0 {
		o = append(o, 0)
	}
	id, text := g.mark(16)
	return []*part{g.envelope(g.plain(id,
		header{src: src, dst: dst, proto: 17,
			options: o[:min(40, len(o))]}.wrap(transport(17, src, dst, 7001, 7002, text))))}
}

func (g *gen) extensions() []*part {
	at := g.at
	src, dst := choose(g, sources...).addr(at, 6), choose(g, destinations[:5]...).addr(at, 6)
	id, text := g.mark(16)
	rest, next := transport(17, src, dst, 7001, 7002, text), uint8(17)
	for range 1 + g.pick(4) + 8*(g.pick(8)/7) {
		kind := choose[uint8](g, 0, 43, 44, 51, 60, 135, 59, 139)
		ext := make([]byte, 8)
		ext[0] = next
		switch kind {
		case 0, 60:
			ext[2], ext[3] = choose[byte](g, 1, 5, 0xc2, 30), 4
		case 43:
			hop := choose(g, destinations...).addr(at, 6).As16()
			ext[1], ext[2], ext[3] = 2, choose[byte](g, 0, 2, 3, 4), byte(g.pick(2))
			ext = append(ext, hop[:]...)
		case 44:
			if g.one(2) {
				ext[2], ext[3] = byte(g.pick(2)), byte(g.pick(256))
			}
			binary.BigEndian.PutUint32(ext[4:], g.rng.Uint32())
		case 51:
			ext = append(ext, make([]byte, 8)...)
			ext[1] = 2
		}
		if g.one(12) {
			ext[1] = byte(g.pick(256)) // says more than there is
		}
		rest, next = append(ext, rest...), kind
	}
	return []*part{g.envelope(g.plain(id, header{src: src, dst: dst, proto: next}.wrap(rest)))}
}

// udp is a plain part to break.
func (g *gen) udp(more int) *part {
	_, src, dst := g.ends()
	id, text := g.mark(more)
	return &part{id: id, data: datagram(g.macs, src, dst, 7001, 7002, text, 64)}
}

func (g *gen) broken() []*part {
	p := g.udp(g.pick(100))
	ip := p.data[14:]
	if ip[0]>>4 == 6 {
		switch g.pick(3) {
		case 0:
			ip[0] = byte(g.pick(16))<<4 | ip[0]&15
		case 1:
			binary.BigEndian.PutUint16(ip[4:], uint16(g.pick(1<<16)))
		case 2:
			binary.BigEndian.PutUint16(ip[4:], 0) // as in a jumbogram
		}
		return []*part{g.envelope(p)}
	}
	switch g.pick(5) {
	case 0:
		ip[0] = byte(g.pick(256))
	case 1:
		binary.BigEndian.PutUint16(ip[2:], uint16(g.pick(1<<16)))
	case 2:
		binary.BigEndian.PutUint16(ip[2:], uint16(g.pick(len(ip)+8)))
	case 3:
		binary.BigEndian.PutUint16(ip[10:], uint16(g.pick(1<<16)))
		return []*part{g.envelope(p)}
	case 4:
		ip[8] = 0
	}
	if head := int(ip[0]&15) * 4; head >= 20 && head <= len(ip) {
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], inet.Checksum(ip[:head]))
	}
	return []*part{g.envelope(p)}
}

func (g *gen) brokenTransport() []*part {
	_, src, dst := g.ends()
	id, text := g.mark(8)
	proto := choose[uint8](g, 6, 17)
	s := transport(proto, src, dst, 7001, 7002, text)
	if proto == 6 {
		s[12], s[13] = byte(g.pick(256)), byte(g.pick(256))
	} else {
		binary.BigEndian.PutUint16(s[4:], uint16(g.pick(40)))
	}
	return []*part{g.envelope(g.plain(id, header{src: src, dst: dst, proto: proto}.wrap(s)))}
}

// fragments of one datagram: in order or not, tiny, overlapping, or without a beginning.
func (g *gen) fragments() []*part {
	_, src, dst := g.ends()
	how := g.pick(6)
	number := g.rng.Uint32()
	first, firstText := g.mark(48)
	second, secondText := g.mark(48)
	head := transport(17, src, dst, 7001, 7002, make([]byte, len(firstText)+len(secondText)))
	whole := append(head[:8:8], firstText...)
	cut := len(whole)
	switch how {
	case 0: // in order
	case 1: // the first is smaller than a header
		whole, cut = whole[:8], 8
		if src.Is4() {
			whole = transport(6, src, dst, 7001, 7002, firstText)[:8]
		}
	}
	proto := uint8(17)
	if how == 1 {
		proto = 6
	}
	a := g.fragment(first, src, dst, number, 0, true, proto, whole)
	offset := cut
	if how == 2 || how == 3 { // over the first one
		offset = 8 * g.pick(cut/8)
	}
	// At offset 0 it is a first fragment as well, with a header of its own that is checked, or
	// without more behind it a datagram of its own (RFC 6946 section 4). The receiver refuses
	// datagrams whose fragments overlap (RFC 5722).
	b := g.fragment(second, src, dst, number, offset, g.one(4), proto, secondText)
	switch how {
	case 4:
		return []*part{b}
	case 5:
		return []*part{b, a}
	}
	return []*part{a, b}
}

func (g *gen) fragment(id uint32, src, dst netip.Addr, number uint32, offset int, more bool,
	proto uint8, text []byte) *part {
	bits := uint16(offset)
	if src.Is4() {
		bits /= 8
		if more {
			bits |= 0x2000
		}
		return g.plain(id,
			header{src: src, dst: dst, proto: proto, id: uint16(number), frag: bits}.wrap(text))
	}
	if more {
		bits |= 1
	}
	ext := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16([]byte{proto, 0}, bits),
		number)
	return g.plain(id, header{src: src, dst: dst, proto: 44}.wrap(append(ext, text...)))
}

func (g *gen) truncated() []*part {
	p := g.udp(200)
	p.data = p.data[:14+g.pick(len(p.data)-14)]
	return []*part{g.envelope(p)}
}

func (g *gen) flipped() []*part {
	p := g.udp(40)
	g.flip(p.data[12:], 1+g.pick(6))
	return []*part{g.envelope(p)}
}

func (g *gen) flip(b []byte, times int) {
	for range times {
		bit := g.pick(len(b) * 8)
		b[bit/8] ^= 1 << (bit % 8)
	}
}
