package sealer

import "weft.dev/weft/internal/sealer/control"

const (
	minText  = ip4Len + 4 // an empty IPv4 packet, padding, trailer
	minPiece = espLen + minText + icvLen
	ecnCE    = 3
)

// open opens an outer packet, which may stand for many, and hands on what was in it.
func (e *engine) open(m meta, v vnet, p []byte) {
	esp, ecn := outerPayload(p)
	size := len(esp)
	if v.gso != gsoNone {
		size = v.size
	}
	if len(esp) < minPiece || size < minPiece || v.gso != gsoNone && v.gso != gsoUDP {
		e.refuse(&e.stats.open, m.sa, control.ReasonMalformed, max(int(m.count), 1), 0)
		e.tellRefused(&e.stats.open)
		return
	}
	for len(esp) > 0 {
		piece := esp[:min(size, len(esp))]
		esp = esp[len(piece):]
		e.piece(m, piece, ecn)
	}
	e.tellRefused(&e.stats.open)
}

// outerPayload is what UDP carries in an outer packet, nil if there is less of it than it says, and
// the packet's ECN bits.
func outerPayload(p []byte) (payload []byte, ecn uint8) {
	n := ipLength(p)
	header := ip6Len
	switch {
	case n == 0:
		return nil, 0
	case p[0] == 0x45 && p[9] == protoUDP:
		header = ip4Len
	case p[0]>>4 != 6 || p[6] != protoUDP:
		return nil, 0
	}
	if n < header+udpLen {
		return nil, 0
	}
	length := int(be.Uint16(p[header+4:]))
	if length < udpLen || header+length > n {
		return nil, 0
	}
	return p[header+udpLen : header+length], trafficClass(p) & 3
}

// piece judges one ESP packet, opens it where it is, and gives it to be glued or sent. Nothing
// changes before its tag was verified.
func (e *engine) piece(m meta, esp []byte, ecn uint8) {
	if len(esp) < minPiece || len(esp)&3 != 0 {
		e.refuse(&e.stats.open, m.sa, control.ReasonMalformed, 1, 0)
		return
	}
	spi := be.Uint32(esp)
	id := saOf(m.sa>>10, spi)
	s := e.current.in[id]
	if s == nil {
		e.refuse(&e.stats.open, id, control.ReasonNoKey, 1, 0)
		return
	}
	top := s.window.top
	if top == 0 && id == m.sa {
		top = m.seq
	}
	seq := infer(top, be.Uint32(esp[4:]))
	if !s.window.fresh(seq) {
		e.refuse(&e.stats.open, id, control.ReasonReplayed, 1, 0)
		return
	}
	e.bind(s, esp, seq)
	text, err := s.aead.Open(esp[espLen:espLen], e.nonce[:], esp[espLen:], e.aad[:])
	if err != nil {
		e.refuse(&e.stats.open, id, control.ReasonAuth, 1, 0)
		return
	}
	s.window.use(seq)
	inner := innerPacket(text)
	if inner == nil {
		e.refuse(&e.stats.open, id, control.ReasonMalformed, 1, 0)
		return
	}
	if ecn == ecnCE && !markCE(inner) {
		e.refuse(&e.stats.open, id, control.ReasonECN, 1, 0)
		return
	}
	e.stats.open.packets.Add(1)
	e.stats.open.bytes.Add(uint64(len(inner)))
	e.opened(meta{kind: kindOpened, count: 1, sa: id, identity: spi & saMask, seq: seq}, inner)
}

// innerPacket checks the trailer and what is in front of it (RFC 4303 section 2.4 to 2.7). Bytes
// between packet and padding hide its length, and are left out.
func innerPacket(text []byte) []byte {
	end := len(text) - 2
	pad := int(text[end])
	if pad > end-ip4Len {
		return nil
	}
	for i, b := range text[end-pad : end] {
		if int(b) != i+1 {
			return nil
		}
	}
	p := text[:end-pad]
	version := p[0] >> 4
	if next := text[end+1]; next != nextIP4 && next != nextIP6 || next == nextIP4 && version != 4 ||
		next == nextIP6 && version != 6 {
		return nil
	}
	n := ipLength(p)
	if n == 0 {
		return nil
	}
	return p[:n]
}

// markCE takes congestion that the wire reported over to the inner packet (RFC 6040). It says false
// if that cannot carry it.
func markCE(p []byte) bool {
	if trafficClass(p)&3 == 0 {
		return false
	}
	if p[0]>>4 == 6 {
		p[1] |= ecnCE << 4
		return true
	}
	// RFC 1624 equation 3, of the first word.
	before := ne.Uint16(p)
	p[1] |= ecnCE
	check := uint64(^ne.Uint16(p[10:])) + uint64(^before) + uint64(ne.Uint16(p))
	ne.PutUint16(p[10:], ^fold(check))
	return true
}
