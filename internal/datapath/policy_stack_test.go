package datapath

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/datapath/policymap"
	"weft.dev/weft/test/espref"
)

// behind is a packet that the host's stack sends on: to pod A (to_pod) or to the wire (to_wire).
type behind struct {
	name, hook string
	via        string // where it came in; "": this host sent it
	setup      func(*testing.T, *harness)
	in         packet
	answers    bool // connection tracking knows what it answers
	reason     bpf.Reason
}

// Connection tracking's word for a packet that answers, IP_CT_ESTABLISHED_REPLY, as the programs
// take it in a test run.
const ctReply = 3

// passStack runs a TC egress hook on a packet that came in by an interface.
func (b *harness) passStack(t *testing.T, hook, iface, via string, answers bool, frame []byte) string {
	t.Helper()
	skb := &skbContext{Ifindex: uint32(b.index[iface]), IngressIfindex: uint32(b.index[via])}
	if answers {
		skb.CB[0] = ctReply
	}
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512), Repeat: 1, Context: skb}
	var code uint32
	must(t, b.inside(func() (err error) {
		code, err = b.program("tc", hook).Run(options)
		return err
	}))
	return verdictOf("tc", code)
}

// TestPolicyBehindTheStack: what the host's stack sends on is judged where it leaves that, by its
// provenance and the addresses that it has then.
func TestPolicyBehindTheStack(t *testing.T) {
	b := newHarness(t)
	for _, f := range policyFamilies {
		toPod := func(src netip.Addr) packet { return newPacket(gatewayMAC, podA.MAC, src, f.a) }
		toWire := func(src, dst netip.Addr) packet { return newPacket(uplinkMAC, peerMAC, src, dst) }
		in := func(entries ...PolicyEntry) func(*testing.T, *harness) { return policies{aIn: entries}.setup }
		service := addr("10.96.0.10")
		if f.a.Is6() {
			service = addr("fd00:96::a")
		}
		closed := policies{aIn: nothing, aOut: nothing}
		asked := both(policies{aIn: nothing, aOut: []PolicyEntry{allow(ofB, 0)}}.setup, sent(podA4(fromA(service).udp(1000, 53, 8))))
		neighbor := newPacket(podB.MAC, podA.MAC, f.b, f.a).ttl(255).icmp(136, 0, make([]byte, 20))
		rows := []behind{
			{name: "another pod", hook: "to_pod", via: "wtb", setup: policies{aIn: nothing}.setup, in: toPod(f.b).udp(1000, 53, 8), reason: denied},
			{name: "another pod by its identity", hook: "to_pod", via: "wtb", setup: in(allow(ofB, 0)), in: toPod(f.b).udp(1000, 53, 8)},
			{name: "another pod, translated to this host's address", hook: "to_pod", via: "wtb", setup: in(allow(ofB, 0)), in: toPod(f.own).udp(1000, 53, 8)},
			{name: "a pod that may not, translated to this host's address", hook: "to_pod", via: "wtb", setup: in(allow(ofPeer, 0)), in: toPod(f.own).udp(1000, 53, 8), reason: denied},
			{name: "a port", hook: "to_pod", via: "wtb", setup: in(at(allow(ofB, udp), 53, 16)), in: toPod(f.b).udp(1000, 54, 8), reason: denied},
			{name: "the sender's set", hook: "to_pod", via: "wtb", setup: policies{bOut: nothing}.setup, in: toPod(f.b).udp(1000, 53, 8), reason: denied},
			{name: "the sender's set allows", hook: "to_pod", via: "wtb", setup: policies{bOut: []PolicyEntry{allow(ofA, 0)}}.setup, in: toPod(f.b).udp(1000, 53, 8)},
			{name: "itself, by a service", hook: "to_pod", via: "wta", setup: policies{aOut: nothing, aIn: nothing}.setup, in: toPod(f.own).udp(1000, 53, 8)},
			{name: "this host", hook: "to_pod", setup: policies{aIn: nothing}.setup, in: toPod(f.own).udp(1000, 53, 8)},
			{name: "this host in another's name", hook: "to_pod", setup: policies{aIn: nothing}.setup, in: toPod(f.world).udp(1000, 53, 8)},
			{name: "the world, translated to this host's address", hook: "to_pod", via: "wtup", setup: policies{aIn: nothing}.setup, in: toPod(f.own).udp(1000, 53, 8), reason: denied},
			{name: "the world, translated, may", hook: "to_pod", via: "wtup", setup: in(allow(bpf.IdentityWorld, 0)), in: toPod(f.own).udp(1000, 53, 8)},
			{name: "the world, by an interface without hooks", hook: "to_pod", via: "wtx", setup: in(allow(ofPeer, 0)), in: toPod(f.world).udp(1000, 53, 8), reason: denied},
			{name: "another node's pod", hook: "to_pod", via: "wtup", setup: in(allow(ofPeer, 0)), in: toPod(f.peer).udp(1000, 53, 8)},
			{name: "a service's answer", hook: "to_pod", via: "wtb", setup: asked, in: toPod(service).udp(53, 1000, 8), answers: true},
			{name: "in the name of a service's answer", hook: "to_pod", via: "wtx", setup: asked, in: toPod(service).udp(53, 1000, 8), reason: denied},
			{name: "the answer to what has left", hook: "to_pod", via: "wtx", setup: both(policies{aIn: nothing, aOut: []PolicyEntry{allow(bpf.IdentityWorld, 0)}}.setup, sent(podA4(fromA(f.world).udp(1000, 53, 8)))), in: toPod(f.world).udp(53, 1000, 8)},
			{name: "the answer to what has not left", hook: "to_pod", via: "wtx", setup: both(closed.setup, sent(podA4(fromA(f.world).udp(1000, 53, 8)))), in: toPod(f.world).udp(53, 1000, 8), reason: denied},
			{name: "the answer to an echo that has not left", hook: "to_pod", via: "wtx", setup: both(closed.setup, sent(podA4(fromA(f.world).echo(7, 8)))), in: toPod(f.world).echoReply(7, 8), reason: denied},
			{name: "the answer to TCP that has not left", hook: "to_pod", via: "wtx", setup: both(closed.setup, sent(podA4(fromA(f.world).tcp(1000, 80, syn, 0)))), in: toPod(f.world).tcp(80, 1000, syn|ack, 0), reason: denied},
			{name: "a service's answer that nobody has asked for", hook: "to_pod", via: "wtx", setup: policies{aIn: nothing}.setup, in: toPod(service).udp(53, 1000, 8), reason: denied},
			{name: "a SYN is no answer", hook: "to_pod", via: "wtx", setup: both(policies{aIn: nothing}.setup, sent(podA4(fromA(service).tcp(1000, 80, syn, 8)))), in: toPod(service).tcp(80, 1000, syn, 8), reason: denied},
			{name: "lost TCP of what the pod may have begun", hook: "to_pod", via: "wtx", setup: policies{aIn: nothing, aOut: []PolicyEntry{allow(bpf.IdentityWorld, 0)}}.setup, in: toPod(f.world).tcp(80, 1000, ack, 8), reason: denied},
			{name: "TCP that the pod may have begun, lost in an upgrade", hook: "to_pod", via: "wtx", setup: both(policies{aIn: nothing, aOut: []PolicyEntry{allow(bpf.IdentityWorld, 0)}}.setup, emptied(60)), in: toPod(f.world).tcp(80, 1000, ack, 8)},
			{name: "lost TCP of what neither may have begun", hook: "to_pod", via: "wtx", setup: policies{aIn: nothing, aOut: nothing}.setup, in: toPod(f.world).tcp(80, 1000, ack, 8), reason: denied},
			{name: "an error about nothing", hook: "to_pod", via: "wtx", setup: policies{aIn: nothing}.setup, in: f.unreachable(toPod(f.world), fromA(f.world).udp(1000, 53, 60)), reason: bpf.ReasonIcmpNoFlow},
			{name: "an error about what the pod began", hook: "to_pod", via: "wtx", setup: both(policies{aIn: nothing}.setup, sent(podA4(fromA(f.world).udp(1000, 53, 60)))), in: f.unreachable(toPod(f.world), fromA(f.world).udp(1000, 53, 60))},
			{name: "an error about what has not left", hook: "to_pod", via: "wtx", setup: both(closed.setup, sent(podA4(fromA(f.world).udp(1000, 53, 60)))), in: f.unreachable(toPod(f.world), fromA(f.world).udp(1000, 53, 60)), reason: bpf.ReasonIcmpNoFlow},
			{name: "an error about what has left, translated", hook: "to_pod", via: "wtx", setup: both(closed.setup, sent(podA4(fromA(f.world).udp(1000, 53, 60)))), in: f.unreachable(toPod(f.world), fromA(f.world).udp(1000, 53, 60)), answers: true},
			{name: "a fragment whose first is not known", hook: "to_pod", via: "wtx", setup: in(allow(bpf.IdentityWorld, 0)), in: toPod(f.world).udp(1000, 53, 64).fragment(32, 72, false), reason: bpf.ReasonFragmentUnknown},

			{name: "to the world", hook: "to_wire", via: "wta", setup: policies{aOut: nothing}.setup, in: toWire(f.a, f.world).udp(1000, 53, 8), reason: denied},
			{name: "to the world, masqueraded", hook: "to_wire", via: "wta", setup: policies{aOut: nothing}.setup, in: toWire(f.own, f.world).udp(1000, 53, 8), reason: denied},
			{name: "to the world, masqueraded, may", hook: "to_wire", via: "wta", setup: policies{aOut: []PolicyEntry{allow(bpf.IdentityWorld, 0)}}.setup, in: toWire(f.own, f.world).udp(1000, 53, 8)},
			{name: "to another node's pod", hook: "to_wire", via: "wta", setup: policies{aOut: []PolicyEntry{at(allow(ofPeer, tcp), 80, 16)}}.setup, in: toWire(f.a, f.peer).tcp(1000, 80, syn, 0)},
			{name: "to another port of it", hook: "to_wire", via: "wta", setup: policies{aOut: []PolicyEntry{at(allow(ofPeer, tcp), 80, 16)}}.setup, in: toWire(f.a, f.peer).tcp(1000, 81, syn, 0), reason: denied},
			{name: "the answer to who began", hook: "to_wire", via: "wta", setup: both(policies{aOut: nothing}.setup, sent(leg{hook: "from_wire", iface: "wtup", in: fromPeer(f.a).src(f.world).udp(1000, 53, 8)})), in: toWire(f.a, f.world).udp(53, 1000, 8)},
			{name: "this host", hook: "to_wire", setup: policies{aOut: nothing}.setup, in: toWire(f.own, f.world).udp(1000, 53, 8)},
			{name: "another pod's set is not asked", hook: "to_wire", via: "wtb", setup: policies{aOut: nothing}.setup, in: toWire(f.own, f.world).udp(1000, 53, 8)},
		}
		if f.a.Is6() {
			rows = append(rows,
				behind{name: "a neighbour's advertisement on a bridge", hook: "to_pod", via: "wtb", setup: policies{aIn: nothing}.setup, in: neighbor},
				behind{name: "the same, from afar", hook: "to_pod", via: "wtb", setup: policies{aIn: nothing}.setup, in: neighbor.ttl(254), reason: denied})
		}
		for _, r := range rows {
			t.Run(f.name+" "+r.hook+" "+r.name, func(t *testing.T) {
				b.reset(t)
				must(t, b.putUplink(b.index["wtup"]))
				r.setup(t, b)
				iface, want := map[string]string{"to_pod": "wta", "to_wire": "wtup"}[r.hook], "pass"
				if r.reason != bpf.ReasonNone {
					want = "drop"
				}
				for range 2 {
					if v := b.passStack(t, r.hook, iface, r.via, r.answers, r.in.bytes()); v != want {
						t.Errorf("%s, want %s; %v", v, want, b.counted(t))
					}
				}
				if got := reasonsIn(b.counted(t)); r.reason != bpf.ReasonNone && !slices.Equal(got, []string{r.reason.String()}) {
					t.Errorf("reasons %v, want %s", got, r.reason)
				}
			})
		}
	}
}

// TestPolicyTag: with what from_pod gives to the stack goes whether it is a reply, which no address
// tells any more once it is translated; on the fast path, too.
func TestPolicyTag(t *testing.T) {
	b := newHarness(t)
	for _, f := range policyFamilies {
		b.reset(t)
		policies{aIn: []PolicyEntry{allow(bpf.IdentityWorld, 0)}}.enter(t, b)
		sent(leg{hook: "from_wire", iface: "wtup", in: fromPeer(f.a).src(f.world).udp(1000, 53, 8)})(t, b)
		for _, c := range []struct {
			name string
			in   packet
			want uint16
		}{
			{"a reply", fromA(f.world).udp(53, 1000, 8), bpf.TagEndpoint | bpf.TagReply | podA.Slot},
			{"what it begins", fromA(f.world).udp(54, 1000, 8), bpf.TagEndpoint | podA.Slot},
			{"lost TCP that the other may have begun", fromA(f.world).tcp(80, 1000, ack, 8), bpf.TagEndpoint | podA.Slot},
		} {
			for i := range 3 {
				frame := c.in.bytes()
				var after xdpContext
				options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512), Repeat: 1, ContextOut: &after,
					Context: &xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(b.index["wta"])}}
				must(t, b.inside(func() error { _, err := b.program("xdp", "from_pod").Run(options); return err }))
				if got := uint16(options.DataOut[2]) | uint16(options.DataOut[3])<<8; after.Data != 4 || got != c.want {
					t.Errorf("%s %s, packet %d: tag %#x, want %#x", f.name, c.name, i, got, c.want)
				}
			}
		}
	}
}

// TestPolicyExits: what leaves by an interface without hooks is judged there, without encryption,
// too.
func TestPolicyExits(t *testing.T) {
	for _, f := range policyFamilies {
		t.Run(f.name, func(t *testing.T) { testPolicyExits(t, f) })
	}
}

func testPolicyExits(t *testing.T, f policyFamily) {
	b := newExitHarness(t)
	for _, c := range []struct {
		name   string
		out    []PolicyEntry
		tag    int64
		in     packet
		reason bpf.Reason
	}{
		{"nothing is allowed", nothing, bpf.TagEndpoint | 1, fromA(f.world).udp(1000, 53, 20), denied},
		{"the world is", []PolicyEntry{allow(bpf.IdentityWorld, 0)}, bpf.TagEndpoint | 1, fromA(f.world).udp(1000, 53, 20), bpf.ReasonNone},
		{"a port is", []PolicyEntry{at(allow(bpf.IdentityWorld, udp), 53, 16)}, bpf.TagEndpoint | 1, fromA(f.world).udp(1000, 53, 20), bpf.ReasonNone},
		{"another port is", []PolicyEntry{at(allow(bpf.IdentityWorld, udp), 54, 16)}, bpf.TagEndpoint | 1, fromA(f.world).udp(1000, 53, 20), denied},
		{"a reply", nothing, bpf.TagEndpoint | bpf.TagReply | 1, fromA(f.world).udp(1000, 53, 20), bpf.ReasonNone},
		{"another endpoint's tag is not believed", nothing, bpf.TagEndpoint | bpf.TagReply | 2, fromA(f.world).udp(1000, 53, 20), denied},
		{"a connection's port", []PolicyEntry{at(allow(bpf.IdentityWorld, tcp), 80, 16)}, bpf.TagEndpoint | 1, fromA(f.world).tcp(1000, 80, syn, 20), bpf.ReasonNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			policies{aOut: c.out}.enter(t, b.harness)
			exit{via: "wta", tag: c.tag, in: c.in, reason: c.reason}.run(t, b)
		})
	}
}

// TestPolicySealed: who has sealed a packet is who it is from, and the address must not say
// otherwise.
func TestPolicySealed(t *testing.T) {
	peerIs := func(identity uint32) map[netip.Addr]uint32 { return map[netip.Addr]uint32{peer4: identity} }
	for _, c := range []struct {
		name   string
		known  map[netip.Addr]uint32
		in     []PolicyEntry
		source netip.Addr
		want   string
		reason string
	}{
		{"both witnesses agree", peerIs(identityPeer), []PolicyEntry{allow(identityPeer, 0)}, peer4, "redirect", ""},
		{"the address is another's", peerIs(identityOther), []PolicyEntry{allow(identityPeer, 0)}, peer4, "drop", "identity_mismatch"},
		{"the address is another's, which may", peerIs(identityOther), []PolicyEntry{allow(identityOther, 0)}, peer4, "drop", "identity_mismatch"},
		{"nobody knows the address", nil, []PolicyEntry{allow(identityPeer, 0)}, peer4, "redirect", ""},
		{"nobody knows the address, another may", nil, []PolicyEntry{allow(identityOther, 0)}, peer4, "drop", "policy_denied"},
		{"translated to its node's address", nil, []PolicyEntry{allow(identityPeer, 0)}, wireB4, "redirect", ""},
		{"translated, its node's host may", nil, []PolicyEntry{allow(bpf.IdentityRemoteHost, 0)}, wireB4, "drop", "policy_denied"},
	} {
		for _, context := range receiveWays {
			t.Run(c.name+"/"+context, func(t *testing.T) {
				b := newSealHarness(t, 4).keyed(t)
				p := policies{aIn: c.in}
				p.enter(t, b.harness)
				must(t, b.SetIdentities(c.known))
				inner := fromPeer(podA.IPv4).src(c.source).udp(2000, 1000, 100).bytes()[atIP:]
				frame := one(b, t, peerSA(0), func(e *espref.Packet) { e.Inner = inner })
				v, _ := b.receive(t, context, frame)
				reasons := reasonsIn(b.counted(t))
				if v != c.want || c.reason == "" && reasons != nil || c.reason != "" && !slices.Equal(reasons, []string{c.reason}) {
					t.Fatalf("%s %v, want %s %s", v, b.counted(t), c.want, c.reason)
				}
				if c.want == "drop" {
					return
				}
				// The answer goes to an address that may not tell who asked.
				answer := fromA(c.source).udp(1000, 2000, 8).bytes()
				if v, _ := b.send(t, "tc", "from_pod", "wta", answer); v == "drop" {
					t.Errorf("the answer: %v", b.counted(t))
				}
			})
		}
	}
}

// TestPolicyHasNoGap: an endpoint has its sets before it can be reached, and until it cannot be any
// more.
func TestPolicyHasNoGap(t *testing.T) {
	b := newHarness(t)
	set, err := b.AddPolicySet(nil)
	must(t, err)
	ep := podB
	ep.EgressSet, ep.IngressSet = set, set
	reachable := func() bool {
		key, value := bpf.AddrKeyOf(0, ep.IPv4), bpf.Endpoint{}
		return b.maps.EpAddr.Lookup(&key, &value) == nil
	}
	policed := func() bool {
		var slot bpf.EpSlot
		var config bpf.Config
		must(t, errors.Join(b.maps.EpSlot.Lookup(uint32(ep.Slot), &slot), b.maps.Config.Lookup(uint32(0), &config)))
		return slot.Sets == [2]uint32{set, set} && config.Flags&bpf.ConfigPolicy != 0
	}
	must(t, b.removeEndpoint(podB))
	steps := map[string]bool{}
	b.fault = func(step string) error {
		steps[step] = true
		if !policed() || reachable() {
			t.Errorf("%s: policed %v, reachable %v", step, policed(), reachable())
		}
		return nil
	}
	defer func() { b.fault = nil }()
	must(t, b.putEndpoint(ep, []int{b.index["wtb"]}))
	if !reachable() || !policed() {
		t.Error("not entered")
	}
	must(t, b.removeEndpoint(ep))
	if len(steps) != 2 {
		t.Errorf("steps %v, want two", steps)
	}
	if left, err := b.RemovePolicySets(set); err != nil || len(left) > 0 {
		t.Errorf("a set that nobody has any more: %v, left are %v", err, left)
	}
}

// TestPolicyOutlivesTheAgent: what a run has entered counts in the next before that one has said
// anything, its sets keep their numbers, and what nobody has goes when all endpoints are known.
func TestPolicyOutlivesTheAgent(t *testing.T) {
	b := newHarness(t)
	policies{aOut: nothing, bOut: []PolicyEntry{allow(ofA, 0)}}.enter(t, b)
	stale, err := b.AddPolicySet([]PolicyEntry{allow(ofA, 0)})
	must(t, err)
	next, err := policymap.Open(b.maps)
	must(t, err)
	b.policy = next
	must(t, b.inside(b.configure))
	if v, _ := b.send(t, "tc", "from_pod", "wta", fromA(peer4).udp(1, 2, 8).bytes()); v != "drop" {
		t.Errorf("before anything is said: %s", v)
	}
	if slots, err := b.EnteredSlots(); err != nil || !slices.Contains(slots, podA.Slot) ||
		!slices.Contains(slots, podB.Slot) || slices.Contains(slots, podB.Slot+100) {
		t.Errorf("the maps have endpoints in slots %v, %v", slots, err)
	}
	fresh, err := b.AddPolicySet(nil)
	if must(t, err); fresh <= stale {
		t.Errorf("set %d is given out again as %d", stale, fresh)
	}
	a := podA
	a.Identity, a.EgressSet = ofA, fresh
	must(t, b.putEndpoint(a, []int{b.index["wta"]}))
	if left, err := b.RemovePolicySets(fresh); err != nil || !slices.Equal(left, []uint32{fresh}) {
		t.Errorf("a set in use is to go: %v, left are %v", err, left)
	}
	if n := b.policy.Sets(); n != 2 { // fresh and pod B's
		t.Errorf("%d sets are left, want 2", n)
	}
	if v, _ := b.send(t, "tc", "from_pod", "wtb", fromB(podA.IPv4).udp(1, 2, 8).bytes()); v != "redirect" {
		t.Errorf("pod B's set after pruning: %s %v", v, b.counted(t))
	}
	// Nobody has any: the programs do not look any more.
	must(t, b.putEndpoint(podA, []int{b.index["wta"]}))
	must(t, b.putEndpoint(podB, []int{b.index["wtb"]}))
	must(t, b.knowEndpoints())
	if b.config.Flags&bpf.ConfigPolicy != 0 {
		t.Error("the programs still look for policies")
	}
}

// TestPolicyGuard: without encryption the hooks that ask policies are attached with the first one,
// alone.
func TestPolicyGuard(t *testing.T) {
	b := newHarness(t)
	dir, err := privateBPFFS()
	must(t, err)
	defer os.RemoveAll(dir)
	b.opts.BPFDir = dir
	defer func() { b.opts.BPFDir = ""; b.guarded.Store(false) }()
	b.guarded.Store(false)
	must(t, b.inside(b.attachNetfilter))
	if links, _ := hook.List(dir); len(links) != 0 {
		t.Fatalf("without policies: %v", links)
	}
	set, err := b.AddPolicySet(nil)
	must(t, err)
	attach := func() error { return b.SetEndpointPolicy(podA.Slot, set, 0) }
	must(t, b.inside(attach))
	again := func() error { b.guarded.Store(false); return b.attachNetfilter() }
	for range 2 {
		links, err := hook.List(dir)
		must(t, err)
		if len(links) != 4 || links[0].Hook != "local_in" || links[3].Hook != "post_routing" {
			t.Fatalf("with a policy: %v", links)
		}
		must(t, b.inside(again)) // the next run
	}
	must(t, b.inside(b.links().DropNode))
}

// TestPolicyEvent: the event of a refusal names the rule, and the trace shows what was asked.
func TestPolicyEvent(t *testing.T) {
	b := newHarness(t)
	other := deny(policymap.Anybody, 0)
	for _, rule := range []uint32{7, 9} { // of two that deny, the lower one is named
		other.Rule = rule
		b.reset(t)
		policies{aOut: []PolicyEntry{deny(ofB, 0), other, allow(ofA, 0)}}.enter(t, b)
		b.events(t) // of what was before
		b.send(t, "tc", "from_pod", "wta", fromA(podB.IPv4).udp(1000, 53, 8).bytes())
		if got := b.events(t); len(got) != 1 || got[0].Reason != "policy_denied" || got[0].Rule != min(rule, 8) {
			t.Errorf("events %+v, want one of rule %d", got, min(rule, 8))
		}
	}
	out := &Trace{}
	step, detail := b.explainStep(bpf.TraceStep{Step: bpf.StepPolicy, A: 1, B: ofB, C: 8<<1 | 1}, out)
	if step != "policy" || !bytes.Contains([]byte(detail), []byte("rule 8")) {
		t.Errorf("%s: %s", step, detail)
	}
}
