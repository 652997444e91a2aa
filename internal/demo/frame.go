package demo

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
)

// forgePort is the source port of forged datagrams.
const forgePort = 40000

// udpFrame builds an Ethernet frame with a UDP packet; dst's family decides.
func udpFrame(
	srcMAC, dstMAC net.HardwareAddr, src netip.Addr, dst netip.AddrPort, payload []byte,
) []byte {
	return inet.Packet{
		SrcMAC: srcMAC, DstMAC: dstMAC, Src: src, Dst: dst.Addr(),
		TTL: inet.DefaultTTL, Fragment: inet.DontFragment,
	}.UDP(forgePort, dst.Port(), payload).Frame()
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
			if err := unix.Sendto(fd, frame, 0,
				&unix.SockaddrLinklayer{Ifindex: link.Index}); err != nil {
				return fmt.Errorf("send raw frame from %s: %w", pod.Key(), err)
			}
		}
		return nil
	})
}
