package nexthop

import (
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestSlotFor: a node keeps its index for as long as it exists, also over an agent's restart, and
// never gets one whose ranges may still be in the routes map.
func TestSlotFor(t *testing.T) {
	node := func(name string, prefixes ...string) Node {
		n := Node{Name: name}
		for _, p := range prefixes {
			n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(p))
		}
		return n
	}
	table := Table{was: map[bpf.RouteKey]bpf.Route{}, freed: map[uint32]bool{9: true}}
	for prefix, slot := range map[string]uint32{"10.2.0.0/24": 5, "fd00:2::/64": 5,
		"10.3.0.0/24": 1, "10.4.0.0/24": 3, "10.8.0.0/24": 8, "10.9.0.0/24": 9} {
		table.was[bpf.RouteKeyOf(netip.MustParsePrefix(prefix))] = bpf.Route{Node: slot}
	}
	table.was[bpf.RouteKeyOf(netip.MustParsePrefix("10.1.0.0/24"))] = bpf.Route{Flags: bpf.RouteNoNode}
	plan := &slotPlan{taken: map[uint32]bool{0: true}, names: map[uint32]string{8: "e", 6: "away"}}
	for i, c := range []struct {
		node   Node
		want   uint32
		former bool
	}{
		{node("b", "10.2.0.0/24", "fd00:2::/64"), 5, true},
		{node("new", "10.7.0.0/24"), 2, false}, // 1 and 3 are those of nodes that may come yet
		{node("c", "10.3.0.0/24"), 1, true},
		{node("thief", "fd00:2::/64"), 4, false}, // b holds 5 already
		{node("own", "10.1.0.0/24"), 7,
			false}, // 0 is this node and nobody's to inherit, 6 has another's keys
		{node("heir", "10.8.0.0/24"), 10, false},    // a range of e, whose keys are under 8
		{node("e", "10.70.0.0/24"), 8, true},        // by its name, whatever its ranges are now
		{node("nextday", "10.9.0.0/24"), 11, false}, // 9 has become free in this very change
	} {
		got, former, err := table.pickSlot(c.node, plan)
		if err != nil || got != c.want || former != c.former {
			t.Errorf("%d: node %s: %d, former %v, %v; want %d, %v", i, c.node.Name, got, former,
				err, c.want, c.former)
		}
	}
	full := &slotPlan{taken: map[uint32]bool{}}
	for slot := range uint32(MaxNodeIndexes) {
		full.taken[slot] = true
	}
	if _, _, err := table.pickSlot(node("last"), full); err == nil ||
		!strings.Contains(err.Error(), "last") {
		t.Errorf("no slot left: %v, want an error that names the node", err)
	}
}
