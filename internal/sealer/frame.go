package sealer

import "encoding/binary"

// kind is what a frame on the tap is.
type kind uint8

const (
	kindSeal4   kind = 1 + iota // an inner packet, to be sealed for an IPv4 underlay
	kindSeal6                   // … IPv6
	kindOpen                    // an outer packet, of one piece or more
	kindSealed                  // an outer packet of ours
	kindOpened                  // an inner packet of ours
	kindRefused                 // nothing but a meta: why
)

// meta is what hooks and process tell each other about a packet, in place of its two Ethernet
// addresses:
//
//	kind 3 | count 8 | SA 22 | identity 22 | number, 39 | 0, 2
type meta struct {
	kind     kind
	count    uint8
	sa       uint32 // node << 10 | epoch << 6 | lane
	identity uint32
	seq      uint64
}

const (
	metaLen   = 12
	etherLen  = 14
	vnetLen   = 12
	headLen   = vnetLen + etherLen
	maxIP     = 65535
	ip4Len    = 20
	ip6Len    = 40
	udpLen    = 8
	espLen    = 16 // SPI, lower half of the number, IV
	icvLen    = 16
	seqMask   = 1<<39 - 1
	saMask    = 1<<22 - 1
	etherIP4  = 0x0800
	etherIP6  = 0x86dd
	protoTCP  = 6
	protoUDP  = 17
	maxPieces = 64 // UDP_MAX_SEGMENTS before 6.9; one UDP GRO packet has no more either
)

func decodeMeta(b []byte) meta {
	hi, lo := be.Uint64(b), be.Uint32(b[8:])
	return meta{
		kind: kind(hi >> 61), count: uint8(hi >> 53), sa: uint32(hi>>31) & saMask,
		identity: uint32(hi>>9) & saMask, seq: hi&0x1ff<<30 | uint64(lo>>2),
	}
}

func (m meta) put(b []byte) {
	hi := uint64(m.kind)<<61 | uint64(m.count)<<53 | uint64(m.sa&saMask)<<31 |
		uint64(m.identity&saMask)<<9
	be.PutUint64(b, hi|m.seq&seqMask>>30)
	be.PutUint32(b[8:], uint32(m.seq<<2))
}

// spi is the SPI of the SA's packets.
func (m meta) spi() uint32 {
	return m.sa>>6&15<<28 | m.sa&63<<22 | m.identity
}

// node and the SA of one of its SPIs.
func saOf(node, spi uint32) uint32 { return node<<10 | spi>>28<<6 | spi>>22&63 }

// vnet is the header of virtio_net (linux/virtio_net.h) that each frame begins with, in little
// endian.
type vnet struct {
	unfinished bool // the checksum at start+offset has only the pseudo-header's sum yet
	gso        uint8
	ecn        bool // the first segment has CWR
	hdr        int
	size       int // of each segment's payload
	start      int // from the Ethernet header
	offset     int
}

const (
	vnetNeedsCsum = 1
	gsoNone       = 0
	gsoTCP4       = 1
	gsoTCP6       = 4
	gsoUDP        = 5
	gsoECN        = 0x80
)

func decodeVnet(b []byte) vnet {
	le := binary.LittleEndian
	return vnet{
		unfinished: b[0]&vnetNeedsCsum != 0, gso: b[1] &^ gsoECN, ecn: b[1]&gsoECN != 0,
		hdr: int(le.Uint16(b[2:])), size: int(le.Uint16(b[4:])),
		start: int(le.Uint16(b[6:])), offset: int(le.Uint16(b[8:])),
	}
}

func (v vnet) put(b []byte) {
	le := binary.LittleEndian
	clear(b[:vnetLen])
	if v.unfinished {
		b[0] = vnetNeedsCsum
	}
	b[1] = v.gso
	if v.ecn {
		b[1] |= gsoECN
	}
	le.PutUint16(b[2:], uint16(v.hdr))
	le.PutUint16(b[4:], uint16(v.size))
	le.PutUint16(b[6:], uint16(v.start))
	le.PutUint16(b[8:], uint16(v.offset))
}

// ipLength is how long the IP packet in b says it is, 0 if that cannot be: b may have more.
func ipLength(b []byte) int {
	n := 0
	switch {
	case len(b) >= ip4Len && b[0]>>4 == 4:
		n = int(be.Uint16(b[2:]))
		if header := int(b[0]&15) * 4; header < ip4Len || n < header {
			return 0
		}
	case len(b) >= ip6Len && b[0]>>4 == 6:
		n = ip6Len + int(be.Uint16(b[4:]))
	default:
		return 0
	}
	if n > len(b) {
		return 0
	}
	return n
}

func trafficClass(ip []byte) uint8 {
	if ip[0]>>4 == 4 {
		return ip[1]
	}
	return ip[0]<<4 | ip[1]>>4
}

// flowHash tells flows apart, as bpf/lib/seal.h does: the wire's hashing spreads them by it.
func flowHash(ip []byte) uint32 {
	w := func(i int) uint32 { return ne.Uint32(ip[4*i:]) }
	var h uint32
	if ip[0]>>4 == 4 {
		h = w(3) ^ w(4)*0x9e3779b1
		if be.Uint16(ip[6:])&0x3fff == 0 && ip[0]&15 == 5 && len(ip) >= 24 {
			h ^= w(5) * 0x85ebca6b
		}
	} else {
		h = w(2) ^ w(3) ^ w(4) ^ w(5) ^ (w(6)^w(7)^w(8)^w(9))*0x9e3779b1
		if ip[6] != 44 && len(ip) >= 44 { // a fragment's header
			h ^= w(10) * 0x85ebca6b
		}
	}
	h ^= h >> 15
	h *= 0x2c1b3c6d
	return h ^ h>>13
}
