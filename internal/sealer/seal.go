package sealer

import "weft.dev/weft/internal/sealer/control"

// seal cuts and seals the packet of n bytes that p begins with.
func (e *engine) seal(m meta, v vnet, p []byte, n int) {
	defer e.tellRefused(&e.stats.seal)
	count := max(int(m.count), 1)
	s := e.current.out[m.sa]
	if s == nil {
		e.refuse(&e.stats.seal, m.sa, control.ReasonNoKey, count)
		return
	}
	length := ipLength(p[:n])
	if length == 0 || !e.cut.begin(p, length, v) || e.cut.count > int(m.count) ||
		m.seq+uint64(m.count) > seqMask || !s.window.freshRange(m.seq, int(m.count)) {
		e.refuse(&e.stats.seal, m.sa, control.ReasonSealFailed, count)
		return
	}
	o := e.outer(m, p[:length])
	if o.room() == 0 {
		e.refuse(&e.stats.seal, m.sa, control.ReasonSealFailed, count)
		return
	}
	for i := 0; i < e.cut.count; {
		i = e.sealFrame(s, m, &o, i)
	}
	// The numbers that no segment needed are used up all the same.
	for i := e.cut.count; i < int(m.count); i++ {
		s.window.use(m.seq + uint64(i))
	}
	e.stats.seal.packets.Add(uint64(e.cut.count))
	e.stats.seal.bytes.Add(uint64(length + (e.cut.count-1)*e.cut.hl))
}

// outer is what all frames that a packet becomes have in common.
type outer struct {
	ip   int // length of the IP header
	size int // of each piece but the last: ESP
	hash uint32
	tos  uint8
	next uint8
}

const (
	nextIP4 = 4
	nextIP6 = 41
)

func (e *engine) outer(m meta, p []byte) outer {
	o := outer{ip: ip4Len, next: nextIP4, hash: flowHash(p), tos: trafficClass(p)}
	if m.kind == kindSeal6 {
		o.ip = ip6Len
	}
	if p[0]>>4 == 6 {
		o.next = nextIP6
	}
	o.size = pieceLen(min(e.cut.hl+e.cut.size, len(p)))
	return o
}

// pieceLen is how long the ESP packet of an inner packet is.
func pieceLen(inner int) int { return espLen + inner + -(inner+2)&3 + 2 + icvLen }

// room is how many pieces fit into one frame.
func (o *outer) room() int { return min(maxPieces, (maxIP-o.ip-udpLen)/o.size) }

// sealFrame seals segments from the first on into one frame, writes it, and returns the next one's
// index.
func (e *engine) sealFrame(s *sa, m meta, o *outer, first int) int {
	begin := headLen + o.ip + udpLen
	end, i := begin, first
	for ; i < e.cut.count && i < first+o.room(); i++ {
		at, length := e.cut.segment(i)
		sealHeader(m, m.seq+uint64(i), e.sealed[end:])
		end += e.sealPiece(s, m.seq+uint64(i), e.sealed[end:], e.cut.p[at:], length, o.next)
	}
	m.kind, m.count, m.seq = kindSealed, uint8(i-first), m.seq+uint64(first)
	e.sealHead(m, o, end-begin)
	e.iovs[0] = iovec(e.sealed[:end])
	e.write(&e.stats.seal, e.iovs[:1])
	return i
}

// sealHeader writes an ESP header.
func sealHeader(m meta, seq uint64, esp []byte) {
	be.PutUint32(esp, m.spi())
	be.PutUint32(esp[4:], uint32(seq))
	be.PutUint64(esp[8:], seq)
}

// sealPiece seals the packet that text begins with behind its ESP header. The trailer needs up
// to 5 bytes behind the packet: those are the next segment's, so they are put back.
func (e *engine) sealPiece(s *sa, seq uint64, esp, text []byte, length int, next uint8) int {
	pad := -(length + 2) & 3
	behind := text[length : length+8]
	saved := ne.Uint64(behind)
	be.PutUint32(behind, 0x01020300) // RFC 4303 section 2.4
	behind[pad], behind[pad+1] = byte(pad), next
	e.bind(s, esp, seq)
	s.window.use(seq)
	sealed := s.aead.Seal(esp[espLen:espLen], e.nonce[:], text[:length+pad+2], e.aad[:])
	ne.PutUint64(behind, saved)
	return espLen + len(sealed)
}

// sealHead writes all that is in front of the pieces. Addresses and what is summed over them stay
// zero: the hook knows the peer.
func (e *engine) sealHead(m meta, o *outer, payload int) {
	v := vnet{unfinished: true, start: etherLen + o.ip, offset: 6}
	if m.count > 1 {
		v.gso, v.size, v.hdr = gsoUDP, o.size, etherLen+o.ip+udpLen
	}
	v.put(e.sealed)
	m.put(e.sealed[vnetLen:])
	p := e.sealed[headLen:]
	udp := p[o.ip:]
	clear(p[:o.ip+udpLen])
	if o.ip == ip4Len {
		be.PutUint16(e.sealed[vnetLen+metaLen:], etherIP4)
		p[0], p[1] = 0x45, o.tos
		be.PutUint16(p[2:], uint16(ip4Len+udpLen+payload))
		p[6] = 0x40 // not to be fragmented
		p[8], p[9] = 64, protoUDP
	} else {
		be.PutUint16(e.sealed[vnetLen+metaLen:], etherIP6)
		be.PutUint32(p, 6<<28|uint32(o.tos)<<20|o.hash&0xfffff)
		be.PutUint16(p[4:], uint16(udpLen+payload))
		p[6], p[7] = protoUDP, 64
	}
	be.PutUint16(udp, 0x8000|uint16(o.hash&0x3fff))
	be.PutUint16(udp[2:], uint16(e.port.Load()))
	be.PutUint16(udp[4:], uint16(udpLen+payload))
}
