package sealer

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns/nettest"
)

const tapName = "weft_sealer"

// testTap makes the tap in a namespace as the agent does.
func testTap(t testing.TB, ns string) *os.File {
	t.Helper()
	return testTapWith(t, ns, 0)
}

func testTapWith(t testing.TB, ns string, flags uint16) *os.File {
	t.Helper()
	var file *os.File
	nettest.Do(t, ns, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), tapName)
		request, err := unix.NewIfreq(tapName)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | flags)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return err
		}
		if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetLen); err != nil {
			return err
		}
		if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETLE, 1); err != nil {
			return err
		}
		offload := unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN |
			unix.TUN_F_USO4 | unix.TUN_F_USO6
		if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offload); err != nil {
			return err
		}
		quiet()
		link, err := netlink.LinkByName(tapName)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMTU(link, maxIP-etherLen); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
	t.Cleanup(func() { file.Close() })
	return file
}

// quiet keeps the kernel from speaking for itself on the namespace's interfaces.
func quiet() {
	for _, group := range []string{"all", "default"} {
		os.WriteFile("/proc/sys/net/ipv6/conf/"+group+"/disable_ipv6", []byte("1"),
			0) //nolint:errcheck // no IPv6: quiet
	}
}

// hooks is a packet socket in the place of the hooks on an interface: what it sends comes to the
// process, what the process writes it receives.
type hooks struct {
	t     testing.TB
	fd    int
	index int
}

// The header of PACKET_VNET_HDR: the process's but for num_buffers.
const packetVnetLen = 10

func newHooks(t testing.TB, ns, name string) *hooks {
	t.Helper()
	h := &hooks{t: t}
	nettest.Do(t, ns, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		h.index = link.Attrs().Index
		all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))
		if h.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
			all); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(h.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(h.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING,
			1); err != nil {
			return err
		}
		unix.SetsockoptInt(h.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE,
			64<<20) //nolint:errcheck // less room
		timeout := unix.NsecToTimeval(int64(5 * time.Second))
		if err := unix.SetsockoptTimeval(h.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
			&timeout); err != nil {
			return err
		}
		return unix.Bind(h.fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: h.index})
	})
	t.Cleanup(func() { unix.Close(h.fd) })
	return h
}

// send puts a frame, which begins with a vnet header, on the interface.
func (h *hooks) send(frame []byte) {
	h.t.Helper()
	message := append(append([]byte{}, frame[:packetVnetLen]...), frame[vnetLen:]...)
	if _, err := unix.Write(h.fd, message); err != nil {
		h.t.Fatalf("send a frame of %d bytes: %v", len(frame), err)
	}
}

// receive is the next frame from the interface, nil if none comes in time.
func (h *hooks) receive() []byte {
	h.t.Helper()
	frame := make([]byte, headLen+maxIP+1)
	n, err := unix.Read(h.fd, frame[vnetLen-packetVnetLen:])
	for err == unix.EINTR {
		n, err = unix.Read(h.fd, frame[vnetLen-packetVnetLen:])
	}
	if err == unix.EAGAIN {
		return nil
	}
	if err != nil {
		h.t.Fatal(err)
	}
	frame = frame[:n+vnetLen-packetVnetLen]
	copy(frame, frame[vnetLen-packetVnetLen:vnetLen])
	clear(frame[packetVnetLen:vnetLen])
	return frame
}

// discard takes what has come.
func (h *hooks) discard() {
	h.t.Helper()
	b := make([]byte, headLen)
	for {
		_, _, err := unix.Recvfrom(h.fd, b, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		if err == unix.EAGAIN {
			return
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
}
