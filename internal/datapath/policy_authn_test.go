package datapath

import (
	"net/netip"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/policymap"
	"weft.dev/weft/test/espref"
)

// strict has a set let in only who is authenticated, and say nothing of some ports.
func strict(but ...PolicyEntry) []PolicyEntry {
	return append([]PolicyEntry{
		allow(policymap.Anybody, 0),
		{Peer: policymap.Unauthenticated, Precedence: 100, Rule: 9},
	}, but...)
}

// silent is an entry that neither allows nor denies what others decide: it goes behind all.
func silent(proto uint8, port uint16) PolicyEntry {
	return PolicyEntry{Peer: policymap.Unauthenticated, Protocol: proto, Port: port, PortBits: 16}
}

// TestPolicyAuthenticated: a set may refuse whoever nothing but his address tells, by port.
func TestPolicyAuthenticated(t *testing.T) {
	in := func(entries []PolicyEntry) policies { return policies{aIn: entries} }
	for _, f := range policyFamilies {
		wire := fromPeer(f.a)
		probe := newPacket(gatewayMAC, podA.MAC, f.own, f.a)
		known := both(in(strict()).setup, sent(leg{hook: "to_pod", iface: "wta", in: probe.tcp(1000, 80, syn, 0)}))
		runPolicies(t, f, []row{
			{name: "another node's pod in cleartext", hook: "from_wire", setup: in(strict()).setup, in: wire.src(f.peer).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "another node's pod in cleartext, allowed by its identity", hook: "from_wire", setup: in(strict(before(allow(ofPeer, 0)))).setup, in: wire.src(f.peer).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "the world", hook: "from_wire", setup: in(strict()).setup, in: wire.src(f.world).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "ICMP", hook: "from_wire", setup: in(strict()).setup, in: wire.src(f.world).echo(7, 8), want: "drop", reason: denied},
			{name: "a port that need not be", hook: "from_wire", setup: in(strict(silent(udp, 53))).setup, in: wire.src(f.peer).udp(1000, 53, 8), want: "redirect", out: toA},
			{name: "the same port of another protocol", hook: "from_wire", setup: in(strict(silent(udp, 53))).setup, in: wire.src(f.peer).tcp(1000, 53, syn, 0), want: "drop", reason: denied},
			{name: "the port of who begins", hook: "from_wire", setup: in(strict(silent(udp, 53))).setup, in: wire.src(f.peer).udp(53, 1000, 8), want: "drop", reason: denied},
			{name: "a port that need not be allows nothing by itself", hook: "from_wire", setup: in([]PolicyEntry{silent(udp, 53)}).setup, in: wire.src(f.peer).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "only a port", hook: "from_wire", setup: in([]PolicyEntry{allow(0, 0), {Peer: policymap.Unauthenticated, Protocol: udp, Port: 53, PortBits: 16, Precedence: 100}}).setup, in: wire.src(f.peer).udp(1000, 53, 8), want: "drop", reason: denied},
			{name: "another than that port", hook: "from_wire", setup: in([]PolicyEntry{allow(0, 0), {Peer: policymap.Unauthenticated, Protocol: udp, Port: 53, PortBits: 16, Precedence: 100}}).setup, in: wire.src(f.peer).udp(1000, 54, 8), want: "redirect", out: toA},
			{name: "a later fragment", hook: "from_wire", setup: both(in(strict(silent(udp, 53))).setup, sent(leg{hook: "from_wire", iface: "wtup", in: wire.src(f.peer).id(9).udp(1000, 53, 64).fragment(0, 32, true)})), in: wire.src(f.peer).id(9).udp(1000, 53, 64).fragment(32, 72, false), want: "redirect", out: toA},
			{name: "the answer to what the pod began", hook: "from_wire", setup: both(in(strict()).setup, sent(podA4(fromA(f.peer).tcp(1000, 80, syn, 0)))), in: wire.src(f.peer).tcp(80, 1000, syn|ack, 0), want: "redirect", out: toA},
			{name: "the answer to the world, which was let in before", setup: both(both(policies{}.setup, sent(leg{hook: "from_wire", iface: "wtup", in: wire.src(f.world).tcp(1000, 80, syn, 0)})), in(strict()).setup), in: fromA(f.world).tcp(80, 1000, syn|ack, 0), want: "drop", reason: denied},
			{name: "a SYN is no answer", hook: "from_wire", setup: both(in(strict()).setup, sent(podA4(fromA(f.peer).tcp(1000, 80, syn, 0)))), in: wire.src(f.peer).tcp(80, 1000, syn, 0), want: "drop", reason: denied},
			{name: "a pod of this node", iface: "wtb", setup: in(strict()).setup, in: fromB(f.a).udp(1000, 53, 8), want: "redirect", out: toA},
			{name: "the answer to a pod of this node", setup: both(in(strict()).setup, sent(podB4(fromB(f.a).tcp(1000, 80, syn, 0)))), in: fromA(f.b).tcp(80, 1000, syn|ack, 0), want: "redirect", out: toB},
			{name: "the pod itself", setup: in(strict()).setup, in: fromA(f.a).udp(1000, 53, 8), want: "redirect", out: toA},
			{name: "what the pod begins", setup: in(strict()).setup, in: fromA(f.peer).udp(1000, 53, 8), want: "redirect", out: toPeer},
			{name: "this host", hook: "to_pod", iface: "wta", setup: in(strict()).setup, in: probe.tcp(1000, 80, syn, 0), want: "pass"},
			{name: "the answer to this host", setup: known, in: fromA(f.own).tcp(80, 1000, syn|ack, 0), want: "pass"},
		})
	}
}

// TestPolicyAuthenticatedBehindTheStack: what the host's stack sends to a pod is authenticated by
// its provenance, whatever source it has by then.
func TestPolicyAuthenticatedBehindTheStack(t *testing.T) {
	b := newHarness(t)
	for _, f := range policyFamilies {
		toPod := func(src netip.Addr) packet { return newPacket(gatewayMAC, podA.MAC, src, f.a) }
		for _, r := range []behind{
			{name: "another pod", via: "wtb", in: toPod(f.b).tcp(1000, 80, syn, 0)},
			{name: "another pod, translated to this host's address", via: "wtb", in: toPod(f.own).tcp(1000, 80, syn, 0)},
			{name: "this host", in: toPod(f.own).tcp(1000, 80, syn, 0)},
			{name: "the world, translated to this host's address", via: "wtup", in: toPod(f.own).tcp(1000, 80, syn, 0), reason: denied},
			{name: "the world", via: "wtx", in: toPod(f.world).tcp(1000, 80, syn, 0), reason: denied},
			{name: "another node's pod in cleartext", via: "wtup", in: toPod(f.peer).tcp(1000, 80, syn, 0), reason: denied},
		} {
			t.Run(f.name+" "+r.name, func(t *testing.T) {
				b.reset(t)
				must(t, b.putUplink(b.index["wtup"]))
				policies{aIn: strict()}.enter(t, b)
				want := "pass"
				if r.reason != bpf.ReasonNone {
					want = "drop"
				}
				if v := b.passStack(t, "to_pod", "wta", r.via, false, r.in.bytes()); v != want {
					t.Errorf("%s, want %s; %v", v, want, b.counted(t))
				}
				if want != "pass" || r.via == "" {
					return
				}
				back := fromA(f.own)
				if r.name == "another pod" {
					back = fromA(f.b) // its flow is the stack's
				}
				if v, _ := b.send(t, "tc", "from_pod", "wta", back.tcp(80, 1000, syn|ack, 0).bytes()); v != "pass" {
					t.Errorf("the answer: %s; %v", v, b.counted(t))
				}
			})
		}
	}
}

// sealedPolicies has pod A let in only who is authenticated, where packets are sealed.
func sealedPolicies(t *testing.T, b *sealHarness, entries []PolicyEntry) {
	t.Helper()
	must(t, b.SetIdentities(map[netip.Addr]uint32{peer4: identityPeer, peer6: identityPeer}))
	list := append([]PolicyEntry(nil), entries...)
	for i := range list {
		list[i].Direction = policymap.Ingress
	}
	set, err := b.AddPolicySet(list)
	must(t, err)
	pod := podA
	pod.Identity, pod.IngressSet = identityA, set
	must(t, b.putEndpoint(pod, []int{b.index["wta"]}))
}

func sealedAsPeer(b *sealHarness, t *testing.T, identity uint32, seq uint64, inner []byte) []byte {
	sa := peerSA(0)
	sa.SPI = spiOf(sealEpoch, 0, identity)
	return one(b, t, sa, func(p *espref.Packet) { p.Seq, p.Inner = seq, inner })
}

// TestPolicyAuthenticatedSealed: what a node has sealed is authenticated, whoever opens it, but not
// the world that its host relays.
func TestPolicyAuthenticatedSealed(t *testing.T) {
	for _, way := range receiveWays {
		b := newSealHarness(t, 4).keyed(t)
		sealedPolicies(t, b, strict())
		for i, row := range []struct {
			name     string
			identity uint32
			src      netip.Addr
			want     string
		}{
			{"a pod", identityPeer, peer4, "redirect"},
			{"a pod again", identityPeer, peer4, "redirect"},
			{"the node's host", bpf.IdentityHost, wireB4, "redirect"},
			{"the world, relayed", bpf.IdentityWorld, world4, "drop"},
			{"the world, translated to the node's address", bpf.IdentityWorld, wireB4, "drop"},
		} {
			// Each has a flow of its own, but for the second packet of the first.
			port := uint16(1000 + 10*i)
			if i == 1 {
				port -= 10
			}
			inner := fromPeer(podA.IPv4).src(row.src).udp(port, 53, 8).bytes()[atIP:]
			frame := sealedAsPeer(b, t, row.identity, uint64(i+1), inner)
			if v, _ := b.receive(t, way, frame); v != row.want {
				t.Errorf("%s, %s: %s, want %s; %v", way, row.name, v, row.want, b.counted(t))
			}
		}
		frame := fromPeer(podA.IPv4).src(world4).udp(1, 2, 8).bytes()
		if v, _ := b.receive(t, way, frame); v != "drop" {
			t.Errorf("%s, the world in cleartext: %s", way, v)
		}
	}
}

// TestPolicyAuthenticatedFlow: a flow that came sealed is cut in both directions once its packets
// may come in cleartext, and one in cleartext once the pod lets in only who is authenticated.
func TestPolicyAuthenticatedFlow(t *testing.T) {
	for _, way := range receiveWays {
		b := newSealHarness(t, 4).keyed(t)
		sealedPolicies(t, b, strict())
		seq, plain := uint64(0), fromPeer(podA.IPv4).tcp(1000, 80, ack, 8).bytes()
		out := fromA(peer4).tcp(80, 1000, ack, 8).bytes()
		context := way
		if way == bySealer {
			context = "tc"
		}
		comes := func(sealed bool, flags byte) (string, string) {
			frame := plain
			if sealed {
				seq++
				frame = sealedAsPeer(b, t, identityPeer, seq, fromPeer(podA.IPv4).tcp(1000, 80, flags, 8).bytes()[atIP:])
			}
			in := ""
			if sealed {
				in, _ = b.receive(t, way, frame)
			} else {
				in, _ = b.send(t, context, "from_wire", "wtup", frame)
			}
			back, _ := b.send(t, context, "from_pod", "wta", out)
			return in, back
		}
		check := func(when string, sealed bool, flags byte, want string) {
			t.Helper()
			for range 3 { // the first makes the decision, the others use it
				if in, back := comes(sealed, flags); in != want || back != want {
					t.Errorf("%s, %s: %s in and %s back, want %s; %v", way, when, in, back, want, b.counted(t))
				}
				flags = ack
			}
		}
		check("sealed", true, syn, "redirect")
		must(t, b.SetPlain([]netip.Prefix{netip.PrefixFrom(peer4, 32)}))
		check("exempt, in cleartext", false, ack, "drop")
		sealedPolicies(t, b, strict()[:1])
		check("permissive, in cleartext", false, ack, "redirect")
		sealedPolicies(t, b, strict())
		check("strict again, in cleartext", false, ack, "drop")
		must(t, b.SetPlain(nil))
		check("exempt no more, sealed", true, ack, "redirect")
		if in, _ := b.send(t, context, "from_wire", "wtup", plain); in != "drop" {
			t.Errorf("%s: in cleartext what must be sealed: %s", way, in)
		}
	}
}

// TestPolicyAuthenticatedErrors: an ICMP error is judged as the conversation that it quotes, also
// one of the pod's own about a packet that came sealed.
func TestPolicyAuthenticatedErrors(t *testing.T) {
	for _, context := range contexts {
		b := newSealHarness(t, 4).keyed(t)
		sealedPolicies(t, b, strict())
		came := fromPeer(podA.IPv4).udp(1000, 53, 60)
		frame := sealedAsPeer(b, t, identityPeer, 1, came.bytes()[atIP:])
		if v, _ := b.receive(t, context, frame); v != "redirect" {
			t.Fatalf("%s: %s %v", context, v, b.counted(t))
		}
		unreachable := fromA(peer4).icmpError(3, 3, 0, came, 28).bytes()
		if v, _ := b.send(t, context, "from_pod", "wta", unreachable); v != "redirect" {
			t.Errorf("%s, about what came sealed: %s %v", context, v, b.counted(t))
		}
		must(t, b.SetPlain([]netip.Prefix{netip.PrefixFrom(peer4, 32)}))
		if v, _ := b.send(t, context, "from_pod", "wta", unreachable); v != "drop" {
			t.Errorf("%s, about what must come in cleartext now: %s %v", context, v, b.counted(t))
		}
	}
}
