package wirefuzz

import (
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/sealer/control"
)

// sealerNode has a sealer (docs/encryption.md, "the sealer"); the other node seals and opens in its
// hooks.
const sealerNode = "b"

// Source ports of ESP, which tell a receiver who has sealed: 0xc000 to 0xffff hooks, 0x8000 to
// 0xbfff a sealer.
const (
	hooksPort   uint16 = 49152
	sealersPort uint16 = 0x8000
)

func (h *heldPacket) lane() uint8 { return laneOf(h.esp) }

func laneOf(esp []byte) uint8 { return uint8(binary.BigEndian.Uint32(esp) >> 22 & 63) }

// portOf is the source port that a held packet has if it comes as from a node like its own, with a
// sealer if it may be a sealer's.
func (r *referee) portOf(node string, h *heldPacket) uint16 {
	if node == sealerNode && h.lane() == r.lastLane {
		return sealersPort | 0x123
	}
	return hooksPort
}

// lanes is how many lanes a node seals with.
func (b *harness) lanes(t *testing.T, node string) uint8 {
	t.Helper()
	e, err := admin.NewClient(b.lab.Node(node).Socket).Encrypt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return uint8(e.Lanes)
}

// onCPU runs fn with its thread on one CPU, which decides the lane.
func onCPU(cpu int, fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	one.Set(cpu % runtime.NumCPU())
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	return fn()
}

// asBySealer has what hooks have sealed in the sealer's lane leave a port of the wire as if a
// sealer had: with a source port of a sealer's. So the other node's sealer opens what pods say, and
// what a peer that was taken over seals. What this test itself puts there stays as it is. It ends
// when the link is closed.
func asBySealer(t *testing.T, ns, port string, lane uint8) link.Link {
	t.Helper()
	const frame = -64 // on the stack: Ethernet, IPv4, UDP, SPI
	unless := func(at int16, size asm.Size, value uint16) asm.Instructions {
		if size == asm.Half {
			value = network(value)
		}
		return asm.Instructions{asm.LoadMem(asm.R0, asm.RFP, frame+at, size),
			asm.JNE.Imm(asm.R0, int32(value), "out")}
	}
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R0, asm.R1, 0, asm.Word), // length
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, frame),
		asm.Mov.Imm(asm.R4, 46),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R0, asm.RFP, frame+10, asm.Half), // the end of the source address
		asm.JEq.Imm(asm.R0, int32(network(0xbeef)), "out"),
	}
	for _, is := range []asm.Instructions{
		unless(12, asm.Half, 0x0800), unless(14, asm.Byte, 0x45),
		unless(23, asm.Byte, unix.IPPROTO_UDP),
		unless(36, asm.Half, espPort), unless(40, asm.Half, 0),
	} {
		code = append(code, is...)
	}
	code = append(code,
		asm.LoadMem(asm.R0, asm.RFP, frame+42, asm.Byte),
		asm.And.Imm(asm.R0, 15),
		asm.LSh.Imm(asm.R0, 2),
		asm.LoadMem(asm.R1, asm.RFP, frame+43, asm.Byte),
		asm.RSh.Imm(asm.R1, 6),
		asm.Or.Reg(asm.R0, asm.R1),
		asm.JNE.Imm(asm.R0, int32(lane), "out"),
		asm.LoadMem(asm.R0, asm.RFP, frame+34, asm.Byte),
		asm.And.Imm(asm.R0, 0x3f),
		asm.Or.Imm(asm.R0, int32(sealersPort>>8)),
		asm.StoreMem(asm.RFP, frame+34, asm.R0, asm.Byte),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 34),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, frame+34),
		asm.Mov.Imm(asm.R4, 1),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
		asm.Return(),
	)
	return attachEgress(t, ns, port, code)
}

// attachEgress attaches a program to what leaves an interface.
func attachEgress(t *testing.T, ns, ifName string, code asm.Instructions) (l link.Link) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: code})
	if err != nil {
		t.Fatalf("program for %s: %v", ifName, err)
	}
	t.Cleanup(func() { prog.Close() })
	err = netns.Do(ns, func() error {
		iface, err := net.InterfaceByName(ifName)
		if err != nil {
			return err
		}
		l, err = link.AttachTCX(link.TCXOptions{Interface: iface.Index, Program: prog,
			Attach: ebpf.AttachTCXEgress})
		return err
	})
	if err != nil {
		t.Fatalf("attach a program to %s: %v", ifName, err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// sealerOf asks what the sealer has done.
func (b *harness) sealerOf(t *testing.T) (s admin.Sealer) {
	t.Helper()
	eventually(t, "the sealer of node "+sealerNode, func() error {
		e, err := admin.NewClient(b.lab.Node(sealerNode).Socket).Encrypt(t.Context())
		if err != nil {
			return err
		}
		if e.Sealer == nil || e.Sealer.PID == 0 {
			return fmt.Errorf("%+v; problems: %v", e.Sealer, e.Problems)
		}
		s = *e.Sealer
		return nil
	})
	return s
}

// sealerHadWork makes sure that the sealer was judged, too, where uplinks are on TC: it has opened
// packets, merged and not, and refused what nobody had sealed and what was there before.
func (r *referee) sealerHadWork(t *testing.T, before admin.Sealer) {
	t.Helper()
	if r.mode == "xdp" {
		return
	}
	eventually(t, "the sealer's counts", func() error {
		now := r.sealerOf(t)
		more := func(reason control.Reason) bool {
			return now.Refused[reason.String()] > before.Refused[reason.String()]
		}
		packets := now.Opened.Packets - before.Opened.Packets
		if now.PID != before.PID || packets == 0 || !more(control.ReasonAuth) ||
			!more(control.ReasonReplayed) {
			return fmt.Errorf("%+v, before %+v", now, before)
		}
		t.Logf("the sealer has opened %d packets, and refused %v", packets, now.Refused)
		return nil
	})
}
