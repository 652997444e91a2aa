package espref

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Port is where ESP in UDP goes.
const Port = 4500

const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8
	udp     = 17
)

// Outer is what an ESP packet travels in. It judges what the datapath builds, and is built and read
// here without internal/inet, so that both cannot be wrong in the same way.
type Outer struct {
	From, To netip.AddrPort
	TTL      uint8 // 0: 64
}

// ErrNotESP says that a packet is something else, to be asked for with errors.Is.
var ErrNotESP = errors.New("not ESP in UDP")

// Wrap returns the IP packet that carries esp. Over IPv4 without a UDP checksum, which RFC 3948
// asks for; over IPv6 with one, since receivers refuse packets without.
func (o Outer) Wrap(esp []byte) []byte {
	ttl := o.TTL
	if ttl == 0 {
		ttl = 64
	}
	datagram := binary.BigEndian.AppendUint16(nil, o.From.Port())
	datagram = binary.BigEndian.AppendUint16(datagram, o.To.Port())
	datagram = binary.BigEndian.AppendUint16(datagram, uint16(udpLen+len(esp)))
	datagram = append(append(datagram, 0, 0), esp...)
	if o.From.Addr().Is4() {
		return append(o.header4(len(datagram), ttl), datagram...)
	}
	check := o.checksum(datagram)
	binary.BigEndian.PutUint16(datagram[6:], check)
	return append(o.header6(len(datagram), ttl), datagram...)
}

func (o Outer) header4(payload int, ttl uint8) []byte {
	h := make([]byte, ipv4Len)
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(ipv4Len+payload))
	h[8], h[9] = ttl, udp
	copy(h[12:], o.From.Addr().AsSlice())
	copy(h[16:], o.To.Addr().AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^fold(sum(h)))
	return h
}

func (o Outer) header6(payload int, ttl uint8) []byte {
	h := make([]byte, ipv6Len)
	h[0] = 0x60
	binary.BigEndian.PutUint16(h[4:], uint16(payload))
	h[6], h[7] = udp, ttl
	copy(h[8:], o.From.Addr().AsSlice())
	copy(h[24:], o.To.Addr().AsSlice())
	return h
}

// checksum of a datagram whose checksum field holds 0, or, of one that holds a right checksum,
// 0xffff.
func (o Outer) checksum(datagram []byte) uint16 {
	s := sum(o.From.Addr().AsSlice()) + sum(o.To.Addr().AsSlice()) + uint32(len(datagram)) + udp + sum(datagram)
	if c := ^fold(s); c != 0 {
		return c
	}
	return 0xffff
}

// Unwrap takes the ESP packet out of an IP packet, and checks lengths and checksums.
func Unwrap(packet []byte) (Outer, []byte, error) {
	o, datagram, err := unwrapIP(packet)
	if err != nil {
		return o, nil, err
	}
	if len(datagram) < udpLen || int(binary.BigEndian.Uint16(datagram[4:])) != len(datagram) {
		return o, nil, fmt.Errorf("UDP length of a %d-byte payload: %w", len(datagram), ErrNotESP)
	}
	o.From = netip.AddrPortFrom(o.From.Addr(), binary.BigEndian.Uint16(datagram))
	o.To = netip.AddrPortFrom(o.To.Addr(), binary.BigEndian.Uint16(datagram[2:]))
	check := binary.BigEndian.Uint16(datagram[6:])
	if check == 0 && o.From.Addr().Is6() {
		return o, nil, errors.New("no UDP checksum over IPv6")
	}
	if check != 0 && o.checksum(datagram) != 0xffff {
		return o, nil, fmt.Errorf("wrong UDP checksum %#x", check)
	}
	if o.To.Port() != Port || len(datagram) < udpLen+4 ||
		binary.BigEndian.Uint32(datagram[udpLen:]) == 0 {
		return o, nil, fmt.Errorf("to port %d: %w", o.To.Port(), ErrNotESP) // an SPI of 0 marks IKE
	}
	return o, datagram[udpLen:], nil
}

func unwrapIP(packet []byte) (Outer, []byte, error) {
	var o Outer
	if len(packet) == 0 {
		return o, nil, fmt.Errorf("empty packet: %w", ErrNotESP)
	}
	switch version := packet[0] >> 4; {
	case version == 4 && len(packet) >= ipv4Len && packet[0]&15 == 5 && packet[9] == udp:
		if int(binary.BigEndian.Uint16(packet[2:])) != len(packet) {
			return o, nil, fmt.Errorf("IPv4 length %d of a packet of %d bytes",
				binary.BigEndian.Uint16(packet[2:]), len(packet))
		}
		if fold(sum(packet[:ipv4Len])) != 0xffff {
			return o, nil, errors.New("wrong IPv4 header checksum")
		}
		return outer(packet[12:16], packet[16:20], packet[8]), packet[ipv4Len:], nil
	case version == 6 && len(packet) >= ipv6Len && packet[6] == udp:
		if int(binary.BigEndian.Uint16(packet[4:]))+ipv6Len != len(packet) {
			return o, nil, fmt.Errorf("IPv6 payload length %d of a packet of %d bytes",
				binary.BigEndian.Uint16(packet[4:]), len(packet))
		}
		return outer(packet[8:24], packet[24:40], packet[7]), packet[ipv6Len:], nil
	}
	return o, nil, ErrNotESP
}

func outer(from, to []byte, ttl uint8) Outer {
	f, _ := netip.AddrFromSlice(from)
	t, _ := netip.AddrFromSlice(to)
	return Outer{From: netip.AddrPortFrom(f, 0), To: netip.AddrPortFrom(t, 0), TTL: ttl}
}

func sum(b []byte) uint32 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
