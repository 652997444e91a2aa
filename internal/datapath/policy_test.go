package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/policymap"
)

// Who is who in the tables of policies.
const (
	ofA, ofB, ofPeer, ofOther uint32 = 1001, 1002, 2001, 2002
	classNet                  uint32 = 1<<22 + 1 // the peer's range
	classPeer                 uint32 = 1<<22 + 2 // the peer alone
)

// policies are those of the two pods; nil: no set, empty: nothing is allowed.
type policies struct{ aOut, aIn, bOut, bIn []PolicyEntry }

var nothing = []PolicyEntry{}

func allow(peer uint32, proto uint8) PolicyEntry {
	return PolicyEntry{Peer: peer, Protocol: proto, Allow: true, Precedence: 10, Rule: 7}
}

func deny(peer uint32, proto uint8) PolicyEntry {
	return PolicyEntry{Peer: peer, Protocol: proto, Precedence: 10, Rule: 8}
}

func at(e PolicyEntry, port uint16, bits uint8) PolicyEntry {
	e.Port, e.PortBits = port, bits
	return e
}

func before(e PolicyEntry) PolicyEntry { e.Precedence++; return e }

// enter gives the pods their sets, and makes known who is who.
func (p policies) enter(t *testing.T, b *harness) {
	t.Helper()
	add := func(direction policymap.Direction, entries []PolicyEntry) uint32 {
		if entries == nil {
			return 0
		}
		list := make([]PolicyEntry, len(entries))
		for i, e := range entries {
			e.Direction = direction
			list[i] = e
		}
		set, err := b.AddPolicySet(list)
		must(t, err)
		return set
	}
	must(t, b.SetIdentities(map[netip.Addr]uint32{peer4: ofPeer, peer6: ofPeer}))
	must(t, b.SetClasses(nil))
	for _, own := range []netip.Addr{node4, node6} {
		key := bpf.RouteKeyOf(netip.PrefixFrom(own, own.BitLen()))
		must(t, b.maps.Routes.Put(&key, &bpf.Route{Flags: bpf.RouteHost}))
	}
	a, other := podA, podB
	a.Identity, other.Identity = ofA, ofB
	a.EgressSet, a.IngressSet = add(policymap.Egress, p.aOut), add(policymap.Ingress, p.aIn)
	other.EgressSet, other.IngressSet = add(policymap.Egress, p.bOut), add(policymap.Ingress, p.bIn)
	must(t, b.putEndpoint(a, []int{b.index["wta"]}))
	must(t, b.putEndpoint(other, []int{b.index["wtb"]}))
}

// give is pod A with an egress set.
func (b *harness) give(t *testing.T, set uint32) {
	t.Helper()
	a := podA
	a.Identity, a.EgressSet = ofA, set
	must(t, b.putEndpoint(a, []int{b.index["wta"]}))
}

func (p policies) setup(t *testing.T, b *harness) { t.Helper(); p.enter(t, b) }

func classes(b *harness, t *testing.T) {
	must(t, b.SetClasses(map[netip.Prefix]uint32{
		mustPrefix("10.2.0.0/24"): classNet, mustPrefix("fd00:2::/64"): classNet,
		netip.PrefixFrom(peer4, 32): classPeer, netip.PrefixFrom(peer6, 128): classPeer,
	}))
}

func withClasses(p policies) func(*testing.T, *harness) {
	return func(t *testing.T, b *harness) { p.enter(t, b); classes(b, t) }
}

// afterAll is a setup of packets that each come in at a hook and an interface of their own.
func sent(legs ...leg) func(*testing.T, *harness) {
	return func(t *testing.T, b *harness) {
		t.Helper()
		for i, l := range legs {
			if v, _ := b.send(t, "tc", l.hook, l.iface, l.in.bytes()); v == "drop" {
				t.Fatalf("packet %d of the setup was dropped: %v", i+1, b.counted(t))
			}
		}
	}
}

func podB4(p packet) leg { return leg{hook: "from_pod", iface: "wtb", in: p} }
func podA4(p packet) leg { return leg{hook: "from_pod", iface: "wta", in: p} }

const denied = bpf.ReasonPolicyDenied

// family are the addresses that a table of policies is run with.
type policyFamily struct {
	name                          string
	a, b, peer, other, world, own netip.Addr // other is a pod of the peer's node that nobody has named
	icmp                          uint8
	unreachable                   func(packet, packet) packet
}

var policyFamilies = []policyFamily{
	{"IPv4", podA.IPv4, podB.IPv4, peer4, addr("10.2.0.77"), world4, node4, unix.IPPROTO_ICMP,
		func(p, about packet) packet { return p.icmpError(3, 3, 0, about, 28) }},
	{"IPv6", podA.IPv6, podB.IPv6, peer6, addr("fd00:2::77"), world6, node6, unix.IPPROTO_ICMPV6,
		func(p, about packet) packet { return p.icmpError(1, 4, 0, about, 88) }},
}

const tcp, udp, sctp = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP

func sctpTo(p packet, port uint16) packet {
	return p.raw(sctp, []byte{0x10, 0, byte(port >> 8), byte(port), 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 4})
}

// TestPolicy: what a set of entries lets a pod begin, and others begin towards it.
func TestPolicy(t *testing.T) {
	for _, f := range policyFamilies {
		ab := fromA(f.b)
		out := func(entries ...PolicyEntry) policies { return policies{aOut: entries} }
		in := func(entries ...PolicyEntry) policies { return policies{bIn: entries} }
		rows := []row{
			{name: "no set", setup: policies{}.setup, in: ab.udp(1000, 53, 8), want: "redirect", out: toB},
			{name: "an empty set of the sender", setup: policies{aOut: nothing}.setup, in: ab.udp(1000, 53, 8), want: "drop", reason: denied, counts: []string{"1 egress policy_denied 1"}},
			{name: "an empty set of the receiver", setup: policies{bIn: nothing}.setup, in: ab.udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "an empty set of the sender, to another node", setup: policies{aOut: nothing}.setup, in: fromA(f.peer).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "an empty set of the other directions", setup: policies{aIn: nothing, bOut: nothing}.setup, in: ab.udp(1000, 53, 8), want: "redirect", out: toB},
			{name: "a set that is not there", setup: func(t *testing.T, b *harness) {
				policies{}.enter(t, b)
				b.give(t, 4711)
			}, in: ab.udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "to itself", setup: policies{aOut: nothing, aIn: nothing}.setup, in: fromA(f.a).udp(1000, 53, 8), want: "redirect", out: toA},

			{name: "egress to an identity", setup: out(allow(ofB, 0)).setup, in: ab.udp(1000, 53, 8), want: "redirect", out: toB},
			{name: "egress to another identity", setup: out(allow(ofPeer, 0)).setup, in: ab.udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "egress to a remote identity", setup: out(allow(ofPeer, 0)).setup, in: fromA(f.peer).udp(1000, 53, 8), want: "redirect", out: toPeer},
			{name: "egress to a remote pod that nobody has named", setup: out(allow(ofPeer, 0), allow(bpf.IdentityWorld, 0)).setup, in: fromA(f.other).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "ingress from an identity", setup: in(allow(ofA, 0)).setup, in: ab.udp(1000, 53, 8), want: "redirect", out: toB},
			{name: "ingress from another identity", setup: in(allow(ofOther, 0)).setup, in: ab.udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "both must allow: the receiver does not", setup: policies{aOut: []PolicyEntry{allow(ofB, 0)}, bIn: nothing}.setup, in: ab.udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "both must allow: the sender does not", setup: policies{aOut: nothing, bIn: []PolicyEntry{allow(ofA, 0)}}.setup, in: ab.udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "both do", setup: policies{aOut: []PolicyEntry{allow(ofB, 0)}, bIn: []PolicyEntry{allow(ofA, 0)}}.setup, in: ab.udp(1000, 53, 8), want: "redirect", out: toB},
			{name: "an entry of the other direction", setup: func(t *testing.T, b *harness) {
				policies{}.enter(t, b)
				set, err := b.AddPolicySet([]PolicyEntry{{Direction: policymap.Ingress, Peer: ofB, Allow: true}})
				must(t, err)
				b.give(t, set)
			}, in: ab.udp(1000, 53, 8), want: "drop", reason: denied},

			{name: "a port", setup: out(at(allow(ofB, tcp), 80, 16)).setup, in: ab.tcp(1000, 80, syn, 0), want: "redirect", out: toB},
			{name: "another port", setup: out(at(allow(ofB, tcp), 80, 16)).setup, in: ab.tcp(1000, 81, syn, 0), want: "drop", reason: denied},
			{name: "a port of another protocol", setup: out(at(allow(ofB, tcp), 80, 16)).setup, in: ab.udp(1000, 80, 8), want: "drop", reason: denied},
			{name: "the source's port is not what counts", setup: out(at(allow(ofB, tcp), 80, 16)).setup, in: ab.tcp(80, 1000, syn, 0), want: "drop", reason: denied},
			{name: "the last port of a prefix", setup: out(at(allow(ofB, udp), 8080, 12)).setup, in: ab.udp(1000, 8095, 8), want: "redirect", out: toB},
			{name: "the port behind a prefix", setup: out(at(allow(ofB, udp), 8080, 12)).setup, in: ab.udp(1000, 8096, 8), want: "drop", reason: denied},
			{name: "the port before a prefix", setup: out(at(allow(ofB, udp), 8080, 12)).setup, in: ab.udp(1000, 8079, 8), want: "drop", reason: denied},
			{name: "a protocol", setup: out(allow(ofB, tcp)).setup, in: ab.tcp(1000, 4711, syn, 0), want: "redirect", out: toB},
			{name: "another protocol", setup: out(allow(ofB, tcp)).setup, in: ab.udp(1000, 4711, 8), want: "drop", reason: denied},
			{name: "ICMP", setup: out(allow(ofB, f.icmp)).setup, in: ab.echo(7, 8), want: "redirect", out: toB},
			{name: "ICMP is no TCP", setup: out(allow(ofB, tcp)).setup, in: ab.echo(7, 8), want: "drop", reason: denied},
			{name: "a query's identifier is no port", setup: out(at(allow(ofB, f.icmp), 7, 16)).setup, in: ab.echo(7, 8), want: "drop", reason: denied},
			{name: "SCTP", setup: out(at(allow(ofB, sctp), 132, 16)).setup, in: sctpTo(ab, 132), want: "redirect", out: toB},
			{name: "another port of SCTP", setup: out(at(allow(ofB, sctp), 132, 16)).setup, in: sctpTo(ab, 133), want: "drop", reason: denied},
			{name: "the most specific entry of a peer: the port", setup: out(allow(ofB, tcp), at(deny(ofB, tcp), 80, 16)).setup, in: ab.tcp(1000, 80, syn, 0), want: "drop", reason: denied},
			{name: "the most specific entry of a peer: the rest", setup: out(allow(ofB, tcp), at(deny(ofB, tcp), 80, 16)).setup, in: ab.tcp(1000, 81, syn, 0), want: "redirect", out: toB},

			{name: "anybody", setup: out(allow(policymap.Anybody, 0)).setup, in: ab.udp(1000, 53, 8), want: "redirect", out: toB},
			{name: "anybody on a port", setup: out(at(allow(policymap.Anybody, udp), 53, 16)).setup, in: fromA(f.other).udp(1000, 53, 8), want: "redirect", out: toPeer},
			{name: "precedence: deny goes before", setup: out(allow(ofB, 0), before(deny(policymap.Anybody, 0))).setup, in: ab.udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "precedence: allow goes before", setup: out(before(allow(ofB, 0)), deny(policymap.Anybody, 0)).setup, in: ab.udp(1000, 53, 8), want: "redirect", out: toB},
			{name: "precedence: allow for anybody goes before", setup: out(deny(ofB, 0), before(allow(policymap.Anybody, 0))).setup, in: ab.udp(1000, 53, 8), want: "redirect", out: toB},
			{name: "equal precedence: the identity is denied", setup: out(deny(ofB, 0), allow(policymap.Anybody, 0)).setup, in: ab.udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "equal precedence: anybody is denied", setup: out(allow(ofB, 0), deny(policymap.Anybody, 0)).setup, in: ab.udp(1000, 53, 8), want: "drop", reason: denied},

			{name: "a class", setup: withClasses(out(allow(classNet, 0))), in: fromA(f.other).udp(1000, 53, 8), want: "redirect", out: toPeer},
			{name: "the longest range's class", setup: withClasses(out(allow(classNet, 0))), in: fromA(f.peer).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "a class and an identity, equal: the class is denied", setup: withClasses(out(allow(ofPeer, 0), deny(classPeer, 0))), in: fromA(f.peer).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "a class and an identity, the identity goes before", setup: withClasses(out(before(allow(ofPeer, 0)), deny(classPeer, 0))), in: fromA(f.peer).udp(1000, 53, 8), want: "redirect", out: toPeer},
			{name: "an address without a class", setup: withClasses(out(allow(classNet, 0))), in: ab.udp(1000, 53, 8), want: "drop", reason: denied},
		}
		runPolicies(t, f, rows)
	}
}

func runPolicies(t *testing.T, f policyFamily, rows []row) {
	t.Helper()
	for i := range rows {
		rows[i].name = f.name + " " + rows[i].name
	}
	runTable(t, rows)
}

// TestPolicyFromWire: the receiver's set decides about what comes from another node; the sender's
// about the answer.
func TestPolicyFromWire(t *testing.T) {
	for _, f := range policyFamilies {
		wire := func(src netip.Addr) packet { return fromPeer(f.a).src(src) }
		in := func(entries ...PolicyEntry) func(*testing.T, *harness) { return policies{aIn: entries}.setup }
		runPolicies(t, f, []row{
			{name: "nobody", hook: "from_wire", setup: policies{aIn: nothing}.setup, in: wire(f.peer).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "by the identity of an address", hook: "from_wire", setup: in(allow(ofPeer, 0)), in: wire(f.peer).udp(1000, 53, 8), want: "redirect", out: toA},
			{name: "by another identity", hook: "from_wire", setup: in(allow(ofOther, 0)), in: wire(f.peer).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "a pod that nobody has named is not the world", hook: "from_wire", setup: in(allow(bpf.IdentityWorld, 0)), in: wire(f.other).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "the world", hook: "from_wire", setup: in(allow(bpf.IdentityWorld, 0)), in: wire(f.world).udp(1000, 53, 8), want: "redirect", out: toA},
			{name: "the world's class", hook: "from_wire", setup: func(t *testing.T, b *harness) {
				in(allow(classNet, 0))(t, b)
				must(t, b.SetClasses(map[netip.Prefix]uint32{netip.PrefixFrom(f.world, f.world.BitLen()): classNet}))
			}, in: wire(f.world).udp(1000, 53, 8), want: "redirect", out: toA},
			{name: "the reply to what the pod began", hook: "from_wire", setup: both(policies{aIn: nothing}.setup, sent(podA4(fromA(f.peer).tcp(1000, 80, syn, 0)))), in: wire(f.peer).tcp(80, 1000, syn|ack, 0), want: "redirect", out: toA},
			{name: "the pod's reply", setup: both(policies{aOut: nothing}.setup, sent(leg{hook: "from_wire", iface: "wtup", in: wire(f.peer).tcp(1000, 80, syn, 0)})), in: fromA(f.peer).tcp(80, 1000, syn|ack, 0), want: "redirect", out: toPeer},
		})
	}
}

// TestPolicyReplies: a reply passes because its conversation may be, and only as a reply.
func TestPolicyReplies(t *testing.T) {
	for _, f := range policyFamilies {
		ab, ba := fromA(f.b), fromB(f.a)
		// A may begin with B, and B with nobody.
		oneWay := policies{aOut: []PolicyEntry{at(allow(ofB, 0), 0, 0)}, aIn: nothing, bOut: nothing, bIn: []PolicyEntry{allow(ofA, 0)}}
		closed := policies{aOut: nothing, aIn: nothing, bOut: nothing, bIn: nothing}
		known := func(p policies, first packet) func(*testing.T, *harness) { return both(p.setup, sent(podA4(first))) }
		runPolicies(t, f, []row{
			{name: "a reply over UDP", iface: "wtb", setup: known(oneWay, ab.udp(1000, 53, 8)), in: ba.udp(53, 1000, 8), want: "redirect", out: toA},
			{name: "a reply over UDP that nothing was sent before", iface: "wtb", setup: oneWay.setup, in: ba.udp(53, 1000, 8), want: "drop", reason: denied},
			{name: "from another port", iface: "wtb", setup: known(oneWay, ab.udp(1000, 53, 8)), in: ba.udp(54, 1000, 8), want: "drop", reason: denied},
			{name: "a reply over TCP", iface: "wtb", setup: known(oneWay, ab.tcp(1000, 80, syn, 0)), in: ba.tcp(80, 1000, syn|ack, 0), want: "redirect", out: toA},
			{name: "an echo reply", iface: "wtb", setup: known(oneWay, ab.echo(7, 8)), in: ba.echoReply(7, 8), want: "redirect", out: toA},
			{name: "a reply over SCTP", iface: "wtb", setup: known(oneWay, sctpTo(ab, 0x1000)), in: sctpTo(ba, 0x1000), want: "redirect", out: toA},
			{name: "a SYN is no reply, whatever is known", iface: "wtb", setup: known(oneWay, ab.tcp(1000, 80, syn, 0)), in: ba.tcp(80, 1000, syn, 0), want: "drop", reason: denied},
			{name: "the same SYN again", setup: known(oneWay, ab.tcp(1000, 80, syn, 0)), in: ab.tcp(1000, 80, syn, 0), want: "redirect", out: toB},

			{name: "lost TCP, of who may begin", setup: oneWay.setup, in: ab.tcp(1000, 80, ack, 8), want: "pass"},
			{name: "lost TCP, the answer", iface: "wtb", setup: oneWay.setup, in: ba.tcp(80, 1000, ack, 8), want: "drop", reason: denied},
			{name: "lost TCP, the answer to a SYN", iface: "wtb", setup: oneWay.setup, in: ba.tcp(80, 1000, syn|ack, 0), want: "drop", reason: denied},
			{name: "lost TCP, the answer once who began has sent", iface: "wtb", setup: known(oneWay, ab.tcp(1000, 80, ack, 8)), in: ba.tcp(80, 1000, ack, 8), want: "pass"},
			{name: "lost TCP, neither may begin", setup: closed.setup, in: ab.tcp(1000, 80, ack, 8), want: "drop", reason: denied},
			{name: "TCP lost in an upgrade, the answer", iface: "wtb", setup: both(oneWay.setup, emptied(60)), in: ba.tcp(80, 1000, ack, 8), want: "pass"},
			{name: "TCP lost in an upgrade, the answer to the answer", setup: both(both(oneWay.setup, emptied(60)), sent(podB4(ba.tcp(80, 1000, ack, 8)))), in: ab.tcp(1000, 80, ack, 8), want: "pass"},
			{name: "TCP lost in an upgrade, neither may begin", setup: both(closed.setup, emptied(60)), in: ab.tcp(1000, 80, ack, 8), want: "drop", reason: denied},
			{name: "TCP lost in an upgrade, too late", iface: "wtb", setup: both(oneWay.setup, emptied(-1)), in: ba.tcp(80, 1000, ack, 8), want: "drop", reason: denied},
			{name: "a SYN after an upgrade", iface: "wtb", setup: both(oneWay.setup, emptied(60)), in: ba.tcp(80, 1000, syn, 8), want: "drop", reason: denied},
			{name: "lost UDP is new", iface: "wtb", setup: oneWay.setup, in: ba.udp(80, 1000, 8), want: "drop", reason: denied},

			{name: "a later fragment of what is allowed", setup: known(policies{aOut: []PolicyEntry{at(allow(ofB, udp), 53, 16)}}, ab.id(9).udp(1000, 53, 64).fragment(0, 32, true)), in: ab.id(9).udp(1000, 53, 64).fragment(32, 72, false), want: "redirect", out: toB},
			{name: "a later fragment of what is not", setup: both(policies{aOut: []PolicyEntry{at(allow(ofB, udp), 53, 16)}}.setup, func(t *testing.T, b *harness) {
				if v, _ := b.send(t, "tc", "from_pod", "wta", ab.id(9).udp(1000, 54, 64).fragment(0, 32, true).bytes()); v != "drop" {
					t.Fatalf("the first fragment: %s", v)
				}
				must(t, emptyMap(b.maps.Drops))
			}), in: ab.id(9).udp(1000, 54, 64).fragment(32, 72, false), want: "drop", reason: denied},
		})
	}
}

// TestPolicyHost: this host reaches its own pods, and a pod this host if its set says so.
func TestPolicyHost(t *testing.T) {
	for _, f := range policyFamilies {
		probe := newPacket(gatewayMAC, podA.MAC, f.own, f.a)
		closed := policies{aOut: nothing, aIn: nothing}
		runPolicies(t, f, []row{
			{name: "a probe", hook: "to_pod", iface: "wta", setup: closed.setup, in: probe.tcp(1000, 80, syn, 0), want: "pass"},
			{name: "the answer to a probe", setup: both(closed.setup, sent(leg{hook: "to_pod", iface: "wta", in: probe.tcp(1000, 80, syn, 0)})), in: fromA(f.own).tcp(80, 1000, syn|ack, 0), want: "pass"},
			{name: "the answer to a lost probe", setup: closed.setup, in: fromA(f.own).tcp(80, 1000, ack, 0), want: "drop", reason: denied},
			{name: "the answer to a lost probe that goes on", setup: both(closed.setup, sent(leg{hook: "to_pod", iface: "wta", in: probe.tcp(1000, 80, ack, 0)})), in: fromA(f.own).tcp(80, 1000, ack, 0), want: "pass"},
			{name: "a pod begins with this host", setup: closed.setup, in: fromA(f.own).tcp(1000, 80, syn, 0), want: "drop", reason: denied},
			{name: "a pod may begin with this host", setup: policies{aOut: []PolicyEntry{allow(bpf.IdentityHost, 0)}}.setup, in: fromA(f.own).tcp(1000, 80, syn, 0), want: "pass"},
			{name: "what the stack forwards is judged behind it", setup: closed.setup, in: fromA(f.world).tcp(1000, 80, syn, 0), want: "pass"},
		})
	}
}

// TestPolicyErrors: an ICMP error is judged as the conversation that it is about.
func TestPolicyErrors(t *testing.T) {
	b := newHarness(t)
	for _, f := range policyFamilies {
		for _, context := range contexts {
			t.Run(f.name+"/"+context, func(t *testing.T) {
				b.reset(t)
				policies{aOut: []PolicyEntry{at(allow(ofPeer, udp), 53, 16)}}.enter(t, b)
				about := fromA(f.peer).udp(1000, 53, 60)
				sent(podA4(about))(t, b)
				frame := f.unreachable(fromPeer(f.a), about).bytes()
				if v, _ := b.send(t, context, "from_wire", "wtup", frame); v != "redirect" {
					t.Errorf("about an allowed flow: %s %v", v, b.counted(t))
				}
				policies{aOut: nothing}.enter(t, b)
				if v, _ := b.send(t, context, "from_wire", "wtup", frame); v != "drop" || fmt.Sprint(reasonsIn(b.counted(t))) != "[policy_denied]" {
					t.Errorf("about one that is not allowed any more: %s %v", v, b.counted(t))
				}
			})
		}
	}
}

// TestPolicyErrorsOfRefused: a pod has no way out in errors about answers to what its own policy
// keeps from leaving the stack, even towards somebody who may begin towards it.
func TestPolicyErrorsOfRefused(t *testing.T) {
	b := newHarness(t)
	for _, f := range policyFamilies {
		for _, context := range contexts {
			t.Run(f.name+"/"+context, func(t *testing.T) {
				b.reset(t)
				answer := fromPeer(f.a).src(f.world).udp(53, 1000, 60)
				about := f.unreachable(fromA(f.world), answer).bytes()
				sent(podA4(fromA(f.world).udp(1000, 53, 60)))(t, b)
				if v, _ := b.send(t, context, "from_pod", "wta", about); v != "pass" {
					t.Fatalf("without a policy: %s %v", v, b.counted(t))
				}
				b.reset(t)
				policies{aOut: nothing}.enter(t, b)
				sent(podA4(fromA(f.world).udp(1000, 53, 60)))(t, b)
				if v, _ := b.send(t, context, "from_pod", "wta", about); v != "drop" ||
					fmt.Sprint(reasonsIn(b.counted(t))) != "[icmp_no_flow]" {
					t.Errorf("about an answer to what is refused: %s %v", v, b.counted(t))
				}
			})
		}
	}
}

// TestPolicyChange: a connection that a change of policy does not allow any more is cut in both
// directions, from the next packet on, and goes on when it is allowed again.
func TestPolicyChange(t *testing.T) {
	b := newHarness(t)
	for _, f := range policyFamilies {
		there := []leg{podA4(fromA(f.b).tcp(1000, 80, ack, 8)), podB4(fromB(f.a).tcp(80, 1000, ack, 8))}
		remote := []leg{podA4(fromA(f.peer).tcp(1000, 80, ack, 8)), {hook: "from_wire", iface: "wtup", in: fromPeer(f.a).tcp(80, 1000, ack, 8)}}
		for name, c := range map[string]struct {
			syn  packet
			legs []leg
			cut  policies
		}{
			"the sender's, local":   {fromA(f.b).tcp(1000, 80, syn, 0), there, policies{aOut: nothing}},
			"the receiver's, local": {fromA(f.b).tcp(1000, 80, syn, 0), there, policies{bIn: nothing}},
			"the sender's, remote":  {fromA(f.peer).tcp(1000, 80, syn, 0), remote, policies{aOut: nothing}},
			"by precedence, remote": {fromA(f.peer).tcp(1000, 80, syn, 0), remote, policies{aOut: []PolicyEntry{allow(0, 0), before(at(deny(ofPeer, tcp), 80, 16))}}},
		} {
			for _, context := range contexts {
				t.Run(f.name+" "+name+"/"+context, func(t *testing.T) {
					b.reset(t)
					check := func(when, want string) {
						t.Helper()
						for range 3 { // the first makes the decision, the others use it
							for i, l := range c.legs {
								if v, _ := b.send(t, context, l.hook, l.iface, l.in.bytes()); v != want {
									t.Errorf("%s, direction %d: %s, want %s; %v", when, i, v, want, b.counted(t))
								}
							}
						}
					}
					policies{}.enter(t, b)
					sent(podA4(c.syn))(t, b)
					check("allowed", "redirect")
					c.cut.enter(t, b)
					check("cut", "drop")
					policies{}.enter(t, b)
					check("allowed again", "redirect")
				})
			}
		}
	}
}
