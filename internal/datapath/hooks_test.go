package datapath

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
)

// hookHarness is the harness with a pin directory and an uplink of its own, "wthu".
func hookHarness(t *testing.T, mode Mode) *harness {
	t.Helper()
	b := newHarness(t)
	dir, err := privateBPFFS()
	must(t, err)
	before := b.opts
	b.opts.BPFDir, b.opts.Uplinks, b.opts.StateDir = dir, []string{"wthu"}, t.TempDir()
	b.mode = ModeStatus{Active: mode}
	b.undo, err = netdev.OpenUndo(b.opts.StateDir)
	must(t, err)
	b.expedite = expedite{}
	b.host = hostState{changed: make(chan HostChange, 1)}
	t.Cleanup(func() {
		links, _ := hook.List(dir)
		for _, l := range links {
			_ = hook.Detach(l.Path)
		}
		b.opts, b.fault, b.undo = before, nil, nil
		os.RemoveAll(dir)
		_ = b.inside(func() error { return deleteAll("wthu", "wtp0", "wefxp0") })
	})
	return b
}

func deleteAll(names ...string) error {
	for _, name := range names {
		if l, err := netlink.LinkByName(name); err == nil {
			if err := netlink.LinkDel(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// veth makes a pair that is up. An MTU that is not 0 is both ends'.
func veth(name string, mtu int) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "-peer",
		PeerMTU: uint32(mtu)}); err != nil {
		return nil, err
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	peer, err := netlink.LinkByName(name + "-peer")
	if err != nil {
		return nil, err
	}
	return l, errors.Join(netlink.LinkSetUp(l), netlink.LinkSetUp(peer))
}

// attachedTo lists the names of the programs that run on an interface, whoever attached them.
func attachedTo(index int) (names []string, err error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, err
	}
	var ids []uint32
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
		ids = append(ids, xdp.ProgId)
	}
	for _, at := range []link.QueryOptions{{Target: index, Attach: ebpf.AttachTCXIngress},
		{Target: index, Attach: ebpf.AttachTCXEgress}} {
		found, err := link.QueryPrograms(at)
		if err != nil {
			return nil, err
		}
		for _, p := range found.Programs {
			ids = append(ids, uint32(p.ID))
		}
	}
	for _, id := range ids {
		name, err := programName(id)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

func isUp(l netlink.Link) bool { return l.Attrs().Flags&net.FlagUp != 0 }

// TestFailedUpdateKeepsTheProgram: a program that the kernel refuses leaves the one before
// attached.
func TestFailedUpdateKeepsTheProgram(t *testing.T) {
	b := hookHarness(t, ModeTC)
	must(t, b.inside(func() error {
		l, err := veth("wthu", 0)
		if err != nil {
			return err
		}
		index := l.Attrs().Index
		if err := b.attachUplink(l); err != nil {
			return err
		}
		before, err := attachedTo(index)
		if err != nil {
			return err
		}
		wrong := hook.Attachment{Name: "from_wire", Kind: hook.TCIngress,
			Program: b.progs.Get("from_wire", hook.XDP)} // of another type: the kernel refuses it
		if err := b.links().EnsureOne(wrong, "wthu", index); err == nil ||
			!strings.Contains(err.Error(), "the program that was there stays") {
			t.Errorf("error %v", err)
		}
		after, err := attachedTo(index)
		if err == nil && !slices.Equal(before, after) || len(after) == 0 {
			t.Errorf("attached before %v, after %v", before, after)
		}
		return err
	}))
}

// TestLoweredUplinkMTU: programs loaded for small frames replace those on a pod's interface of 9000
// bytes.
func TestLoweredUplinkMTU(t *testing.T) {
	b := hookHarness(t, ModeXDP)
	small, err := hook.Load(b.maps, b.constants(), false)
	must(t, err)
	defer small.Close()
	large := b.progs
	defer func() { b.progs = large }()
	for _, earlier := range []struct {
		name  string
		progs *hook.Programs
	}{{"attached with frags before", large}, {"attached for the first time", nil}} {
		t.Run(earlier.name, func(t *testing.T) {
			must(t, b.inside(func() error {
				defer deleteAll("wtp0")
				l, err := veth("wtp0", 9000)
				if err != nil {
					return err
				}
				ep := Endpoint{Slot: 3, HostIf: "wtp0"}
				if b.progs = earlier.progs; b.progs != nil {
					if err := b.links().Ensure(ep.HostIf, l.Attrs().Index,
						b.hooksFor(ep)); err != nil {
						return err
					}
				}
				b.progs = small
				err = b.links().Ensure(ep.HostIf, l.Attrs().Index, b.hooksFor(ep))
				if names, _ := attachedTo(l.Attrs().Index); !slices.Equal(names,
					[]string{"weft_from_pod", "weft_tag_in", "weft_to_pod"}) {
					t.Errorf("attached: %v", names)
				}
				return err
			}))
		})
	}
}

// TestKilledWhileHooking: whatever changes hooks dies after each step, and at no step is an
// interface up without.
func TestKilledWhileHooking(t *testing.T) {
	b := hookHarness(t, ModeTC)
	kinds := map[string]func(*harness){
		"tc":          func(b *harness) { b.mode.Active, b.opts.GenericXDP = ModeTC, false },
		"xdp":         func(b *harness) { b.mode.Active, b.opts.GenericXDP = ModeXDP, false },
		"generic xdp": func(b *harness) { b.mode.Active, b.opts.GenericXDP = ModeXDP, true },
	}
	for from, before := range kinds {
		for to, after := range kinds {
			t.Run(from+" to "+to, func(t *testing.T) {
				must(t, b.inside(func() error {
					defer deleteAll("wtp0")
					l, err := veth("wtp0", 0)
					if err != nil {
						return err
					}
					ep := Endpoint{Slot: 3, HostIf: "wtp0"}
					for dieAt := 1; ; dieAt++ {
						b.fault = nil
						before(b)
						if err := b.links().Ensure("wtp0", l.Attrs().Index,
							b.hooksFor(ep)); err != nil {
							return err
						}
						after(b)
						steps := 0
						b.fault = func(step string) error {
							if names, err := attachedTo(l.Attrs().Index); err != nil ||
								!slices.Contains(names, "weft_from_pod") {
								t.Errorf("after step %s: %v, %v", step, names, err)
							}
							if steps++; steps == dieAt {
								return errors.New("killed after " + step)
							}
							return nil
						}
						err := b.links().Ensure("wtp0", l.Attrs().Index, b.hooksFor(ep))
						if err == nil {
							break
						}
						if dieAt > steps {
							return fmt.Errorf("failed without being killed: %w", err)
						}
					}
					names, err := attachedTo(l.Attrs().Index)
					names = slices.DeleteFunc(names,
						func(n string) bool { return n == "weft_tag_in" })
					if !slices.Equal(names, []string{"weft_from_pod", "weft_to_pod"}) {
						t.Errorf("in the end: %v", names)
					}
					return err
				}))
			})
		}
	}
}

// TestDetachDownFirst: an interface that is still there is down before its hooks go; another
// plugin's keeps them.
func TestDetachDownFirst(t *testing.T) {
	for _, chained := range []bool{false, true} {
		t.Run(fmt.Sprintf("chained %v", chained), func(t *testing.T) {
			b := hookHarness(t, ModeTC)
			must(t, b.inside(func() error {
				l, err := veth("wtp0", 0)
				if err != nil {
					return err
				}
				ep := Endpoint{Slot: 3, HostIf: "wtp0", PodIf: "wtp0-peer", MAC: mac(3),
					GatewayMAC: gatewayMAC, IPv4: addr("10.1.0.33"), MTU: 1500, Chained: chained}
				if err := b.AttachEndpoint(ep); err != nil {
					return err
				}
				b.fault = func(step string) error {
					if step == "unreachable" {
						return nil // not about the interface
					}
					return errors.New("killed")
				}
				killed := b.DetachEndpoint(ep)
				b.fault = nil
				for _, err := range []error{killed, b.DetachEndpoint(ep)} {
					now, findErr := netlink.LinkByIndex(l.Attrs().Index)
					if findErr != nil {
						return findErr
					}
					names, findErr := attachedTo(l.Attrs().Index)
					if findErr != nil {
						return findErr
					}
					if isUp(now) && !slices.Contains(names, "weft_from_pod") {
						t.Errorf("up with %v (%v)", names, err)
					}
					if chained && (!isUp(now) || err != nil) {
						t.Errorf("another plugin's interface was changed: up %v, %v", isUp(now),
							err)
					}
				}
				if b.maps.EpIf.Lookup(uint32(l.Attrs().Index), new(bpf.Endpoint)) == nil {
					t.Error("the interface still belongs to an endpoint in the map")
				}
				return nil
			}))
		})
	}
}

// TestPruneKeepsHooksOfStrays: an interface that no endpoint owns any more stays hooked, and is
// named.
func TestPruneKeepsHooksOfStrays(t *testing.T) {
	b := hookHarness(t, ModeTC)
	must(t, b.inside(func() error {
		for _, name := range []string{"wtp0", "wefxp0"} {
			l, err := veth(name, 0)
			if err != nil {
				return err
			}
			if err := b.links().Ensure(name, l.Attrs().Index, b.hooksFor(Endpoint{})); err != nil {
				return err
			}
			if err := b.putEndpoint(Endpoint{Slot: 3, HostIf: name, IPv4: addr("10.1.0.33")},
				[]int{l.Attrs().Index}); err != nil {
				return err
			}
		}
		if err := b.Prune(nil); err != nil {
			return err
		}
		for _, name := range []string{"wtp0", "wefxp0"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if names, err := attachedTo(l.Attrs().Index); !slices.Contains(names, "weft_from_pod") {
				t.Errorf("%s: %v, %v", name, names, err)
			}
			var entry bpf.Endpoint
			if b.maps.EpIf.Lookup(uint32(l.Attrs().Index), &entry) == nil {
				t.Errorf("%s is still in the map", name)
			}
			if problems := strings.Join(b.Problems(), "\n"); !strings.Contains(problems,
				"interface "+name+" has no endpoint record") {
				t.Errorf("problems: %s", problems)
			}
		}
		if err := deleteAll("wtp0", "wefxp0"); err != nil {
			return err
		}
		if err := b.Prune(nil); err != nil || len(b.Problems()) != 0 {
			t.Errorf("after the interfaces went: %v, %q", err, b.Problems())
		}
		links, err := hook.List(b.opts.BPFDir)
		if len(links) != 0 {
			t.Errorf("left pinned: %+v", links)
		}
		return err
	}))
}

// TestRenamedInterfaceKeepsItsHooks: a new interface of an old one's name does not cost that one
// its hooks.
func TestRenamedInterfaceKeepsItsHooks(t *testing.T) {
	b := hookHarness(t, ModeTC)
	var want []string
	for _, h := range hook.Table {
		if h.TC != "" && slices.Contains(h.At, hook.Uplink) {
			want = append(want, "weft_"+h.Name)
		}
	}
	slices.Sort(want)
	must(t, b.inside(func() error {
		old, err := veth("wthu", 0)
		if err != nil {
			return err
		}
		if err := b.attachUplink(old); err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetDown(old), netlink.LinkSetName(old, "wtp0"),
			netlink.LinkSetUp(old)); err != nil {
			return err
		}
		peer, err := netlink.LinkByName("wthu-peer")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetName(peer, "wtp0-peer"); err != nil {
			return err
		}
		fresh, err := veth("wthu", 0)
		if err != nil {
			return err
		}
		if err := b.attachUplink(fresh); err != nil {
			return err
		}
		for _, l := range []netlink.Link{old, fresh} {
			if names, err := attachedTo(l.Attrs().Index); !slices.Equal(names, want) {
				t.Errorf("index %d: %v, %v, want %v", l.Attrs().Index, names, err, want)
			}
		}
		return nil
	}))
}

func programName(id uint32) (string, error) {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return "", err
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return "", err
	}
	return info.Name, nil
}
