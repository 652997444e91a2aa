package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
)

// Numbers shared with bpf/bench/bench.bpf.c.
const (
	headerLen   = inet.EthernetLen + inet.IPv4Len + inet.UDPLen
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

// restSum is the header's sum without destination and checksum, as the generator wants it: in the
// byte order of the machine.
func (f frameSpec) restSum() uint32 {
	ip := slices.Clone(f.header()[inet.EthernetLen:][:inet.IPv4Len])
	clear(ip[10:12])
	clear(ip[16:20])
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.NativeEndian.Uint16(ip[i:]))
	}
	return sum
}

// header returns the frame's first 42 bytes.
func (f frameSpec) header() []byte { return f.frame()[:headerLen] }

// frame returns the whole frame, its payload zero. The UDP checksum is zero, which IPv4 allows, so
// that the source port may change without touching it.
func (f frameSpec) frame() []byte {
	return inet.Packet{
		SrcMAC: f.srcMAC, DstMAC: f.dstMAC, Src: f.src, Dst: f.dst,
		TTL: startTTL, Fragment: inet.DontFragment, Protocol: unix.IPPROTO_UDP,
		Payload: inet.UDP(firstSource, benchPort, make([]byte, f.length-headerLen)),
	}.Frame()
}

// checkForwarded verifies the first frame at the sink: a router of one hop must
// have sent it, to the sink's MAC, with its TTL one less and a right checksum.
func (f frameSpec) checkForwarded(got []byte, sinkMAC net.HardwareAddr, hops int) error {
	ip := got[inet.EthernetLen:][:inet.IPv4Len]
	var errs []error
	expect := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	expect(string(got[:6]) == string(sinkMAC), "destination MAC %s, want %s",
		net.HardwareAddr(got[:6]), sinkMAC)
	expect(inet.Checksum(ip) == 0, "wrong IPv4 header checksum")
	expect(ip[8] == byte(startTTL-hops), "TTL %d, want %d", ip[8], startTTL-hops)
	expect(string(ip[16:20]) == string(f.dst.AsSlice()), "destination changed to %v", ip[16:20])
	expect(binary.BigEndian.Uint16(ip[2:]) == uint16(f.length-14), "length %d, want %d",
		binary.BigEndian.Uint16(ip[2:]), f.length-14)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("frame at the sink: %w", err)
	}
	return nil
}

// checkSealed verifies the first frame at a sink behind a node that seals: ESP in UDP to the far
// node, and nothing of the frame to be read in it.
func (f frameSpec) checkSealed(got []byte, sinkMAC net.HardwareAddr) error {
	ip, from, to := got[inet.EthernetLen:][:inet.IPv4Len], plainNodes[0].Addr(), plainNodes[1].Addr()
	if f.outer.IsValid() {
		to = f.outer
	}
	switch {
	case string(got[:6]) != string(sinkMAC):
		return fmt.Errorf("sealed frame at the sink: destination MAC %s, want %s",
			net.HardwareAddr(got[:6]), sinkMAC)
	case inet.Checksum(ip) != 0:
		return errors.New("sealed frame at the sink: wrong IPv4 header checksum")
	case string(ip[12:16]) != string(from.AsSlice()) || string(ip[16:20]) != string(to.AsSlice()):
		return fmt.Errorf("sealed frame at the sink: from %v to %v, want %s to %s", ip[12:16],
			ip[16:20], from, to)
	case int(binary.BigEndian.Uint16(ip[2:])) < f.length-14+sealedOverhead:
		return fmt.Errorf("sealed frame at the sink: %d bytes, too few for what was sent",
			binary.BigEndian.Uint16(ip[2:]))
	}
	return nil
}

// sealedOverhead is the least that ESP in UDP over IPv4 adds: headers, IV, two bytes of trailer,
// ICV.
const sealedOverhead = 20 + 8 + 8 + 8 + 2 + 16
