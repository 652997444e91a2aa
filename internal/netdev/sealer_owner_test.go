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

// TestSealerIsNobodys: while no sealer reads the tap, it is nobody's to attach to but root's.
func TestSealerIsNobodys(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a tap")
	}
	path, err := netns.Create("wt-netdev-owner")
	must(t, err)
	t.Cleanup(func() { must(t, netns.Delete("wt-netdev-owner")) })
	for who, become := range map[string]func() error{
		"another user": func() error {
			if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, 65534, 65534,
				65534); errno != 0 {
				return errno
			}
			return nil
		},
		"root of a container": func() error {
			return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3},
				&make([]unix.CapUserData, 2)[0])
		},
	} {
		if err := attachAs(path, become); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s attaches: %v, want EPERM", who, err)
		}
	}
}

// attachAs makes the tap, and attaches to it as somebody else.
func attachAs(path string, become func() error) error {
	attached := make(chan error, 2)
	go func() { // with its thread, which is somebody else in the end
		runtime.LockOSThread()
		attached <- netns.Do(path, func() error {
			tap, err := OpenSealer()
			if err == nil {
				err = tap.Close()
			}
			if err != nil {
				return err
			}
			tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC,
				0) // everybody's on most machines
			if err != nil {
				return err
			}
			defer unix.Close(tun)
			if err := become(); err != nil {
				return err
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
	return <-attached
}
