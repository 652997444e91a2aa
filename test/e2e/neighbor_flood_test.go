package e2e

import (
	"fmt"
	"testing"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// floodEntries is the size of the flow table in TestNeighborFlood. Its two pods and the node have
// six owners, so a share is 1170 flows.
const floodEntries = 8192

// rounds is how often the victim does all that its budgets are for, and how often at least the
// flood fills the table.
const rounds = 12

// neighborFlood has a pod open flows as fast as it can, towards an address of another node's range
// that nobody has, with first fragments and packets that ask for ICMP errors among them.
func neighborFlood(t *testing.T, from, to *lab.Pod) *traffic.Flood {
	t.Helper()
	nobody := to.IPv4.Next()
	flood, err := traffic.StartFlood(traffic.FloodOptions{
		NetNS: from.NetNS, IfName: from.IfName, SrcMAC: mac(from.MAC), DstMAC: gatewayMAC,
		Src: from.IPv4, Dst: nobody, Hostile: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = flood.Stop() })
	return flood
}

// TestNeighborFlood: of a victim's 1 000 flows, UDP both ways and TCP, none is lost and none made
// anew while a neighbour on the same node opens as many as it can, twelve times what the table has
// places for at least; and the victim's fragments, flow events and ICMP errors are as ever (H4).
func TestNeighborFlood(t *testing.T) {
	l := useShared(t)
	a, neighbor := l.Node("a"), l.Pod("client")
	for _, mode := range []string{"auto", "xdp"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t,
				map[string]any{"mode": mode, "flows": map[string]any{"maxEntries": floodEntries}},
				a)
			v := newVictim(t, l, l.Pod("db"), l.Pod("server"))
			losses, before := kernelLosses(t, l), budgetOf(t, a, neighbor)
			flood := neighborFlood(t, neighbor, v.server)
			for round := range uint64(rounds) {
				v.exchange(t)
				v.somethingNew(t)
				turnedOver(t, flood, (round+1)*floodEntries)
			}
			// A first fragment is kept for 30 seconds, and between its halves the victim sends no
			// other: that could have its place.
			v.despiteQueues(t, "a datagram in two fragments, with the flood's between them",
				func() error {
					return v.inHalves(t, func() { fragmentsFlood(t, flood) })
				})
			report, err := flood.Stop()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("flood: %s", report)
			v.exchange(t)
			v.held(t, a)
			v.budgetsUntouched(t)
			v.eventsTold(t)
			v.nothingLost(t, losses)
			after := budgetOf(t, a, neighbor)
			t.Logf("the neighbour's budget: %+v, before %+v", after, before)
			for what, grew := range map[string]bool{
				"flows":     after.FlowsEvicted > before.FlowsEvicted+floodEntries,
				"fragments": after.FragmentsEvicted > before.FragmentsEvicted,
				"events":    after.EventsSuppressed > before.EventsSuppressed,
			} {
				if !grew {
					t.Errorf("the flood has not used up its own %s", what)
				}
			}
		})
	}
}

// fragmentsFlood waits until the flood has sent as many frames as the table has places, with some
// hundred first fragments among them: far more than anybody's are kept.
func fragmentsFlood(t *testing.T, flood *traffic.Flood) {
	t.Helper()
	turnedOver(t, flood, flood.Report().Sent+floodEntries)
}

// turnedOver waits until a flood has sent so many frames.
func turnedOver(t *testing.T, flood *traffic.Flood, frames uint64) {
	t.Helper()
	eventually(t, "the flood", func() error {
		if r := flood.Report(); r.Sent < frames {
			return fmt.Errorf("%s, want %d", r, frames)
		}
		return nil
	})
}
