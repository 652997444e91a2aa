package wirefuzz

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// addresses of ESP's two ends, towards the node that gets it.
func (g *gen) outer(family int) (src, dst netip.Addr) {
	return sources[7].addr(g.at, family), sources[4].addr(g.at, family)
}

// take is a held packet that was not delivered; nil if none is left.
func (g *gen) take() *heldPacket {
	for _, h := range g.r.held[g.at] {
		if !h.used {
			return h
		}
	}
	return nil
}

// look is any held packet, to make something else of.
func (g *gen) look() *heldPacket {
	if pool := g.r.held[g.at]; len(pool) > 0 {
		return pool[g.pick(len(pool))]
	}
	return nil
}

// genuineESP lets a held packet go on, in some honest way. A priority tag is honest.
func (g *gen) genuineESP() []*part {
	h := g.take()
	if h == nil {
		return nil
	}
	h.used = true
	src, dst := g.outer(choose(g, 4, 4, 6))
	p := &part{id: h.id, how: genuine, inner: h.inner, must: h.to, data: g.wrapESP(src, dst, h.esp)}
	p.carry(g.pick(3))
	return []*part{p}
}

func (g *gen) replayedESP() []*part {
	for _, h := range g.r.held[g.at] {
		if h.used && g.one(2) {
			src, dst := g.outer(choose(g, 4, 6))
			return []*part{g.envelope(&part{id: h.id, how: notGenuine, inner: h.inner,
				data: g.wrapESP(src, dst, h.esp)})}
		}
	}
	return nil
}

// changedESP is well formed, but nobody sealed it like that.
func (g *gen) changedESP() []*part {
	h := g.look()
	if h == nil {
		return nil
	}
	esp := bytes.Clone(h.esp)
	src, dst := g.outer(choose(g, 4, 6))
	spi := binary.BigEndian.Uint32(esp)
	switch g.pick(9) {
	case 0:
		g.flip(esp, 1)
	case 1:
		g.flip(esp, 2+g.pick(40))
	case 2:
		binary.BigEndian.PutUint32(esp, spi^1<<22) // another lane
	case 3:
		binary.BigEndian.PutUint32(esp, spi^uint32(1+g.pick(15))<<28)
	case 4:
		binary.BigEndian.PutUint32(esp, spi^uint32(1+g.pick(1<<22-1)))
	case 5:
		binary.BigEndian.PutUint32(esp[4:], g.rng.Uint32())
	case 6:
		g.flip(esp[8:16], 1)
	case 7: // the right packet from somebody else
		src = choose(g, sources[0], sources[1], sources[4], sources[2]).addr(g.at, 4)
		dst = sources[4].addr(g.at, 4)
	case 8: // to somebody else
		dst = destinations[g.pick(len(destinations))].addr(g.at, 4)
		src = sources[7].addr(g.at, 4)
		if dst == sources[4].addr(g.at, 4) {
			return nil
		}
	}
	p := &part{id: h.id, how: notGenuine, inner: h.inner, data: g.wrapESP(src, dst, esp)}
	return []*part{g.envelope(p)}
}

// malformedESP is cut short, in pieces, in odd headers, or not sealed at all.
func (g *gen) malformedESP() []*part {
	h := g.look()
	if h == nil {
		return nil
	}
	src, dst := g.outer(choose(g, 4, 6))
	p := &part{id: h.id, how: notGenuine, inner: h.inner, data: g.wrapESP(src, dst, h.esp)}
	switch g.pick(7) {
	case 0: // shorter, and says so
		p.data = g.wrapESP(src, dst, h.esp[:g.pick(len(h.esp))])
	case 1: // shorter than it says
		p.data = p.data[:14+g.pick(len(p.data)-14)]
	case 2: // longer
		p.data = g.wrapESP(src, dst, append(bytes.Clone(h.esp), g.bytes(1+g.pick(40))...))
	case 3: // a readable packet where the sealed one belongs
		id, text := g.mark(16)
		family, from, to := g.ends()
		_ = family
		esp := append(bytes.Clone(h.esp[:16]),
			datagram(nil, from, to, 7001, 7002, text, 64)[14:]...)
		p = &part{id: id, how: notGenuine, data: g.wrapESP(src, dst, append(esp, g.bytes(18)...))}
	case 4: // in pieces
		return g.piecesOfESP(h)
	case 5: // ESP without UDP
		ip := header{src: src, dst: dst, proto: 50}.wrap(h.esp)
		p.data = ethernet(g.macs, ip)
	case 6: // UDP's length is another than IP's
		at := 14 + map[bool]int{true: 20, false: 40}[src.Is4()] + 4
		binary.BigEndian.PutUint16(p.data[at:], uint16(g.pick(1<<11)))
		if n := be16(p.data[at:]); n >= 8+len(h.esp) && n <= len(p.data)-at+4 {
			return nil
		}
	}
	return []*part{g.envelope(p)}
}

func (g *gen) piecesOfESP(h *heldPacket) []*part {
	family := choose(g, 4, 6)
	src, dst := g.outer(family)
	whole := datagram(nil, src, dst, g.espSource(), espPort, h.esp,
		64)[14+map[int]int{4: 20, 6: 40}[family]:]
	cut := 8 * (1 + g.pick(20))
	number := g.rng.Uint32()
	var out []*part
	for _, p := range []*part{
		g.fragment(h.id, src, dst, number, 0, true, 17, whole[:cut]),
		g.fragment(h.id, src, dst, number, cut, false, 17, whole[cut:]),
	} {
		p.how, p.inner = notGenuine, h.inner
		out = append(out, p)
	}
	return out
}

// mergedESP stands for several sealed packets, as GRO merges UDP. What somebody has put between
// them costs only itself.
func (g *gen) mergedESP() []*part {
	held := g.takeEqual()
	if len(held) < 2 {
		return nil
	}
	var pieces []byte
	for _, h := range held {
		h.used = true
		if pieces = append(pieces, h.esp...); g.one(3) {
			forged := bytes.Clone(h.esp)
			g.flip(forged, 1)
			pieces = append(pieces, choose(g, forged, h.esp)...)
		}
	}
	family := choose(g, 4, 6)
	src, dst := g.outer(family)
	head := map[int]int{4: 20, 6: 40}[family]
	data := wrapESP(g.macs, src, dst, g.r.portOf(g.at, held[0]), pieces)
	merge := virtio(needsSum, gsoUDP, 14+head+8, len(held[0].esp), 14+head, 6)
	var parts []*part
	for _, h := range held {
		p := &part{id: h.id, how: genuine, inner: h.inner, data: data, merge: merge}
		// XDP takes no frame that stands for many.
		if g.r.mode == "tc" {
			p.must = h.to
		}
		parts = append(parts, p)
	}
	parts[0].pieces = parts[1:]
	return parts[:1]
}

// takeEqual are held packets that were not delivered, of one lane and one length.
func (g *gen) takeEqual() (out []*heldPacket) {
	for _, h := range g.r.held[g.at] {
		if !h.used && len(out) < 4 &&
			(len(out) == 0 || len(out[0].esp) == len(h.esp) && out[0].lane() == h.lane()) {
			out = append(out, h)
		}
	}
	return out
}

// espSource is a source port of ESP: of what hooks have sealed, or a sealer.
func (g *gen) espSource() uint16 {
	return choose(g, hooksPort, sealersPort|uint16(g.pick(1<<14)))
}

func (g *gen) wrapESP(src, dst netip.Addr, esp []byte) []byte {
	return wrapESP(g.macs, src, dst, g.espSource(), esp)
}

// sealedByPeer is what a peer that somebody has taken over can send: sealed as it should be,
// whatever is inside.
func (g *gen) sealedByPeer() []*part {
	family, src, dst := g.ends()
	id, text := g.mark(16)
	var ip []byte
	switch g.pick(4) {
	case 0:
		ip = g.errorAbout(family, src, dst,
			datagram(nil, dst, choose(g, sources...).addr(g.at, family), clientPort, serverPort,
				text, 60)[14:])
	case 1:
		if family == 6 {
			id, ip = g.discover(src, dst)
			break
		}
		fallthrough
	default:
		ip = datagram(nil, src, dst, 7001, 7002, text, 64)[14:]
	}
	p := g.plain(id, ip)
	if g.one(8) {
		g.flip(p.data[14:34], 1)
	}
	pods := map[string]string{"a": "server", "b": "client"}
	identity, how := g.r.idents[pods[g.at]], asPod
	switch g.pick(4) {
	case 0, 1:
		identity, how = hostIdentity, asHost
	case 2:
		identity, how = choose(g, g.r.idents[pods[other(g.at)]], 0, 1<<22-1, 12345), asNoPodThere
	}
	p.sealAs, p.how = &identity, how
	return []*part{p}
}

// notESP is what else arrives on the port: RFC 3948's keep-alives and non-ESP marker, from anybody.
func (g *gen) notESP() []*part {
	_, src, dst := g.ends()
	id, text := g.mark(24)
	switch g.pick(3) {
	case 0:
		text = []byte{0xff}
	case 1:
		text = append([]byte{0, 0, 0, 0}, text...)
	}
	return []*part{g.envelope(&part{id: id,
		data: datagram(g.macs, src, dst, espPort, espPort, text, 64)})}
}
