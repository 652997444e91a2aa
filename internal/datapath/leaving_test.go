package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/netns"
)

// leaving is a packet to a remote pod that the kernel sends by the uplink: with the routes and
// sockets that no test run can give it.
type leaving struct {
	name    string
	via     string // where it came in; "": this host sent it
	macvlan bool   // via is in another network namespace, which forwards to its macvlan on the uplink
	orphan  bool   // it has lost its socket
	child   bool   // there is something on top of the uplink
	in      packet
	into    uint32     // the identity that it is sealed under
	reason  bpf.Reason // of its drop
}

// TestLeaving: what has not been routed by this host's stack is nobody's of this node, by whatever
// index it came in.
func TestLeaving(t *testing.T) {
	rows := func(own, peer netip.Addr) []leaving {
		return []leaving{
			{name: "this host", in: fromA(peer).src(own), into: bpf.IdentityHost},
			{name: "this host, with something on top of the uplink", child: true,
				in: fromA(peer).src(own), into: bpf.IdentityHost},
			{name: "this host, without a socket", orphan: true, in: fromA(peer).src(own),
				into: bpf.IdentityHost},
			{name: "no socket, with something on top of the uplink", orphan: true, child: true,
				in: fromA(peer).src(own), into: bpf.IdentityWorld},
			{name: "a pod", via: "wta", in: fromA(peer), into: identityA},
			{name: "a pod, with something on top of the uplink", via: "wta", child: true,
				in: fromA(peer), into: identityA},
			{name: "a container in a pod's name, by the pod's index", via: "wta", macvlan: true,
				in: fromA(peer), reason: bpf.ReasonForeignSource},
			{name: "a container in this host's name, by the pod's index", via: "wta", macvlan: true,
				in: fromA(peer).src(own), into: bpf.IdentityWorld},
		}
	}
	for family, list := range map[string][]leaving{"IPv4": rows(node4, peer4),
		"IPv6": rows(node6, peer6)} {
		t.Run(family, func(t *testing.T) {
			b := newLeavingHarness(t, "wtup")
			for _, l := range list {
				t.Run(l.name, func(t *testing.T) { l.run(t, b) })
			}
		})
		t.Run(family+", a bridge", func(t *testing.T) {
			b := newLeavingHarness(t, "wtbr")
			for _, l := range list {
				if !l.child && !l.macvlan {
					t.Run(l.name, func(t *testing.T) { l.run(t, b) })
				}
			}
		})
	}
}

// leavingHarness is the harness with to_wire attached to the uplink, as agents load it.
type leavingHarness struct {
	*exitHarness
	uplink int
}

// newLeavingHarness makes wtup the uplink, or a bridge that wtup is a port of.
func newLeavingHarness(t *testing.T, uplink string) *leavingHarness {
	b := &leavingHarness{exitHarness: newExitHarness(t)}
	b.sealHarness.keyed(t)
	program := b.untouched(t, "to_wire_tc", "weft_to_wire")
	must(t, b.inside(func() (err error) {
		if b.uplink = b.index[uplink]; b.uplink == 0 {
			if b.uplink, err = enslave(t, b.exitHarness, uplink, "wtup"); err != nil {
				return err
			}
		}
		if err := b.putUplink(b.uplink); err != nil {
			return err
		}
		hooked, err := link.AttachTCX(link.TCXOptions{Program: program, Interface: b.uplink,
			Attach: ebpf.AttachTCXEgress})
		if err == nil {
			t.Cleanup(func() { hooked.Close() })
		}
		return err
	}))
	return b
}

func (l leaving) run(t *testing.T, b *leavingHarness) {
	must(t, emptyMap(b.maps.Drops))
	l.in = l.in.udp(1000, 53, 20)
	send := func() error { return exit{via: l.via, in: l.in}.send(b.exitHarness) }
	must(t, b.inside(func() error {
		if l.child {
			if _, err := enslave(t, b.exitHarness, "wtbr", "wtup"); err != nil {
				return err
			}
		}
		if l.macvlan {
			var err error
			send, err = b.container(t, l.in)
			return err
		}
		undo, err := lead(b.uplink, l.in.to)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = b.inside(func() error { undo(); return nil }) })
		if l.orphan {
			return b.orphan(t)
		}
		return nil
	}))
	must(t, b.inside(func() error {
		for b.arrived(netip.Addr{}) { // what came before
		}
		return send()
	}))
	var into uint32
	var got []string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline) && into == 0 &&
		got == nil; time.Sleep(time.Millisecond) {
		into, got = b.sealedAs(l.in.to), reasonsIn(b.counted(t))
	}
	want := ""
	if l.reason != bpf.ReasonNone {
		want = l.reason.String()
	}
	if into != l.into || strings.Join(got, ",") != want {
		t.Errorf("sealed as %d, refused as %v; want %d, %q", into, got, l.into, want)
	}
}

// sealedAs is the identity under which a packet for an address went into the segmentation veth, 0
// if none did.
func (b *leavingHarness) sealedAs(dst netip.Addr) uint32 {
	frame := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(b.seen, frame, 0)
		if err != nil {
			return 0
		}
		if n > 54 && isSegment(frame) && bytes.Contains(frame[14:54], dst.AsSlice()) {
			return binary.BigEndian.Uint32(frame[8:])
		}
	}
}

// orphan has the uplink send a copy of each packet in its place, which has no socket.
func (b *leavingHarness) orphan(t *testing.T) error {
	const markAt = 2 * 4 // in struct __sk_buff
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "orphan", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, markAt, asm.Word), asm.JEq.Imm(asm.R2, 1, "next"),
			asm.Mov.Imm(asm.R2, 1), asm.StoreMem(asm.R1, markAt, asm.R2, asm.Word),
			asm.Mov.Imm(asm.R2, int32(b.uplink)), asm.Mov.Imm(asm.R3, 0),
			asm.FnCloneRedirect.Call(),
			asm.Mov.Imm(asm.R0, 2), asm.Return(),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("next"), asm.Return(),
		},
	})
	if err != nil {
		return err
	}
	defer program.Close()
	hooked, err := link.AttachTCX(link.TCXOptions{Program: program, Interface: b.uplink,
		Attach: ebpf.AttachTCXEgress, Anchor: link.Head()})
	if err == nil {
		t.Cleanup(func() { hooked.Close() })
	}
	return err
}

// enslave has something take an interface's frames before the stack does, as an ipvlan would: a
// bridge, which needs no module. Returns the bridge's index.
func enslave(t *testing.T, b *exitHarness, name, port string) (index int, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return 0, err
	}
	t.Cleanup(func() { must(t, b.inside(func() error { return netlink.LinkDel(bridge) })) })
	l, err := netlink.LinkByName(port)
	if err != nil {
		return 0, err
	}
	return bridge.Attrs().Index, errors.Join(netlink.LinkSetMaster(l, bridge),
		netlink.LinkSetUp(bridge))
}

// container makes a network namespace with a macvlan on the uplink, whose other interface has the
// index of pod A's, and forwards from that one what is for the packet's destination.
func (b *leavingHarness) container(t *testing.T, p packet) (send func() error, err error) {
	name := fmt.Sprintf("wt-dp-leaving-%d", os.Getpid())
	path, err := netns.Create(name)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		// At once: a namespace's interfaces go some time after its name.
		_ = netns.Do(path, func() error { return runIP("link", "del", "mv0") })
		_ = netns.Delete(name)
	})
	if err := runIP("link", "add", "link", "wtup", "name", "mv0", "index", "30000", "netns", name,
		"type", "macvlan", "mode", "bridge"); err != nil {
		return nil, err
	}
	err = netns.Do(path, func() error {
		for file, value := range map[string]string{"ipv4/ip_forward": "1",
			"ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0",
			"ipv4/conf/default/rp_filter": "0"} {
			if err := netdev.WriteSysctl(file, value); err != nil {
				return err
			}
		}
		err := errors.Join(runIP("link", "add", "wta", "index", strconv.Itoa(b.index["wta"]),
			"type", "veth", "peer", "name", "wta-peer", "index", "30001"),
			runIP("link", "set", "wta", "up"), runIP("link", "set", "wta-peer", "up"),
			runIP("link", "set", "mv0", "up"),
			// Or the kernel would have no address to forward with.
			runIP("addr", "add", "172.31.0.1/32", "dev", "wta"))
		if err != nil {
			return err
		}
		_, err = lead(30000, p.to)
		return err
	})
	return func() error {
		return netns.Do(path, func() error { return exit{via: "wta", in: p}.send(b.exitHarness) })
	}, err
}

func runIP(args ...string) error {
	if text, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return nil
}
