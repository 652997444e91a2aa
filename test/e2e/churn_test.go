package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netns"
)

// victimSpec is a pod that comes and goes.
var victimSpec = lab.PodSpec{
	Name: "victim", Node: "b", Namespace: "shop",
	Addresses: []netip.Addr{netip.MustParseAddr("10.77.2.50"), netip.MustParseAddr("fd77:2::50")},
}

// addVictim adds the pod, and takes it away when the test has not.
func addVictim(t *testing.T, l *lab.Lab) *lab.Pod {
	t.Helper()
	p, err := l.AddPod(t.Context(), victimSpec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l.Pod("victim") != nil {
			delVictim(t, l)
		}
	})
	return p
}

func delVictim(t *testing.T, l *lab.Lab) {
	t.Helper()
	if err := l.DelPod(t.Context(), "victim"); err != nil {
		t.Error(err)
	}
}

// blast sends UDP to addresses whether somebody is there or not, until the test ends.
func blast(t *testing.T, from *lab.Pod, to ...netip.AddrPort) {
	t.Helper()
	for _, dst := range to {
		c, err := startCall(from.NetNS, dst)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.close)
	}
}

// TestEndpointDeletedUnderLoad deletes pods to which others send: what was for them is refused with
// a reason of its own, the senders' other conversations lose nothing, and the agent goes on.
func TestEndpointDeletedUnderLoad(t *testing.T) {
	l := useShared(t)
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			b := l.Node("b")
			pid := b.PID()
			before := kernelLosses(t, l)
			load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
			for range 2 {
				victim := addVictim(t, l)
				blast(t, l.Pod("client"), netip.AddrPortFrom(victim.IPv4, 7),
					netip.AddrPortFrom(victim.IPv6, 7))
				blast(t, l.Pod("server"), netip.AddrPortFrom(victim.IPv4, 7),
					netip.AddrPortFrom(victim.IPv6, 7))
				load.flowing(t, "with the victim there")
				refused := dropped(t, b, "", "no_endpoint")
				delVictim(t, l)
				eventually(t, "drops named no_endpoint at node b", func() error {
					if n := dropped(t, b, "", "no_endpoint"); n < refused+100 {
						return fmt.Errorf("%d before, %d now; drops: %s", refused, n,
							dropText(t, b))
					}
					return nil
				})
				load.flowing(t, "with the victim gone")
			}
			load.nothingLost(t)
			if now := b.PID(); now != pid {
				t.Errorf("the agent of node b is pid %d, was %d", now, pid)
			}
			if t.Failed() {
				tellLosses(t, l, before)
			}
		})
	}
}

// TestAddressReused gives a deleted pod's addresses to another at once, under load: the new one is
// reached, and the old one's MAC is never used again.
func TestAddressReused(t *testing.T) {
	l := useShared(t)
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			old := addVictim(t, l)
			blast(t, l.Pod("client"), netip.AddrPortFrom(old.IPv4, 7),
				netip.AddrPortFrom(old.IPv6, 7))
			blast(t, l.Pod("server"), netip.AddrPortFrom(old.IPv4, 7),
				netip.AddrPortFrom(old.IPv6, 7))
			for range 3 {
				delVictim(t, l)
				fresh := addVictim(t, l)
				if fresh.MAC == old.MAC {
					t.Fatalf("the new pod has the old one's MAC %s", old.MAC)
				}
				sniff := openEnd(t, fresh.NetNS, "eth0", false)
				echo, err := traffic.StartEcho(fresh.NetNS, echoPort)
				if err != nil {
					t.Fatal(err)
				}
				for _, from := range []string{"client", "server"} {
					if err := reach(t.Context(), l.Pod(from), fresh); err != nil {
						t.Error(err)
					}
				}
				echo.Close()
				frames := sniff.received()
				for _, frame := range frames {
					if frame[0]&1 == 0 && !bytes.Equal(frame[:6], mac(fresh.MAC)) {
						t.Fatalf("a frame for %x reached the new pod, whose MAC is %s (the old one's was %s)", frame[:6], fresh.MAC, old.MAC)
					}
				}
				if len(frames) == 0 {
					t.Error("the new pod got nothing")
				}
				old = fresh
			}
			delVictim(t, l)
		})
	}
}

// TestUplinkDownUp pulls a node's cable and puts it back: what was is again, by itself.
func TestUplinkDownUp(t *testing.T) {
	l := useShared(t)
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			b := l.Node("b")
			t.Cleanup(func() { must(t, b.NetNS, "ip", "link", "set", "w0", "up") })
			load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
			must(t, b.NetNS, "ip", "link", "set", "w0", "down")
			// Pods on one node do not need the cable.
			if err := reach(t.Context(), l.Pod("client"), l.Pod("db")); err != nil {
				t.Errorf("with the cable out: %v", err)
			}
			if r, err := traffic.Ping(t.Context(), l.Pod("client").NetNS,
				traffic.PingOptions{Dst: l.Pod("server").IPv4, Timeout: time.Second}); err != nil ||
				r.Received != 0 {
				t.Errorf("a ping over a cable that is out: %+v %v", r, err)
			}
			must(t, b.NetNS, "ip", "link", "set", "w0", "up")
			load.flowing(t, "with the cable back")
			load.tcpWhole(t)
			for _, pair := range [][2]string{{"client", "server"}, {"server", "db"}} {
				eventually(t, "recovery",
					func() error { return reach(t.Context(), l.Pod(pair[0]), l.Pod(pair[1])) })
			}
			direct(t, l)
		})
	}
}

// direct holds the datapath to have its peers resolved again, not to lean on the stack for ever.
func direct(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, mode := range []string{"stack"} {
		if string(status(t, l.Node("a")).Mode.Active) == mode {
			return
		}
	}
	for _, pair := range [][2]string{{"client", "server"}, {"server", "client"}} {
		from, to := l.Pod(pair[0]), l.Pod(pair[1])
		for _, family := range []int{4, 6} {
			eventually(t,
				fmt.Sprintf("%s to %s IPv%d goes past the stack", from.Name, to.Name, family),
				func() error {
					r, err := admin.NewClient(l.Node(from.Node).Socket).Trace(t.Context(),
						admin.TraceRequest{
							From:     from.Key(),
							To:       netip.AddrPortFrom(to.Addr(family), 4321).String(),
							Protocol: "udp",
						})
					if err != nil {
						return err
					}
					if r.Verdict != "remote" {
						return fmt.Errorf("verdict %s %s: %+v", r.Verdict, r.Reason, r.Steps)
					}
					return nil
				})
		}
	}
}

// TestPeerMACChanges gives a node's uplink another MAC address, which its kernel announces, as one
// that fails over does: its peers find out, and send to that. (Unannounced, they find out when the
// kernel next probes the neighbour, up to a minute later.)
func TestPeerMACChanges(t *testing.T) {
	l := useShared(t)
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			b := l.Node("b")
			first := linkMAC(t, b, "w0")
			must(t, b.NetNS, "sysctl", "-qw", "net.ipv4.conf.w0.arp_notify=1",
				"net.ipv6.conf.w0.ndisc_notify=1")
			t.Cleanup(func() { must(t, b.NetNS, "ip", "link", "set", "w0", "address", first) })
			load := startLoad(t, path{l.Pod("client"), l.Pod("server")},
				path{l.Pod("server"), l.Pod("db")})
			next := fmt.Sprintf("02:00:00:00:0b:%02x", 1+slices.Index(modes, mode))
			must(t, b.NetNS, "ip", "link", "set", "w0", "address", next)
			// On the cable: native XDP takes frames before packet sockets of the node see them.
			sniff := openEnd(t, netns.Path("weft-"+l.Name()+"-wire-w0"), "p1", false)
			sniff.leaving = true
			eventually(t, "frames for the new MAC address", func() error {
				right, wrong := 0, 0
				for _, frame := range sniff.received() {
					switch {
					case frame[0]&1 != 0:
					case bytes.Equal(frame[:6], mac(next)):
						right++
					default:
						wrong++
					}
				}
				if right < 3 || wrong > 0 {
					return fmt.Errorf("%d frames for %s, %d for another address; the peer's neighbours: %s", right, next, wrong,
						must(t, l.Node("a").NetNS, "ip", "neigh", "show", "dev", "w0"))
				}
				return nil
			})
			load.flowing(t, "after the change of address")
			load.tcpWhole(t)
			eventually(t, "recovery",
				func() error { return reach(t.Context(), l.Pod("client"), l.Pod("server")) })
			direct(t, l)
		})
	}
}

func linkMAC(t *testing.T, n *lab.Node, name string) (address string) {
	t.Helper()
	err := n.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			address = link.Attrs().HardwareAddr.String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return address
}
