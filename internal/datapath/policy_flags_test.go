package datapath

import (
	"net/netip"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/policymap"
)

// TestPolicyClassesComeAndGo: what a set says of a class counts from the moment in which an address
// has it, where none had any, and until none has.
func TestPolicyClassesComeAndGo(t *testing.T) {
	for _, f := range policyFamilies {
		b := newHarness(t)
		policies{aOut: []PolicyEntry{allow(ofPeer, 0), deny(classPeer, 0)}}.enter(t, b)
		for i, c := range []struct {
			classes map[netip.Prefix]uint32
			want    string
		}{
			{nil, "redirect"},
			{map[netip.Prefix]uint32{netip.PrefixFrom(f.peer, f.peer.BitLen()): classPeer}, "drop"},
			{map[netip.Prefix]uint32{netip.PrefixFrom(f.b, f.b.BitLen()): classPeer}, "redirect"},
			{map[netip.Prefix]uint32{netip.PrefixFrom(f.peer, f.peer.BitLen()): ClassWithheld - 1}, "redirect"},
			{nil, "redirect"},
		} {
			must(t, b.SetClasses(c.classes))
			if v, _ := b.send(t, "tc", "from_pod", "wta", fromA(f.peer).udp(1000, 53, 8).bytes()); v != c.want {
				t.Errorf("%s, step %d: %s, want %s", f.peer, i, v, c.want)
			}
		}
	}
}

// TestPolicyOfAnUnmarkedBuild: a set of a build that did not mark numbers, and numbered on from one
// that is marked, is asked about anybody.
func TestPolicyOfAnUnmarkedBuild(t *testing.T) {
	b := newHarness(t)
	policies{aIn: nothing}.enter(t, b)
	const set = 5 | bpf.PolicySetNoAnybody
	key := bpf.PolicyKey{Prefixlen: 72, Set: set, Direction: bpf.DirIngress}
	must(t, b.maps.Policy.Put(&key, &bpf.PolicyEntry{Verdict: bpf.PolicyAllow}))
	var slot bpf.EpSlot
	must(t, b.maps.EpSlot.Lookup(uint32(podA.Slot), &slot))
	slot.Sets[1] = set
	must(t, b.maps.EpSlot.Put(uint32(podA.Slot), &slot))
	next, err := policymap.Open(b.maps)
	must(t, err)
	for _, known := range []struct {
		table *policymap.Table
		want  string
	}{{b.policy, "drop"}, {next, "redirect"}} {
		b.policy = known.table
		must(t, b.inside(b.configure))
		frame := fromPeer(podA.IPv4).src(world4).udp(1000, 53, 8).bytes()
		if v, _ := b.send(t, "tc", "from_wire", "wtup", frame); v != known.want {
			t.Errorf("%s, want %s; %v", v, known.want, b.counted(t))
		}
	}
}
