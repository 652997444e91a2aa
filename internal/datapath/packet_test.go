package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// packet builds one frame. Its methods return changed copies, so rows share prefixes:
// fromA(peer4).udp(1000, 53, 8).ttl(1). Checksums and lengths are right unless edit breaks them.
type packet struct {
	dmac, smac net.HardwareAddr
	tags       []uint16 // TPID, TCI pairs
	from, to   netip.Addr
	hops       uint8
	ident      uint16
	fragField  uint16 // flags and offset of IPv4
	options    []byte
	headers    []extHeader
	protocol   uint8
	payload    []byte // transport header and data
	fill       bool   // payload has a checksum to fill in
	edits      []func([]byte)
}

type extHeader struct {
	proto uint8
	bytes []byte // whole, the first byte (next header) is filled in
}

func newPacket(smac, dmac net.HardwareAddr, src, dst netip.Addr) packet {
	return packet{smac: smac, dmac: dmac, from: src, to: dst, hops: 64, ident: 0x1234, fragField: 0x4000}
}

func (p packet) udp(sport, dport uint16, size int) packet {
	l4 := make([]byte, 8, 8+size)
	binary.BigEndian.PutUint16(l4[0:], sport)
	binary.BigEndian.PutUint16(l4[2:], dport)
	binary.BigEndian.PutUint16(l4[4:], uint16(8+size))
	p.protocol, p.payload, p.fill = unix.IPPROTO_UDP, append(l4, pattern(size)...), true
	return p
}

// The TCP flags.
const (
	fin = 1
	syn = 2
	rst = 4
	ack = 16
)

func (p packet) tcp(sport, dport uint16, flags uint8, size int) packet {
	l4 := make([]byte, 20, 20+size)
	binary.BigEndian.PutUint16(l4[0:], sport)
	binary.BigEndian.PutUint16(l4[2:], dport)
	binary.BigEndian.PutUint32(l4[4:], 1)
	l4[12], l4[13], l4[14] = 5<<4, flags, 0xff
	p.protocol, p.payload, p.fill = unix.IPPROTO_TCP, append(l4, pattern(size)...), true
	return p
}

// icmp makes a message of the family's ICMP; rest are the bytes behind the checksum.
func (p packet) icmp(typ, code uint8, rest []byte) packet {
	p.protocol = unix.IPPROTO_ICMP
	if p.to.Is6() {
		p.protocol = unix.IPPROTO_ICMPV6
	}
	p.payload, p.fill = append([]byte{typ, code, 0, 0}, rest...), true
	return p
}

func (p packet) echo(id uint16, size int) packet {
	typ := uint8(8)
	if p.to.Is6() {
		typ = 128
	}
	return p.icmp(typ, 0, append([]byte{byte(id >> 8), byte(id), 0, 1}, pattern(size)...))
}

func (p packet) echoReply(id uint16, size int) packet {
	p = p.echo(id, size)
	if p.payload[0]++; p.to.Is4() {
		p.payload[0] = 0
	}
	return p
}

// icmpError quotes another packet from its IP header on.
func (p packet) icmpError(typ, code uint8, mtu uint32, quoted packet, size int) packet {
	quote := quoted.bytes()[14:]
	rest := binary.BigEndian.AppendUint32(nil, mtu)
	return p.icmp(typ, code, append(rest, quote[:min(size, len(quote))]...))
}

func (p packet) raw(proto uint8, payload []byte) packet {
	p.protocol, p.payload, p.fill = proto, payload, false
	return p
}

func (p packet) ttl(n uint8) packet               { p.hops = n; return p }
func (p packet) id(n uint16) packet               { p.ident = n; return p }
func (p packet) src(a netip.Addr) packet          { p.from = a; return p }
func (p packet) dst(a netip.Addr) packet          { p.to = a; return p }
func (p packet) srcMAC(m net.HardwareAddr) packet { p.smac = m; return p }
func (p packet) dstMAC(m net.HardwareAddr) packet { p.dmac = m; return p }
func (p packet) opts(b ...byte) packet            { p.options = b; return p }
func (p packet) tag(tpid, tci uint16) packet {
	p.tags = append(slices.Clone(p.tags), tpid, tci)
	return p
}
func (p packet) edit(f func(frame []byte)) packet {
	p.edits = append(slices.Clone(p.edits), f)
	return p
}
func (p packet) ext(proto uint8, b []byte) packet {
	p.headers = append(slices.Clone(p.headers), extHeader{proto, b})
	return p
}
func (p packet) set(at int, b ...byte) packet { return p.edit(func(f []byte) { copy(f[at:], b) }) }

// fragment cuts the finished packet's IP payload [from:to) out as a fragment of its own.
func (p packet) fragment(from, to int, more bool) packet {
	whole := p.transport()
	p.payload, p.fill = whole[from:min(to, len(whole))], false
	if p.to.Is4() {
		p.fragField = uint16(from / 8)
		if more {
			p.fragField |= 0x2000
		}
		return p
	}
	h := []byte{0, 0, byte(from >> 8), byte(from), 0xaa, 0xbb, byte(p.ident >> 8), byte(p.ident)}
	if more {
		h[3] |= 1
	}
	return p.ext(unix.IPPROTO_FRAGMENT, h)
}

// transport is the payload with its checksum.
func (p packet) transport() []byte {
	out := slices.Clone(p.payload)
	at := map[uint8]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6, unix.IPPROTO_ICMP: 2, unix.IPPROTO_ICMPV6: 2}[p.protocol]
	if !p.fill {
		return out
	}
	out[at], out[at+1] = 0, 0
	sum := checksum(out)
	if p.protocol != unix.IPPROTO_ICMP {
		sum = transportChecksum(p.from, p.to, p.protocol, out)
	}
	binary.BigEndian.PutUint16(out[at:], sum)
	return out
}

func (p packet) bytes() []byte {
	f := slices.Concat(p.dmac, p.smac)
	for _, v := range p.tags {
		f = binary.BigEndian.AppendUint16(f, v)
	}
	payload := p.transport()
	next := p.protocol
	for _, h := range slices.Backward(p.headers) {
		b := slices.Clone(h.bytes)
		b[0], next = next, h.proto
		payload = append(b, payload...)
	}
	if p.to.Is4() {
		f = append(append(f, 8, 0), p.header4(next, len(payload))...)
	} else {
		f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, byte(len(payload)>>8), byte(len(payload)), next, p.hops)
		f = append(append(f, p.from.AsSlice()...), p.to.AsSlice()...)
	}
	f = append(f, payload...)
	for _, edit := range p.edits {
		edit(f)
	}
	return f
}

func (p packet) header4(proto uint8, payload int) []byte {
	n := 20 + len(p.options)
	h := []byte{0x40 | byte(n/4), 0, byte((n + payload) >> 8), byte(n + payload), byte(p.ident >> 8), byte(p.ident),
		byte(p.fragField >> 8), byte(p.fragField), p.hops, proto, 0, 0}
	h = slices.Concat(h, p.from.AsSlice(), p.to.AsSlice(), p.options)
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return h
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + 3)
	}
	return b
}

// checksum is RFC 1071's in the plainest way: the oracle of these tests.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func transportChecksum(src, dst netip.Addr, proto uint8, l4 []byte) uint16 {
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice())
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(l4)))
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(proto))
	return checksum(append(pseudo, l4...))
}

// fixIPv4 writes the header checksum anew after an edit of the header.
func fixIPv4(f []byte) {
	n := 14 + int(f[14]&15)*4
	f[24], f[25] = 0, 0
	binary.BigEndian.PutUint16(f[24:], checksum(f[14:n]))
}

// wantRouted says whether out is in with new MACs, a TTL one lower, a right header checksum and nothing else changed.
func wantRouted(in, out []byte, smac, dmac net.HardwareAddr) error {
	want := slices.Concat(dmac, smac, in[12:])
	if want[14]>>4 == 4 {
		want[22]--
		fixIPv4(want)
	} else {
		want[21]--
	}
	if !bytes.Equal(out, want) {
		return fmt.Errorf("frame:\n got %x\nwant %x", out, want)
	}
	return nil
}
