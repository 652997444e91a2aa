package wirefuzz

import (
	"net/netip"
	"testing"
)

// TestSpecification holds the specification against frames of which anybody can say what is right,
// both ways: a referee that lets everything pass, or nothing, is none. Each frame arrives at node
// a.
func TestSpecification(t *testing.T) {
	addr := netip.MustParseAddr
	c := &cluster{
		pods: map[netip.Addr]string{addr("10.77.1.10"): "client", addr("fd77:1::10"): "client",
			addr("10.77.2.100"): "server", addr("10.77.2.80"): "web",
			addr("10.77.1.100"): "db"},
		nodes: map[netip.Addr]string{addr("192.0.2.1"): "a", addr("2001:db8::1"): "a",
			addr("192.0.2.2"): "b", addr("2001:db8::2"): "b"},
		homes: map[netip.Prefix]string{netip.MustParsePrefix("10.77.1.0/24"): "a",
			netip.MustParsePrefix("fd77:1::/64"): "a", netip.MustParsePrefix("10.77.2.0/24"): "b",
			netip.MustParsePrefix("fd77:2::/64"): "b"},
		plain:    map[netip.Addr]bool{addr("10.77.2.80"): true},
		isolated: map[string]bool{"db": true},
	}
	udp := func(src, dst string) []byte { return datagram(nil, addr(src), addr(dst), 1, 2, []byte("text"), 64) }
	sourceRoute := ethernet(nil,
		header{src: addr("192.0.2.9"), dst: addr("10.77.1.10"), proto: 17,
			options: []byte{131, 3, 4, 0}}.wrap(make([]byte, 8)))
	badSum := udp("192.0.2.9", "10.77.1.10")
	badSum[14+10] ^= 1
	report := func(src, dst, from, to string, frag uint16) []byte {
		icmp := append([]byte{3, 4, 0, 0, 0, 0, 5, 0}, udp(from, to)[14:]...)
		return ethernet(nil,
			header{src: addr(src), dst: addr(dst), proto: 1,
				frag: frag}.wrap(finish(addr(src), addr(dst), 1, icmp)))
	}
	about := func(src, from, to string) []byte { return report(src, "10.77.1.10", from, to, 0) }
	toHost := func(from, to string, frag uint16) []byte { return report("192.0.2.9", "192.0.2.1", from, to, frag) }
	noVersion := toHost("192.0.2.1", "198.51.100.7", 0)
	noVersion[14+20+8] = 0x65
	chain := func(n int, last uint8, rest []byte) []byte {
		for range n {
			rest, last = append([]byte{last, 0, 1, 4, 0, 0, 0, 0}, rest...), 60
		}
		return ethernet(nil,
			header{src: addr("2001:db8::9"), dst: addr("2001:db8::1"), proto: last}.wrap(rest))
	}
	vlan := uint16(7)
	for _, row := range []struct {
		name      string
		how       claim
		frame     []byte
		tag       *uint16
		pod, host bool
	}{
		{"the world", inCleartext, udp("192.0.2.9", "10.77.1.10"), nil, true, true},
		{"the world, IPv6", inCleartext, udp("2001:db8::9", "fd77:1::10"), nil, true, true},
		{"the world with a priority", inCleartext,
			tagged(udp("192.0.2.9", "10.77.1.10"), 0x8100, 5<<13), nil, true, true},
		{"the world in a VLAN", inCleartext, tagged(udp("192.0.2.9", "10.77.1.10"), 0x8100, 7), nil,
			false, false},
		{"the world in a VLAN beside the frame", inCleartext, udp("192.0.2.9", "10.77.1.10"), &vlan,
			false, false},
		{"a peer's pod", inCleartext, udp("10.77.2.100", "10.77.1.10"), nil, false, false},
		{"a peer's pod with a priority", inCleartext,
			tagged(udp("10.77.2.100", "10.77.1.10"), 0x88a8, 0), nil, false, false},
		{"a plain pod", inCleartext, udp("10.77.2.80", "10.77.1.10"), nil, true, true},
		{"the peer", inCleartext, udp("192.0.2.2", "10.77.1.10"), nil, false, true},
		{"this node", inCleartext, udp("192.0.2.1", "10.77.1.10"), nil, false, false},
		{"an unassigned address here", inCleartext, udp("10.77.1.200", "10.77.1.10"), nil, false,
			false},
		{"loopback", inCleartext, udp("127.0.0.1", "10.77.1.10"), nil, false, true},
		{"a mapped address", inCleartext, udp("::ffff:192.0.2.9", "fd77:1::10"), nil, false, true},
		{"link-local", inCleartext, udp("fe80::7", "fd77:1::10"), nil, false, true},
		{"source route", inCleartext, sourceRoute, nil, false, true},
		{"a wrong checksum", inCleartext, badSum, nil, false, true},
		{"to an isolated pod", inCleartext, udp("192.0.2.9", "10.77.1.100"), nil, false, true},
		{"to another pod", inCleartext, udp("192.0.2.9", "10.77.2.100"), nil, false, true},
		{"runt", inCleartext, []byte{1, 2, 3}, nil, false, false},
		{"an error about the world", inCleartext, about("192.0.2.9", "10.77.1.10", "198.51.100.7"),
			nil, true, true},
		{"an error about a plain flow", inCleartext, about("192.0.2.9", "10.77.1.10", "10.77.2.80"),
			nil, true, true},
		{"an error about a sealed flow", inCleartext,
			about("192.0.2.9", "10.77.1.10", "10.77.2.100"), nil, false, false},
		{"an error about somebody else's flow", inCleartext,
			about("192.0.2.9", "10.77.1.11", "198.51.100.7"), nil, false, true},
		{"an error to this host about the world", inCleartext,
			toHost("192.0.2.1", "198.51.100.7", 0), nil, false, true},
		{"an error to this host about the peer", inCleartext, toHost("192.0.2.1", "192.0.2.2", 0),
			nil, false, true},
		{"an error to this host about a plain pod", inCleartext,
			toHost("192.0.2.1", "10.77.2.80", 0), nil, false, true},
		{"an error to this host about a sealed flow", inCleartext,
			toHost("192.0.2.1", "10.77.2.100", 0), nil, false, false},
		{"an error to this host about a plain pod's sealed flow", inCleartext,
			toHost("10.77.2.80", "10.77.2.100", 0), nil, false, false},
		{"the first fragment of an error to this host", inCleartext,
			toHost("192.0.2.1", "198.51.100.7", 0x2000), nil, false, false},
		{"an error to this host about no IP packet", inCleartext, noVersion, nil, false, false},
		{"an echo to this host behind six extension headers", inCleartext,
			chain(6, 58, []byte{128, 0, 0, 0, 0, 1, 0, 1}), nil, false, true},
		{"anything to this host behind seven", inCleartext, chain(7, 17, make([]byte, 8)), nil,
			false, false},
		{"genuine", genuine, udp("10.77.2.100", "10.77.1.10"), nil, true, true},
		{"replayed", notGenuine, udp("10.77.2.100", "10.77.1.10"), nil, false, true},
		{"the peer's host as itself", asHost, udp("192.0.2.2", "10.77.1.10"), nil, true, true},
		{"the peer's host for the world", asHost, udp("198.51.100.7", "10.77.1.10"), nil, true,
			true},
		{"the peer's host as its pod", asHost, udp("10.77.2.100", "10.77.1.10"), nil, false, false},
		{"the peer's host as this node", asHost, udp("192.0.2.1", "10.77.1.10"), nil, false, false},
		{"the peer's host as a pod here", asHost, udp("10.77.1.10", "10.77.1.10"), nil, false,
			false},
		{"the peer's pod", asPod, udp("10.77.2.100", "10.77.1.10"), nil, true, true},
		{"the peer's pod as the world", asPod, udp("198.51.100.7", "10.77.1.10"), nil, false,
			false},
		{"no pod of the peer", asNoPodThere, udp("10.77.2.100", "10.77.1.10"), nil, false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := read(row.frame, row.tag)
			if got, why := c.mayReachPod(row.how, "a", p, "client"); got != row.pod {
				t.Errorf("may reach the pod: %v (%s)", got, why)
			}
			if got, _ := c.mayReachPod(row.how, "a", p, "db"); got {
				t.Error("may reach the isolated pod")
			}
			if got, why := c.mayReachHost(row.how, "a", p); got != row.host {
				t.Errorf("may reach the host: %v (%s)", got, why)
			}
		})
	}
}
