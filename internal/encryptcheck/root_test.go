package encryptcheck

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

var (
	there4        = netip.MustParseAddr("192.0.2.2")
	here6, there6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
)

// wire makes two network namespaces, joined by a veth whose ends are called w0.
func wire(t *testing.T) (here, there string) {
	t.Helper()
	here, there = nettest.New(t, "enc-0"), nettest.New(t, "enc-1")
	nettest.Wire(t,
		nettest.End{NetNS: here, Name: "w0", Index: 100,
			Addrs: []string{"192.0.2.1/24", "2001:db8::1/96"}},
		nettest.End{NetNS: there, Name: "w0", Addrs: []string{"192.0.2.2/24", "2001:db8::2/96"}})
	return here, there
}

// TestReadable verifies a wire on which nothing is sealed, in both families: every protocol's
// marker is found.
func TestReadable(t *testing.T) {
	here, _ := wire(t)
	for _, dst := range []netip.Addr{there4, there6} {
		r, err := Verify(t.Context(), Options{
			NetNS: here, Interfaces: []string{"w0"}, Probes: []Probe{{NetNS: here, Dst: dst}},
			Peer: []netip.Addr{dst}, Duration: time.Second / 2,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Verdict != Readable || r.Sent.UDP == 0 || r.Sent.TCP == 0 || r.Sent.ICMP == 0 ||
			r.Capture.Markers < r.Sent.Total() || r.Sent.Refused != 0 {
			t.Errorf("%+v", r)
		}
		seen := map[string]bool{}
		for _, f := range r.Capture.Finds {
			seen[f.What+" "+f.Protocol] = true
		}
		for _, protocol := range []string{"udp", "tcp", "icmp"} {
			if !seen["marker "+protocol] {
				t.Errorf("no marker by %s among %+v", protocol, r.Capture.Finds)
			}
		}
	}
}

// TestInconclusive sends where nothing arrives.
func TestInconclusive(t *testing.T) {
	here, there := wire(t)
	err := netns.Do(there, func() error {
		w0, err := netlink.LinkByName("w0")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(w0)
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Verify(t.Context(), Options{
		NetNS: here, Interfaces: []string{"w0"}, Probes: []Probe{{NetNS: here, Dst: there4}},
		Peer: []netip.Addr{there4}, Duration: time.Second / 5,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != Inconclusive || r.Why == "" {
		t.Errorf("%+v", r)
	}
}

func TestNoInterface(t *testing.T) {
	here, _ := wire(t)
	if _, err := Open(here, "w9"); err == nil {
		t.Error("an interface that is not there was opened")
	}
	if _, err := Open(here); err == nil {
		t.Error("nothing was opened, without an error")
	}
}

// xdpOn attaches an XDP program with type information to w0 of the current namespace.
func xdpOn(t *testing.T, code asm.Instructions) uint32 {
	t.Helper()
	number := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	context := &btf.Pointer{Target: &btf.Struct{Name: "xdp_md", Size: 4,
		Members: []btf.Member{{Name: "data", Type: number}}}}
	function := &btf.Func{Name: "weft_test_xdp_of_a_long_name", Linkage: btf.GlobalFunc,
		Type: &btf.FuncProto{Return: number, Params: []btf.FuncParam{{Name: "ctx", Type: context}}}}
	code[0] = btf.WithFuncMetadata(code[0].WithSymbol(function.Name), function)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weft_test_xdp", Type: ebpf.XDP,
		Instructions: code, License: "GPL"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	w0, err := netlink.LinkByName("w0")
	if err != nil {
		t.Fatal(err)
	}
	attached, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: w0.Attrs().Index})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { attached.Close() })
	info, err := program.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return uint32(id)
}

const xdpTX = 3 // XDP_TX: back where it came from

// TestTap watches XDP programs: one that sends all back, and one that redirects all to its own
// interface.
func TestTap(t *testing.T) {
	for name, code := range map[string]asm.Instructions{
		"tx": {asm.Mov.Imm(asm.R0, xdpTX), asm.Return()},
		"redirect": {
			asm.Mov.Reg(asm.R6, asm.R1), asm.LoadMem(asm.R1, asm.R6, 12,
				asm.Word), // ingress_ifindex
			asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := wire(t)
			var id uint32
			var index int
			err := netns.Do(there, func() error {
				id = xdpOn(t, code)
				w0, err := netlink.LinkByName("w0")
				index = w0.Attrs().Index
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			tap, err := TapXDP([]XDPProgram{{ID: id, Uplink: true}},
				map[uint32]string{uint32(index): "w0"})
			if errors.Is(err, ErrNoTap) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer tap.Close()
			seen := watchTap(t, tap, func() {
				_, _ = Verify(t.Context(),
					Options{NetNS: here, Interfaces: []string{"w0"},
						Probes: []Probe{{here, there6}}, Duration: time.Second / 5})
			})
			// The neighbour solicitation is as far as it gets: what matters is that frames are
			// seen, whole.
			if seen[false] == 0 || seen[true] == 0 {
				t.Errorf("frames received: %d, sent: %d", seen[false], seen[true])
			}
		})
	}
}

// watchTap counts the frames of IPv6 by direction while do runs.
func watchTap(t *testing.T, tap *Tap, do func()) map[bool]int {
	t.Helper()
	seen := map[bool]int{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- tap.Run(ctx, func(f Frame) {
			if p, err := inet.Parse(f.Data); err == nil && p.IP() && f.Length == len(f.Data) &&
				bytes.Contains(f.Data, here6.AsSlice()) {
				seen[f.Outgoing]++
			}
		})
	}()
	do()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if tap.Lost() != 0 {
		t.Errorf("lost %d", tap.Lost())
	}
	return seen
}
