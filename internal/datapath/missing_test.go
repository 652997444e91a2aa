package datapath

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/bpf/bpftest"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/netdev"
)

// sealNodeHarness is the harness with encryption and real peers: its uplink has addresses and
// neighbours.
func sealNodeHarness(t *testing.T) *sealHarness {
	t.Helper()
	b := newSealHarness(t, 4)
	nodeWorld(t, b.harness)
	b.opts.Uplinks = []string{"wtup"}
	t.Cleanup(func() { b.opts.Uplinks = nil })
	must(t, b.openNextHops())
	return b
}

// missing is what is left of a node whose object is gone.
func missing(n Node) Node {
	n.Missing = true
	return n
}

func (b *harness) route(t *testing.T, prefix string) (bpf.Route, bool) {
	t.Helper()
	key := bpf.RouteKeyOf(mustPrefix(prefix))
	var r bpf.Route
	err := b.maps.Routes.Lookup(&key, &r)
	return r, err == nil
}

// kernelTo lists how the kernel's routes of ours lead to a range: "via" a gateway, "unreachable".
func (b *harness) kernelTo(t *testing.T, prefix string) (out []string) {
	t.Helper()
	must(t, b.inside(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL,
			&netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
		for _, r := range routes {
			switch {
			case r.Dst.String() != prefix:
			case r.Type == unix.RTN_UNREACHABLE:
				out = append(out, "unreachable")
			default:
				out = append(out, "via")
			}
		}
		return err
	}))
	slices.Sort(out)
	return out
}

// installSA gives a node one key in each direction, and seals with it.
func (b *sealHarness) installSA(t *testing.T, node string) {
	t.Helper()
	for lane := range uint8(2) {
		for _, out := range []bool{true, false} {
			sa := &esp.SA{Node: node, Out: out, Epoch: sealEpoch, Lane: lane, ID: 77,
				Number: sealEpoch, Expires: time.Now().Add(time.Hour)}
			copy(sa.Key[:], keyOut)
			must(t, b.InstallSA(sa))
		}
	}
	must(t, b.SealWith(node, sealEpoch))
}

// TestMissingNode: a node whose object is gone keeps its ranges as nobody's, in the maps and in the
// kernel's routes, and loses its keys; when it is back all is as before.
func TestMissingNode(t *testing.T) {
	b := sealNodeHarness(t)
	n2, n3 := peerNode("n2", 2, "10.2.0.0/24", "fd00:2::/64"), peerNode("n3", 3, "10.3.0.0/24")
	for range 2 {
		b.setNodes(t, n2, n3)
		b.installSA(t, "n2")
		for _, prefix := range []string{"10.2.0.0/24", "fd00:2::/64", "10.3.0.0/24"} {
			if r, ok := b.route(t, prefix); !ok || r.Node == 0 || r.Flags != 0 {
				t.Errorf("%s: %+v, want its node", prefix, r)
			}
			if got := b.kernelTo(t, prefix); !slices.Equal(got, []string{"unreachable", "via"}) {
				t.Errorf("%s: kernel %v, want a route and a last resort", prefix, got)
			}
		}
		generation := b.config.Generation
		b.setNodes(t, n3, missing(n2))
		if b.config.Generation == generation {
			t.Error("cached decisions live on")
		}
		for prefix, flags := range map[string]uint32{
			"10.2.0.0/24": bpf.RouteNoNode, "fd00:2::/64": bpf.RouteNoNode,
			"192.0.2.2/32":    bpf.RouteNoNode | bpf.RouteHost,
			"2001:db8::2/128": bpf.RouteNoNode | bpf.RouteHost,
		} {
			if r, ok := b.route(t, prefix); !ok || r != (bpf.Route{Flags: flags}) {
				t.Errorf("%s of the missing node: %+v, %v; want no node, flags %d", prefix, r, ok,
					flags)
			}
		}
		if got := b.kernelTo(t, "10.2.0.0/24"); !slices.Equal(got, []string{"unreachable"}) {
			t.Errorf("kernel's routes to the missing node's pods: %v", got)
		}
		if got := b.kernelTo(t, "192.0.2.2/32"); len(got) != 0 {
			t.Errorf("the missing node itself: kernel %v; its host must stay in reach", got)
		}
		if list, err := b.SAs(); err != nil || len(list) != 0 {
			t.Errorf("keys of the missing node: %v, %v", list, err)
		}
		must(t, emptyMap(b.maps.SAUsed))
	}
	b.setNodes(t, n3)
	if r, ok := b.route(t, "10.2.0.0/24"); ok {
		t.Errorf("forgotten: %+v", r)
	}
	if got := b.kernelTo(t, "10.2.0.0/24"); len(got) != 0 {
		t.Errorf("forgotten: kernel %v", got)
	}
}

// TestMissingOverRestart: a restarted agent finds what a previous run knew, loses none of it before
// it has said what the nodes are, and none then of what is missing.
func TestMissingOverRestart(t *testing.T) {
	b := sealNodeHarness(t)
	n2, n3 := peerNode("n2", 2, "10.2.0.0/24"), peerNode("n3", 3, "10.3.0.0/24")
	b.setNodes(t, n2, missing(n3))
	own := bpf.RouteKeyOf(mustPrefix("10.1.0.0/24"))
	must(t, b.maps.Routes.Put(&own, &bpf.Route{}))
	must(t, b.openNextHops())
	before := b.opts.PodCIDRs
	b.opts.PodCIDRs = []netip.Prefix{mustPrefix("10.1.0.0/24")}
	t.Cleanup(func() { b.opts.PodCIDRs = before })
	must(t, b.openNextHops())
	b.settled = false
	must(t, b.enterOwnRanges())
	want := []Inherited{{Prefix: mustPrefix("10.2.0.0/24")}, {Prefix: mustPrefix("10.3.0.0/24")},
		{Prefix: mustPrefix("192.0.2.2/32"), Host: true},
		{Prefix: mustPrefix("192.0.2.3/32"), Host: true},
		{Prefix: mustPrefix("2001:db8::2/128"), Host: true},
		{Prefix: mustPrefix("2001:db8::3/128"), Host: true}}
	if got := b.Inherited(); !slices.Equal(got, want) {
		t.Errorf("inherited %v, want %v", got, want)
	}
	for _, prefix := range []string{"10.2.0.0/24", "10.3.0.0/24", "192.0.2.3/32"} {
		if _, ok := b.route(t, prefix); !ok {
			t.Errorf("%s is open before the first synchronisation", prefix)
		}
	}
	if r, ok := b.route(t, "10.1.0.0/24"); !ok || r != (bpf.Route{Flags: bpf.RouteOpen}) {
		t.Errorf("this node's own range before its endpoints are restored: %+v, %v; want it open",
			r, ok)
	}
}

// TestMissingHidesNothing: what is known to be a node's, or this node's own, is never taken away by
// what is missing.
func TestMissingHidesNothing(t *testing.T) {
	b := sealNodeHarness(t)
	own := bpf.RouteKeyOf(mustPrefix("10.1.0.0/24"))
	must(t, b.maps.Routes.Put(&own, &bpf.Route{}))
	n2 := peerNode("n2", 2, "10.2.0.0/24")
	b.setNodes(t,
		missing(Node{PodCIDRs: []netip.Prefix{mustPrefix("10.2.0.0/24"), mustPrefix("10.1.0.0/24"),
			mustPrefix("10.0.0.0/8")},
			Addresses: []netip.Addr{addr("192.0.2.2")}}), n2)
	for prefix, want := range map[string]bpf.Route{
		"10.2.0.0/24": {Node: 1}, "192.0.2.2/32": {Node: 1, Flags: bpf.RouteHost},
		"10.1.0.0/24": {}, "10.0.0.0/8": {Flags: bpf.RouteNoNode},
	} {
		if r, ok := b.route(t, prefix); !ok || r != want {
			t.Errorf("%s: %+v %v, want %+v", prefix, r, ok, want)
		}
	}
}

// TestPeerByAForeignInterface: where the kernel's way to a node is by an interface that has no
// hooks, there is none, and the interface is named.
func TestPeerByAForeignInterface(t *testing.T) {
	b := sealNodeHarness(t)
	must(t, b.inside(func() error {
		other, err := netlink.LinkByName("wtb")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(other); err != nil {
			return err
		}
		_, dst, _ := net.ParseCIDR("203.0.113.0/24")
		return netlink.RouteReplace(&netlink.Route{Dst: dst, LinkIndex: other.Attrs().Index,
			Scope: unix.RT_SCOPE_LINK})
	}))
	far := Node{Name: "far", Addresses: []netip.Addr{addr("203.0.113.9")},
		PodCIDRs: []netip.Prefix{mustPrefix("10.9.0.0/24")}}
	b.setNodes(t, far, peerNode("n2", 2, "10.2.0.0/24"))
	problems := b.NodeProblems()
	if len(problems) != 1 || problems[0].Node != "far" ||
		!strings.Contains(problems[0].Text, "leads out of wtb") ||
		!strings.Contains(problems[0].Text, "add it to uplinks") {
		t.Errorf("problems %v", problems)
	}
	if r, ok := b.route(t, "10.9.0.0/24"); !ok || r.Node == 0 ||
		b.node(t, r.Node, 0) != (bpf.Nexthop{}) {
		t.Errorf("the range: %+v %v, next hop %+v", r, ok, b.node(t, r.Node, 0))
	}
	if got := b.kernelTo(t, "10.9.0.0/24"); !slices.Equal(got, []string{"unreachable"}) {
		t.Errorf("kernel %v, want no route by wtb", got)
	}
	b.opts.Uplinks = []string{"wtup", "wtb"}
	var err error
	b.undo, err = netdev.OpenUndo(t.TempDir())
	must(t, err)
	must(t, b.openNextHops())
	b.setNodes(t, far)
	if problems := b.NodeProblems(); len(problems) != 0 ||
		!slices.Contains(b.kernelTo(t, "10.9.0.0/24"), "via") {
		t.Errorf("as an uplink: %v, kernel %v", problems, b.kernelTo(t, "10.9.0.0/24"))
	}
}

// TestSlotInheritsNothing: a node that comes when another leaves, or finds its place taken over by
// a restart, has no keys, no next hop and no identities but its own.
func TestSlotInheritsNothing(t *testing.T) {
	n2, n3 := peerNode("n2", 2, "10.2.0.0/24"), peerNode("n3", 3, "10.3.0.0/24")
	heir := n3
	heir.PodCIDRs = n2.PodCIDRs
	for _, tt := range []struct {
		name    string
		restart bool
		next    []Node
	}{
		{"in one change", false, []Node{n3}},
		{"the range too", false, []Node{heir}},
		{"the first is missing", false, []Node{n3, missing(n2)}},
		{"over a restart", true, []Node{n3}},
		{"the range, over a restart", true, []Node{heir}},
		{"the first is missing, over a restart", true, []Node{n3, missing(n2)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := sealNodeHarness(t)
			b.setNodes(t, n2)
			b.installSA(t, "n2")
			must(t, b.SetPeerIdentities(map[string][]uint32{"n2": {identityPeer}}))
			if tt.restart {
				must(t, b.openNextHops())
			}
			b.setNodes(t, tt.next...)
			if list, err := b.SAs(); err != nil || len(list) != 0 {
				t.Errorf("keys of n2 are there for %v: %v", list, err)
			}
			for _, m := range []*ebpf.Map{b.maps.SAOut, b.maps.SAIn} {
				if keys, err := bpftest.Keys(m); err != nil || len(keys) != 0 {
					t.Errorf("%s has keys still: %x, %v", m, keys, err)
				}
			}
			slot, _ := b.hops.Index("n3")
			var peer bpf.Peer
			must(t, b.maps.Peers.Lookup(slot, &peer))
			if peer.Epoch != 0 || peer.Id != 0 || bpf.FromAddr(peer.Remote) != addr("192.0.2.3") {
				t.Errorf("n3 is sealed for with epoch %d, keys %d, to %s", peer.Epoch, peer.Id,
					bpf.FromAddr(peer.Remote))
			}
			if keys, err := bpftest.Keys(b.maps.PeerIDs); err != nil || len(keys) != 0 {
				t.Errorf("identities of n2 are left: %v, %v", keys, err)
			}
			if n := b.node(t, slot, 0); n.Dmac != bpf.ToMAC(mac(0x41)) {
				t.Errorf("n3's next hop is %x", n.Dmac)
			}
			must(t, b.inside(func() error { return b.SetNodes(context.Background(), nil) }))
		})
	}
}

// TestSlotOfANamelessNode: after a restart, a node with a removed node's range gets its index, but
// nothing of what is under it, where no key tells whose that was.
func TestSlotOfANamelessNode(t *testing.T) {
	b := sealNodeHarness(t)
	n2 := peerNode("n2", 2, "10.2.0.0/24")
	b.setNodes(t, n2)
	must(t, b.SetPeerIdentities(map[string][]uint32{"n2": {identityPeer}}))
	slot, _ := b.hops.Index("n2")
	must(t, b.maps.Peers.Put(slot, &bpf.Peer{Epoch: 7, Id: 9}))
	must(t, b.openNextHops())
	heir := peerNode("heir", 3, "10.2.0.0/24")
	b.setNodes(t, heir)
	if got, _ := b.hops.Index("heir"); got != slot {
		t.Fatalf("the heir has index %d, want %d: the case is not what it says", got, slot)
	}
	var peer bpf.Peer
	must(t, b.maps.Peers.Lookup(slot, &peer))
	if peer.Epoch != 0 || peer.Id != 0 {
		t.Errorf("the heir is sealed for with epoch %d, keys %d of the node before", peer.Epoch,
			peer.Id)
	}
	if keys, err := bpftest.Keys(b.maps.PeerIDs); err != nil || len(keys) != 0 {
		t.Errorf("the heir speaks for the identities of the node before: %v, %v", keys, err)
	}
}

// TestWithdrawnPlainGoesFirst: what may not be plain any more is withdrawn, even if what is asked
// for anew does not fit.
func TestWithdrawnPlainGoesFirst(t *testing.T) {
	b := sealNodeHarness(t)
	must(t, b.SetPlain([]netip.Prefix{mustPrefix("10.2.0.9/32")}))
	generation := b.config.Generation
	var many []netip.Prefix
	for i := range 17000 {
		many = append(many,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 32))
	}
	if err := b.SetPlain(many); err == nil {
		t.Error("17000 ranges fit")
	}
	if list, err := b.Plain(); err != nil || slices.Contains(list, mustPrefix("10.2.0.9/32")) ||
		b.config.Generation == generation {
		t.Errorf("withdrawn, and plain still; %v", err)
	}
	must(t, b.SetPlain(nil))
}
