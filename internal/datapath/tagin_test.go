package datapath

import (
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
)

// TestTagIn: of what lies in front of a frame, only who opened it is believed, and nothing where a
// pod's own program may have written it: its interface says who it is.
func TestTagIn(t *testing.T) {
	b := newExitHarness(t)
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4,
		MaxEntries: 1})
	must(t, err)
	defer seen.Close()
	const tcIndexAt, arrived = 11 * 4, 1 << 16
	report, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "report", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, tcIndexAt, asm.Word), asm.Or.Imm(asm.R6, arrived),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.LoadMapPtr(asm.R1, seen.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "out"),
			asm.StoreMem(asm.R0, 0, asm.R6, asm.Word),
			asm.Mov.Imm(asm.R0, 2).WithSymbol("out"), asm.Return(),
		},
	})
	must(t, err)
	defer report.Close()
	for _, c := range []struct {
		name, iface string
		magic, tag  uint32
		want        uint32
	}{
		{"opened", "wtx", 0x5745, bpf.TagOpened | 7, bpf.TagOpened | 7},
		{"decided", "wtx", 0x5745, bpf.TagRouted, bpf.TagNone},
		{"an endpoint's", "wtx", 0x5745, bpf.TagEndpoint | 1, bpf.TagNone},
		{"none", "wtx", 0x5745, bpf.TagNone, bpf.TagNone},
		{"another's", "wtx", 0x5746, bpf.TagOpened | 7, bpf.TagNone},
		{"opened, from a pod", "wta", 0x5745, bpf.TagOpened | 7,
			bpf.TagEndpoint | uint32(podA.Slot)},
		{"decided, from a pod", "wta", 0x5745, bpf.TagRouted, bpf.TagEndpoint | uint32(podA.Slot)},
		{"another pod's, from a pod", "wta", 0x5745, bpf.TagEndpoint | uint32(podB.Slot),
			bpf.TagEndpoint | uint32(podA.Slot)},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, seen.Put(uint32(0), uint32(0)))
			forge, err := forgeMetadata(c.tag<<16 | c.magic)
			must(t, err)
			defer forge.Close()
			must(t, b.inside(func() error { return b.passMetadata(t, c.iface, forge, report) }))
			var got uint32
			for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline) &&
				got == 0; time.Sleep(time.Millisecond) {
				must(t, seen.Lookup(uint32(0), &got))
			}
			if got != arrived|c.want {
				t.Errorf("tag %#x, want %#x", got, arrived|c.want)
			}
		})
	}
}

// forgeMetadata puts four bytes in front of each frame.
func forgeMetadata(value uint32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "forge_meta", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R2, -4), asm.FnXdpAdjustMeta.Call(),
			asm.JNE.Imm(asm.R0, 0, "drop"),
			asm.LoadMem(asm.R1, asm.R6, 8, asm.Word), asm.LoadMem(asm.R2, asm.R6, 0, asm.Word),
			asm.Mov.Reg(asm.R3, asm.R1), asm.Add.Imm(asm.R3, 4),
			asm.JGT.Reg(asm.R3, asm.R2, "drop"),
			asm.Mov.Imm32(asm.R4, int32(value)), asm.StoreMem(asm.R1, 0, asm.R4, asm.Word),
			asm.Mov.Imm(asm.R0, 2), asm.Return(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("drop"), asm.Return(),
		}})
}

// passMetadata sends a frame to an interface, which runs forge in XDP and then tag_in and report
// until the test is over.
func (b *exitHarness) passMetadata(t *testing.T, iface string, forge, report *ebpf.Program) error {
	index := b.index[iface]
	attached, err := link.AttachXDP(link.XDPOptions{Program: forge, Interface: index,
		Flags: link.XDPDriverMode})
	if err != nil {
		return err
	}
	t.Cleanup(func() { attached.Close() })
	for _, program := range []*ebpf.Program{b.progs.Get("tag_in", hook.TCIngress), report} {
		hooked, err := link.AttachTCX(link.TCXOptions{Program: program, Interface: index,
			Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		t.Cleanup(func() { hooked.Close() })
	}
	far, err := net.InterfaceByName(iface + "-peer")
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Sendto(s, fromA(world4).udp(1, 2, 8).bytes(), 0,
		&unix.SockaddrLinklayer{Ifindex: far.Index})
}
