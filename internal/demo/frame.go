package demo

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
)

// The lengths and numbers that forged frames are made of.
const (
	etherHeader = 14
	etherIPv4   = 0x0800
	etherARP    = 0x0806
	etherIPv6   = 0x86dd
	udpHeader   = 8
	hops        = 64
	forgePort   = 40000
)

// udpFrame builds an Ethernet frame with a UDP packet; dst's family decides.
func udpFrame(srcMAC, dstMAC net.HardwareAddr, src netip.Addr, dst netip.AddrPort, payload []byte) []byte {
	udp := make([]byte, udpHeader, udpHeader+len(payload))
	binary.BigEndian.PutUint16(udp[0:], forgePort)
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(udpHeader+len(payload)))
	udp = append(udp, payload...)
	pseudo := append(src.AsSlice(), dst.Addr().AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(udp)))
	pseudo = binary.BigEndian.AppendUint32(pseudo, unix.IPPROTO_UDP)
	sum := inet.Checksum(append(pseudo, udp...))
	if sum == 0 {
		sum = 0xffff // 0 means that there is none
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	if dst.Addr().Is6() {
		return ethernet(srcMAC, dstMAC, etherIPv6, append(ipv6Header(src, dst.Addr(), len(udp)), udp...))
	}
	return ethernet(srcMAC, dstMAC, etherIPv4, append(ipv4Header(src, dst.Addr(), len(udp)), udp...))
}

func ethernet(src, dst net.HardwareAddr, kind uint16, payload []byte) []byte {
	frame := make([]byte, 0, etherHeader+len(payload))
	frame = append(append(frame, dst...), src...)
	frame = binary.BigEndian.AppendUint16(frame, kind)
	return append(frame, payload...)
}

func ipv4Header(src, dst netip.Addr, length int) []byte {
	h := make([]byte, 12, 20)
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(20+length))
	h[6] = 0x40 // do not fragment
	h[8], h[9] = hops, unix.IPPROTO_UDP
	h = append(append(h, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(h[10:], inet.Checksum(h))
	return h
}

func ipv6Header(src, dst netip.Addr, length int) []byte {
	h := make([]byte, 8, 40)
	h[0] = 0x60
	binary.BigEndian.PutUint16(h[4:], uint16(length))
	h[6], h[7] = unix.IPPROTO_UDP, hops
	return append(append(h, src.AsSlice()...), dst.AsSlice()...)
}

// arpClaim builds a broadcast ARP request in which src claims to have an address.
func arpClaim(src net.HardwareAddr, claimed, target netip.Addr) []byte {
	arp := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	arp = append(append(arp, src...), claimed.AsSlice()...)
	arp = append(append(arp, make([]byte, 6)...), target.AsSlice()...)
	return ethernet(src, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, etherARP, arp)
}

// sendFrames sends raw frames out of a pod's interface, as a program with CAP_NET_RAW
// in the pod could.
func sendFrames(pod *lab.Pod, frame []byte, count int) error {
	return pod.Do(func() error {
		link, err := net.InterfaceByName(pod.IfName)
		if err != nil {
			return fmt.Errorf("find %s of %s: %w", pod.IfName, pod.Key(), err)
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open raw socket in %s: %w", pod.Key(), err)
		}
		defer unix.Close(fd)
		for range count {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index}); err != nil {
				return fmt.Errorf("send raw frame from %s: %w", pod.Key(), err)
			}
		}
		return nil
	})
}
