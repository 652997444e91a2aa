package datapath

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/nexthop"
)

// TestEndpointsDoNotWaitForNodes: while a synchronisation of nodes asks netlink, endpoints come and
// go, and status is told. Neighbours are listed once for all nodes.
func TestEndpointsDoNotWaitForNodes(t *testing.T) {
	b := nodeHarness(t)
	asked := map[string]int{}
	ask := func(list string) {
		asked[list]++
		if !b.mu.TryLock() {
			t.Errorf("the endpoints' lock is held while the kernel lists %s", list)
			return
		}
		b.mu.Unlock()
		chained := podB
		chained.Chained = true
		must(t, b.putEndpoint(chained, []int{b.index["wtb"]}))
		must(t, b.forgetEndpoint(chained))
		b.NodeProblems()
		b.Problems()
		b.Inherited()
	}
	b.kernel = nexthop.Kernel{
		Neighbors: func() ([]netlink.Neigh, error) {
			ask("neighbours")
			return netlink.NeighList(0, netlink.FAMILY_ALL)
		},
		Routes: func() ([]netlink.Route, error) { ask("routes"); return nexthop.ListRoutes() },
	}
	t.Cleanup(func() { b.kernel = nexthop.Kernel{} })
	b.setNodes(t, peerNode("n2", 2, "10.2.0.0/24"), peerNode("n3", 3, "10.3.0.0/24"))
	if asked["neighbours"] != 1 || asked["routes"] != 1 {
		t.Errorf("a synchronisation of two nodes lists %v, want each once", asked)
	}
	for slot := range uint32(2) {
		if hop := b.node(t, slot+1, 0); hop.Flags&bpf.NexthopResolved == 0 {
			t.Errorf("node %d is not resolved: %+v", slot+1, hop)
		}
	}
}

// TestNeighborsUnknown: where the kernel's neighbours cannot be listed, nothing changes: peers stay
// resolved, and what was entered is not taken for all that there is.
func TestNeighborsUnknown(t *testing.T) {
	b := nodeHarness(t)
	b.setNodes(t, peerNode("n2", 2, "10.2.0.0/24"))
	before := b.node(t, 1, 0)
	broken := errors.New("broken")
	b.kernel.Neighbors = func() ([]netlink.Neigh, error) { return nil, broken }
	t.Cleanup(func() { b.kernel = nexthop.Kernel{} })
	must(t, b.inside(func() error {
		entered, err := b.hops.SetNodes([]Node{peerNode("n2", 2, "10.2.0.0/24"),
			peerNode("n3", 3, "10.3.0.0/24")})
		if entered || !errors.Is(err, broken) {
			t.Errorf("entered %v, %v", entered, err)
		}
		return nil
	}))
	if after := b.node(t, 1, 0); after != before || after.Flags&bpf.NexthopResolved == 0 {
		t.Errorf("next hop %+v, was %+v", after, before)
	}
}

// leftOf is what of a node is in the maps under its index.
type leftOf struct{ route, hop, keys bool }

func (b *sealHarness) leftOf(t *testing.T, prefix string, slot uint32) leftOf {
	t.Helper()
	route, there := b.route(t, prefix)
	held := map[uint32]bool{}
	must(t, b.HeldPeers(held))
	return leftOf{there && route.Node == slot, b.node(t, slot, 0) != (bpf.Nexthop{}), held[slot]}
}

// TestOrderOfLeaving: of a node that leaves, the routes go before the next hops that they lead to,
// and keys and identities last; its index is nobody's until all of that is gone, wherever a
// synchronisation ends early.
func TestOrderOfLeaving(t *testing.T) {
	order := []struct {
		step string
		left leftOf
	}{
		{"nodes left", leftOf{true, true, true}},
		{"next hops", leftOf{true, true, true}},
		{"routes", leftOf{false, true, true}},
		{"next hops cleared", leftOf{false, false, true}},
		{"peers cleared", leftOf{false, false, false}},
	}
	n2, n3 := peerNode("n2", 2, "10.2.0.0/24"), peerNode("n3", 3, "10.3.0.0/24")
	died := errors.New("died")
	for i, at := range order {
		t.Run(at.step, func(t *testing.T) {
			b := sealNodeHarness(t)
			b.setNodes(t, n2)
			b.installSA(t, "n2")
			former, _ := b.hops.Index("n2")
			var steps []string
			b.fault = func(step string) error {
				steps = append(steps, step)
				if got := b.leftOf(t, "10.2.0.0/24", former); got != order[len(steps)-1].left {
					t.Errorf("after %q: %+v is left of n2, want %+v", step, got,
						order[len(steps)-1].left)
				}
				if step == at.step {
					return died
				}
				return nil
			}
			t.Cleanup(func() { b.fault = nil })
			must(t, b.inside(func() error {
				if entered, err := b.hops.SetNodes([]Node{n3}); entered || !errors.Is(err, died) {
					t.Errorf("entered %v, %v", entered, err)
				}
				return nil
			}))
			if len(steps) != i+1 {
				t.Errorf("steps %q", steps)
			}
			b.fault = nil
			heir := peerNode("heir", 2, "10.2.0.0/24")
			b.setNodes(t, n3, heir)
			for _, name := range []string{"n3", "heir"} {
				if slot, known := b.hops.Index(name); !known || slot == former {
					t.Errorf("%s has index %d, n2 had %d", name, slot, former)
				}
			}
			if got := b.leftOf(t, "10.2.0.0/24", former); got != (leftOf{}) {
				t.Errorf("%+v is left of n2", got)
			}
			b.setNodes(t, n3, heir, Node{Name: "next"})
			if slot, _ := b.hops.Index("next"); slot != former {
				t.Errorf("a free index stays unused: %d", slot)
			}
			must(t, b.inside(func() error { return b.SetNodes(t.Context(), nil) }))
		})
	}
}

// TestAssociations: there are none without encryption, and none once the datapath is closed; who
// has them still gets an error, not a crash.
func TestAssociations(t *testing.T) {
	off := &Datapath{}
	if _, err := off.Associations(); !errors.Is(err, ErrEncryptionOff) {
		t.Errorf("without encryption: %v", err)
	}
	b := newSealHarness(t, 4)
	sas, err := b.Datapath.Associations()
	if err != nil || sas != b.sas {
		t.Fatalf("%v, %v", sas, err)
	}
	d := &Datapath{opts: b.opts, log: b.log, maps: b.maps}
	must(t, d.openAssociations(""))
	d.maps = nil // they are the harness's
	held, err := d.Associations()
	must(t, err)
	must(t, d.Close())
	must(t, d.Close())
	if _, err := d.Associations(); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	held.EnterPeer("b", 1)
	_, listErr := held.SAs()
	_, sealingErr := held.Sealing()
	errs := []error{held.RemoveAllSAs(1), held.SealWith("b", 1), held.RemoveSAs("b", true, 1),
		listErr, sealingErr}
	if slices.ContainsFunc(errs, func(err error) bool { return !errors.Is(err, ErrClosed) }) {
		t.Errorf("kept over Close: %v", errs)
	}
}
