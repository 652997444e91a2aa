package inet

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Packet is an IP packet to build, and the Ethernet header before it. The zero value of a field is
// sent as 0.
type Packet struct {
	SrcMAC, DstMAC net.HardwareAddr
	Tags           []VLANTag // the outermost first
	Src, Dst       netip.Addr
	TOS            uint8 // IPv6's traffic class
	TTL            uint8 // IPv6's hop limit
	ID             uint16
	Fragment       uint16      // IPv4's flags and fragment offset
	Options        []byte      // of IPv4, a multiple of 4 bytes
	Extensions     []Extension // of IPv6
	Protocol       uint8       // of Payload
	Payload        []byte      // the transport's header and what it carries
}

// VLANTag is a tag of IEEE 802.1Q.
type VLANTag struct{ TPID, TCI uint16 }

// Extension is an IPv6 extension header, whole; its first byte, the next header's number, is
// written when the packet is built.
type Extension struct {
	Protocol uint8
	Header   []byte
}

// DefaultTTL is what hosts send (RFC 1700).
const DefaultTTL = 64

// UDP sets the payload to a datagram with its checksum. Addresses must be set before.
func (p Packet) UDP(sport, dport uint16, data []byte) Packet {
	return p.transport(unix.IPPROTO_UDP, UDP(sport, dport, data))
}

// TCP sets the payload to a segment with its checksum. Addresses must be set before.
func (p Packet) TCP(h TCPHeader, data []byte) Packet {
	return p.transport(unix.IPPROTO_TCP, TCP(h, data))
}

// Echo sets the payload to an echo request of the family. Addresses must be set before.
func (p Packet) Echo(id, seq uint16, data []byte) Packet {
	if p.Dst.Is4() {
		return p.transport(unix.IPPROTO_ICMP, Echo(true, id, seq, data))
	}
	return p.transport(unix.IPPROTO_ICMPV6, Echo(false, id, seq, data))
}

func (p Packet) transport(protocol uint8, segment []byte) Packet {
	SetTransportChecksum(p.Src, p.Dst, protocol, segment)
	p.Protocol, p.Payload = protocol, segment
	return p
}

// Frame is the packet behind its Ethernet header.
func (p Packet) Frame() []byte {
	kind := uint16(unix.ETH_P_IPV6)
	if p.Dst.Is4() {
		kind = unix.ETH_P_IP
	}
	return Tag(Ethernet(p.SrcMAC, p.DstMAC, kind, p.IP()), p.Tags...)
}

// IP is the packet from its IP header on, with lengths and the header's checksum.
func (p Packet) IP() []byte {
	next, payload := p.Protocol, p.Payload
	for _, e := range slices.Backward(p.Extensions) {
		payload = slices.Concat(e.Header, payload)
		payload[0], next = next, e.Protocol
	}
	if p.Dst.Is4() {
		return append(p.header4(next, len(payload)), payload...)
	}
	return append(p.header6(next, len(payload)), payload...)
}

func (p Packet) header4(protocol uint8, payload int) []byte {
	length := IPv4Len + len(p.Options)
	h := make([]byte, 0, length+payload)
	h = append(h, 4<<4|byte(length/4), p.TOS)
	h = binary.BigEndian.AppendUint16(h, uint16(length+payload))
	h = binary.BigEndian.AppendUint16(h, p.ID)
	h = binary.BigEndian.AppendUint16(h, p.Fragment)
	h = append(h, p.TTL, protocol, 0, 0)
	h = append(append(append(h, p.Src.AsSlice()...), p.Dst.AsSlice()...), p.Options...)
	SetIPv4Checksum(h)
	return h
}

func (p Packet) header6(protocol uint8, payload int) []byte {
	h := make([]byte, 0, IPv6Len+payload)
	h = append(h, 6<<4|p.TOS>>4, p.TOS<<4, 0, 0)
	h = binary.BigEndian.AppendUint16(h, uint16(payload))
	h = append(h, protocol, p.TTL)
	return append(append(h, p.Src.AsSlice()...), p.Dst.AsSlice()...)
}

// Ethernet puts an Ethernet header before a packet.
func Ethernet(src, dst net.HardwareAddr, kind uint16, packet []byte) []byte {
	f := append(make([]byte, 0, EthernetLen+len(packet)), dst...)
	f = binary.BigEndian.AppendUint16(append(f, src...), kind)
	return append(f, packet...)
}

// Tag puts VLAN tags into a frame, the outermost first, before those that it has.
func Tag(frame []byte, tags ...VLANTag) []byte {
	f := slices.Clone(frame[:EthernetLen-2])
	for _, t := range tags {
		f = binary.BigEndian.AppendUint16(f, t.TPID)
		f = binary.BigEndian.AppendUint16(f, t.TCI)
	}
	return append(f, frame[EthernetLen-2:]...)
}

// UDP is a datagram without a checksum.
func UDP(sport, dport uint16, data []byte) []byte {
	b := make([]byte, UDPLen, UDPLen+len(data))
	binary.BigEndian.PutUint16(b, sport)
	binary.BigEndian.PutUint16(b[2:], dport)
	binary.BigEndian.PutUint16(b[4:], uint16(UDPLen+len(data)))
	return append(b, data...)
}

// TCPHeader is a TCP header without options.
type TCPHeader struct {
	SrcPort, DstPort uint16
	Seq              uint32
	Flags            uint8
	Window           uint16
}

// TCP's flags (RFC 9293).
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// TCP is a segment without a checksum.
func TCP(h TCPHeader, data []byte) []byte {
	b := make([]byte, TCPLen, TCPLen+len(data))
	binary.BigEndian.PutUint16(b, h.SrcPort)
	binary.BigEndian.PutUint16(b[2:], h.DstPort)
	binary.BigEndian.PutUint32(b[4:], h.Seq)
	b[12], b[13] = TCPLen/4<<4, h.Flags
	binary.BigEndian.PutUint16(b[14:], h.Window)
	return append(b, data...)
}

// The types of an echo's messages (RFC 792, 4443).
const (
	EchoRequest4, EchoReply4 = 8, 0
	EchoRequest6, EchoReply6 = 128, 129
)

// Echo is an ICMP echo request: over IPv4 with its checksum; ICMPv6's needs the addresses, and the
// kernel writes it for who sends by a socket.
func Echo(ipv4 bool, id, seq uint16, data []byte) []byte {
	b := make([]byte, ICMPLen, ICMPLen+len(data))
	b[0] = EchoRequest6
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	b = append(b, data...)
	if ipv4 {
		b[0] = EchoRequest4
		binary.BigEndian.PutUint16(b[2:], Checksum(b))
	}
	return b
}

// ARPRequest asks for target on behalf of sender, to everybody.
func ARPRequest(src net.HardwareAddr, sender, target netip.Addr) []byte {
	arp := []byte{0, 1, unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff, 6, 4, 0, 1}
	arp = append(append(arp, src...), sender.AsSlice()...)
	arp = append(append(arp, make([]byte, 6)...), target.AsSlice()...)
	everybody := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return Ethernet(src, everybody, unix.ETH_P_ARP, arp)
}
