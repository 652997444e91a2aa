package sealer

import "weft.dev/weft/internal/sealer/control"

// seal cuts and seals the packet of n bytes that p begins with.
func (e *engine) seal(m meta, v vnet, p []byte, n int) {
	defer e.tellRefused(&e.stats.seal)
	count := max(int(m.count), 1)
	last := m.seq + uint64(count) - 1
	s := e.current.out[m.sa]
	if s == nil || !e.keys.settled(s) {
		e.refuse(&e.stats.seal, m.sa, control.ReasonNoKey, count, last)
		return
	}
	length := ipLength(p[:n])
	if length == 0 || !e.cut.begin(p, length, v) || e.cut.count > int(m.count) ||
		m.seq+uint64(m.count) > seqMask || !s.window.freshRange(m.seq, int(m.count)) {
		e.refuse(&e.stats.seal, m.sa, control.ReasonSealFailed, count, last)
		return
	}
	o := e.outer(m, p[:length])
	if o.size > o.most() {
		e.refuse(&e.stats.seal, m.sa, control.ReasonSealFailed, count, last)
		return
	}
	for i := range e.cut.count {
		at, length := e.cut.segment(i)
		e.sealInto(s, &m, &o, m.seq+uint64(i), e.cut.p[at:], length)
	}
	// The numbers that no segment needed are used up all the same.
	for i := e.cut.count; i < int(m.count); i++ {
		s.window.use(m.seq + uint64(i))
	}
	e.stats.seal.packets.Add(uint64(e.cut.count))
	e.stats.seal.bytes.Add(uint64(length + (e.cut.count-1)*e.cut.hl))
}

// outer is what all pieces in one frame have in common.
type outer struct {
	ip   int // length of the IP header
	size int // of each piece but the last: ESP
	hash uint32
	tos  uint8
}

const (
	nextIP4 = 4
	nextIP6 = 41
)

func (e *engine) outer(m meta, p []byte) outer {
	o := outer{ip: ip4Len, hash: flowHash(p), tos: trafficClass(p)}
	if m.kind == kindSeal6 {
		o.ip = ip6Len
	}
	o.size = pieceLen(min(e.cut.hl+e.cut.size, len(p)))
	return o
}

// pieceLen is how long the ESP packet of an inner packet is.
func pieceLen(inner int) int { return espLen + inner + -(inner+2)&3 + 2 + icvLen }

// most is what all pieces in one frame may be long together.
func (o *outer) most() int { return maxIP - o.ip - udpLen }

// batch is the frame that is being sealed, in engine.sealed. It leaves once it can take no more, or
// with flushSealed.
type batch struct {
	m     meta // of the first piece
	sa    *sa
	outer outer
	len   int // of all pieces
	count int
	top   uint64 // the highest number in it
}

// takes says whether a piece of some length can be the next: the kernel cuts a frame into equal
// pieces, of which the last may be shorter. There is room for it, or the batch would have left. The
// numbers in it must lie where count reaches.
func (b *batch) takes(s *sa, m *meta, o *outer, seq uint64, length int) bool {
	return b.count > 0 && b.sa == s && b.m.kind == m.kind && b.m.identity == m.identity &&
		b.outer.hash == o.hash && b.outer.tos == o.tos &&
		length <= b.outer.size && (seq < b.m.seq || seq-b.m.seq < 255)
}

// sealInto seals the packet that text begins with into the batch, or sends the batch and begins
// another. Each of a flow leaves in the order in which it came: there is no second batch.
func (e *engine) sealInto(s *sa, m *meta, o *outer, seq uint64, text []byte, length int) {
	b := &e.batch
	piece := pieceLen(length)
	if !b.takes(s, m, o, seq, piece) {
		e.flushSealed()
		*b = batch{m: *m, sa: s, outer: *o, top: seq}
		b.m.seq, b.outer.size = seq, piece
	}
	at := headLen + o.ip + udpLen + b.len
	e.sealPiece(s, m.spi(), seq, e.sealed[at:], text, length)
	b.len += piece
	b.count++
	b.top = max(b.top, seq)
	if piece < b.outer.size || b.count == maxPieces || b.len+piece > o.most() {
		e.flushSealed()
	}
}

// flushSealed sends the batch, if there is one.
func (e *engine) flushSealed() {
	b := &e.batch
	if b.count == 0 {
		return
	}
	b.m.kind, b.m.count = kindSealed, uint8(b.top-b.m.seq+1)
	e.sealHead(b)
	e.iovs[0] = iovec(e.sealed[:headLen+b.outer.ip+udpLen+b.len])
	e.write(&e.stats.seal, e.iovs[:1])
	*b = batch{}
}

// sealPiece seals the packet that text begins with behind a new ESP header. The trailer needs up
// to 5 bytes behind the packet: those are the next segment's, so they are put back.
func (e *engine) sealPiece(s *sa, spi uint32, seq uint64, esp, text []byte, length int) {
	next := uint8(nextIP4)
	if text[0]>>4 == 6 {
		next = nextIP6
	}
	pad := -(length + 2) & 3
	behind := text[length : length+8]
	saved := ne.Uint64(behind)
	be.PutUint32(behind, 0x01020300) // RFC 4303 section 2.4
	behind[pad], behind[pad+1] = byte(pad), next
	be.PutUint32(esp, spi)
	be.PutUint32(esp[4:], uint32(seq))
	be.PutUint64(esp[8:], seq)
	e.bind(s, esp, seq)
	s.window.use(seq)
	s.aead.Seal(esp[espLen:espLen], e.nonce[:], text[:length+pad+2], e.aad[:])
	ne.PutUint64(behind, saved)
}

// sourcePort is a flow's in one epoch. The peer's kernel merges packets of one port, and its sealer
// may not have the key of the next epoch yet when the flow's first packets in it arrive.
func sourcePort(hash, sa uint32) uint16 {
	epoch := sa >> 6 & 15
	return 0x8000 | uint16((hash^epoch<<10)&0x3fff)
}

// sealHead writes all that is in front of the pieces. Addresses and what is summed over them stay
// zero: the hook knows the peer.
func (e *engine) sealHead(b *batch) {
	o, payload := &b.outer, b.len
	v := vnet{unfinished: true, start: etherLen + o.ip, offset: 6}
	if b.count > 1 {
		v.gso, v.size, v.hdr = gsoUDP, o.size, etherLen+o.ip+udpLen
	}
	v.put(e.sealed)
	b.m.put(e.sealed[vnetLen:])
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
	be.PutUint16(udp, sourcePort(o.hash, b.m.sa))
	be.PutUint16(udp[2:], uint16(e.port.Load()))
	be.PutUint16(udp[4:], uint16(udpLen+payload))
}
