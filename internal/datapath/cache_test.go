package datapath

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
)

// traced loads the tracing copy of a hook's program on the harness's maps.
func (b *harness) traced(t *testing.T, context, hook string) *ebpf.Program {
	t.Helper()
	collection, err := bpf.Load(b.maps, hook+"_"+context, "weft_"+hook,
		map[string]any{"weft_tracing": uint8(1)}, false)
	must(t, err)
	t.Cleanup(collection.Close)
	return collection.Programs["weft_"+hook]
}

// steps runs a frame through a traced program and returns what it noted.
func (b *harness) steps(t *testing.T, program *ebpf.Program, context, iface string,
	frame []byte) []bpf.TraceStep {
	t.Helper()
	must(t, b.maps.Trace.Put(uint32(0), &bpf.Trace{}))
	b.runProgram(t, program, context, iface, frame)
	var got bpf.Trace
	must(t, b.maps.Trace.Lookup(uint32(0), &got))
	return got.Steps[:got.N]
}

func hasStep(steps []bpf.TraceStep, step uint8) bool {
	for _, s := range steps {
		if s.Step == step {
			return true
		}
	}
	return false
}

// TestFastPathEqualsSlow: once a decision is cached, packets take the fast path, and what comes out
// is the same in every byte.
func TestFastPathEqualsSlow(t *testing.T) {
	b := newHarness(t)
	wire := fromPeer(podA.IPv4)
	for name, c := range map[string]struct {
		hook  string
		setup func(*testing.T, *harness)
		in    packet
	}{
		"IPv4 UDP remote":      {"from_pod", nil, fromA(peer4).udp(1000, 53, 20)},
		"IPv6 UDP remote":      {"from_pod", nil, fromA(peer6).udp(1000, 53, 20)},
		"IPv4 UDP local":       {"from_pod", nil, fromA(podB.IPv4).udp(1000, 53, 20)},
		"IPv6 echo local":      {"from_pod", nil, fromA(podB.IPv6).echo(9, 20)},
		"IPv4 UDP outside":     {"from_pod", nil, fromA(world4).udp(1000, 53, 20)},
		"IPv4 TCP established": {"from_pod", establishedA, fromA(peer4).tcp(1000, 80, ack, 20)},
		"IPv4 TCP FIN": {"from_pod", establishedA,
			fromA(peer4).tcp(1000, 80, fin|ack, 0)},
		"IPv4 TCP reset":           {"from_wire", establishedA, wire.tcp(80, 1000, rst, 0)},
		"IPv4 TCP from the wire":   {"from_wire", establishedA, wire.tcp(80, 1000, ack, 20)},
		"IPv4 UDP from the wire":   {"from_wire", nil, wire.udp(1, 2, 20)},
		"IPv6 UDP from the wire":   {"from_wire", nil, fromPeer(podA.IPv6).udp(1, 2, 20)},
		"IPv4 TCP midstream":       {"from_pod", nil, fromA(peer4).tcp(5, 6, ack, 20)},
		"IPv4 protocol with ports": {"from_pod", nil, fromA(peer4).raw(253, pattern(20))},
	} {
		for _, context := range contexts {
			t.Run(name+"/"+context, func(t *testing.T) {
				b.reset(t)
				if c.setup != nil {
					c.setup(t, b)
				}
				b.forget(t)
				frame, program := c.in.bytes(), b.traced(t, context, c.hook)
				if hasStep(b.steps(t, program, context, ifaceFor(c.hook), frame),
					bpf.StepCacheHit) {
					t.Error("the first packet hit a cached decision")
				}
				slow, slowOut := b.send(t, context, c.hook, ifaceFor(c.hook), frame)
				if !hasStep(b.steps(t, program, context, ifaceFor(c.hook), frame),
					bpf.StepCacheHit) {
					t.Error("the second packet would not hit the cached decision")
				}
				fast, fastOut := b.send(t, context, c.hook, ifaceFor(c.hook), frame)
				if slow != fast || !bytes.Equal(slowOut, fastOut) {
					t.Errorf("slow: %s %x\nfast: %s %x", slow, slowOut, fast, fastOut)
				}
			})
		}
	}
}

// forget takes the cached decisions of the IPv4 flows away.
func (b *harness) forget(t *testing.T) {
	t.Helper()
	var key bpf.Key4
	var f bpf.Flow
	for entries := b.maps.Flows4.Iterate(); entries.Next(&key, &f); {
		f.Half[0].Cached.Generation, f.Half[1].Cached.Generation = 0, 0
		must(t, b.maps.Flows4.Put(&key, &f))
	}
}

// TestFastPathSteps: what opens and closes a TCP connection whose decisions are cached takes the
// fast path too, moves the flow from state to state, and its end is told once.
func TestFastPathSteps(t *testing.T) {
	for _, context := range contexts {
		b := eventHarness(t)
		programs := map[string]*ebpf.Program{"from_pod": b.traced(t, context, "from_pod"),
			"from_wire": b.traced(t, context, "from_wire")}
		pod, peer := fromA(peer4), fromPeer(podA.IPv4)
		for i, l := range []struct {
			leg
			slow bool
		}{
			{sends(pod.tcp(1000, 80, syn, 0), "syn_sent"), true},
			{arrives(peer.tcp(80, 1000, syn|ack, 0), "syn_received"), true},
			{sends(pod.tcp(1000, 80, ack, 0), "established"), false},
			{arrives(peer.tcp(80, 1000, ack, 9), "established"), false},
			{arrives(peer.tcp(80, 1000, fin|ack, 0), "closing"), false},
			{sends(pod.tcp(1000, 80, fin|ack, 0), "closed"), false},
			{arrives(peer.tcp(80, 1000, ack, 0), "closed"), false},
			{sends(pod.tcp(1000, 80, syn, 0), "syn_sent"), true},
		} {
			frame := l.in.bytes()
			if hit := hasStep(b.steps(t, programs[l.hook], context, l.iface, frame),
				bpf.StepCacheHit); hit == l.slow {
				t.Errorf("%s: packet %d: cached decision used: %v", context, i+1, hit)
			}
			v, _ := b.send(t, context, l.hook, l.iface, frame)
			if flows := b.flowList(t); v != "redirect" || len(flows) != 1 ||
				flows[0].State != l.state {
				t.Fatalf("%s: packet %d: %s, %+v; want one flow %s", context, i+1, v, flows,
					l.state)
			}
		}
		var told []EventType
		for _, e := range b.events(t) {
			told = append(told, e.Type)
		}
		if want := []EventType{EventNew, EventEnd, EventNew}; !slices.Equal(told, want) {
			t.Errorf("%s: events %v, want %v", context, told, want)
		}
	}
}

// establishedA leaves an established TCP flow from pod A to the peer.
func establishedA(t *testing.T, b *harness) {
	t.Helper()
	b.send(t, "tc", "from_pod", "wta", fromA(peer4).tcp(1000, 80, syn, 0).bytes())
	b.send(t, "tc", "from_wire", "wtup", fromPeer(podA.IPv4).tcp(80, 1000, syn|ack, 0).bytes())
	b.send(t, "tc", "from_pod", "wta", fromA(peer4).tcp(1000, 80, ack, 0).bytes())
}

// warm caches one decision and checks that it is used.
func warm(t *testing.T, b *harness, context, hook, iface string, frame []byte) {
	t.Helper()
	for range 3 {
		if v, _ := b.send(t, context, hook, iface, frame); v != "redirect" {
			t.Fatalf("warm-up: %s", v)
		}
	}
}

// TestChangesReachCachedFlows: each change that could alter a decision takes effect with the very
// next packet.
func TestChangesReachCachedFlows(t *testing.T) {
	toB4, fromPeerToA, toPeer4 := fromA(podB.IPv4).udp(1, 2, 20), fromPeer(podA.IPv4).udp(1, 2,
		20), fromA(peer4).udp(1, 2, 20)
	newPeer, podC := mac(0x21), podB
	podC.Slot, podC.HostIf, podC.MAC = 3, "wtx", mac(0xc)
	for _, c := range []struct {
		name   string
		hook   string
		in     packet
		change func(*testing.T, *harness)
		want   string
		out    func(in, out []byte) error
		reason string
	}{
		{"destination endpoint deleted", "from_pod", toB4,
			func(t *testing.T, b *harness) { must(t, b.forgetEndpoint(podB)) }, "drop", nil,
			"no_endpoint"},
		{"source endpoint deleted", "from_pod", toB4,
			func(t *testing.T, b *harness) { must(t, b.forgetEndpoint(podA)) }, "drop", nil,
			"unknown_interface"},
		{"endpoint deleted, from the wire", "from_wire", fromPeerToA,
			func(t *testing.T, b *harness) { must(t, b.forgetEndpoint(podA)) }, "pass", nil, ""},
		{"address reused at once by another pod", "from_pod", toB4, func(t *testing.T, b *harness) {
			must(t, b.putEndpoint(podC, []int{b.index["wtx"]}))
			must(t, b.forgetEndpoint(podB))
		}, "redirect", routedTo(gatewayMAC, podC.MAC), ""},
		{"address reused after the deletion", "from_pod", toB4, func(t *testing.T, b *harness) {
			must(t, b.forgetEndpoint(podB))
			must(t, b.putEndpoint(podC, []int{b.index["wtx"]}))
		}, "redirect", routedTo(gatewayMAC, podC.MAC), ""},
		{"peer's MAC changed", "from_pod", toPeer4,
			func(t *testing.T, b *harness) { b.peerMAC(t, newPeer) }, "redirect",
			routedTo(uplinkMAC, newPeer), ""},
		{"peer lost (uplink down)", "from_pod", toPeer4,
			func(t *testing.T, b *harness) { b.peerMAC(t, nil) }, "pass", nil, ""},
		{"pod's MAC changed", "from_wire", fromPeerToA, func(t *testing.T, b *harness) {
			ep := podA
			ep.MAC = mac(0xaa)
			must(t, b.putEndpoint(ep, []int{b.index["wta"]}))
		}, "redirect", routedTo(gatewayMAC, mac(0xaa)), ""},
		{"pod's own MAC changed: its old frames are spoofed", "from_pod", toPeer4,
			func(t *testing.T, b *harness) {
				ep := podA
				ep.MAC = mac(0xaa)
				must(t, b.putEndpoint(ep, []int{b.index["wta"]}))
			}, "drop", nil, "spoofed_mac"},
		{"range moved to another node", "from_pod", toPeer4, func(t *testing.T, b *harness) {
			key := bpf.RouteKeyOf(mustPrefix("10.2.0.0/24"))
			must(t, b.maps.Routes.Put(&key, &bpf.Route{Node: 2}))
			must(t, b.changed())
		}, "pass", nil, ""},
		{"mode changed to stack", "from_pod", toPeer4,
			func(t *testing.T,
				b *harness) {
				b.mode.Active = ModeStack
				must(t, b.inside(b.configure))
			}, "pass", nil, ""},
		{"generation alone changed", "from_pod", toPeer4,
			func(t *testing.T, b *harness) { must(t, b.changed()) }, "redirect", toPeer, ""},
	} {
		for _, context := range contexts {
			t.Run(c.name+"/"+context, func(t *testing.T) {
				b := newHarness(t)
				frame, iface := c.in.bytes(), ifaceFor(c.hook)
				warm(t, b, context, c.hook, iface, frame)
				c.change(t, b)
				for i := range 2 {
					verdict, out := b.send(t, context, c.hook, iface, frame)
					if verdict != c.want {
						t.Fatalf("packet %d after the change: %s, want %s", i+1, verdict, c.want)
					}
					if c.out != nil {
						must(t, c.out(frame, out))
					}
				}
				if reasons := reasonsIn(b.counted(t)); c.reason != "" &&
					(len(reasons) != 1 || reasons[0] != c.reason) {
					t.Errorf("drop reasons %v, want %s", reasons, c.reason)
				}
			})
		}
	}
}

func (b *harness) peerMAC(t *testing.T, to net.HardwareAddr) {
	entry := bpf.Nexthop{Ifindex: uint32(b.index["wtup"]), Flags: bpf.NexthopXdpOut, Mtu: 1500,
		Smac: bpf.ToMAC(uplinkMAC)}
	if to != nil {
		entry.Flags |= bpf.NexthopResolved
		entry.Dmac = bpf.ToMAC(to)
	}
	b.setPeer(t, entry)
}

// TestCacheIsPerInterface: a decision made for one interface says nothing about frames from
// another.
func TestCacheIsPerInterface(t *testing.T) {
	b := newHarness(t)
	for _, context := range contexts {
		b.reset(t)
		frame := fromA(peer4).udp(1, 2, 20).bytes()
		warm(t, b, context, "from_pod", "wta", frame)
		if v, _ := b.send(t, context, "from_pod", "wtx", frame); v != "drop" {
			t.Errorf("%s: frame of a cached flow from an unknown interface: %s", context, v)
		}
		if v, _ := b.send(t, context, "from_pod", "wtb", frame); v != "drop" {
			t.Errorf("%s: frame of a cached flow from another pod's interface: %s", context, v)
		}
		if v, _ := b.send(t, context, "from_wire", "wtup", frame); v != "drop" {
			t.Errorf("%s: frame of a pod's cached flow from the wire: %s", context, v)
		}
	}
}

// TestFlowTableOverflow: three times more flows than entries: every packet is forwarded all the
// same.
func TestFlowTableOverflow(t *testing.T) {
	b := newHarness(t)
	for _, context := range contexts {
		b.reset(t)
		for i := range 3 * flowEntries {
			p := fromA(peer4).udp(uint16(1000+i%50000), uint16(i/50000+53), 4)
			if i%2 == 1 {
				p = fromA(peer6).udp(uint16(1000+i%50000), 53, 4)
			}
			frame := p.bytes()
			verdict, out := b.send(t, context, "from_pod", "wta", frame)
			if verdict != "redirect" {
				t.Fatalf("%s: flow %d: %s", context, i, verdict)
			}
			if i%97 == 0 {
				must(t, toPeer(frame, out))
			}
		}
		if n := len(b.flowList(t)); n == 0 || n > 2*flowEntries {
			t.Errorf("%s: %d flows in two tables of %d", context, n, flowEntries)
		}
		want := fmt.Sprintf("1 egress remote %d", 3*flowEntries)
		if got := b.counted(t); len(got) != 1 || got[0] != want {
			t.Errorf("%s: counters %v, want %s", context, got, want)
		}
	}
}

// TestIdleFlowIsNotCached: a cached decision does not keep a flow alive that has timed out.
func TestIdleFlowIsNotCached(t *testing.T) {
	b := newHarness(t)
	for _, context := range contexts {
		b.reset(t)
		frame := fromA(peer4).udp(1000, 53, 20).bytes()
		warm(t, b, context, "from_pod", "wta", frame)
		var key bpf.Key4
		var f bpf.Flow
		for entries := b.maps.Flows4.Iterate(); entries.Next(&key, &f); {
			f.LastNs -= 61e9
			must(t, b.maps.Flows4.Put(&key, &f))
		}
		b.send(t, context, "from_pod", "wta", frame)
		if rows := b.flowList(t); len(rows) != 1 || rows[0].Forward.Packets != 1 {
			t.Errorf("%s: %+v, want a new flow of one packet", context, rows)
		}
	}
}
