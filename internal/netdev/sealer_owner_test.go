package netdev

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
)

// TestSealerIsRoots: while no sealer reads the tap, it is nobody's to attach to but root's.
func TestSealerIsRoots(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a tap")
	}
	path, err := netns.Create("wt-netdev-owner")
	must(t, err)
	t.Cleanup(func() { must(t, netns.Delete("wt-netdev-owner")) })
	attached := make(chan error, 2)
	go func() { // with its thread, which is another user in the end
		runtime.LockOSThread()
		attached <- netns.Do(path, func() error {
			tap, err := OpenSealer()
			if err == nil {
				err = tap.Close()
			}
			if err != nil {
				return err
			}
			tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0) // everybody's on most machines
			if err != nil {
				return err
			}
			defer unix.Close(tun)
			if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				return errno
			}
			request, err := unix.NewIfreq(Sealer)
			if err != nil {
				return err
			}
			request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
			attached <- unix.IoctlIfreq(tun, unix.TUNSETIFF, request)
			return nil
		})
	}()
	if err := <-attached; !errors.Is(err, unix.EPERM) {
		t.Errorf("another user attaches: %v, want EPERM", err)
	}
}
