package datapath

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/netdev"
)

// TestSealerQueueFull: what the sealer's queue has no room for is among the drops, as the node's
// own.
func TestSealerQueueFull(t *testing.T) {
	b := newHarness(t)
	full := func() (found uint64) {
		rows, err := b.Counters()
		must(t, err)
		for _, row := range rows {
			if row.Reason == bpf.ReasonSealerQueueFull.String() && row.Verdict == "drop" &&
				row.Slot == 0 {
				found += row.Packets
			}
		}
		return found
	}
	t.Cleanup(func() { b.sealerIndex.Store(0) })
	must(t, b.inside(func() error {
		b.sealerIndex.Store(1 << 20)
		if got := full(); got != 0 {
			t.Errorf("without a tap %d were lost", got)
		}
		index, err := netdev.EnsureSealer(func(netlink.Link) error { return nil })
		must(t, err)
		defer netdev.RemoveSealer()
		b.sealerIndex.Store(index)
		tap, err := netdev.OpenSealer()
		must(t, err)
		defer tap.Close()
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		frame := append(make([]byte, 12, 64), 8, 0)
		for range 1000 {
			must(t,
				unix.Sendto(fd, frame[:64], 0,
					&unix.SockaddrLinklayer{Ifindex: int(index), Halen: 6}))
		}
		lost, err := netdev.SealerLost()
		must(t, err)
		if got := full(); got == 0 || got != lost {
			t.Errorf("%d among the drops, the device has lost %d", got, lost)
		}
		b.sealerIndex.Store(0) // another engine by now
		if got := full(); got != 0 {
			t.Errorf("without a sealer %d were lost", got)
		}
		return nil
	}))
}
