package datapath

import (
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestFlowsEndWithTheirEndpoint: what was learned about a flow of an endpoint that is gone says
// nothing about the same addresses and ports of the next one, in either direction and wherever the
// endpoint is in the key.
func TestFlowsEndWithTheirEndpoint(t *testing.T) {
	b := newHarness(t)
	next := podA
	next.Slot, next.MAC = 3, mac(0xcc)
	fromNext := func(p packet) packet { return p.srcMAC(next.MAC) }
	viaStack := func(t *testing.T, context string) {
		// Met in the middle, so it is the stack's.
		b.send(t, context, "from_pod", "wta", fromA(podB.IPv4).tcp(1000, 80, ack, 8).bytes())
		b.send(t, context, "from_pod", "wta", fromA(peer4).udp(1000, 53, 8).bytes())
		b.send(t, "tc", "to_pod", "wta",
			newPacket(gatewayMAC, podA.MAC, world4, podA.IPv4).udp(53, 1000, 8).bytes())
	}
	for _, context := range contexts {
		for _, c := range []struct {
			name        string
			hook, iface string
			in          packet
			want        string
		}{
			{"the new pod's SYN to a neighbour", "from_pod", "wtx",
				fromNext(fromA(podB.IPv4)).tcp(1000, 80, syn, 0), "redirect"},
			{"the neighbour's SYN to the new pod", "from_pod", "wtb",
				fromB(podA.IPv4).tcp(80, 1000, syn, 0), "redirect"},
			{"the new pod's datagram to the peer", "from_pod", "wtx",
				fromNext(fromA(peer4)).udp(1000, 53, 8), "redirect"},
			{"the peer's datagram to the new pod", "from_wire", "wtup",
				fromPeer(podA.IPv4).udp(53, 1000, 8), "redirect"},
		} {
			t.Run(c.name+"/"+context, func(t *testing.T) {
				b.reset(t)
				viaStack(t, context)
				for _, key := range []bpf.Key4{
					{A: bpf.BE32(podA.IPv4), B: bpf.BE32(peer4), Pa: bpf.Ntohs(1000),
						Pb: bpf.Ntohs(53), Proto: unix.IPPROTO_UDP},
				} {
					var f bpf.Flow
					must(t, b.maps.Flows4.Lookup(&key, &f))
					f.Flags |= bpf.FlowViaStack
					must(t, b.maps.Flows4.Put(&key, &f))
				}
				must(t, b.forgetEndpoint(podA))
				must(t, b.putEndpoint(next, []int{b.index["wtx"]}))
				if v, _ := b.send(t, context, c.hook, c.iface, c.in.bytes()); v != c.want {
					t.Errorf("%s, want %s", v, c.want)
				}
			})
		}
		t.Run("an ICMP error about the old pod's flow/"+context, func(t *testing.T) {
			b.reset(t)
			sent := fromA(peer4).udp(1000, 53, 40)
			b.send(t, context, "from_pod", "wta", sent.bytes())
			must(t, b.forgetEndpoint(podA))
			must(t, b.putEndpoint(next, []int{b.index["wtx"]}))
			in := fromPeer(podA.IPv4).icmpError(3, 4, 1280, sent, 28).bytes()
			if v, _ := b.send(t, context, "from_wire", "wtup", in); v != "drop" {
				t.Errorf("%s, want drop", v)
			}
			wantReasons(t, b, context, "icmp_no_flow")
		})
		t.Run("the same endpoint attached again keeps its flows/"+context, func(t *testing.T) {
			b.reset(t)
			frame := fromA(peer4).udp(1000, 53, 40).bytes()
			b.send(t, context, "from_pod", "wta", frame)
			must(t, b.putEndpoint(podA, []int{b.index["wta"]}))
			b.send(t, context, "from_pod", "wta", frame)
			if rows := b.flowList(t); len(rows) != 1 || rows[0].Forward.Packets != 2 {
				t.Errorf("%+v, want one flow of two packets", rows)
			}
		})
	}
}

// TestSweepFreesGoneEndpoints: the places of a gone endpoint's flows are free again after the
// sweep, and nobody pays for them.
func TestSweepFreesGoneEndpoints(t *testing.T) {
	b := newHarness(t)
	b.reset(t)
	frame := fromA(peer4).udp(0, 53, 4).bytes()
	for i := range 100 {
		b.send(t, "tc", "from_pod", "wta", flowFrame(frame, i))
	}
	b.send(t, "tc", "from_pod", "wtb", fromB(peer4).udp(1, 53, 4).bytes())
	b.send(t, "tc", "from_pod", "wtb", fromB(peer6).udp(1, 53, 4).bytes())
	must(t, b.forgetEndpoint(podA))
	freed, err := b.table.Sweep(flowEntries)
	if must(t, err); freed != 100 {
		t.Errorf("%d places freed, want 100", freed)
	}
	if n := len(b.flowList(t)); n != 2 {
		t.Errorf("%d flows left, want 2", n)
	}
	b.eps[podA.Slot] = podA
	if got := b.budgets(t)["1 egress"].Flows; got != 0 {
		t.Errorf("the gone endpoint still pays for %d flows", got)
	}
	b.checkTable(t)
}

// TestForgottenFlowsAreNotCharged: an upgrade that makes the flow table anew beside places that
// stay pinned frees them at once.
func TestForgottenFlowsAreNotCharged(t *testing.T) {
	for table, p := range map[string]packet{"weft_flows4": fromA(peer4),
		"weft_flows6": fromA(peer6)} {
		b := newHarness(t)
		for i := range 2 * flowEntries {
			b.send(t, "tc", "from_pod", "wta", p.udp(uint16(1+i), 53, 4).bytes())
		}
		if b.budgets(t)["1 egress"].Flows == 0 {
			t.Fatal("no flow is charged for")
		}
		must(t, emptyMap(b.maps.ByName[table]))
		was := b.maps.Created
		b.maps.Created = map[string]bool{table: true}
		err := b.table.Adopt()
		b.maps.Created = was
		must(t, err)
		if got := b.budgets(t)["1 egress"].Flows; got != 0 {
			t.Errorf("%s: the pod still pays for %d flows", table, got)
		}
		b.checkTable(t)
	}
}

// TestGenerationOfNewMap: a new configuration map does not count from where the last one did, since
// the flows, and what they have cached, may be older than it.
func TestGenerationOfNewMap(t *testing.T) {
	b := newHarness(t)
	seen := map[uint32]bool{}
	for range 4 {
		must(t, b.maps.Config.Put(uint32(0), &bpf.Config{}))
		must(t, b.inside(b.configure))
		if g := b.config.Generation; g == 0 || g < 16 || seen[g] {
			t.Errorf("generation %d after %v", g, seen)
		}
		seen[b.config.Generation] = true
	}
}
