package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/lab"
)

// forgery is a frame that a pod must not get away with.
type forgery struct {
	name, reason string
	frame        []byte
}

// forgeries by client of the victim on the same node, sent towards server.
func forgeries(own, victim, server *lab.Pod, port uint16) []forgery {
	me, them := mac(own.MAC), mac(victim.MAC)
	to := func(family int) netip.AddrPort { return netip.AddrPortFrom(server.Addr(family), port) }
	from := func(p *lab.Pod, family int) netip.AddrPort { return netip.AddrPortFrom(p.Addr(family), 999) }
	linkLocal := netip.MustParseAddr("fe80::1234")
	return []forgery{
		{"IPv4 source of another pod", "spoofed_ip", datagram(me, from(victim, 4), to(4), false)},
		{"IPv6 source of another pod", "spoofed_ip", datagram(me, from(victim, 6), to(6), false)},
		{"IPv4 source of the node", "spoofed_ip",
			datagram(me, netip.MustParseAddrPort("192.0.2.1:999"), to(4), false)},
		{"IPv4 source of the gateway", "spoofed_ip",
			datagram(me, netip.MustParseAddrPort("169.254.1.1:999"), to(4), false)},
		{"link-local IPv6 source to a pod", "link_local",
			datagram(me, netip.AddrPortFrom(linkLocal, 999), to(6), false)},
		{"IPv4 with a strange source MAC", "spoofed_mac",
			datagram(strange, from(own, 4), to(4), false)},
		{"IPv6 with a strange source MAC", "spoofed_mac",
			datagram(strange, from(own, 6), to(6), false)},
		{"MAC and IPv4 source of another pod", "spoofed_mac",
			datagram(them, from(victim, 4), to(4), false)},
		{"VLAN-tagged IPv4", "vlan_tagged", datagram(me, from(own, 4), to(4), true)},
		{"VLAN-tagged IPv6", "vlan_tagged", datagram(me, from(own, 6), to(6), true)},
		{"gratuitous ARP for another pod's address", "spoofed_arp",
			arp(1, me, me, victim.IPv4, broadcast, broadcast, victim.IPv4)},
		{"ARP reply for another pod's address", "spoofed_arp",
			arp(2, me, me, victim.IPv4, gatewayMAC, gatewayMAC,
				netip.MustParseAddr("169.254.1.1"))},
		{"ARP reply for the gateway's address", "spoofed_arp",
			arp(2, me, me, netip.MustParseAddr("169.254.1.1"), broadcast, gatewayMAC, own.IPv4)},
		{"ARP with another pod's hardware address", "spoofed_arp",
			arp(1, me, them, own.IPv4, broadcast, broadcast, own.IPv4)},
		{"NA for another pod's address", "spoofed_nd",
			advertisement(me, own.IPv6, victim.IPv6, me)},
		{"NA for the gateway's address", "spoofed_nd",
			advertisement(me, own.IPv6, netip.MustParseAddr("fe80::1"), me)},
		{"NA with another pod's hardware address", "spoofed_nd",
			advertisement(me, own.IPv6, own.IPv6, them)},
	}
}

// TestSpoof sends forged frames from a pod by every podExit that leaves it, in every mode. Each is
// dropped for its reason and arrives nowhere; an honest frame built the same way arrives.
func TestSpoof(t *testing.T) {
	l := useShared(t)
	a, own, victim := l.Node("a"), l.Pod("client"), l.Pod("db")
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, a)
			for i, podExit := range podExits(t, own) {
				t.Run(podExit.name, func(t *testing.T) {
					forge(t, l, podExit.open(t), uint16(9000+i))
					if podExit.checksums(mode) {
						forgeChecksum(t, l, podExit.open(t), uint16(9100+i))
					}
				})
			}
			for _, claim := range []struct {
				family string
				of     *lab.Pod
			}{{"-4", victim}, {"-6", victim}} {
				addr := claim.of.IPv4
				if claim.family == "-6" {
					addr = claim.of.IPv6
				}
				if text := must(t, a.NetNS, "ip", claim.family, "neigh", "show",
					addr.String()); !strings.Contains(text, claim.of.MAC) {
					t.Errorf("the node's neighbour entry of %s was moved: %s", addr, text)
				}
			}
		})
	}
}

// podExit is a way for frames out of a pod.
type podExit struct {
	name, ifName string
	bypass       bool
	pod          *lab.Pod
}

func (r podExit) open(t *testing.T) *wireEnd { return openEnd(t, r.pod.NetNS, r.ifName, r.bypass) }

// checksums says whether a frame's checksum can still be unfinished where Weft sees it: not where
// it meets XDP.
func (r podExit) checksums(mode string) bool {
	return mode == "tc" || mode == "stack" || r.ifName == "weft-tx"
}

// podExits of a pod: its interface with and without its egress hooks, and the second one if it has
// the XDP datapath.
func podExits(t *testing.T, p *lab.Pod) []podExit {
	t.Helper()
	out := []podExit{{"eth0", "eth0", false, p}, {"eth0 past its hooks", "eth0", true, p}}
	_ = p.Do(func() error {
		if _, err := net.InterfaceByName("weft-tx"); err == nil {
			out = append(out, podExit{"weft-tx", "weft-tx", false, p})
		}
		return nil
	})
	return out
}

// forgeChecksum has the device asked to write a checksum over a part of an honest frame that the
// check has read by then: packet sockets may.
func forgeChecksum(t *testing.T, l *lab.Lab, end *wireEnd, port uint16) {
	a, own, server := l.Node("a"), l.Pod("client"), l.Pod("server")
	atServer := listen(t, server, port)
	if err := unix.SetsockoptInt(end.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		t.Fatal(err)
	}
	from := netip.AddrPortFrom(own.IPv6, 997)
	honest := datagram(mac(own.MAC), from, netip.AddrPortFrom(server.IPv6, port), false)
	const ip, udp = 14, 14 + 40
	before := dropped(t, a, own.Key(), "checksum_offset")
	// Into the destination (the kernel itself refuses what begins before byte 40), the ports, the
	// length.
	places := []struct{ start, field uint16 }{{ip + 26, ip + 38}, {ip + 38, udp + 6}, {udp, udp},
		{udp, udp + 2}, {udp, udp + 4}}
	for _, place := range places {
		end.send(t, append(unfinished(place.start, place.field), honest...))
	}
	eventually(t, "frames with a checksum in the wrong place", func() error {
		if n := dropped(t, a, own.Key(), "checksum_offset") - before; n != uint64(len(places)) {
			return fmt.Errorf("%d of %d counted; drops: %s", n, len(places), dropText(t, a))
		}
		return nil
	})
	end.send(t, append(unfinished(0, 0), honest...))
	if got := atServer.next(t, "honest datagram"); got != from {
		t.Errorf("a datagram from %s arrived, not only the honest one from %s", got, from)
	}
}

// unfinished is a struct virtio_net_hdr (linux/virtio_net.h) that leaves a frame's checksum to the
// device, unless start is 0.
func unfinished(start, field uint16) []byte {
	h := make([]byte, 10)
	if start > 0 {
		h[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(h[6:], start)
		binary.NativeEndian.PutUint16(h[8:], field-start)
	}
	return h
}

func forge(t *testing.T, l *lab.Lab, end *wireEnd, port uint16) {
	const times = 3
	a, own, victim, server := l.Node("a"), l.Pod("client"), l.Pod("db"), l.Pod("server")
	atServer := listen(t, server, port)
	sniff := openEnd(t, victim.NetNS, "eth0", false)
	for _, f := range forgeries(own, victim, server, port) {
		before := dropped(t, a, own.Key(), f.reason)
		for range times {
			end.send(t, f.frame)
		}
		eventually(t, f.name, func() error {
			if n := dropped(t, a, own.Key(), f.reason) - before; n < times {
				return fmt.Errorf("%d of %d counted as %s; drops: %s", n, times, f.reason,
					dropText(t, a))
			}
			return nil
		})
		if n := dropped(t, a, own.Key(), f.reason) - before; n != times {
			t.Errorf("%s: %d drops for %d frames", f.name, n, times)
		}
	}
	// The honest ones come after: had a forged one passed, it would be first.
	for _, family := range []int{4, 6} {
		from := netip.AddrPortFrom(own.Addr(family), 998)
		end.send(t,
			datagram(mac(own.MAC), from, netip.AddrPortFrom(server.Addr(family), port), false))
		if got := atServer.next(t, fmt.Sprintf("honest IPv%d datagram", family)); got != from {
			t.Errorf("a datagram from %s arrived, not only the honest one from %s", got, from)
		}
	}
	for _, frame := range sniff.received() {
		if strings.Contains(string(frame), "forged or not") || frame[12] == 8 && frame[13] == 6 &&
			frame[21] == 2 {
			t.Errorf("a forged frame reached another pod: %x", frame[:min(len(frame), 64)])
		}
	}
}
