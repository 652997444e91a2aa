package e2e

import (
	"net/netip"
	"testing"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
)

// flowsOf lists how many packets each flow has had that a pod began to a port, by the pod's port.
func flowsOf(t *testing.T, n *lab.Node, pod *lab.Pod, port uint16) map[uint16]uint64 {
	t.Helper()
	rows, err := admin.NewClient(n.Socket).FlowTable(t.Context(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint16]uint64{}
	for _, row := range rows {
		if row.Source.IP == pod.IPv4 && row.Destination.Port == port {
			seen[row.Source.Port] = row.Forward.Packets
		}
	}
	return seen
}

// TestNeighborFlood: of a victim's 1 000 flows none is lost, and none made anew, while a neighbour on the same node opens
// five times as many as the table has places (H4).
func TestNeighborFlood(t *testing.T) {
	const mine, entries, port = 1000, 8192, 9107
	l := useShared(t)
	a, victim, neighbor := l.Node("a"), l.Pod("db"), l.Pod("client")
	to := netip.AddrPortFrom(l.Pod("server").IPv4, port)
	for _, mode := range []string{"auto", "xdp"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode, "flows": map[string]any{"maxEntries": entries}}, a)
			flood(t, victim, to, mine)
			before := flowsOf(t, a, victim, port)
			if len(before) != mine {
				t.Fatalf("the victim has %d flows, want %d", len(before), mine)
			}
			flood(t, neighbor, to, 5*entries)
			left := len(flowsOf(t, a, victim, port))
			flood(t, victim, to, mine)
			anew := 0
			for _, packets := range flowsOf(t, a, victim, port) {
				if packets != 2 {
					anew++
				}
			}
			if left != mine || anew > 0 {
				t.Errorf("of the victim's %d flows %d are left; %d were made anew", mine, left, anew)
			}
			if got := len(flowsOf(t, a, neighbor, port)); got < mine || got > entries-mine {
				t.Errorf("the neighbour holds %d flows, want what the table has left", got)
			}
		})
	}
}
