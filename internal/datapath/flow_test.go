package datapath

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/flowtable"
)

// leg is one packet of a conversation and the flow's state after it.
type leg struct {
	hook, iface string
	in          packet
	want        string // verdict
	state       string
}

func sends(p packet, state string) leg   { return leg{"from_pod", "wta", p, "redirect", state} }
func arrives(p packet, state string) leg { return leg{"from_wire", "wtup", p, "redirect", state} }

// TestFlowStates walks conversations through the flow table, in both contexts and both families.
func TestFlowStates(t *testing.T) {
	b := newHarness(t)
	tcp := func(p packet, flags uint8) packet {
		if p.from == podA.IPv4 || p.from == podA.IPv6 {
			return p.tcp(1000, 80, flags, 4)
		}
		return p.tcp(80, 1000, flags, 4)
	}
	for name, family := range map[string][2]packet{"IPv4": {fromA(peer4), fromPeer(podA.IPv4)},
		"IPv6": {fromA(peer6), fromPeer(podA.IPv6)}} {
		pod, peer := family[0], family[1]
		open := []leg{
			sends(tcp(pod, syn), "syn_sent"), sends(tcp(pod, syn), "syn_sent"),
			arrives(tcp(peer, syn|ack), "syn_received"),
			sends(tcp(pod, ack), "established"), arrives(tcp(peer, ack), "established"),
		}
		conversations := map[string][]leg{
			"TCP opened, closed by the pod": append(open[:len(open):len(open)],
				sends(tcp(pod, fin|ack), "closing"), arrives(tcp(peer, ack), "closing"),
				arrives(tcp(peer, fin|ack), "closed"), sends(tcp(pod, ack), "closed")),
			"TCP opened, closed by the peer": append(open[:len(open):len(open)],
				arrives(tcp(peer, fin|ack), "closing"), sends(tcp(pod, fin|ack), "closed")),
			"TCP reset": append(open[:len(open):len(open)],
				arrives(tcp(peer, rst), "closed")),
			"TCP reset while new": {sends(tcp(pod, syn), "syn_sent"),
				arrives(tcp(peer, rst|ack), "closed")},
			"TCP opened from outside": {
				arrives(tcp(peer, syn), "syn_sent"), sends(tcp(pod, syn|ack), "syn_received"),
				arrives(tcp(peer, ack), "established")},
			"TCP opened again after its end": append(open[:len(open):len(open)],
				arrives(tcp(peer, rst), "closed"), sends(tcp(pod, syn), "syn_sent"),
				arrives(tcp(peer, syn|ack), "syn_received")),
			"UDP": {
				sends(pod.udp(1000, 53, 4), "new"), sends(pod.udp(1000, 53, 4), "new"),
				arrives(peer.udp(53, 1000, 4), "replied"), sends(pod.udp(1000, 53, 4), "replied")},
			"echo": {
				sends(pod.echo(7, 4), "new"), arrives(peer.echoReply(7, 4), "replied"),
				sends(pod.echo(7, 4), "replied")},
			"another protocol": {
				sends(pod.raw(253, pattern(20)), "new"),
				arrives(peer.raw(253, pattern(20)), "replied")},
		}
		for title, legs := range conversations {
			for _, context := range contexts {
				t.Run(fmt.Sprintf("%s %s/%s", name, title, context), func(t *testing.T) {
					b.reset(t)
					for i, l := range legs {
						v, _ := b.send(t, context, l.hook, l.iface, l.in.bytes())
						flows := b.flowList(t)
						if v != l.want || len(flows) != 1 || flows[0].State != l.state {
							t.Fatalf("packet %d: %s, flows %+v; want %s, one flow %s", i+1, v,
								flows, l.want, l.state)
						}
					}
				})
			}
		}
	}
}

// TestFlowTotals: every packet counts once, in its direction, on the slow path and the fast.
func TestFlowTotals(t *testing.T) {
	b := newHarness(t)
	for _, context := range contexts {
		b.reset(t)
		there, back := fromA(peer4).udp(1000, 53, 10).bytes(), fromPeer(podA.IPv4).udp(53, 1000,
			100).bytes()
		for range 5 {
			b.send(t, context, "from_pod", "wta", there)
		}
		for range 3 {
			b.send(t, context, "from_wire", "wtup", back)
		}
		f := b.flowList(t)[0]
		if f.Src.Port() != 1000 ||
			f.Forward != (Traffic{Packets: 5, Bytes: uint64(5 * len(there))}) ||
			f.Reply != (Traffic{Packets: 3, Bytes: uint64(3 * len(back))}) {
			t.Errorf("%s: %+v", context, f)
		}
		want := []string{"1 egress remote 5", "1 ingress local 3"}
		if got := sorted(b.counted(t)); strings.Join(got, ";") != strings.Join(want, ";") {
			t.Errorf("%s: counters %v, want %v", context, got, want)
		}
	}
}

// TestLocalFlow: one flow for both pods, whichever sent first.
func TestLocalFlow(t *testing.T) {
	b := newHarness(t)
	for _, context := range contexts {
		b.reset(t)
		for range 3 {
			b.send(t, context, "from_pod", "wta", fromA(podB.IPv4).udp(1000, 53, 10).bytes())
			b.send(t, context, "from_pod", "wtb", fromB(podA.IPv4).udp(53, 1000, 10).bytes())
		}
		want := []string{"1 egress local 3", "1 ingress local 3", "2 egress local 3",
			"2 ingress local 3"}
		if got := sorted(b.counted(t)); strings.Join(got, ";") != strings.Join(want, ";") ||
			len(b.flowList(t)) != 1 {
			t.Errorf("%s: counters %v, want %v; %d flows", context, got, want, len(b.flowList(t)))
		}
	}
}

// TestViaStack: what the table meets in the middle, or what the stack has sent, is the stack's to
// route.
func TestViaStack(t *testing.T) {
	stackSent := func(hook, iface string, p packet) func(*testing.T, *harness) {
		return func(t *testing.T, b *harness) {
			if v, _ := b.send(t, "tc", hook, iface, p.bytes()); v != "pass" {
				t.Fatalf("%s: %s", hook, v)
			}
		}
	}
	service := newPacket(gatewayMAC, podA.MAC, peer4, podA.IPv4)
	runTable(t, []row{
		{name: "TCP ACK without a flow", in: fromA(peer4).tcp(1, 2, ack, 8), want: "pass",
			counts: []string{"1 egress stack 1"}},
		{name: "TCP SYN ACK without a flow", in: fromA(peer6).tcp(1, 2, syn|ack, 8), want: "pass"},
		{name: "TCP FIN without a flow", in: fromA(peer4).tcp(1, 2, fin|ack, 8), want: "pass"},
		{name: "TCP RST without a flow", in: fromA(peer4).tcp(1, 2, rst, 8), want: "pass"},
		{name: "TCP SYN and FIN", in: fromA(peer4).tcp(1, 2, syn|fin, 8), want: "pass"},
		{name: "TCP without flags", in: fromA(peer4).tcp(1, 2, 0, 8), want: "pass"},
		{name: "IPv4 echo reply without a request", in: fromA(peer4).echoReply(7, 8), want: "pass"},
		{name: "IPv6 echo reply without a request", in: fromA(peer6).echoReply(7, 8), want: "pass"},
		{name: "TCP ACK from the wire without a flow", hook: "from_wire",
			in: fromPeer(podA.IPv4).tcp(1, 2, ack, 8), want: "pass",
			counts: []string{"1 ingress stack 1"}},
		{name: "TCP SYN of a flow met in the middle", setup: midstream,
			in: fromA(peer4).tcp(2000, 80, syn, 8), want: "pass"},
		{name: "reply to what the stack sent to the pod",
			setup: stackSent("to_pod", "wta", service.udp(53, 1000, 8)),
			in:    fromA(peer4).udp(1000, 53, 8), want: "pass"},
		{name: "reply to a TCP SYN that the stack sent to the pod",
			setup: stackSent("to_pod", "wta", service.tcp(53, 1000, syn, 8)),
			in:    fromA(peer4).tcp(1000, 53, syn|ack, 8), want: "pass"},
		{name: "reply to what the stack sent to the wire for the pod", hook: "from_wire",
			setup: stackSent("to_wire", "wtup", fromA(peer4).udp(1000, 53, 8)),
			in:    fromPeer(podA.IPv4).udp(53, 1000, 8), want: "pass"},
		{name: "the stack's multicast to a pod makes no flow", hook: "to_pod", iface: "wta",
			in: fromPeer(addr("ff02::1")).src(addr("fe80::1")).udp(1, 2, 8), want: "pass",
			counts: []string{"1 ingress local 1"}},
		{name: "to_pod counts what it delivers", hook: "to_pod", iface: "wta",
			in: service.udp(53, 1000, 8), want: "pass", counts: []string{"1 ingress local 1"}},
		{name: "to_pod on an unknown interface", hook: "to_pod", iface: "wtx",
			in: service.udp(53, 1000, 8), want: "drop", reason: bpf.ReasonUnknownInterface},
		{name: "to_wire of the host's own", hook: "to_wire",
			in: fromA(world4).src(node4).udp(1, 2, 8), want: "pass", counts: []string{}},
		{name: "to_wire of a pod counts nothing twice", hook: "to_wire",
			in: fromA(world4).udp(1, 2, 8), want: "pass", counts: []string{}},
		{name: "to_pod does not judge a broken packet of this host", hook: "to_pod", iface: "wta",
			in: service.udp(53, 1000, 8).set(atSum, 1, 2), want: "pass",
			counts: []string{"1 ingress local 1"}},
	})
}

// TestFlowTimeout: a flow idle for longer than its state allows is forgotten, so a late packet is
// met in the middle and takes the stack; an idle established one goes on.
func TestFlowTimeout(t *testing.T) {
	b := newHarness(t)
	for _, c := range []struct {
		name    string
		state   uint8
		proto   uint8
		idle    uint64 // seconds
		in      packet
		forgets bool
	}{
		{"established for two hours", bpf.StateEstablished, unix.IPPROTO_TCP, 7200,
			fromA(peer4).tcp(1000, 80, ack, 0), false},
		{"established for three hours", bpf.StateEstablished, unix.IPPROTO_TCP, 10800,
			fromA(peer4).tcp(1000, 80, ack, 0), true},
		{"SYN sent 50 s ago", bpf.StateSynSent, unix.IPPROTO_TCP, 50,
			fromA(peer4).tcp(1000, 80, ack, 0), false},
		{"SYN sent 61 s ago", bpf.StateSynSent, unix.IPPROTO_TCP, 61,
			fromA(peer4).tcp(1000, 80, ack, 0), true},
		{"closed 31 s ago", bpf.StateClosed, unix.IPPROTO_TCP, 31,
			fromA(peer4).tcp(1000, 80, ack, 0), true},
		{"closed 20 s ago", bpf.StateClosed, unix.IPPROTO_TCP, 20,
			fromA(peer4).tcp(1000, 80, ack, 0), false},
		{"UDP one way 61 s ago", bpf.StateNew, unix.IPPROTO_UDP, 61, fromA(peer4).udp(1000, 80, 0),
			true},
		{"UDP replied 290 s ago", bpf.StateReplied, unix.IPPROTO_UDP, 290,
			fromA(peer4).udp(1000, 80, 0), false},
		{"UDP replied 301 s ago", bpf.StateReplied, unix.IPPROTO_UDP, 301,
			fromA(peer4).udp(1000, 80, 0), true},
	} {
		for _, context := range contexts {
			t.Run(c.name+"/"+context, func(t *testing.T) {
				b.reset(t)
				now := flowtable.MonotonicNow()
				if now < c.idle*1e9 {
					t.Skipf("the machine has not been up for the %d s that this row needs", c.idle)
				}
				f := bpf.Flow{State: c.state, FirstNs: 1, LastNs: now - c.idle*1e9,
					Checked: b.config.Generation}
				f.Half[0].Packets, f.Half[1].Packets = 1000, 1000
				key := bpf.Key4{A: bpf.BE32(podA.IPv4), B: bpf.BE32(peer4), Pa: bpf.Ntohs(1000),
					Pb: bpf.Ntohs(80), Proto: c.proto}
				must(t, b.maps.Flows4.Put(&key, &f))
				b.send(t, context, "from_pod", "wta", c.in.bytes())
				rows := b.flowList(t)
				if len(rows) != 1 {
					t.Fatalf("%d flows", len(rows))
				}
				if fresh := rows[0].Forward.Packets+rows[0].Reply.Packets == 1; fresh != c.forgets {
					t.Errorf("forgotten: %v, want %v (%+v)", fresh, c.forgets, rows[0])
				}
			})
		}
	}
}

// TestStackFlowCountsOnce: a packet that the stack routes passes two hooks and belongs to its flow
// once.
func TestStackFlowCountsOnce(t *testing.T) {
	b := newHarness(t)
	for _, context := range contexts {
		b.reset(t)
		there, back := fromA(peer4).tcp(1000, 80, ack, 4).bytes(), fromPeer(podA.IPv4).tcp(80, 1000,
			ack, 4).bytes()
		for range 3 {
			b.send(t, context, "from_pod", "wta", there)
			b.send(t, "tc", "to_wire", "wtup", there)
		}
		for range 2 {
			b.send(t, context, "from_wire", "wtup", back)
			b.send(t, "tc", "to_pod", "wta", back)
		}
		rows := b.flowList(t)
		if len(rows) != 1 || !rows[0].ViaStack || rows[0].Forward.Packets != 3 ||
			rows[0].Reply.Packets != 2 {
			t.Errorf("%s: %+v, want 3 and 2 packets by the stack", context, rows)
		}
		want := []string{"1 egress stack 3", "1 ingress local 2", "1 ingress stack 2"}
		if got := sorted(b.counted(t)); strings.Join(got, ";") != strings.Join(want, ";") {
			t.Errorf("%s: counters %v, want %v", context, got, want)
		}
	}
}
