package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

// unmanaged is a container that Weft does not attach, behind an interface of node a that has no
// hooks.
type unmanaged struct {
	ns       string
	addr     map[int]netip.Addr
	own, far net.HardwareAddr
	end      *wireEnd
}

const unmanagedIf = "dk0"

func newUnmanaged(t *testing.T, a *lab.Node) *unmanaged {
	t.Helper()
	s := &unmanaged{addr: map[int]netip.Addr{4: netip.MustParseAddr("172.30.0.2"),
		6: netip.MustParseAddr("fd30::2")}}
	s.ns = nettest.New(t, "e2e-unmanaged")
	must(t, a.NetNS, "ip", "link", "add", unmanagedIf, "type", "veth", "peer", "name", "eth0",
		"netns", filepath.Base(s.ns))
	t.Cleanup(func() { runIn(t, a.NetNS, command("ip", "link", "del", unmanagedIf)) })
	// No duplicate address detection, and no check of the way back: the kernel is to let through
	// what it can.
	for _, argv := range [][]string{
		{"sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0",
			"net.ipv4.conf." + unmanagedIf + ".rp_filter=0",
			"net.ipv6.conf." + unmanagedIf + ".forwarding=1"},
		{"ip", "addr", "add", "172.30.0.1/24", "dev", unmanagedIf},
		{"ip", "addr", "add", "fd30::1/64", "dev", unmanagedIf, "nodad"},
		{"ip", "link", "set", unmanagedIf, "up"},
	} {
		must(t, a.NetNS, argv...)
	}
	must(t, s.ns, "ip", "addr", "add", "172.30.0.2/24", "dev", "eth0")
	must(t, s.ns, "ip", "addr", "add", "fd30::2/64", "dev", "eth0", "nodad")
	must(t, s.ns, "ip", "link", "set", "eth0", "up")
	s.own, s.far = mac(macIn(t, s.ns, "eth0")), mac(macIn(t, a.NetNS, unmanagedIf))
	s.end = openEnd(t, s.ns, "eth0", false)
	return s
}

func macIn(t *testing.T, ns, name string) (text string) {
	t.Helper()
	err := netns.Do(ns, func() error {
		iface, err := net.InterfaceByName(name)
		if err == nil {
			text = iface.HardwareAddr.String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// put sends a datagram to the node, from and to whomever.
func (s *unmanaged) put(t *testing.T, src, dst netip.Addr) {
	t.Helper()
	frame := datagram(s.own, netip.AddrPortFrom(src, 1), netip.AddrPortFrom(dst, hostilePort),
		false)
	copy(frame, s.far)
	s.end.send(t, frame)
}

const tcIndexAt = 11 * 4 // in struct __sk_buff

// forgeTag has every frame that leaves an interface carry a value in skb->tc_index, which the
// kernel does not clear between network namespaces. The function that it returns ends that.
func forgeTag(t *testing.T, ns, ifName string, value int32) (stop func()) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "forge_tag", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.R1, tcIndexAt, int64(value), asm.Word), asm.Mov.Imm(asm.R0, -1),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var attached link.Link
	err = netns.Do(ns, func() error {
		iface, err := net.InterfaceByName(ifName)
		if err != nil {
			return err
		}
		attached, err = link.AttachTCX(link.TCXOptions{Program: program, Interface: iface.Index,
			Attach: ebpf.AttachTCXEgress})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() { attached.Close(); program.Close() }
}

// forgedTags are what the hooks write (enum weft_tag), and what an older version trusted.
var forgedTags = []int32{1<<14 | 1, 2<<14 | 2, 3 << 14, 0x5745}

// unmanagedHosts is what the host's stack must not launder: cleartext in a cluster address's name
// by an interface without hooks, packets in a local pod's name that it did not send, and packets
// for another node that the kernel would rather send by an interface without hooks (S4, S10).
func unmanagedHosts(t *testing.T, l *lab.Lab) {
	a, b := l.Node("a"), l.Node("b")
	s := newUnmanaged(t, a)
	// In mode stack, node b asks for a way back to the unmanagedHosts (rp_filter).
	for _, net := range []string{"172.30.0.0/24", "172.31.0.0/24"} {
		must(t, b.NetNS, "ip", "route", "add", net, "via", a.Addresses[0].String())
		t.Cleanup(func() { runIn(t, b.NetNS, command("ip", "route", "del", net)) })
	}
	watch := watchWire(t, l, podRules(l), nil)
	t.Run("forged sources", func(t *testing.T) { s.forges(t, l) })
	for _, value := range forgedTags {
		stop := forgeTag(t, s.ns, "eth0", value)
		t.Run(fmt.Sprintf("forged tag %#x", value), func(t *testing.T) { s.forges(t, l) })
		stop()
	}
	t.Run("its own address", func(t *testing.T) { s.honest(t, l) })
	t.Run("on top of the uplink", func(t *testing.T) { onUplink(t, l) })
	t.Run("a pod forges tags", func(t *testing.T) { podForges(t, l) })
	t.Run("a pod forges metadata", func(t *testing.T) { podForgesMetadata(t, l) })
	t.Run("another way out", func(t *testing.T) { s.otherWayOut(t, l) })
	for _, pair := range []path{{l.Pod("client"), l.Pod("server")},
		{l.Pod("server"), l.Pod("client")}} {
		if err := reach(t.Context(), pair.from, pair.to); err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.Logf("drops at a: %s; at b: %s", dropText(t, a), dropText(t, b))
	}
	watch.allSealed(t, l)
	t.Run("decided, on top of the uplink", func(t *testing.T) { decidedOnUplink(t, l) })
}

// forges sends in others' names. Nothing arrives, and each is refused under its name.
func (s *unmanaged) forges(t *testing.T, l *lab.Lab) {
	a := l.Node("a")
	client, server, db := l.Pod("client"), l.Pod("server"), l.Pod("db")
	here, there := listen(t, client, hostilePort), listen(t, server, hostilePort)
	unassigned := map[int]netip.Addr{4: netip.MustParseAddr("10.77.1.77"),
		6: netip.MustParseAddr("fd77:1::77")}
	for _, family := range []int{4, 6} {
		for _, c := range []struct {
			name     string
			src, dst netip.Addr
			reason   string
		}{
			{"a remote pod to a pod", server.Addr(family), client.Addr(family), "plaintext"},
			{"a remote node to a pod", l.Node("b").Addresses[family/6], client.Addr(family),
				"plaintext"},
			{"a local pod to another", db.Addr(family), client.Addr(family), "foreign_source"},
			{"a local pod to a remote one", client.Addr(family), server.Addr(family),
				"foreign_source"},
			{"an unassigned address to a remote pod", unassigned[family], server.Addr(family),
				"foreign_source"},
			{"the node's own address to a pod", l.Node("a").Addresses[family/6],
				client.Addr(family), "foreign_source"},
			{"the node's own address to a remote pod", l.Node("a").Addresses[family/6],
				server.Addr(family), "foreign_source"},
			{"a remote pod to this node", server.Addr(family), l.Node("a").Addresses[family/6],
				"plaintext"},
			{"a remote pod to another", server.Addr(family), l.Pod("web").Addr(family),
				"plaintext"},
		} {
			before := dropped(t, a, "", c.reason)
			s.put(t, c.src, c.dst)
			eventually(t, fmt.Sprintf("IPv%d, %s, is refused as %s", family, c.name, c.reason),
				func() error {
					if dropped(t, a, "", c.reason) == before {
						return fmt.Errorf("drops at a: %s", dropText(t, a))
					}
					return nil
				})
		}
	}
	soon()
	if n := here.total.Load() + there.total.Load(); n != 0 {
		t.Errorf("%d forged packets arrived", n)
	}
}

// honest sends in the unmanaged container's own name: that arrives, sealed as the world's.
func (s *unmanaged) honest(t *testing.T, l *lab.Lab) {
	here, there := listen(t, l.Pod("client"), hostilePort), listen(t, l.Pod("server"), hostilePort)
	for _, family := range []int{4, 6} {
		identities := make(chan uint32, 256)
		watch := watchWire(t, l, podRules(l), func(f encryptcheck.Frame) {
			if p, err := inet.Parse(f.Data); err == nil {
				if esp, ok := encryptcheck.ParseESP(p, 4500); ok &&
					p.Dst == l.Node("b").Addresses[0] {
					select {
					case identities <- esp.Identity():
					default:
					}
				}
			}
		})
		for pod, at := range map[string]*listener{"client": here, "server": there} {
			s.put(t, s.addr[family], l.Pod(pod).Addr(family))
			if from := at.next(t,
				"the unmanaged container's datagram at "+pod); from.Addr() != s.addr[family] {
				t.Errorf("it came from %s", from)
			}
		}
		eventually(t, "a packet under the world's identity on the wire", func() error {
			for {
				select {
				case id := <-identities:
					if id == 3 {
						return nil
					}
				default:
					return fmt.Errorf("none")
				}
			}
		})
		watch.stop(t)
	}
}

// podForges has a pod write tags into what it sends, past its own stack, to everybody: it reaches
// whom it may, and nothing is readable. What goes through the host's stack (a node port) is the way
// to be laundered.
func podForges(t *testing.T, l *lab.Lab) {
	client, db, server := l.Pod("client"), l.Pod("db"), l.Pod("server")
	serve(t, l)
	for _, value := range forgedTags[2:] {
		stop := forgeTag(t, client.NetNS, "eth0", value)
		if err := reach(t.Context(), client, server); err != nil {
			t.Errorf("tag %#x: %v", value, err)
		}
		if err := reach(t.Context(), client, db); err != nil {
			t.Errorf("tag %#x: %v", value, err)
		}
		for _, to := range []string{services[0].v4, services[0].v6} {
			if err := ask(t.Context(), l, "client", to); err != nil {
				t.Errorf("tag %#x: %v", value, err)
			}
		}
		stop()
	}
}

// otherWayOut has the kernel of node a prefer the unmanaged container's interface for node b's
// pods, by a policy rule. What the node itself sends there ends at netfilter's last hook, whatever
// the agent knows of the rule.
func (s *unmanaged) otherWayOut(t *testing.T, l *lab.Lab) {
	a, server := l.Node("a"), l.Pod("server")
	s.end.received()
	for family, rule := range map[int][]string{4: {"-4", "10.77.2.0/24"},
		6: {"-6", "fd77:2::/64"}} {
		must(t, a.NetNS, "ip", rule[0], "route", "add", "default", "via", s.addr[family].String(),
			"dev", unmanagedIf, "table", "199")
		must(t, a.NetNS, "ip", rule[0], "rule", "add", "to", rule[1], "lookup", "199")
		t.Cleanup(func() {
			runIn(t, a.NetNS, command("ip", rule[0], "rule", "del", "to", rule[1], "lookup", "199"))
			runIn(t, a.NetNS, command("ip", rule[0], "route", "flush", "table", "199"))
		})
		before := dropped(t, a, "", "unhooked_interface")
		eventually(t, fmt.Sprintf("IPv%d packets are refused as unhooked_interface", family),
			func() error {
				for _, from := range []string{a.NetNS,
					l.Pod("client").NetNS} { // in mode stack, the kernel routes pods' packets, too
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, _ = traffic.EchoUDP(ctx, from, netip.Addr{},
						addrPort(server.Addr(family), echoPort), 100)
					cancel()
				}
				if dropped(t, a, "", "unhooked_interface") == before {
					return errors.New(dropText(t, a))
				}
				return nil
			})
		must(t, a.NetNS, "ip", rule[0], "rule", "del", "to", rule[1], "lookup", "199")
	}
	for _, frame := range s.end.received() {
		if bytes.Contains(frame, server.IPv4.AsSlice()) ||
			bytes.Contains(frame, server.IPv6.AsSlice()) {
			t.Errorf("a packet for a remote pod left by an interface without hooks: %x", frame)
		}
	}
}
