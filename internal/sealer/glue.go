package sealer

import "bytes"

// glue is a batch of opened packets that leave as one, as Linux's GRO makes it (tcp_gro_receive,
// udp_gro_receive_segment, inet_gro_receive): the first packet whole, where it was opened, and the
// payloads of those that follow, from as many frames as are read without waiting.
type glue struct {
	m       meta   // of the first; count goes up
	p       []byte // the first
	n       int    // length of what they make together
	th, hl  int    // where the first one's transport header is, and where that ends
	size    int    // payload of each but the last
	next    uint32 // TCP's sequence number of what may follow
	id      uint16 // of the first, IPv4
	fixedID bool   // all have the same
	tcp     bool
	more    bool // may take another
}

func (g *glue) reset() { *g = glue{} }

// opened adds a packet to the batch, or sends the batch and begins another, which waits only if it
// may take more.
func (e *engine) opened(m meta, p []byte) {
	g := &e.glue
	if g.n > 0 && g.takes(m, p) {
		e.iovs[1+g.m.count] = iovec(p[g.hl:])
		g.m.count++
	} else {
		e.flushOpened()
		g.start(m, p)
	}
	if !g.more || g.m.count == maxPieces {
		e.flushOpened()
	}
}

// start begins a batch with a packet. more stays false where it is to leave alone.
func (g *glue) start(m meta, p []byte) {
	g.reset()
	g.m, g.p, g.n = m, p, len(p)
	var protocol uint8
	switch {
	case p[0] == 0x45 && be.Uint16(p[6:])&0x3fff == 0 && fold(sum(p[:ip4Len], 0)) == 0xffff:
		g.th, protocol, g.id = ip4Len, p[9], be.Uint16(p[4:])
	case p[0]>>4 == 6:
		g.th, protocol = ip6Len, p[6]
	default:
		return
	}
	switch {
	case protocol == protoTCP && len(p) >= g.th+tcpMin:
		g.startTCP()
	case protocol == protoUDP && len(p) > g.th+udpLen:
		g.startUDP()
	}
}

// tcpGlued are the flags that a batch can begin with. Not CWR: with classic ECN it is the first
// segment's, with accurate ECN a part of a number, and virtio_net's header does not tell which.
const tcpGlued = tcpACK | tcpECE

func (g *glue) startTCP() {
	t := g.p[g.th:]
	length := int(t[12]>>4) * 4
	g.hl, g.tcp = g.th+length, true
	if length < tcpMin || g.hl >= g.n || t[13]&^tcpGlued != 0 || !g.sumRight(g.p, protoTCP) {
		return
	}
	g.size = g.n - g.hl
	g.next = be.Uint32(t[4:]) + uint32(g.size)
	g.more = true
}

func (g *glue) startUDP() {
	u := g.p[g.th:]
	g.hl = g.th + udpLen
	if int(be.Uint16(u[4:])) != g.n-g.th || be.Uint16(u[6:]) == 0 || !g.sumRight(g.p, protoUDP) {
		return
	}
	g.size = g.n - g.hl
	g.more = true
}

// sumRight verifies the transport's checksum: the pod's stack will not, behind a glued packet.
func (g *glue) sumRight(p []byte, protocol uint8) bool {
	return fold(sum(p[g.th:], pseudo(p, protocol, len(p)-g.th))) == 0xffff
}

// takes says whether the packet continues the batch, and notes it if so.
func (g *glue) takes(m meta, p []byte) bool {
	if m.sa != g.m.sa || m.identity != g.m.identity || m.seq != g.m.seq+uint64(g.m.count) {
		return false
	}
	if len(p) <= g.hl || len(p)-g.hl > g.size || g.n+len(p)-g.hl > maxIP {
		return false
	}
	if p[0]>>4 == 4 && !g.sameIP4(p) || p[0]>>4 == 6 && !g.sameIP6(p) {
		return false
	}
	if g.tcp && !g.sameTCP(p) || !g.tcp && !g.sameUDP(p) {
		return false
	}
	g.n += len(p) - g.hl
	g.more = len(p)-g.hl == g.size
	if g.tcp {
		g.next += uint32(len(p) - g.hl)
		// Both end a batch, and go on in the header that it leaves with.
		ends := p[g.th+13] & (tcpFIN | tcpPSH)
		g.p[g.th+13] |= ends
		g.more = g.more && ends == 0
	}
	return true
}

// sameIP4 compares all but length, number and checksum. Numbers go up by one, or stay (RFC 6864),
// which the second packet decides.
func (g *glue) sameIP4(p []byte) bool {
	q := g.p
	if ne.Uint16(p) != ne.Uint16(q) || ne.Uint32(p[6:]) != ne.Uint32(q[6:]) ||
		ne.Uint64(p[12:]) != ne.Uint64(q[12:]) || fold(sum(p[:ip4Len], 0)) != 0xffff {
		return false
	}
	ahead := be.Uint16(p[4:]) - g.id
	if g.m.count == 1 && ahead == 0 && p[6]&0x40 != 0 {
		g.fixedID = true
		return true
	}
	if g.fixedID {
		return ahead == 0
	}
	return ahead == uint16(g.m.count)
}

// sameIP6 compares all but the length.
func (g *glue) sameIP6(p []byte) bool {
	return ne.Uint32(p) == ne.Uint32(g.p) && ne.Uint16(p[6:]) == ne.Uint16(g.p[6:]) &&
		bytes.Equal(p[8:ip6Len], g.p[8:ip6Len])
}

func (g *glue) sameTCP(p []byte) bool {
	t, u := p[g.th:g.hl], g.p[g.th:g.hl]
	return ne.Uint32(t) == ne.Uint32(u) && be.Uint32(t[4:]) == g.next &&
		ne.Uint32(t[8:]) == ne.Uint32(u[8:]) && t[12] == u[12] &&
		t[13]&^(tcpFIN|tcpPSH) == u[13] && ne.Uint16(t[14:]) == ne.Uint16(u[14:]) &&
		bytes.Equal(t[18:], u[18:]) && g.sumRight(p, protoTCP)
}

func (g *glue) sameUDP(p []byte) bool {
	t, u := p[g.th:g.hl], g.p[g.th:g.hl]
	return ne.Uint32(t) == ne.Uint32(u) && int(be.Uint16(t[4:])) == len(p)-g.th &&
		be.Uint16(t[6:]) != 0 && g.sumRight(p, protoUDP)
}

// flushOpened sends the batch, if there is one.
func (e *engine) flushOpened() {
	g := &e.glue
	if g.n == 0 {
		return
	}
	var v vnet
	if g.m.count > 1 {
		v = g.join()
	}
	v.put(e.head[:])
	g.m.put(e.head[vnetLen:])
	kind := uint16(etherIP4)
	if g.p[0]>>4 == 6 {
		kind = etherIP6
	}
	be.PutUint16(e.head[vnetLen+metaLen:], kind)
	e.iovs[0], e.iovs[1] = iovec(e.head[:]), iovec(g.p)
	e.write(&e.stats.open, e.iovs[:1+int(g.m.count)])
	g.reset()
}

// join makes the first packet's headers those of all together.
func (g *glue) join() vnet {
	p, t := g.p, g.p[g.th:]
	if g.th == ip4Len {
		be.PutUint16(p[2:], uint16(g.n))
		clear(p[10:12])
		ne.PutUint16(p[10:], ^fold(sum(p[:ip4Len], 0)))
	} else {
		be.PutUint16(p[4:], uint16(g.n-ip6Len))
	}
	v := vnet{
		unfinished: true, size: g.size, hdr: etherLen + g.hl, start: etherLen + g.th, offset: 16,
	}
	protocol := uint8(protoTCP)
	switch {
	case !g.tcp:
		v.gso, v.offset, protocol = gsoUDP, 6, protoUDP
		be.PutUint16(t[4:], uint16(g.n-g.th))
	case g.th == ip4Len:
		v.gso = gsoTCP4
	default:
		v.gso = gsoTCP6
	}
	ne.PutUint16(t[v.offset:], fold(pseudo(p, protocol, g.n-g.th)))
	return v
}
