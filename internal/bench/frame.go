package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/inet"
)

// Numbers shared with bpf/bench/bench.bpf.c.
const (
	headerLen   = 14 + 20 + 8
	sampleLen   = 64
	benchPort   = 20009
	firstSource = 30000
	startTTL    = 64
)

// frameSpec is what the generator sends: UDP over IPv4 from a pod.
type frameSpec struct {
	srcMAC, dstMAC net.HardwareAddr
	src, dst       netip.Addr
	length         int // bytes of the Ethernet frame without its FCS
	flows          int // source ports in use, a power of two
	// If dsts is not 0, so many destinations take turns, dst and every dstStep-th after it.
	dsts, dstStep int
	// outer is where the first frame goes if it is sealed; the far node if not set.
	outer netip.Addr
}

// restSum is the header's sum without destination and checksum, as the generator wants it: in the byte
// order of the machine.
func (f frameSpec) restSum() uint32 {
	ip := slices.Clone(f.header()[14:34])
	clear(ip[10:12])
	clear(ip[16:20])
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.NativeEndian.Uint16(ip[i:]))
	}
	return sum
}

// header returns the frame's first 42 bytes. The UDP checksum is zero, which IPv4
// allows, so that the source port may change without touching it.
func (f frameSpec) header() []byte {
	h := make([]byte, headerLen)
	copy(h, f.dstMAC)
	copy(h[6:], f.srcMAC)
	binary.BigEndian.PutUint16(h[12:], 0x0800)
	ip := h[14:34]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(f.length-14))
	binary.BigEndian.PutUint16(ip[6:], 0x4000) // don't fragment
	ip[8], ip[9] = startTTL, 17
	copy(ip[12:], f.src.AsSlice())
	copy(ip[16:], f.dst.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], inet.Checksum(ip))
	udp := h[34:]
	binary.BigEndian.PutUint16(udp, firstSource)
	binary.BigEndian.PutUint16(udp[2:], benchPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(f.length-34))
	return h
}

// frame returns the whole frame, its payload zero.
func (f frameSpec) frame() []byte {
	data := make([]byte, f.length)
	copy(data, f.header())
	return data
}

// checkForwarded verifies the first frame at the sink: a router of one hop must
// have sent it, to the sink's MAC, with its TTL one less and a right checksum.
func (f frameSpec) checkForwarded(got []byte, sinkMAC net.HardwareAddr, hops int) error {
	ip := got[14:34]
	var errs []error
	expect := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	expect(string(got[:6]) == string(sinkMAC), "destination MAC %s, want %s", net.HardwareAddr(got[:6]), sinkMAC)
	expect(inet.Checksum(ip) == 0, "wrong IPv4 header checksum")
	expect(ip[8] == byte(startTTL-hops), "TTL %d, want %d", ip[8], startTTL-hops)
	expect(string(ip[16:20]) == string(f.dst.AsSlice()), "destination changed to %v", ip[16:20])
	expect(binary.BigEndian.Uint16(ip[2:]) == uint16(f.length-14), "length %d, want %d", binary.BigEndian.Uint16(ip[2:]), f.length-14)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("frame at the sink: %w", err)
	}
	return nil
}

// checkSealed verifies the first frame at a sink behind a node that seals: ESP in UDP to the far node, and
// nothing of the frame to be read in it.
func (f frameSpec) checkSealed(got []byte, sinkMAC net.HardwareAddr) error {
	ip, from, to := got[14:34], plainNodes[0].Addr(), plainNodes[1].Addr()
	if f.outer.IsValid() {
		to = f.outer
	}
	switch {
	case string(got[:6]) != string(sinkMAC):
		return fmt.Errorf("sealed frame at the sink: destination MAC %s, want %s", net.HardwareAddr(got[:6]), sinkMAC)
	case inet.Checksum(ip) != 0:
		return errors.New("sealed frame at the sink: wrong IPv4 header checksum")
	case string(ip[12:16]) != string(from.AsSlice()) || string(ip[16:20]) != string(to.AsSlice()):
		return fmt.Errorf("sealed frame at the sink: from %v to %v, want %s to %s", ip[12:16], ip[16:20], from, to)
	case int(binary.BigEndian.Uint16(ip[2:])) < f.length-14+sealedOverhead:
		return fmt.Errorf("sealed frame at the sink: %d bytes, too few for what was sent", binary.BigEndian.Uint16(ip[2:]))
	}
	return nil
}

// sealedOverhead is the least that ESP in UDP over IPv4 adds: headers, IV, two bytes of trailer, ICV.
const sealedOverhead = 20 + 8 + 8 + 8 + 2 + 16
