package netdev

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
)

// Sealer is the tap that the sealer is behind (bpf/lib/sealer.h). One per network namespace, as
// there is one agent.
const Sealer = "weft_sealer"

const (
	// sealerMTU is the largest that a tap may have: what goes in was measured before.
	sealerMTU = 65535 - 14
	// SealerQueue is how many packets, of up to 64 KiB each, wait for the sealer: some 40 ms of
	// bulk. Of a flood that outruns the sealer, longer ones (to 8192) lose as much, and a shorter
	// one (128) no more.
	SealerQueue = 512
	// vnetHeaderSize is that of struct virtio_net_hdr_v1.
	vnetHeaderSize = 12
	// sealerOwner is a user and group that nobody is: the last before that which stands for none.
	sealerOwner = 1<<32 - 2
	// tunUSO4 and tunUSO6 are TUN_F_USO4 and TUN_F_USO6 of linux/if_tun.h (Linux 6.2).
	tunUSO4, tunUSO6 = 0x20, 0x40
)

// ErrSealerInUse says that a process reads the tap.
var ErrSealerInUse = errors.New("another process reads " + Sealer)

// EnsureSealer makes the sealer's tap and returns its index. It goes up once hook has hooked it.
func EnsureSealer(hook func(tap netlink.Link) error) (index uint32, err error) {
	tap, err := netlink.LinkByName(Sealer)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		var queue *os.File
		if queue, err = OpenSealer(); err == nil {
			_ = queue.Close()
			tap, err = netlink.LinkByName(Sealer)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("make %s: %w", Sealer, err)
	}
	if err := errors.Join(silence(Sealer), quiet(Sealer),
		netlink.LinkSetMTU(tap, sealerMTU)); err != nil {
		return 0, err
	}
	if err := hook(tap); err != nil {
		return 0, err
	}
	if err := errors.Join(netlink.LinkSetARPOff(tap), netlink.LinkSetTxQLen(tap, SealerQueue),
		netlink.LinkSetUp(tap)); err != nil {
		return 0, fmt.Errorf("set %s up: %w", Sealer, err)
	}
	return uint32(tap.Attrs().Index), nil
}

// OpenSealer opens the tap, which it makes if need be, as the sealer reads and writes it: with a
// virtio-net header of 12 bytes, little endian, and every offload. It stays when the descriptor is
// closed. ErrSealerInUse says that another process has it.
func OpenSealer() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	file := os.NewFile(uintptr(fd), Sealer)
	if err := configureTap(fd); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

func configureTap(fd int) error {
	request, err := unix.NewIfreq(Sealer)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); errors.Is(err, unix.EBUSY) {
		return ErrSealerInUse
	} else if err != nil {
		return fmt.Errorf("attach to tap %s: %w", Sealer, err)
	}
	offloads := unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN | tunUSO4 | tunUSO6
	// Owner and group first: a persistent tap without is anybody's to attach to while nobody reads
	// it. Whoever is neither needs CAP_NET_ADMIN, and nobody is either: root of a container has
	// root's user ID.
	for _, set := range []struct {
		what  string
		call  uint
		value int
		byPtr bool
	}{
		{"owner", unix.TUNSETOWNER, sealerOwner, false},
		{"group", unix.TUNSETGROUP, sealerOwner, false},
		{"persistence", unix.TUNSETPERSIST, 1, false},
		{"header size", unix.TUNSETVNETHDRSZ, vnetHeaderSize, true},
		{"byte order", unix.TUNSETVNETLE, 1, true},
		{"offloads", unix.TUNSETOFFLOAD, offloads, false},
	} {
		if set.byPtr {
			err = unix.IoctlSetPointerInt(fd, set.call, set.value)
		} else {
			err = unix.IoctlSetInt(fd, set.call, set.value)
		}
		if err != nil {
			return fmt.Errorf("set %s of tap %s: %w", set.what, Sealer, err)
		}
	}
	return nil
}

// SealerLost is how many frames, each of one packet or many, found the tap's queue full, since the
// tap was made.
func SealerLost() (uint64, error) {
	tap, err := netlink.LinkByName(Sealer)
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", Sealer, err)
	}
	if tap.Attrs().Statistics == nil {
		return 0, fmt.Errorf("the kernel says nothing of what %s has lost", Sealer)
	}
	return tap.Attrs().Statistics.TxDropped, nil
}

// RemoveSealer takes the tap away, if it is there.
func RemoveSealer() error {
	l, err := netlink.LinkByName(Sealer)
	if err != nil {
		return nil
	}
	if err := netlink.LinkDel(l); err != nil {
		return fmt.Errorf("remove %s: %w", Sealer, err)
	}
	return nil
}

// SealerSegments is how many packets of an Ethernet wire's size fit one UDP packet of 64 KiB, in
// which the sealer gives back what it has sealed.
const SealerSegments = 44

// FitSealer has the stack behind an interface build its large packets of no more segments than the
// sealer can give back in one. netNS is a path, empty for the caller's own.
func FitSealer(netNS, iface string) error {
	return netns.Do(netNS, func() error {
		l, err := netlink.LinkByName(iface)
		if err != nil {
			return fmt.Errorf("find %s: %w", iface, err)
		}
		if l.Attrs().GSOMaxSegs <= SealerSegments {
			return nil
		}
		if err := netlink.LinkSetGSOMaxSegs(l, SealerSegments); err != nil {
			return fmt.Errorf("limit the segments of %s: %w", iface, err)
		}
		return nil
	})
}
