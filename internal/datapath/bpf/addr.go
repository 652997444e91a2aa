package bpf

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// ToAddr gives an address the form that the maps use: IPv6, or IPv4 mapped into it.
func ToAddr(a netip.Addr) Addr {
	var out Addr
	if a.IsValid() {
		out.B = a.As16()
	}
	return out
}

// FromAddr is the address that ToAddr was given.
func FromAddr(a Addr) netip.Addr { return netip.AddrFrom16(a.B).Unmap() }

// BE32 is an IPv4 address as a C __be32 read on this machine.
func BE32(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

// FromBE32 is the address that BE32 was given.
func FromBE32(v uint32) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

// Ntohs turns a __be16 as read from a map into a number.
func Ntohs(v uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], v)
	return binary.BigEndian.Uint16(b[:])
}

// AddrKeyOf is the key of an address in a network's part of the endpoints map.
func AddrKeyOf(network uint32, a netip.Addr) AddrKey {
	return AddrKey{Network: network, Addr: ToAddr(a)}
}

// networkBits are those of the network in a RouteKey, in front of the address's.
const networkBits = 32

// RouteKeyOf is the key of a range of the cluster's network in the routes map, whose ranges are all
// IPv6.
func RouteKeyOf(prefix netip.Prefix) RouteKey { return RouteKeyIn(0, prefix) }

// RouteKeyIn is the same for any network.
func RouteKeyIn(network uint32, prefix netip.Prefix) RouteKey {
	bits := networkBits + prefix.Bits()
	if prefix.Addr().Is4() {
		bits += 96
	}
	return RouteKey{Prefixlen: uint32(bits), Network: network, Addr: prefix.Masked().Addr().As16()}
}

// PrefixOf is the range of a key that RouteKeyIn made.
func PrefixOf(key RouteKey) netip.Prefix {
	addr, bits := netip.AddrFrom16(key.Addr), int(key.Prefixlen)-networkBits
	if addr.Is4In6() && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits)
}

// ToMAC gives a link-layer address the form that the maps use.
func ToMAC(mac net.HardwareAddr) (out [6]uint8) {
	copy(out[:], mac)
	return out
}
