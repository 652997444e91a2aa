package encryptcheck

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
)

// DefaultPort is the UDP port of ESP in UDP (RFC 3948).
const DefaultPort = 4500

// espHeader are SPI, sequence number and IV (RFC 4303, RFC 4106), in bytes.
const espHeader = 16

// ESP is the readable part of a sealed packet.
type ESP struct {
	SPI, Seq uint32
	IV       uint64
}

// Epoch is the nibble of the epoch in the SPI, 1 to 15.
func (e ESP) Epoch() uint8 { return uint8(e.SPI >> 28) }

// Lane is the sender's lane.
func (e ESP) Lane() uint8 { return uint8(e.SPI >> 22 & 63) }

// Identity is the number of the workload that sent the packet.
func (e ESP) Identity() uint32 { return e.SPI & (1<<22 - 1) }

// ParseESP reads a packet of ESP in UDP (RFC 3948) on a port. SPI 0 is not ESP but IKE or a probe.
func ParseESP(p inet.Headers, port uint16) (ESP, bool) {
	if p.Protocol != unix.IPPROTO_UDP || p.Later || p.DstPort != port ||
		len(p.Payload) < espHeader {
		return ESP{}, false
	}
	e := ESP{
		SPI: binary.BigEndian.Uint32(p.Payload), Seq: binary.BigEndian.Uint32(p.Payload[4:]),
		IV: binary.BigEndian.Uint64(p.Payload[8:]),
	}
	return e, e.SPI != 0
}
