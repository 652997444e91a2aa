package netdev

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns/nettest"
)

// TestSealerLost: what the queue has no room for is counted, and the rest waits in it.
func TestSealerLost(t *testing.T) {
	nettest.Do(t, nettest.New(t, "lost"), func() error {
		index, err := EnsureSealer(func(netlink.Link) error { return nil })
		must(t, err)
		tap, err := OpenSealer()
		must(t, err)
		defer tap.Close()
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		const sent = SealerQueue + 100
		frame := make([]byte, 64)
		frame[12] = 0x08
		to := &unix.SockaddrLinklayer{Ifindex: int(index), Halen: 6}
		for range sent {
			must(t, unix.Sendto(fd, frame, 0, to))
		}
		lost, err := SealerLost()
		must(t, err)
		waits := 0
		must(t, unix.SetNonblock(int(tap.Fd()), true))
		for {
			_, err := unix.Read(int(tap.Fd()), frame)
			if err == unix.EAGAIN {
				break
			}
			must(t, err)
			waits++
		}
		if lost == 0 || int(lost)+waits != sent {
			t.Errorf("%d lost and %d waiting of %d", lost, waits, sent)
		}
		return RemoveSealer()
	})
	if _, err := net.InterfaceByName(Sealer); err == nil {
		t.Error("the tap is in another namespace")
	}
}
