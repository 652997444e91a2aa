package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
)

// Where a frame without tags has the fields that tests look at and break.
const (
	atEtherType = 12
	atIP        = inet.EthernetLen // version and, over IPv4, the header's length

	// Over IPv4, as long as it has no options.
	atTOS         = atIP + 1
	atLength      = atIP + 2
	atFragment    = atIP + 6
	atTTL         = atIP + 8
	atProtocol    = atIP + 9
	atSum         = atIP + 10
	atSource      = atIP + 12
	atDestination = atIP + 16
	atL4          = atIP + inet.IPv4Len
	atUDPLength   = atL4 + 4
	atICMPMTU     = atL4 + 6
	atTCPOffset   = atL4 + 12

	// ESP in UDP over IPv4 (RFC 4303, 4106).
	atSPI  = atL4 + inet.UDPLen
	atSeq  = atSPI + 4
	atIV   = atSeq + 4
	atText = atIV + 8

	// Over IPv6, without extension headers.
	atLength6   = atIP + 4
	atHopLimit6 = atIP + 7
	atL46       = atIP + inet.IPv6Len
)

// packet builds one frame. Its methods return changed copies, so rows share prefixes:
// fromA(peer4).udp(1000, 53, 8).ttl(1). Checksums and lengths are right unless edit breaks them.
type packet struct {
	dmac, smac net.HardwareAddr
	tags       []inet.VLANTag
	from, to   netip.Addr
	hops       uint8
	ident      uint16
	fragField  uint16 // flags and offset of IPv4
	options    []byte
	headers    []inet.Extension
	protocol   uint8
	payload    []byte // transport header and data
	fill       bool   // payload has a checksum to fill in
	edits      []func([]byte)
}

func newPacket(smac, dmac net.HardwareAddr, src, dst netip.Addr) packet {
	return packet{smac: smac, dmac: dmac, from: src, to: dst, hops: 64, ident: 0x1234,
		fragField: inet.DontFragment}
}

func (p packet) udp(sport, dport uint16, size int) packet {
	p.protocol, p.payload, p.fill = unix.IPPROTO_UDP, inet.UDP(sport, dport, pattern(size)), true
	return p
}

const fin, syn, rst, ack = inet.FIN, inet.SYN, inet.RST, inet.ACK

func (p packet) tcp(sport, dport uint16, flags uint8, size int) packet {
	header := inet.TCPHeader{SrcPort: sport, DstPort: dport, Seq: 1, Flags: flags, Window: 0xff00}
	p.protocol, p.payload, p.fill = unix.IPPROTO_TCP, inet.TCP(header, pattern(size)), true
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
	typ := uint8(inet.EchoRequest4)
	if p.to.Is6() {
		typ = inet.EchoRequest6
	}
	return p.icmp(typ, 0, append([]byte{byte(id >> 8), byte(id), 0, 1}, pattern(size)...))
}

func (p packet) echoReply(id uint16, size int) packet {
	p = p.echo(id, size)
	if p.payload[0] = inet.EchoReply6; p.to.Is4() {
		p.payload[0] = inet.EchoReply4
	}
	return p
}

// icmpError quotes another packet from its IP header on.
func (p packet) icmpError(typ, code uint8, mtu uint32, quoted packet, size int) packet {
	quote := quoted.bytes()[inet.EthernetLen:]
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
	p.tags = append(slices.Clone(p.tags), inet.VLANTag{TPID: tpid, TCI: tci})
	return p
}
func (p packet) edit(f func(frame []byte)) packet {
	p.edits = append(slices.Clone(p.edits), f)
	return p
}
func (p packet) ext(proto uint8, b []byte) packet {
	p.headers = append(slices.Clone(p.headers), inet.Extension{Protocol: proto, Header: b})
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
			p.fragField |= inet.MoreFragments
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
	if p.fill {
		inet.SetTransportChecksum(p.from, p.to, p.protocol, out)
	}
	return out
}

func (p packet) bytes() []byte {
	f := inet.Packet{
		SrcMAC: p.smac, DstMAC: p.dmac, Tags: p.tags, Src: p.from, Dst: p.to, TTL: p.hops,
		ID: p.ident, Fragment: p.fragField, Options: p.options, Extensions: p.headers,
		Protocol: p.protocol, Payload: p.transport(),
	}.Frame()
	for _, edit := range p.edits {
		edit(f)
	}
	return f
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + 3)
	}
	return b
}

// fixIPv4 writes the header checksum anew after an edit of the header.
func fixIPv4(f []byte) { inet.SetIPv4Checksum(f[inet.EthernetLen:]) }

// wantRouted says whether out is in with new MACs, a TTL one lower, a right header checksum and
// nothing else changed.
func wantRouted(in, out []byte, smac, dmac net.HardwareAddr) error {
	want := slices.Concat(dmac, smac, in[atEtherType:])
	if want[atIP]>>4 == 4 {
		want[atTTL]--
		fixIPv4(want)
	} else {
		want[atHopLimit6]--
	}
	if !bytes.Equal(out, want) {
		return fmt.Errorf("frame:\n got %x\nwant %x", out, want)
	}
	return nil
}
