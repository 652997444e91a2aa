package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/bpf/bpftest"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/datapath/nexthop"
	"weft.dev/weft/internal/netns"
)

// followed runs followHost in the harness's namespace until the test ends.
func (b *harness) followed(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ns := make(chan *os.File, 1)
	must(t, b.inside(func() error {
		f, err := os.Open("/proc/thread-self/ns/net")
		ns <- f
		return err
	}))
	f := <-ns
	go func() {
		done <- netns.Do(fmt.Sprintf("/proc/self/fd/%d", f.Fd()),
			func() error { return b.followHost(ctx) })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		f.Close()
	})
}

// TestUplinkCannotBeLookedAt: an error of netlink's that does not say that an uplink is missing
// changes nothing, is tried again at once, and is named if it stays.
func TestUplinkCannotBeLookedAt(t *testing.T) {
	b := hookHarness(t, ModeTC)
	var index int
	must(t, b.inside(func() error {
		l, err := veth("wthu", 0)
		if err != nil {
			return err
		}
		index = l.Attrs().Index
		return b.attachUplink(l)
	}))
	t.Cleanup(func() { b.linkByName = nil })
	for _, tt := range []struct {
		name string
		fail int // how often, -1: always
		err  error
		kept bool
		want string // in the only problem, "" for none
	}{
		{"once", 1, unix.ENOBUFS, true, ""},
		{"always", -1, unix.ENOBUFS, true,
			"uplink wthu cannot be looked at: no buffer space available"},
		{"an interrupted dump", -1, netlink.ErrDumpInterrupted, true,
			"uplink wthu cannot be looked at"},
		{"not there", -1, netlink.LinkNotFoundError{}, false, "uplink wthu is missing"},
	} {
		left := tt.fail
		b.linkByName = func(name string) (netlink.Link, error) {
			if left == 0 {
				return netlink.LinkByName(name)
			}
			left--
			return nil, tt.err
		}
		must(t, b.inside(func() error { b.followUplinks(); return nil }))
		if kept := b.maps.Uplinks.Lookup(uint32(index), new(uint8)) == nil; kept != tt.kept {
			t.Errorf("%s: in the map %v, want %v", tt.name, kept, tt.kept)
		}
		problems := strings.Join(b.Problems(), "\n")
		if !strings.Contains(problems, tt.want) || (tt.want == "") != (problems == "") {
			t.Errorf("%s: problems %q", tt.name, problems)
		}
	}
}

// TestUplinkMadeAnew: an uplink that was removed and made again is hooked when it appears; status
// names it meanwhile.
func TestUplinkMadeAnew(t *testing.T) {
	b := hookHarness(t, ModeTC)
	must(t, b.inside(func() error {
		l, err := veth("wthu", 0)
		if err != nil {
			return err
		}
		return b.attachUplink(l)
	}))
	b.followed(t)
	for range 3 {
		must(t, b.inside(func() error { return deleteAll("wthu") }))
		await(t, "the missing uplink among the problems", func() bool {
			return strings.Contains(strings.Join(b.Problems(), "\n"), "uplink wthu is missing")
		})
		if keys, err := bpftest.Keys(b.maps.Uplinks); err != nil || len(keys) != 0 {
			t.Errorf("uplinks in the map while it is missing: %v, %v", keys, err)
		}
		var index int
		must(t, b.inside(func() error {
			l, err := veth("wthu", 0)
			if err == nil {
				index = l.Attrs().Index
			}
			return err
		}))
		await(t, "hooks on the new uplink", func() (ok bool) {
			must(t, b.inside(func() error {
				names, err := attachedTo(index)
				ok = slices.Equal(names, []string{"weft_from_wire", "weft_to_wire"})
				return err
			}))
			return ok
		})
		await(t, "the end of the problem", func() bool { return len(b.Problems()) == 0 })
		if keys, err := bpftest.Keys(b.maps.Uplinks); err != nil || len(keys) != 1 ||
			b.maps.Uplinks.Lookup(uint32(index), new(uint8)) != nil {
			t.Errorf("uplinks in the map: %v, %v; want %d alone", keys, err, index)
		}
	}
	if notes := b.Notes(); len(notes) < 3 || !strings.Contains(notes[0].Text, "wthu") {
		t.Errorf("notes: %+v", notes)
	}
}

// TestEndedSubscriptionLeavesNothing: one that nobody read while more happened than its channels
// hold ends whole.
func TestEndedSubscriptionLeavesNothing(t *testing.T) {
	b := nodeHarness(t)
	before := runtime.NumGoroutine()
	must(t, b.inside(func() error {
		events, err := b.subscribeHost(context.Background())
		if err != nil {
			return err
		}
		for i := range 300 {
			to := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 32)
			route := &netlink.Route{Dst: ipNet(to), Type: unix.RTN_UNREACHABLE}
			if err := errors.Join(netlink.RouteAdd(route), netlink.RouteDel(route)); err != nil {
				return err
			}
		}
		await(t, "a full channel", func() bool { return len(events.routes) == cap(events.routes) })
		events.end()
		return nil
	}))
	await(t, "the end of the subscription's goroutines",
		func() bool { return runtime.NumGoroutine() <= before })
}

// TestHookForcedOff: a link that somebody detached by force is attached again at the next look.
func TestHookForcedOff(t *testing.T) {
	b := hookHarness(t, ModeTC)
	must(t, b.inside(func() error {
		l, err := veth("wthu", 0)
		if err != nil {
			return err
		}
		if err := b.attachUplink(l); err != nil {
			return err
		}
		pinned, err := link.LoadPinnedLink(hook.Path(b.opts.BPFDir, "to_wire", hook.TCEgress,
			"wthu"), nil)
		if err != nil {
			return err
		}
		defer pinned.Close()
		if err := pinned.(interface{ Detach() error }).Detach(); err != nil {
			return err
		}
		if !b.followUplinks() {
			t.Error("not noticed")
		}
		names, err := attachedTo(l.Attrs().Index)
		if !slices.Equal(names, []string{"weft_from_wire", "weft_to_wire"}) {
			t.Errorf("attached: %v", names)
		}
		return err
	}))
}

// TestRoutesRemovedByOthers: what a network manager's restart removes of Weft's comes back, and is
// noted.
func TestRoutesRemovedByOthers(t *testing.T) {
	b := nodeHarness(t)
	must(t,
		b.inside(func() error { return netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}}) }))
	b.host = hostState{changed: make(chan HostChange, 1)}
	uplinks, ranges := b.opts.Uplinks, b.opts.PodCIDRs
	b.opts.Uplinks, b.opts.PodCIDRs = nil, append(ranges, mustPrefix("10.1.0.0/24"),
		mustPrefix("fd00:1::/64"))
	must(t, b.openNextHops())
	t.Cleanup(func() {
		b.opts.Uplinks, b.opts.PodCIDRs = uplinks, ranges
		must(t, b.inside(removeRoutes))
	})
	b.setNodes(t, peerNode("n2", 2, "10.2.0.0/24", "fd00:2::/64"))
	must(t, b.inside(b.setOwnRanges))
	want := b.kernelRoutes(t)
	if len(want) != 4 {
		t.Fatalf("routes %v", want)
	}
	b.followed(t)
	for round := 1; round <= 3; round++ {
		must(t, b.inside(removeRoutes))
		await(t, "the routes", func() bool { return slices.Equal(b.kernelRoutes(t), want) })
		await(t, "the note", func() bool {
			return len(b.Notes()) >= round &&
				strings.Contains(b.Notes()[len(b.Notes())-1].Text, "of Weft's routes were gone")
		})
	}
}

// TestInterruptedDumpIsNoLoss: a list of routes that changed under the reader is read again. One
// that cannot be had tells of no loss.
func TestInterruptedDumpIsNoLoss(t *testing.T) {
	for name, interrupted := range map[string]int{"once": 1, "for ever": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			b := nodeHarness(t)
			b.host = hostState{changed: make(chan HostChange, 1)}
			nodes := []Node{peerNode("n2", 2, "10.2.0.0/24"), peerNode("n3", 3, "10.3.0.0/24")}
			b.setNodes(t, nodes...)
			want, calls := b.kernelRoutes(t), 0
			b.kernel.Routes = func() ([]netlink.Route, error) {
				list, err := nexthop.ListRoutes()
				if calls++; err == nil && calls <= interrupted {
					return list[:1], netlink.ErrDumpInterrupted
				}
				return list, err
			}
			t.Cleanup(func() { b.kernel.Routes = nil })
			must(t, b.inside(func() error { b.restoreRoutes(nil); return nil }))
			if notes := b.Notes(); len(notes) > 0 || calls < 2 {
				t.Errorf("notes after %d calls: %+v", calls, notes)
			}
			calls = 0
			if err := b.inside(func() error { return b.SetNodes(t.Context(), nodes) }); (err != nil) != (interrupted > 1) {
				t.Errorf("synchronisation: %v", err)
			}
			if got := b.kernelRoutes(t); !slices.Equal(got, want) {
				t.Errorf("routes %v, want %v", got, want)
			}
		})
	}
}

// TestOwnRouteChangesAreNoLoss: what the datapath removes itself stays removed, and nothing is
// noted.
func TestOwnRouteChangesAreNoLoss(t *testing.T) {
	b := nodeHarness(t)
	b.host = hostState{changed: make(chan HostChange, 1)}
	b.setNodes(t, peerNode("n2", 2, "10.2.0.0/24"), peerNode("n3", 3, "10.3.0.0/24"))
	b.followed(t)
	b.setNodes(t, peerNode("n3", 3, "10.3.0.0/24"))
	must(t,
		b.inside(func() error { // a route of another's after it: its event comes after the removed one's
			return netlink.RouteDel(&netlink.Route{Dst: ipNet(mustPrefix("10.3.0.0/24")),
				Protocol: RouteProtocol})
		}))
	await(t, "the other node's route",
		func() bool { return slices.Equal(b.kernelRoutes(t), []string{"10.3.0.0/24"}) })
	await(t, "the note", func() bool { return len(b.Notes()) > 0 })
	if text := b.Notes()[0].Text; strings.Contains(text, "10.2.0.0/24") {
		t.Errorf("note: %s", text)
	}
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("%s never came", what)
}

// TestGoneInterfaceLeavesNothing: pins, entry and problem of an interface without an endpoint go
// with it, also where its DEL came first, as of a chained pod.
func TestGoneInterfaceLeavesNothing(t *testing.T) {
	b := hookHarness(t, ModeTC)
	b.opts.Uplinks = nil
	ep := Endpoint{Slot: 3, HostIf: "wtp0", IPv4: addr("10.1.0.33"), Chained: true}
	for name, leave := range map[string]func() error{
		"stray":                func() error { return b.Prune(nil) },
		"DEL of a chained one": func() error { return b.DetachEndpoint(ep) },
		"gone before DEL":      func() error { return nil },
	} {
		var index uint32
		must(t, b.inside(func() error {
			l, err := veth("wtp0", 0)
			if err != nil {
				return err
			}
			index = uint32(l.Attrs().Index)
			return errors.Join(b.putEndpoint(ep, []int{l.Attrs().Index}),
				b.links().Ensure("wtp0", l.Attrs().Index, b.hooksFor(ep)), leave())
		}))
		must(t, b.inside(func() error { b.dropGone(); return nil }))
		if links, err := hook.List(b.opts.BPFDir); err != nil || len(links) == 0 {
			t.Errorf("%s: the pins of one that is there went: %v, %v", name, links, err)
		}
		t.Run(name, func(t *testing.T) {
			b.followed(t)
			must(t, b.inside(func() error { return deleteAll("wtp0") }))
			await(t, "the end of pins, entry and problem", func() bool {
				links, err := hook.List(b.opts.BPFDir)
				return err == nil && len(links) == 0 && len(b.Problems()) == 0 &&
					b.maps.EpIf.Lookup(index, new(bpf.Endpoint)) != nil
			})
		})
		must(t, b.forgetEndpoint(ep))
	}
}
