package labtest

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Sniffer is a packet socket (packet(7)) that sees all frames of an interface of the current
// network namespace. The caller closes it.
func Sniffer(name string) (int, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: iface.Index})
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("packet socket on %s: %w", name, err)
	}
	return fd, nil
}
