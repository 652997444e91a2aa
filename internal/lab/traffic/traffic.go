// Package traffic makes and measures traffic between network namespaces: echo servers,
// sequence-numbered UDP streams, verified TCP streams and raw pings. Namespaces are
// given by path, empty for the caller's own. Sockets are opened inside them; the rest
// runs as ordinary goroutines, because a socket stays in the namespace it was made in.
package traffic

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
	"weft.dev/weft/internal/netns"
)

// receiveBuffer is large, so that what a meter counts as lost was lost on the way and
// not in front of a receiver that had to wait for a CPU.
const receiveBuffer = 16 << 20

// listenUDP opens a bound UDP socket in a namespace.
func listenUDP(netNS string, at netip.AddrPort) (*net.UDPConn, error) {
	var conn *net.UDPConn
	err := netns.Do(netNS, func() error {
		c, err := (&net.ListenConfig{Control: bigBuffer}).ListenPacket(context.Background(), "udp",
			at.String())
		if err != nil {
			return fmt.Errorf("listen on UDP %s: %w", at, err)
		}
		conn = c.(*net.UDPConn)
		return nil
	})
	return conn, err
}

// dialUDP opens a connected UDP socket in a namespace; src may be invalid.
func dialUDP(netNS string, src netip.Addr, dst netip.AddrPort) (*net.UDPConn, error) {
	var conn *net.UDPConn
	err := netns.Do(netNS, func() error {
		var local *net.UDPAddr
		if src.IsValid() {
			local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0))
		}
		c, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(dst))
		if err != nil {
			return fmt.Errorf("open UDP socket to %s: %w", dst, err)
		}
		conn = c
		return nil
	})
	return conn, err
}

// listenTCP opens a listening TCP socket in a namespace.
func listenTCP(netNS string, at netip.AddrPort) (*net.TCPListener, error) {
	var listener *net.TCPListener
	err := netns.Do(netNS, func() error {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false) // its options would be part of what is measured
		l, err := config.Listen(context.Background(), "tcp", at.String())
		if err != nil {
			return fmt.Errorf("listen on TCP %s: %w", at, err)
		}
		listener = l.(*net.TCPListener)
		return nil
	})
	return listener, err
}

// dialTCP connects from a namespace; src may be invalid.
func dialTCP(ctx context.Context, netNS string, src netip.Addr,
	dst netip.AddrPort) (*net.TCPConn, error) {
	var conn *net.TCPConn
	err := netns.Do(netNS, func() error {
		dialer := net.Dialer{}
		dialer.SetMultipathTCP(false)
		if src.IsValid() {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(src, 0))
		}
		c, err := dialer.DialContext(ctx, "tcp", dst.String())
		if err != nil {
			return fmt.Errorf("connect to TCP %s: %w", dst, err)
		}
		conn = c.(*net.TCPConn)
		return nil
	})
	return conn, err
}

// bigBuffer enlarges a socket's receive buffer past the system's limit where that is allowed.
func bigBuffer(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
		}
	})
}
