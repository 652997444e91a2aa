package datapath

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// toAddr gives an address the form that the maps use: IPv6, or IPv4 mapped into it.
func toAddr(a netip.Addr) bpfAddr {
	var out bpfAddr
	if a.IsValid() {
		out.B = a.As16()
	}
	return out
}

func fromAddr(a bpfAddr) netip.Addr { return netip.AddrFrom16(a.B).Unmap() }

// be32 is an IPv4 address as a C __be32 read on this machine.
func be32(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func fromBE32(v uint32) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

// ntohs turns a __be16 as read from a map into a number.
func ntohs(v uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], v)
	return binary.BigEndian.Uint16(b[:])
}

func routeKey(prefix netip.Prefix) bpfRouteKey {
	bits := prefix.Bits()
	if prefix.Addr().Is4() {
		bits += 96
	}
	return bpfRouteKey{Prefixlen: uint32(bits), Addr: prefix.Masked().Addr().As16()}
}

// prefixOf is the range of a key that routeKey made.
func prefixOf(key bpfRouteKey) netip.Prefix {
	addr, bits := netip.AddrFrom16(key.Addr), int(key.Prefixlen)
	if addr.Is4In6() && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits)
}

func toMAC(mac net.HardwareAddr) (out [6]uint8) {
	copy(out[:], mac)
	return out
}
