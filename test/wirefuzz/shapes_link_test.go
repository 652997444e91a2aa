package wirefuzz

import (
	"encoding/binary"
	"net/netip"
)

// link has frames that no host sends: other types, LLC and SNAP, other link addresses, runts,
// something behind the end.
func (g *gen) link() []*part {
	p := g.udp(60)
	switch g.pick(6) {
	case 0:
		kind := choose[uint16](g, 0x86dd, 0x0800, 0x0806, 0x8847, 0x8864, 0x88cc, 0x9100, 0x9200,
			0x88e5, 0x0000, 0xffff, 0x05ff, 0x0600, 0x6558)
		binary.BigEndian.PutUint16(p.data[12:], kind)
	case 1: // LLC with SNAP
		llc := append([]byte{0xaa, 0xaa, 3, 0, 0, 0}, p.data[12:]...)
		p.data = append(binary.BigEndian.AppendUint16(p.data[:12:12], uint16(len(llc))), llc...)
	case 2: // LLC that is IP's own number
		llc := append([]byte{6, 6, 3}, p.data[14:]...)
		p.data = append(binary.BigEndian.AppendUint16(p.data[:12:12], uint16(len(llc))), llc...)
	case 3:
		copy(p.data,
			choose(g, "\xff\xff\xff\xff\xff\xff", "\x01\x00\x5e\x00\x00\x01",
				"\x33\x33\x00\x00\x00\x01", "\x02\x00\x00\x00\x12\x34"))
	case 4:
		p.data = p.data[:14+g.pick(6)]
	case 5:
		p.data = append(p.data, g.bytes(1+g.pick(60))...)
	}
	return []*part{g.envelope(p)}
}

func (g *gen) tags() []*part {
	p := g.udp(20)
	for range 1 + g.pick(4) {
		p.data = tagged(p.data, choose[uint16](g, 0x8100, 0x88a8, 0x8100, 0x9100),
			choose[uint16](g, 0, 0, 7<<13, 1<<12, 7, 4095, uint16(g.pick(1<<16))))
	}
	if g.one(3) {
		tci := choose[uint16](g, 0, 7, 7<<13)
		p.tag, p.service = &tci, g.one(2)
	}
	if g.one(8) {
		p.data = p.data[:14+g.pick(min(20, len(p.data)-14))]
	}
	return []*part{p}
}

// icmpError reports on some packet: of sealed flows, of plain ones, of none.
func (g *gen) icmpError() []*part {
	if g.one(2) {
		return g.hiddenError()
	}
	family, src, dst := g.ends()
	if g.one(2) {
		src = choose(g, sources[:2]...).addr(g.at, family)
	}
	from := dst
	if g.one(5) {
		from = choose(g, sources...).addr(g.at, family)
	}
	about := choose(g, sources...).addr(g.at, family)
	own, peer := uint16(clientPort), uint16(serverPort)
	if g.at == "b" {
		own, peer = peer, own
	}
	if g.one(3) {
		about = sources[5].addr(g.at, family) // the honest flow's other end
	}
	id, text := g.mark(16)
	quote := datagram(nil, from, about, own, peer, text, 60)[14:]
	if g.one(6) {
		quote = append(quote[:g.pick(30)], text...)
	}
	return []*part{g.envelope(g.plain(id, g.errorAbout(family, src, dst, quote)))}
}

func (g *gen) errorAbout(family int, src, dst netip.Addr, quote []byte) []byte {
	if family == 4 {
		icmp := append([]byte{choose[byte](g, 3, 3, 3, 4, 5, 11, 12),
			choose[byte](g, 4, 1, 3, 0, byte(g.pick(16))), 0, 0, 0, 0, 4, 200}, quote...)
		return header{src: src, dst: dst, proto: 1}.wrap(finish(src, dst, 1, icmp))
	}
	icmp := append([]byte{choose[byte](g, 2, 2, 1, 3, 4, 100), byte(g.pick(8)), 0, 0, 0, 0, 5, 0},
		quote...)
	return header{src: src, dst: dst, proto: 58}.wrap(finish(src, dst, 58, icmp))
}

// hiddenError reports to a host on what that may have sent sealed, and hides it from whoever reads
// less than a kernel does.
func (g *gen) hiddenError() []*part {
	family := choose(g, 4, 6)
	src, dst := choose(g, sources[:2]...).addr(g.at, family), destinations[3].addr(g.at, family)
	from, about := dst, sources[5].addr(g.at, family)
	if g.one(3) {
		from = choose(g, sources...).addr(g.at, family)
	}
	if g.one(3) {
		about = choose(g, sources...).addr(g.at, family)
	}
	id, text := g.mark(16)
	quote := datagram(nil, from, about, 7001, 7002, text, 60)[14:]
	how := g.pick(4)
	switch {
	case how == 0 && family == 4:
		binary.BigEndian.PutUint16(quote[6:], uint16(g.pick(1<<13))) // a later fragment
	case how == 0:
		quote[0] ^= byte(g.pick(256)) // of another version
	}
	ip := g.errorAbout(family, src, dst, quote)
	whole := g.plain(id, ip)
	head, proto := 20, uint8(1)
	if family == 6 {
		head, proto = 40, 58
	}
	switch {
	case how == 1:
		cut, number := choose(g, 8, 16, 32, 48), g.rng.Uint32()
		first, _ := g.mark(0)
		rest := g.fragment(id, src, dst, number, cut, false, proto, ip[head+cut:])
		rest.inner = whole.data
		return []*part{g.fragment(first, src, dst, number, 0, true, proto, ip[head:head+cut]), rest}
	case how == 2 && family == 4:
		return []*part{g.plain(id,
			header{src: src, dst: dst, proto: proto,
				options: []byte{131, 3, 4, 0}}.wrap(ip[head:]))}
	case how == 2:
		rest := ip[head:]
		for range 4 + g.pick(6) {
			rest, proto = append([]byte{proto, 0, 1, 4, 0, 0, 0, 0}, rest...), 60
		}
		return []*part{g.plain(id, header{src: src, dst: dst, proto: proto}.wrap(rest))}
	}
	return []*part{g.envelope(whole)}
}

// discovery is ICMPv6 that only a link's own neighbours may send, to a pod or a host.
func (g *gen) discovery() []*part {
	_, src, dst := g.ends()
	for !src.Is6() || !dst.Is6() {
		src, dst = choose(g, sources...).addr(g.at, 6), choose(g, destinations...).addr(g.at, 6)
	}
	id, ip := g.discover(src, dst)
	return []*part{g.envelope(g.plain(id, ip))}
}

func (g *gen) discover(src, dst netip.Addr) (uint32, []byte) {
	id, text := g.mark(0)
	target := choose(g, sources...).addr(g.at, 6).As16()
	icmp := []byte{choose[byte](g, 133, 134, 135, 136, 137, 130, 143), 0, 0, 0, 0xe0, 0, 0, 0}
	switch icmp[0] {
	case 134:
		icmp = append([]byte{134, 0, 0, 0, 64, 0, 7, 8}, make([]byte, 8)...)
	case 135, 136, 137:
		icmp = append(icmp, target[:]...)
		if icmp[0] == 137 {
			icmp = append(icmp, target[:]...)
		}
	}
	// Two options, and the marker in one that nobody knows.
	icmp = append(icmp, 2, 1, 2, 0, 0, 0, 0xbe, 0xef)
	icmp = append(append(icmp, 200, 2, 0, 0, 0, 0, 0, 0), text...)
	return id, header{src: src, dst: dst, proto: 58, ttl: 255}.wrap(finish(src, dst, 58, icmp))
}

// What a frame stands for (linux/virtio_net.h).
const (
	gsoTCP4, gsoUFO, gsoTCP6, gsoUDP = 1, 3, 4, 5
	needsSum                         = 1
)

// virtio is a struct virtio_net_hdr.
func virtio(flags, gso byte, head, size, start, offset int) []byte {
	h := []byte{flags, gso}
	for _, v := range []int{head, size, start, offset} {
		h = binary.NativeEndian.AppendUint16(h, uint16(v))
	}
	return h
}

// merged stands for many packets, as GRO makes them and a virtual NIC hands them over, or leaves
// its checksum open.
func (g *gen) merged() []*part {
	family, src, dst := g.ends()
	head := map[int]int{4: 20, 6: 40}[family]
	proto, gso, l4 := uint8(17), byte(gsoUDP), 8
	if g.one(2) {
		proto, l4, gso = 6, 20, map[int]byte{4: gsoTCP4, 6: gsoTCP6}[family]
	}
	size, segments := 200+8*g.pick(100), 2+g.pick(12)
	id, text := g.mark(0)
	long := make([]byte, 0, size*segments)
	for range segments {
		long = append(long, append(text, make([]byte, size-len(text))...)...)
	}
	p := g.plain(id,
		header{src: src, dst: dst, proto: proto}.wrap(transport(proto, src, dst, 7001, 7002, long)))
	at, field := 14+head, map[uint8]int{6: 16, 17: 6}[proto] // where TCP and UDP have it
	switch g.pick(8) {
	case 0:
		gso, size = 0, 0 // one packet with an open checksum
		p.data = g.plain(id,
			header{src: src, dst: dst,
				proto: proto}.wrap(transport(proto, src, dst, 7001, 7002, text))).data
	case 1:
		gso = choose[byte](g, gsoTCP4, gsoTCP6, gsoUFO, gsoUDP)
	case 2:
		at, field = 14+g.pick(40), g.pick(20) // a checksum elsewhere
	}
	p.merge = virtio(needsSum, gso, 14+head+l4, size, at, field)
	return []*part{p}
}
