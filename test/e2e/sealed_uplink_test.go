package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

// macvlan is a container on a macvlan of node a's uplink, which sends past the host's stack.
type macvlan struct {
	ns       string
	own, far net.HardwareAddr // its own address, and node b's
}

const (
	macvlanIf = "mv0"
	freeIndex = 30000 // the macvlan's, and no interface's of node a
)

func newMacvlan(t *testing.T, l *lab.Lab) *macvlan {
	t.Helper()
	ns := nettest.New(t, "e2e-macvlan")
	must(t, l.Node("a").NetNS, "ip", "link", "add", "link", "w0", "name", macvlanIf, "index",
		strconv.Itoa(freeIndex), "netns", filepath.Base(ns), "type", "macvlan", "mode", "bridge")
	must(t, ns, "ip", "link", "set", macvlanIf, "up")
	return &macvlan{ns, mac(macIn(t, ns, macvlanIf)), mac(macIn(t, l.Node("b").NetNS, "w0"))}
}

func indexIn(t *testing.T, ns, name string) (index int) {
	t.Helper()
	err := netns.Do(ns, func() error {
		iface, err := net.InterfaceByName(name)
		if err == nil {
			index = iface.Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// entry is a way for a frame to the macvlan.
type entry struct {
	name   string
	via    string // interface of node a whose index the frame comes in by, in the container; "" if it comes in by none
	tag    int32  // what it has in skb->tc_index
	orphan bool   // without a socket
}

// open gives the packet socket into which to send.
func (m *macvlan) open(t *testing.T, a *lab.Node, r entry) *wireEnd {
	t.Helper()
	if !r.orphan && r.via == "" {
		return openEnd(t, m.ns, macvlanIf, false)
	}
	index := freeIndex + 1
	if r.via != "" {
		index = indexIn(t, a.NetNS, r.via)
	}
	must(t, m.ns, "ip", "link", "add", "in0", "index", strconv.Itoa(index), "type", "veth", "peer",
		"name", "in1", "index", strconv.Itoa(freeIndex+2))
	t.Cleanup(func() { must(t, m.ns, "ip", "link", "del", "in0") })
	must(t, m.ns, "ip", "link", "set", "in0", "up")
	must(t, m.ns, "ip", "link", "set", "in1", "up")
	if r.via == "" {
		runTCX(t, m.ns, "in0", ebpf.AttachTCXEgress, asm.Instructions{
			asm.Mov.Imm(asm.R2, freeIndex), asm.Mov.Imm(asm.R3, 0), asm.FnCloneRedirect.Call(),
			asm.Mov.Imm(asm.R0, 2), asm.Return(),
		})
		return openEnd(t, m.ns, "in0", false)
	}
	runTCX(t, m.ns, "in0", ebpf.AttachTCXIngress, asm.Instructions{
		asm.StoreImm(asm.R1, tcIndexAt, int64(r.tag), asm.Word),
		asm.Mov.Imm(asm.R1, freeIndex), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return(),
	})
	return openEnd(t, m.ns, "in1", false)
}

// runTCX has an interface run a program until the test ends.
func runTCX(t *testing.T, ns, ifName string, at ebpf.AttachType, code asm.Instructions) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "forge", Type: ebpf.SchedCLS,
		License: "GPL", Instructions: code})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	index := indexIn(t, ns, ifName)
	err = netns.Do(ns, func() error {
		attached, err := link.AttachTCX(link.TCXOptions{Program: program, Interface: index,
			Attach: at})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// put sends a datagram from and to whomever.
func (m *macvlan) put(t *testing.T, end *wireEnd, src, dst netip.Addr) {
	t.Helper()
	frame := datagram(m.own, netip.AddrPortFrom(src, 1), netip.AddrPortFrom(dst, hostilePort),
		false)
	copy(frame, m.far)
	// A hook's drop on the way out comes back as ENOBUFS.
	if err := unix.Send(end.fd, frame, 0); err != nil && !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("send frame: %v", err)
	}
}

// onUplink sends by a macvlan in every way in which a packet may look like a local pod's or the
// host's. In a pod's name it is refused; in the container's own, or in the node's, it is sealed as
// the world's.
func onUplink(t *testing.T, l *lab.Lab) {
	m, a := newMacvlan(t, l), l.Node("a")
	client := l.Pod("client").HostIf
	for _, r := range []entry{
		{name: "a packet socket"},
		{name: "no socket", orphan: true},
		{name: "the index of the pod's interface", via: client},
		{name: "the index of the pod's interface, its tag", via: client, tag: forgedTags[0]},
		{name: "the index of the uplink, a sealed packet's tag", via: "w0", tag: forgedTags[1]},
		{name: "the index of the pair", via: "weft_net", tag: forgedTags[1]},
	} {
		t.Run(r.name, func(t *testing.T) { m.sends(t, l, m.open(t, a, r)) })
	}
}

// sends sends by one path.
func (m *macvlan) sends(t *testing.T, l *lab.Lab, end *wireEnd) {
	a, b, server := l.Node("a"), l.Node("b"), l.Pod("server")
	there := listen(t, server, hostilePort)
	world := map[int]netip.Addr{4: netip.MustParseAddr("172.31.0.2"),
		6: netip.MustParseAddr("fd31::2")}
	for _, family := range []int{4, 6} {
		before := dropped(t, a, "", "foreign_source")
		m.put(t, end, l.Pod("client").Addr(family), server.Addr(family))
		eventually(t, "a local pod's name, from a macvlan, is refused", func() error {
			if dropped(t, a, "", "foreign_source") == before {
				return fmt.Errorf("drops at a: %s; at b: %s", dropText(t, a), dropText(t, b))
			}
			return nil
		})
		identities := watchIdentities(t, l)
		for _, src := range []netip.Addr{world[family], a.Addresses[family/6]} {
			m.put(t, end, src, server.Addr(family))
			if from := there.next(t,
				"what a macvlan sends from "+src.String()); from.Addr() != src {
				t.Errorf("it came from %s", from)
			}
		}
		if seen := identities(); len(seen) != 1 || seen[identityWorld] != 2 {
			t.Errorf("IPv%d: sealed under these identities, so many packets each: %v", family, seen)
		}
	}
	if n := there.total.Load(); n != 4 {
		t.Errorf("%d datagrams arrived, not the four honest ones", n)
	}
}

const identityWorld = 3

// watchIdentities counts the sealed packets to node b by identity until the function that it
// returns is called.
func watchIdentities(t *testing.T, l *lab.Lab) (seen func() map[uint32]int) {
	t.Helper()
	var mu sync.Mutex
	counts := map[uint32]int{}
	watch := watchWire(t, l, podRules(l), func(f encryptcheck.Frame) {
		p, err := inet.Parse(f.Data)
		if err != nil || p.Dst != l.Node("b").Addresses[0] {
			return
		}
		if esp, ok := encryptcheck.ParseESP(p, 4500); ok {
			mu.Lock()
			defer mu.Unlock()
			counts[esp.Identity()]++
		}
	})
	return func() map[uint32]int {
		watch.stop(t)
		mu.Lock()
		defer mu.Unlock()
		return counts
	}
}

// decidedOnUplink sends by a macvlan what looks like a packet that a hook has decided, in a local
// pod's name. It leaves as it is, as from anybody on the wire, and is refused by node b.
func decidedOnUplink(t *testing.T, l *lab.Lab) {
	m, a, b, server := newMacvlan(t, l), l.Node("a"), l.Node("b"), l.Pod("server")
	there := listen(t, server, hostilePort)
	end := m.open(t, a, entry{via: "weft_net", tag: forgedTags[2]})
	for _, family := range []int{4, 6} {
		for _, src := range []netip.Addr{l.Pod("client").Addr(family), a.Addresses[family/6]} {
			before := dropped(t, b, "", "plaintext")
			m.put(t, end, src, server.Addr(family))
			eventually(t, "node b refuses what is not sealed", func() error {
				if dropped(t, b, "", "plaintext") == before {
					return fmt.Errorf("drops at a: %s; at b: %s", dropText(t, a), dropText(t, b))
				}
				return nil
			})
		}
	}
	if n := there.total.Load(); n != 0 {
		t.Errorf("%d datagrams arrived", n)
	}
}
