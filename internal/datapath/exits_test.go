package datapath

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// exitHarness is the harness with post_routing attached and a way out by wtx, which has no hooks,
// for whatever is sent.
type exitHarness struct {
	*sealHarness
	seen int // a packet socket behind wtx
}

var exitAddr = &netlink.Addr{IPNet: ipNet(mustPrefix("2001:db8:77::1/128")),
	Flags: unix.IFA_F_NODAD}

func newExitHarness(t *testing.T) *exitHarness {
	t.Helper()
	b := &exitHarness{sealHarness: newSealHarness(t, 4)}
	loseNode(t, b.harness)
	must(t, b.putUplink(b.index["wtup"]))
	dir, err := privateBPFFS()
	must(t, err)
	was := b.opts.BPFDir
	b.opts.BPFDir = dir
	t.Cleanup(func() { b.opts.BPFDir = was; must(t, os.RemoveAll(dir)) })
	must(t, b.inside(func() error {
		for path, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0",
			"ipv4/conf/wta/rp_filter": "0", "ipv4/conf/wtup/rp_filter": "0",
		} {
			path = "/proc/sys/net/" + path
			was, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(value), 0); err != nil {
				return err
			}
			t.Cleanup(func() { must(t, b.inside(func() error { return os.WriteFile(path, was, 0) })) })
		}
		for _, name := range []string{"wta", "wtup", "wtx"} {
			for _, end := range []string{name, name + "-peer"} {
				if err := b.up(t, end); err != nil {
					return err
				}
			}
		}
		// Or the host would have no address at all to send from.
		l, err := netlink.LinkByName("wtx")
		if err != nil {
			return err
		}
		if err := netlink.AddrReplace(l, exitAddr); err != nil {
			return err
		}
		far, err := net.InterfaceByName("wtx-peer")
		if err != nil {
			return err
		}
		if b.seen, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK,
			0); err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL)<<8 | unix.ETH_P_ALL>>8
		return errors.Join(unix.Bind(b.seen,
			&unix.SockaddrLinklayer{Protocol: all, Ifindex: far.Index}), b.attachNetfilter())
	}))
	t.Cleanup(func() {
		unix.Close(b.seen)
		must(t, b.inside(func() error {
			l, err := netlink.LinkByName("wtx")
			if err != nil {
				return err
			}
			return netlink.AddrDel(l, exitAddr)
		}))
	})
	return b
}

// up sets a link up until the test is over, if it is not.
func (b *exitHarness) up(t *testing.T, name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil || l.Attrs().Flags&net.FlagUp != 0 {
		return err
	}
	t.Cleanup(func() { must(t, b.inside(func() error { return netlink.LinkSetDown(l) })) })
	return netlink.LinkSetUp(l)
}

// lead has the kernel send what is for an address out of an interface.
func lead(index int, dst netip.Addr) (undo func(), err error) {
	route := &netlink.Route{Dst: ipNet(netip.PrefixFrom(dst, dst.BitLen())), LinkIndex: index,
		Scope: unix.RT_SCOPE_LINK}
	neighbor := &netlink.Neigh{LinkIndex: index, IP: dst.AsSlice(), State: unix.NUD_PERMANENT,
		HardwareAddr: mac(0x99)}
	err = errors.Join(netlink.NeighSet(neighbor), netlink.RouteReplace(route))
	return func() { _ = errors.Join(netlink.RouteDel(route), netlink.NeighDel(neighbor)) }, err
}

// tagged has every packet that comes in by an interface carry a tag.
func (b *exitHarness) tagged(name string, tag int64) (link.Link, error) {
	const tcIndexAt = 11 * 4 // in struct __sk_buff
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "tag", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.StoreImm(asm.R1, tcIndexAt, tag, asm.Word),
			asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		return nil, err
	}
	defer program.Close()
	return link.AttachTCX(link.TCXOptions{Program: program, Interface: b.index[name],
		Attach: ebpf.AttachTCXIngress})
}

// hostSends is what a process of the host writes, IP header and all.
func hostSends(p packet) error {
	domain, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(p.to.AsSlice())})
	if p.to.Is6() {
		domain, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: p.to.As16()}
	}
	s, err := unix.Socket(domain, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	err = unix.Sendto(s, p.bytes()[14:], 0, to)
	if errors.Is(err, unix.EPERM) {
		return nil // what the sender is told of a drop
	}
	return err
}

// arrived says whether a packet for an address has come out of wtx.
func (b *exitHarness) arrived(dst netip.Addr) bool {
	frame := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(b.seen, frame, 0)
		if err != nil {
			return false
		}
		if n > 54 && bytes.Contains(frame[14:54], dst.AsSlice()) {
			return true
		}
	}
}

// exit is a packet that the kernel routes out of an interface without hooks.
type exit struct {
	name   string
	via    string // where it came in; "": this host sent it
	tag    int64  // that it carries
	in     packet
	open   bool       // the own range is
	bridge bool       // wtx is the one that podB is behind
	csum   []uint16   // where the device is to begin its sum, and how far behind to write it
	reason bpf.Reason // of its drop
}

// TestExits: what must be sealed leaves by no interface without hooks, whoever sent it and whatever
// route the kernel has found (S4, S9); everything else does.
func TestExits(t *testing.T) {
	const opened = bpf.TagOpened | bpf.IdentityRemoteHost
	rows := func(l4, over []uint16, own, nobody, peer, peerHost, lost, world, podB netip.Addr) []exit {
		error := func(about packet) packet {
			p := newPacket(gatewayMAC, gatewayMAC, own, peerHost)
			if own.Is4() {
				return p.icmpError(3, 1, 0, about, 28)
			}
			return p.icmpError(1, 0, 0, about, 88)
		}
		return []exit{
			{name: "this host to a remote pod", in: fromA(peer).src(own),
				reason: bpf.ReasonUnhookedInterface},
			{name: "this host to a remote host", in: fromA(peerHost).src(own)},
			{name: "this host to a lost node's pod", in: fromA(lost).src(own),
				reason: bpf.ReasonUnhookedInterface},
			{name: "this host to its own range", in: fromA(nobody).src(own),
				reason: bpf.ReasonNoEndpoint},
			{name: "this host to its own range while that is open", in: fromA(nobody).src(own),
				open: true},
			{name: "this host to a pod of its own, by its bridge", in: fromA(podB).src(own),
				bridge: true},
			{name: "this host to a pod of its own, by another interface", in: fromA(podB).src(own),
				reason: bpf.ReasonNoEndpoint},
			{name: "this host to a pod of its own, by another interface while the range is open",
				in: fromA(podB).src(own), open: true, reason: bpf.ReasonNoEndpoint},
			{name: "a pod to a pod here, by another interface", via: "wta", in: fromA(podB),
				reason: bpf.ReasonNoEndpoint},
			{name: "this host to the world", in: fromA(world).src(own)},
			{name: "an error of this host's about what a remote host has sent to a pod",
				in:     error(fromA(podB).src(peerHost).udp(1, 2, 60)),
				reason: bpf.ReasonUnhookedInterface},
			{name: "an error of this host's about what a remote host has sent to it",
				in: error(fromA(own).src(peerHost).udp(1, 2, 60))},
			{name: "a pod to a remote pod", via: "wta", in: fromA(peer),
				reason: bpf.ReasonUnhookedInterface},
			{name: "a pod to a remote host", via: "wta", in: fromA(peerHost),
				reason: bpf.ReasonUnhookedInterface},
			{name: "a pod to the world", via: "wta", in: fromA(world)},
			{name: "a pod to the world, its checksum left to the device", via: "wta",
				in: fromA(world), csum: l4},
			{name: "a pod to the world, a checksum over its addresses", via: "wta",
				in: fromA(world), csum: over, reason: bpf.ReasonChecksumOffset},
			{name: "what came sealed, to another node's host", via: "wtup", tag: opened,
				in: fromPeer(peerHost), reason: bpf.ReasonUnhookedInterface},
			{name: "what came sealed, to this node's own range", via: "wtup", tag: opened,
				in: fromPeer(nobody), reason: bpf.ReasonNoEndpoint},
			{name: "what came sealed, to a pod here, by another interface", via: "wtup",
				tag: opened, in: fromPeer(podB), reason: bpf.ReasonNoEndpoint},
			{name: "what came sealed, to the world", via: "wtup", tag: opened, in: fromPeer(world)},
			{name: "the world to another node's host", via: "wtup",
				in: fromPeer(peerHost).src(world)},
			{name: "a pod that is gone, to another node's host", via: "wtup",
				in: fromPeer(peerHost).src(nobody), reason: bpf.ReasonUnhookedInterface},
			{name: "the same while the range is open", via: "wtup",
				in: fromPeer(peerHost).src(nobody), open: true},
			{name: "the world to a remote pod", via: "wtup", in: fromPeer(peer).src(world),
				reason: bpf.ReasonUnhookedInterface},
		}
	}
	for family, list := range map[string][]exit{
		"IPv4": rows([]uint16{34, 6}, []uint16{20, 6}, node4, nobody4, peer4, wireB4, lost4, world4,
			podB.IPv4),
		"IPv6": rows([]uint16{54, 6}, []uint16{40, 0}, node6, nobody6, peer6, wireB6, lost6, world6,
			podB.IPv6),
	} {
		t.Run(family, func(t *testing.T) {
			b := newExitHarness(t)
			for _, e := range list {
				t.Run(e.name, func(t *testing.T) { e.run(t, b) })
			}
		})
	}
}

func (e exit) run(t *testing.T, b *exitHarness) {
	must(t, emptyMap(b.maps.Drops))
	for prefix, flags := range map[string]uint32{"10.1.0.0/24": bpf.RouteOpen,
		"fd00:1::/64": bpf.RouteOpen} {
		if !e.open {
			flags = 0
		}
		key := bpf.RouteKeyOf(mustPrefix(prefix))
		must(t, b.maps.Routes.Put(&key, &bpf.Route{Flags: flags}))
	}
	var slot bpf.EpSlot
	must(t, b.maps.EpSlot.Lookup(uint32(podB.Slot), &slot))
	slot.Bridge = 0
	if e.bridge {
		slot.Bridge = uint32(b.index["wtx"])
	}
	must(t, b.maps.EpSlot.Put(uint32(podB.Slot), &slot))
	if e.in.payload == nil {
		e.in = e.in.udp(1000, 53, 20)
	}
	must(t, b.inside(func() error {
		undo, err := lead(b.index["wtx"], e.in.to)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = b.inside(func() error { undo(); return nil }) })
		for b.arrived(netip.Addr{}) { // what came before
		}
		return e.send(b)
	}))
	var arrived bool
	var got []string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline) && !arrived &&
		got == nil; time.Sleep(time.Millisecond) {
		arrived, got = b.arrived(e.in.to), reasonsIn(b.counted(t))
	}
	if want := e.reason.String(); e.reason == bpf.ReasonNone && !arrived ||
		e.reason != bpf.ReasonNone && (arrived || strings.Join(got, ",") != want) {
		t.Errorf("left: %v, refused as %v; want %s", arrived, got, want)
	}
}

// send puts the packet where the kernel routes it on.
func (e exit) send(b *exitHarness) error {
	if e.via == "" {
		return hostSends(e.in)
	}
	if e.tag != 0 {
		hooked, err := b.tagged(e.via, e.tag)
		if err != nil {
			return err
		}
		defer hooked.Close()
	}
	near, err := net.InterfaceByName(e.via)
	if err != nil {
		return err
	}
	far, err := net.InterfaceByName(e.via + "-peer")
	if err != nil {
		return err
	}
	frame := e.in.dstMAC(near.HardwareAddr).bytes()
	if e.csum != nil {
		return sendUnfinished(far.Index, frame, e.csum[0], e.csum[1])
	}
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Sendto(s, frame, 0, &unix.SockaddrLinklayer{Ifindex: far.Index})
}
