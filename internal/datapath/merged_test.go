package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/netns"
)

// wire is a veth of the harness's namespace whose other end, with the peer's address, is in one of
// its own.
func (b *harness) wire(t *testing.T, name string) (far string) {
	t.Helper()
	ns := fmt.Sprintf("wt-dp-far-%d", os.Getpid())
	far, err := netns.Create(ns)
	must(t, err)
	t.Cleanup(func() { netns.Delete(ns) })
	fd, err := os.Open(far)
	must(t, err)
	defer fd.Close()
	must(t, b.inside(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: name + "-far",
			PeerNamespace: netlink.NsFd(int(fd.Fd()))}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		near, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		b.index[name] = near.Attrs().Index
		address := &netlink.Addr{IPNet: &net.IPNet{IP: wireA6.AsSlice(),
			Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}
		return errors.Join(netlink.AddrAdd(near, address), netlink.LinkSetUp(near))
	}))
	t.Cleanup(func() {
		_ = b.inside(func() error {
			near, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return netlink.LinkDel(near)
		})
	})
	return far
}

// burst sends n datagrams of ESP's port from the far end, cut by its kernel out of one, so that
// they arrive together.
func burst(far, name string, payload []byte, n int, to net.HardwareAddr) error {
	return netns.Do(far, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		address := &netlink.Addr{IPNet: &net.IPNet{IP: wireB6.AsSlice(),
			Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}
		if err := errors.Join(netlink.AddrReplace(l, address), netlink.LinkSetUp(l),
			netdev.SetFeatures(name,
				map[string]bool{"tx-udp-segmentation": false, "tx-checksum-ip-generic": false}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: wireA6.AsSlice(),
				HardwareAddr: to, State: unix.NUD_PERMANENT})); err != nil {
			return err
		}
		s, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		if err := unix.SetsockoptInt(s, unix.SOL_UDP, unix.UDP_SEGMENT, len(payload)); err != nil {
			return err
		}
		var all []byte
		for range n {
			all = append(all, payload...)
		}
		return unix.Sendto(s, all, 0, &unix.SockaddrInet6{Port: 4500, Addr: wireA6.As16()})
	})
}

// segmented gives the harness a segmentation veth that works, with its hook.
func (b *harness) segmented(t *testing.T) {
	t.Helper()
	was := b.segment
	var hooked link.Link
	must(t, b.inside(func() (err error) {
		b.segment.host, b.segment.net, err = netdev.EnsureSegmentation(func(out netlink.Link) (err error) {
			hooked, err = link.AttachTCX(link.TCXOptions{Program: b.progs.Get("from_segment",
				hook.TCIngress), Interface: out.Attrs().Index, Attach: ebpf.AttachTCXIngress})
			return err
		})
		return err
	}))
	t.Cleanup(func() {
		b.segment = was
		must(t,
			b.inside(func() error { return errors.Join(hooked.Close(), netdev.RemoveSegmentation()) }))
	})
}

// TestMergedESP: with rx-udp-gro-forwarding the kernel makes one skb of several ESP packets before
// the TC hook, and virtual machines send such. Where there is no sealer they are cut, and each is
// looked at, as without merging.
func TestMergedESP(t *testing.T) {
	b := newSealHarness(t, 6).keyed(t)
	b.opts.HostAddrs = []netip.Addr{node4, wireA6}
	b.segmented(t)
	must(t, b.inside(b.configure))
	far := b.wire(t, "wtm")
	var near netlink.Link
	var hooked link.Link
	must(t, b.inside(func() (err error) {
		if near, err = netlink.LinkByName("wtm"); err != nil {
			return err
		}
		hooked, err = link.AttachTCX(link.TCXOptions{Program: b.progs.Get("from_wire",
			hook.TCIngress), Interface: near.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		return err
	}))
	defer hooked.Close()
	b.setPeer(t, bpf.Nexthop{
		Ifindex: uint32(near.Attrs().Index), Flags: bpf.NexthopResolved, Mtu: 1500,
		Dmac: bpf.ToMAC(peerMAC), Smac: bpf.ToMAC(near.Attrs().HardwareAddr),
	})
	esp := append([]byte{0x30, 0, 0, 9, 0, 0, 0, 1}, make([]byte, 120)...)
	for _, merging := range []bool{true, false} {
		must(t, emptyMap(b.maps.Drops))
		must(t, b.inside(func() error {
			return netdev.SetFeatures("wtm",
				map[string]bool{netdev.FeatureGRO: true, netdev.FeatureUDPForward: merging})
		}))
		must(t, burst(far, "wtm-far", esp, 4, near.Attrs().HardwareAddr))
		const want = "esp_bad_tag 4"
		deadline := time.Now().Add(10 * time.Second) // what was cut waits for its turn on a CPU
		got := strings.Join(b.counted(t), ";")
		for !strings.Contains(got, want) && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
			got = strings.Join(b.counted(t), ";")
		}
		if !strings.Contains(got, want) {
			t.Errorf("merging %v: %s, want %s", merging, got, want)
		}
	}
}

// TestUplinkMerges: encryption switches off what merges ESP packets, notes how it was, and puts it
// back.
func TestUplinkMerges(t *testing.T) {
	b := newHarness(t)
	undo, err := netdev.OpenUndo(t.TempDir())
	must(t, err)
	read := func() (now map[string]bool) {
		tool, err := ethtool.NewEthtool()
		must(t, err)
		defer tool.Close()
		now, err = tool.Features("wtup")
		must(t, err)
		return now
	}
	must(t, b.inside(func() error {
		if err := netdev.SetFeatures("wtup",
			map[string]bool{netdev.FeatureUDPForward: true,
				netdev.FeatureGROList: true}); err != nil {
			return err
		}
		uplink, err := netlink.LinkByName("wtup")
		if err != nil {
			return err
		}
		d := &Datapath{undo: undo, mode: ModeStatus{Active: ModeTC},
			opts: Options{Encrypt: &esp.Options{}}}
		if err := d.setUplinkOffloads(uplink); err != nil {
			return err
		}
		if now := read(); now[netdev.FeatureUDPForward] || now[netdev.FeatureGROList] {
			t.Errorf("with encryption: %s %v, %s %v; want both off", netdev.FeatureUDPForward,
				now[netdev.FeatureUDPForward], netdev.FeatureGROList, now[netdev.FeatureGROList])
		}
		d.opts.Encrypt = nil
		if err := d.setUplinkOffloads(uplink); err != nil {
			return err
		}
		if now := read(); !now[netdev.FeatureUDPForward] || !now[netdev.FeatureGROList] {
			t.Errorf("afterwards: %s %v, %s %v; want both on again", netdev.FeatureUDPForward,
				now[netdev.FeatureUDPForward], netdev.FeatureGROList, now[netdev.FeatureGROList])
		}
		return netdev.SetFeatures("wtup",
			map[string]bool{netdev.FeatureUDPForward: false, netdev.FeatureGROList: false})
	}))
}
