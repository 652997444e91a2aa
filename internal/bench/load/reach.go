package load

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
)

// Reach connects by TCP, as often as retry tries it.
func Reach(from, to Peer, retry func(try func() error) error) error {
	at := netip.AddrPortFrom(to.IP, firstPort-1)
	l, err := listenIn(to.NS, at)
	if err != nil {
		return err
	}
	defer unix.Close(l)
	return retry(func() error {
		return netns.Do(from.NS, func() error {
			fd, err := dial(at)
			if err == nil {
				unix.Close(fd)
			}
			return err
		})
	})
}
