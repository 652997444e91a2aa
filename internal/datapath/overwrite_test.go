package datapath

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/hook"
)

// sendUnfinished sends a frame out of an interface of the namespace that it runs in, its checksum
// left to the device: from start on, to be written at offset behind it.
func sendUnfinished(ifindex int, frame []byte, start, offset uint16) error {
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err := unix.SetsockoptInt(s, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return err
	}
	header := make([]byte, 10) // struct virtio_net_hdr
	header[0] = 1              // VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(header[6:], start)
	binary.NativeEndian.PutUint16(header[8:], offset)
	return unix.Sendto(s, append(header, frame...), 0, &unix.SockaddrLinklayer{Ifindex: ifindex})
}

// TestStackOverwrites: XDP cannot see where a frame's checksum is to be written, so what it has
// passed to the stack is looked at where it leaves that: a pod's packet does not change its
// addresses or ports behind the check.
func TestStackOverwrites(t *testing.T) {
	b := newHarness(t)
	toWire, toPod := fromA(world4).src(node4).udp(1000, 53, 20).bytes(), newPacket(gatewayMAC,
		podA.MAC, node4, podA.IPv4).udp(53, 1000, 20).bytes()
	for _, hook := range []struct {
		name, iface string
		program     *ebpf.Program
		frame       []byte
	}{{"to_wire", "wtup", b.progs.Get("to_wire", hook.TCEgress), toWire},
		{"to_pod", "wta", b.progs.Get("to_pod", hook.TCEgress), toPod}} {
		for _, c := range []struct {
			name          string
			start, offset uint16
			drops         bool
		}{
			{"where UDP has it", 34, 6, false},
			{"over the source port", 34, 0, true},
			{"over the destination port", 34, 2, true},
		} {
			t.Run(hook.name+" "+c.name, func(t *testing.T) {
				b.reset(t)
				must(t, b.inside(func() error {
					l, err := netlink.LinkByName(hook.iface)
					if err != nil {
						return err
					}
					if err := netlink.LinkSetUp(l); err != nil {
						return err
					}
					hooked, err := link.AttachTCX(link.TCXOptions{Program: hook.program,
						Interface: l.Attrs().Index, Attach: ebpf.AttachTCXEgress})
					if err != nil {
						return err
					}
					defer hooked.Close()
					err = sendUnfinished(l.Attrs().Index, hook.frame, c.start, c.offset)
					if errors.Is(err, unix.ENOBUFS) {
						return nil // what the sender is told of a drop at egress
					}
					return err
				}))
				got := strings.Join(b.counted(t), ";")
				if strings.Contains(got, "checksum_offset 1") != c.drops {
					t.Errorf("counters %s; dropped: want %v", got, c.drops)
				}
			})
		}
	}
}
