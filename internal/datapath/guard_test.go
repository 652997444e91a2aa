package datapath

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
)

// TestGuardIsNeverAway: replacing the netfilter programs, and dying while at it, leaves each
// address family with a program at each of the two places all the time, and in the end with one pin
// each (S4, S11).
func TestGuardIsNeverAway(t *testing.T) {
	b := newSealHarness(t, 4)
	dir, err := privateBPFFS()
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	was := b.opts.BPFDir
	b.opts.BPFDir = dir
	t.Cleanup(func() { b.opts.BPFDir, b.fault = was, nil })
	died := errors.New("died here")
	covered := func(when string) {
		t.Helper()
		for _, path := range hook.NodePaths(dir) {
			if !isLive(path) && !isLive(path+"+") {
				t.Errorf("%s: no %s", when, path)
			}
		}
	}
	must(t, b.inside(b.attachNetfilter))
	covered("attached")
	for run := range 3 {
		b.fault = func(string) error { return died }
		if err := b.inside(b.attachNetfilter); !errors.Is(err, died) {
			t.Fatalf("run %d: %v, want to have died", run, err)
		}
		covered("dead in between")
		// The old pin was gone and the new one had not its name yet.
		path := hook.Path(dir, "post_routing", "netfilter4", hook.AllInterfaces)
		if run == 2 {
			must(t, os.Remove(path))
			covered("dead before the name was taken")
		}
		b.fault = nil
		must(t, b.inside(b.attachNetfilter))
		covered("attached again")
	}
	links, err := hook.List(dir)
	if must(t, err); len(links) != 6 {
		t.Errorf("pins %v, want three for each family", links)
	}
	encrypt := b.opts.Encrypt
	b.opts.Encrypt = nil
	defer func() { b.opts.Encrypt = encrypt }()
	must(t, b.inside(b.attachNetfilter))
	if links, _ := hook.List(dir); len(links) != 0 {
		t.Errorf("without encryption %v are left", links)
	}
}

// isLive says whether a pinned link is attached.
func isLive(path string) bool {
	pinned, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return false
	}
	defer pinned.Close()
	info, err := pinned.Info()
	return err == nil && info.Netfilter() != nil && info.Program != 0
}

// TestHooksComeFirst: a program of somebody else's that was there before, and ends the chain, does
// not keep packets from a hook.
func TestHooksComeFirst(t *testing.T) {
	b := newHarness(t)
	ends, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "ends_the_chain", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	must(t, err)
	defer ends.Close()
	must(t, b.inside(func() error {
		index := b.index["wtx"]
		foreign, err := link.AttachTCX(link.TCXOptions{Program: ends, Interface: index,
			Attach: ebpf.AttachTCXEgress})
		if err != nil {
			return err
		}
		defer foreign.Close()
		ours, err := b.progs.Attach(hook.Attachment{Name: "to_wire", Kind: hook.TCEgress,
			Program: b.progs.Get("to_wire", hook.TCEgress)}, index)
		if err != nil {
			return err
		}
		defer ours.Close()
		list, err := link.QueryPrograms(link.QueryOptions{Target: index,
			Attach: ebpf.AttachTCXEgress})
		if err != nil {
			return err
		}
		info, err := b.progs.Get("to_wire", hook.TCEgress).Info()
		if err != nil {
			return err
		}
		id, _ := info.ID()
		if len(list.Programs) != 2 || list.Programs[0].ID != id {
			t.Errorf("programs %v, want %d first", list.Programs, id)
		}
		return nil
	}))
}

// TestForgedMetadata: what a sender has put in front of a frame is gone when the hook gives it to
// the stack (S10).
func TestForgedMetadata(t *testing.T) {
	b := newHarness(t)
	for _, c := range []struct {
		hook, iface string
		in          packet
		tag         uint16
	}{
		{"from_wire", "wtup", fromPeer(node4).src(world4).udp(1, 2, 8), bpf.TagNone},
		{"from_pod", "wta", fromA(world4).udp(1, 2, 8), bpf.TagEndpoint | 1},
	} {
		for _, size := range []int{0, 4, 8, 32} {
			meta := binary.NativeEndian.AppendUint16(nil, 0x5745)
			meta = binary.NativeEndian.AppendUint16(meta, bpf.TagRouted)
			meta = append(meta, make([]byte, 32)...)[:size]
			frame := append(slices.Clone(meta), c.in.bytes()...)
			var after xdpContext
			options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512),
				Repeat: 1, ContextOut: &after,
				Context: &xdpContext{Data: uint32(size), DataEnd: uint32(len(frame)),
					IngressIfindex: uint32(b.index[c.iface])}}
			must(t, b.inside(func() error {
				_, err := b.program("xdp", c.hook).Run(options)
				return err
			}))
			out := options.DataOut
			if after.Data != 4 || binary.NativeEndian.Uint16(out) != 0x5745 ||
				binary.NativeEndian.Uint16(out[2:]) != c.tag {
				t.Errorf("%s, %d bytes of metadata: %d bytes %x, want the tag %#x alone", c.hook,
					size, after.Data, out[:after.Data], c.tag)
			}
		}
	}
}
