package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/bpf/bpftest"
	"weft.dev/weft/internal/datapath/flowtable"
)

// The two kinds of bucket: enum weft_bucket_index.
const bucketEvents, bucketErrors = 0, 1

func ownBucket(slot uint16, direction int, kind uint32) uint32 {
	return 2*flowtable.OwnerIndex(slot, direction) + kind
}

func sharedBucket(b *harness, kind uint32) uint32 { return b.maps.Buckets.MaxEntries() - 2 + kind }

// drain takes every token of a bucket for an hour.
func (b *harness) drain(t *testing.T, bucket uint32) {
	t.Helper()
	future := make([]uint64, ebpf.MustPossibleCPU())
	for i := range future {
		future[i] = flowtable.MonotonicNow() + 3600e9
	}
	must(t, b.maps.Buckets.Put(bucket, future))
}

// budgets are the rows by "slot direction".
func (b *harness) budgets(t testing.TB) map[string]Budget {
	t.Helper()
	rows, err := b.Budgets()
	must(t, err)
	by := map[string]Budget{}
	for _, r := range rows {
		by[fmt.Sprintf("%d %s", r.Slot, r.Direction)] = r
	}
	return by
}

// flowFrames patches one UDP packet's ports, which is much faster than building each anew. No
// checksum: IPv4.
func flowFrame(frame []byte, n int) []byte {
	binary.BigEndian.PutUint16(frame[34:], uint16(n))
	binary.BigEndian.PutUint16(frame[36:], uint16(n>>16)+53)
	return frame
}

// held says how many of the flows 0 to n-1 of a frame are in the table, with a number of packets.
func (b *harness) held(t testing.TB, src, dst netip.Addr, n int) (count int) {
	t.Helper()
	for i := range n {
		a, z := bpf.BE32(src), bpf.BE32(dst)
		pa, pb := bpf.Ntohs(uint16(i)), bpf.Ntohs(uint16(i>>16)+53)
		// The key holds the ends in numeric order of the address and port words.
		if uint64(a)<<16|uint64(pa) > uint64(z)<<16|uint64(pb) {
			a, z, pa, pb = z, a, pb, pa
		}
		var f bpf.Flow
		if b.maps.Flows4.Lookup(&bpf.Key4{A: a, B: z, Pa: pa, Pb: pb, Proto: 17}, &f) == nil {
			count++
		}
	}
	return count
}

// TestFlowBudget: whoever floods the table, from a pod or from the wire, a neighbour's flows up to
// its share stay, and its new ones find room.
func TestFlowBudget(t *testing.T) {
	b := newHarness(t)
	const mine = flowEntries / 8 // less than a share: 2 pods and the node have 6 owners
	victim := func() []byte { return fromB(peer4).udp(0, 53, 4).bytes() }
	for name, flood := range map[string]struct {
		hook, iface string
		frame       packet
		owner       string
	}{
		"a pod's": {"from_pod", "wta", fromA(peer4).udp(0, 53, 4), "1 egress"},
		"a pod's to the victim": {"from_pod", "wta", fromA(podB.IPv4).udp(0, 53, 4),
			"1 egress"},
		"the world's": {"from_wire", "wtup",
			newPacket(peerMAC, uplinkMAC, world4, podA.IPv4).udp(0, 53, 4), "1 ingress"},
		"the world's to the victim": {"from_wire", "wtup",
			newPacket(peerMAC, uplinkMAC, world4, podB.IPv4).udp(0, 53, 4), "2 ingress"},
	} {
		for _, context := range contexts {
			t.Run(name+"/"+context, func(t *testing.T) {
				b.reset(t)
				first, frame := victim(), flood.frame.bytes()
				for i := range mine / 2 {
					b.send(t, context, "from_pod", "wtb", flowFrame(first, i))
				}
				for i := range 3 * flowEntries {
					b.send(t, context, flood.hook, flood.iface, flowFrame(frame, i))
				}
				for i := mine / 2; i < mine; i++ {
					b.send(t, context, "from_pod", "wtb", flowFrame(first, i))
				}
				for i := range flowEntries / 4 {
					b.send(t, context, flood.hook, flood.iface, flowFrame(frame, 3*flowEntries+i))
				}
				rows := b.budgets(t)
				if got := b.held(t, podB.IPv4, peer4, mine); got != mine {
					t.Errorf("%d of the neighbour's %d flows are left", got, mine)
				}
				if v := rows["2 egress"]; v.Flows != mine || v.FlowsEvicted != 0 ||
					v.FlowsRefused != 0 {
					t.Errorf("the neighbour: %+v, want %d flows and no loss", v, mine)
				}
				f := rows[flood.owner]
				if f.FlowsEvicted == 0 || f.Flows > flowEntries-mine {
					t.Errorf("the flood: %+v, want evictions and no more than %d flows", f,
						flowEntries-mine)
				}
				b.checkTable(t)
			})
		}
	}
}

// checkTable compares what owners are charged for with the flows that are there.
func (b *harness) checkTable(t *testing.T) {
	t.Helper()
	charged, cells := 0, map[string]bool{}
	for _, r := range b.budgets(t) {
		charged += int(r.Flows)
	}
	flows := 0
	must(t, b.table.Each(func(f flowtable.Row) bool {
		flows++
		cell := fmt.Sprint(f.Map, f.Flow.Cell)
		if cells[cell] {
			t.Errorf("two flows in one place: %s", cell)
		}
		cells[cell] = true
		return true
	}))
	if charged != flows {
		t.Errorf("owners are charged for %d flows, and there are %d", charged, flows)
	}
}

// TestFragmentBudget: first fragments without end from one pod, or from the wire to it, take no
// other datagram's place but its own.
func TestFragmentBudget(t *testing.T) {
	b := newHarness(t)
	for _, dst := range []netip.Addr{peer4, peer6} {
		for _, context := range contexts {
			b.reset(t)
			whole := fromB(dst).udp(1000, 53, 120)
			b.send(t, context, "from_pod", "wtb", whole.fragment(0, 64, true).bytes())
			flood := fromA(dst).udp(1000, 53, 120)
			sender := fromPeer(podA.IPv4).udp(1000, 53, 120)
			for id := range uint16(10000) {
				b.send(t, context, "from_pod", "wta", flood.id(id).fragment(0, 64, true).bytes())
				if id%4 == 0 {
					b.send(t, context, "from_wire", "wtup",
						sender.id(id).fragment(0, 64, true).bytes())
				}
			}
			if v, _ := b.send(t, context, "from_pod", "wtb",
				whole.fragment(64, 128, false).bytes()); v != "redirect" {
				t.Errorf("%s to %s: the neighbour's second fragment: %s, want redirect", context,
					dst, v)
			}
			rows := b.budgets(t)
			if rows["1 egress"].FragmentsEvicted == 0 || rows["2 egress"].FragmentsEvicted != 0 {
				t.Errorf("%s: %+v, want only the flood to have lost datagrams", context, rows)
			}
			if keys, err := bpftest.Keys(b.maps.Frags); err != nil || len(keys) > 3*16 {
				t.Errorf("%s: %d datagrams remembered, %v", context, len(keys), err)
			}
		}
	}
}

// TestFragmentFloodFromAnotherSender: a pod of a peer that sends a pod here first fragments without
// end has it forget those of the few senders whose set of places it shares, and nobody else's.
// Hostile: the flood uses every identification.
func TestFragmentFloodFromAnotherSender(t *testing.T) {
	const senders = 16 // as many as a set has places: none meets another
	b := newHarness(t)
	for _, to := range []netip.Addr{podA.IPv4, podA.IPv6} {
		for _, context := range contexts {
			b.reset(t)
			flood := fromPeer(to).udp(1000, 53, 120)
			var others []packet
			for from := flood.from.Next(); len(others) < senders; from = from.Next() {
				others = append(others, flood.src(from).id(uint16(len(others))))
			}
			for _, other := range others {
				b.send(t, context, "from_wire", "wtup", other.fragment(0, 64, true).bytes())
			}
			for id := range uint16(10000) {
				b.send(t, context, "from_wire", "wtup", flood.id(id).fragment(0, 64, true).bytes())
			}
			forgotten := 0
			for _, other := range others {
				if v, _ := b.send(t, context, "from_wire", "wtup",
					other.fragment(64, 128, false).bytes()); v == "drop" {
					forgotten++
				}
			}
			// One of eight shares the set: 2 of 16, more than 10 in none of a million runs.
			if forgotten > 10 {
				t.Errorf("%s to %s: the datagrams of %d of %d other senders were forgotten, want few", context, to, forgotten, senders)
			}
			if b.budgets(t)["1 ingress"].FragmentsEvicted == 0 {
				t.Errorf("%s to %s: the flood pushed out nothing, its own included", context, to)
			}
		}
	}
}

// TestOldFragment: a first fragment of long ago lends its ports to nobody.
func TestOldFragment(t *testing.T) {
	b := newHarness(t)
	for _, context := range contexts {
		b.reset(t)
		whole := fromA(peer4).udp(1000, 53, 120)
		b.send(t, context, "from_pod", "wta", whole.fragment(0, 64, true).bytes())
		keys, err := bpftest.Keys(b.maps.Frags)
		if must(t, err); len(keys) != 1 {
			t.Fatalf("%d datagrams", len(keys))
		}
		value, err := b.maps.Frags.LookupBytes(keys[0])
		must(t, err)
		at := len(value) - 16 // time_ns, and behind it the ports and the rest
		binary.NativeEndian.PutUint64(value[at:], binary.NativeEndian.Uint64(value[at:])-31e9)
		must(t, b.maps.Frags.Put(keys[0], value))
		if v, _ := b.send(t, context, "from_pod", "wta",
			whole.fragment(64, 128, false).bytes()); v != "drop" {
			t.Errorf("%s: %s, want drop", context, v)
		}
		wantReasons(t, b, context, "fragment_unknown")
	}
}

// TestEventBudget: a pod's flood of drops takes its own events and those that nobody has a right
// to, and leaves its neighbour's.
func TestEventBudget(t *testing.T) {
	for _, context := range contexts {
		b := eventHarness(t)
		b.drain(t, sharedBucket(b, bucketEvents))
		b.drain(t, ownBucket(podA.Slot, 0, bucketEvents))
		b.send(t, context, "from_pod", "wta", fromA(peer4).udp(1, 2, 8).bytes())
		b.send(t, context, "from_pod", "wtb", fromB(peer4).udp(3, 4, 8).bytes())
		b.send(t, context, "from_wire", "wtup", fromPeer(podA.IPv4).udp(5, 6, 8).bytes())
		rows := b.budgets(t)
		var ports []uint16
		for _, e := range b.events(t) {
			ports = append(ports, e.Src.Port())
		}
		if fmt.Sprint(ports) != "[3 5]" {
			t.Errorf("%s: events of ports %v, want [3 5]", context, ports)
		}
		if rows["1 egress"].EventsSuppressed != 1 || rows["2 egress"].EventsSuppressed != 0 {
			t.Errorf("%s: %+v", context, rows)
		}
	}
}
