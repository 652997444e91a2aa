package datapath

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/bpf/bpftest"
	"weft.dev/weft/internal/netdev"
)

// nodeHarness gives the harness's uplink addresses and permanent neighbours, so that peers resolve
// without traffic.
func nodeHarness(t *testing.T) *harness {
	t.Helper()
	b := newHarness(t)
	nodeWorld(t, b)
	return b
}

// nodeWorld is a harness's world without the nodes of the tables.
func nodeWorld(t *testing.T, b *harness) {
	t.Helper()
	must(t, emptyMap(b.maps.Routes))
	b.setPeer(t, bpf.Nexthop{})
	must(t, b.openNextHops())
	must(t, b.inside(func() error {
		up, err := netlink.LinkByName("wtup")
		if err != nil {
			return err
		}
		peer, err := netlink.LinkByName("wtup-peer")
		if err != nil {
			return err
		}
		for _, l := range []netlink.Link{up, peer} {
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		for _, a := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
			ip, _ := netlink.ParseAddr(a)
			ip.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrReplace(up, ip); err != nil {
				return err
			}
		}
		for i, a := range []string{"192.0.2.2", "2001:db8::2", "192.0.2.3", "2001:db8::3"} {
			n := &netlink.Neigh{LinkIndex: b.index["wtup"], IP: net.ParseIP(a),
				State: unix.NUD_PERMANENT, HardwareAddr: mac(byte(0x40 + i/2))}
			if err := netlink.NeighSet(n); err != nil {
				return err
			}
		}
		return nil
	}))
	t.Cleanup(func() { _ = b.inside(func() error { return b.SetNodes(context.Background(), nil) }) })
}

func peerNode(name string, last int, cidrs ...string) Node {
	n := Node{Name: name,
		Addresses: []netip.Addr{addr(fmt.Sprintf("192.0.2.%d", last)),
			addr(fmt.Sprintf("2001:db8::%d", last))}}
	for _, c := range cidrs {
		n.PodCIDRs = append(n.PodCIDRs, mustPrefix(c))
	}
	return n
}

func (b *harness) node(t *testing.T, slot, family uint32) (n bpf.Nexthop) {
	t.Helper()
	must(t, b.maps.Nexthops.Lookup(slot*2+family, &n))
	return n
}

func (b *harness) setNodes(t *testing.T, nodes ...Node) {
	t.Helper()
	must(t, b.inside(func() error { return b.SetNodes(context.Background(), nodes) }))
}

func (b *harness) routeOf(t *testing.T, prefix string) (uint32, bool) {
	t.Helper()
	key := bpf.RouteKeyOf(mustPrefix(prefix))
	var r bpf.Route
	err := b.maps.Routes.Lookup(&key, &r)
	return r.Node, err == nil
}

// TestSetNodes: peers come, change and go; the maps and the kernel's routes follow.
func TestSetNodes(t *testing.T) {
	b := nodeHarness(t)
	n2, n3 := peerNode("n2", 2, "10.2.0.0/24", "fd00:2::/64"), peerNode("n3", 3, "10.3.0.0/24")
	b.setNodes(t, n2, n3)
	for family := range uint32(2) {
		want := bpf.Nexthop{Ifindex: uint32(b.index["wtup"]), Mtu: 1500, Dmac: bpf.ToMAC(mac(0x40)),
			Smac:  b.node(t, 1, family).Smac,
			Flags: b.node(t, 1, family).Flags | bpf.NexthopResolved}
		if got := b.node(t, 1, family); got != want {
			t.Errorf("n2, family %d: %+v, want %+v", family, got, want)
		}
	}
	generation := b.config.Generation
	b.setNodes(t, n3, n2)
	if b.config.Generation != generation {
		t.Error("nothing changed, but every cached decision was made void")
	}
	if routes := b.kernelRoutes(t); len(routes) != 3 {
		t.Errorf("kernel routes %v, want 3", routes)
	}
	for _, c := range []struct {
		name  string
		nodes []Node
	}{
		{"range moves to another node",
			[]Node{peerNode("n2", 2, "10.3.0.0/24"), peerNode("n3", 3, "10.2.0.0/24")}},
		{"node leaves", []Node{n3}},
		{"all leave", nil},
	} {
		generation = b.config.Generation
		b.setNodes(t, c.nodes...)
		if b.config.Generation == generation {
			t.Errorf("%s: cached decisions live on", c.name)
		}
		want := 0
		for _, n := range c.nodes {
			want += len(n.PodCIDRs)
		}
		keys, err := bpftest.Keys(b.maps.Routes)
		must(t, err)
		if len(keys) != want || len(b.kernelRoutes(t)) != want {
			t.Errorf("%s: %d routes in the map, kernel %v; want %d", c.name, len(keys),
				b.kernelRoutes(t), want)
		}
	}
}

func (b *harness) kernelRoutes(t *testing.T) (list []string) {
	t.Helper()
	must(t, b.inside(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL,
			&netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
		for _, r := range routes {
			list = append(list, r.Dst.String())
		}
		return err
	}))
	return list
}

// TestNodeLosesAFamily: a node that gives up its IPv6 address must not be reached by the old one,
// and neither must the next node that gets its index.
func TestNodeLosesAFamily(t *testing.T) {
	b := nodeHarness(t)
	both := peerNode("n2", 2, "10.2.0.0/24", "fd00:2::/64")
	b.setNodes(t, both)
	only4 := both
	only4.Addresses = both.Addresses[:1]
	b.setNodes(t, only4)
	if !(b.node(t, 1, 1).Flags&bpf.NexthopResolved == 0) {
		t.Error("a node's IPv6 next hop stays in the map after it gave up the address: IPv6 pods are still sent there")
	}
	b.setNodes(t)
	other := peerNode("n3", 3, "10.3.0.0/24", "fd00:3::/64")
	other.Addresses = other.Addresses[:1]
	b.setNodes(t, other)
	got := b.node(t, 1, 1)
	if !(got.Flags&bpf.NexthopResolved == 0 || got.Dmac != bpf.ToMAC(mac(0x40))) {
		t.Error("a node that inherits an index inherits the other family's next hop: n3's IPv6 pods are sent to n2's MAC")
	}
}

// TestBadNodeStopsNoOther: a node without a route to it is named, the others are served.
func TestBadNodeStopsNoOther(t *testing.T) {
	b := nodeHarness(t)
	bad := Node{Name: "lost", Addresses: []netip.Addr{addr("203.0.113.9")},
		PodCIDRs: []netip.Prefix{mustPrefix("10.9.0.0/24")}}
	b.setNodes(t, bad, peerNode("n2", 2, "10.2.0.0/24"))
	if problems := b.NodeProblems(); len(problems) != 1 || problems[0].Node != "lost" ||
		!strings.Contains(problems[0].Text, "no route") {
		t.Errorf("problems %v, want the lost node's", problems)
	}
	if slot, ok := b.routeOf(t, "10.2.0.0/24"); !ok ||
		b.node(t, slot, 0).Flags&bpf.NexthopResolved == 0 {
		t.Error("the good node is not served")
	}
	if slot, ok := b.routeOf(t, "10.9.0.0/24"); !ok || b.node(t, slot, 0) != (bpf.Nexthop{}) {
		t.Error("the lost node's range is open, or has a next hop")
	}
}

// TestNeighborChanged: the kernel's neighbour events reach the map and void cached decisions.
func TestNeighborChanged(t *testing.T) {
	b := nodeHarness(t)
	b.setNodes(t, peerNode("n2", 2, "10.2.0.0/24"))
	event := func(typ uint16, state int, hw net.HardwareAddr, ifindex int) (bpf.Nexthop, bool) {
		before := b.config.Generation
		n := netlink.NeighUpdate{Type: typ,
			Neigh: netlink.Neigh{LinkIndex: ifindex, IP: net.ParseIP("192.0.2.2"), State: state,
				HardwareAddr: hw}}
		b.hops.NeighborChanged(n)
		return b.node(t, 1, 0), b.config.Generation != before
	}
	up := b.index["wtup"]
	for _, c := range []struct {
		name     string
		typ      uint16
		state    int
		mac      net.HardwareAddr
		ifindex  int
		resolved bool
		dmac     byte
		bumped   bool
	}{
		{"same again", unix.RTM_NEWNEIGH, unix.NUD_REACHABLE, mac(0x40), up, true, 0x40, false},
		{"stale is still usable", unix.RTM_NEWNEIGH, unix.NUD_STALE, mac(0x40), up, true, 0x40,
			false},
		{"another MAC", unix.RTM_NEWNEIGH, unix.NUD_REACHABLE, mac(0x50), up, true, 0x50, true},
		{"on another interface", unix.RTM_NEWNEIGH, unix.NUD_REACHABLE, mac(0x60), b.index["wtb"],
			true, 0x50, false},
		{"failed", unix.RTM_NEWNEIGH, unix.NUD_FAILED, nil, up, false, 0x50, true},
		{"incomplete", unix.RTM_NEWNEIGH, unix.NUD_INCOMPLETE, nil, up, false, 0x50, false},
		{"back", unix.RTM_NEWNEIGH, unix.NUD_REACHABLE, mac(0x50), up, true, 0x50, true},
		{"deleted", unix.RTM_DELNEIGH, unix.NUD_REACHABLE, mac(0x50), up, false, 0x50, true},
	} {
		got, bumped := event(c.typ, c.state, c.mac, c.ifindex)
		if resolved := got.Flags&bpf.NexthopResolved != 0; resolved != c.resolved ||
			got.Dmac != bpf.ToMAC(mac(c.dmac)) || bumped != c.bumped {
			t.Errorf("%s: resolved %v, MAC %x, generation changed %v", c.name, resolved, got.Dmac,
				bumped)
		}
	}
}

// TestSysctlIsPutBack: the first value noted is the original; cleanup restores it.
func TestSysctlIsPutBack(t *testing.T) {
	b := newHarness(t)
	path := t.TempDir()
	const name = "net/ipv4/conf/wtx/forwarding"
	read := func() string {
		data, err := os.ReadFile("/proc/sys/" + name)
		must(t, err)
		return strings.TrimSpace(string(data))
	}
	must(t, b.inside(func() error {
		u, err := netdev.OpenUndo(path)
		if err != nil {
			return err
		}
		before := read()
		other := map[string]string{"0": "1", "1": "0"}[before]
		for _, value := range []string{other, before, other} {
			if err := u.SetSysctl(name, value); err != nil {
				return err
			}
			if got := read(); got != value {
				t.Errorf("set %s, reads %s", value, got)
			}
		}
		again, err := netdev.OpenUndo(path)
		if err != nil {
			return err
		}
		if again.Sysctls[name] != before {
			t.Errorf("noted %v, want %s", again.Sysctls, before)
		}
		if err := again.RestoreSysctls(); err != nil {
			return err
		}
		if got := read(); got != before {
			t.Errorf("put back %s, want %s", got, before)
		}
		return nil
	}))
}

// TestUnresolvedPeerIsManaged: a peer nobody has spoken to is handed to the kernel to resolve, its
// pods take the stack until then, and cleanup takes the entry back.
func TestUnresolvedPeerIsManaged(t *testing.T) {
	b := nodeHarness(t)
	var err error
	b.undo, err = netdev.OpenUndo(t.TempDir())
	must(t, err)
	must(t, b.openNextHops())
	b.setNodes(t, peerNode("n9", 9, "10.2.0.0/24"))
	if n := b.node(t, 1, 0); n.Flags&bpf.NexthopResolved != 0 ||
		n.Ifindex != uint32(b.index["wtup"]) {
		t.Errorf("%+v, want the uplink and not resolved", n)
	}
	for _, context := range contexts {
		if v, _ := b.send(t, context, "from_pod", "wta",
			fromA(peer4).udp(1, 2, 8).bytes()); v != "pass" {
			t.Errorf("%s: %s, want pass", context, v)
		}
	}
	managed := func() (n int) {
		list, err := netlink.NeighList(b.index["wtup"], netlink.FAMILY_ALL)
		must(t, err)
		for _, e := range list {
			if e.FlagsExt&netlink.NTF_EXT_MANAGED != 0 {
				n++
			}
		}
		return n
	}
	must(t, b.inside(func() error {
		if n := managed(); n != 2 {
			t.Errorf("%d managed neighbours, want one per family", n)
		}
		if err := removeNeighbors(b.undo.Neighbors); err != nil {
			return err
		}
		if n := managed(); n != 0 {
			t.Errorf("%d managed neighbours were left", n)
		}
		return nil
	}))
}

// TestAddressOfAForeignFamily: a node's address of a family that this node has none of cannot be
// reached by that, and is the node's all the same: what pods send there is sealed, and nothing is
// taken from there in cleartext.
func TestAddressOfAForeignFamily(t *testing.T) {
	b := sealNodeHarness(t)
	own := b.opts.HostAddrs
	t.Cleanup(func() { b.opts.HostAddrs = own })
	b.opts.HostAddrs = []netip.Addr{node4}
	must(t, b.openNextHops())
	far := addr("2001:db8:9::2") // no route leads there
	b.setNodes(t,
		Node{Name: "n2", Addresses: []netip.Addr{addr("192.0.2.2"), far},
			PodCIDRs: []netip.Prefix{mustPrefix("10.2.0.0/24")}})
	if problems := b.NodeProblems(); len(problems) != 0 {
		t.Errorf("problems %v, want none: the node is reached by its other address", problems)
	}
	if r, ok := b.route(t, far.String()+"/128"); !ok || r.Node == 0 || r.Flags != bpf.RouteHost {
		t.Errorf("the address: %+v, %v; want the node's", r, ok)
	}
	b.installSA(t, "n2")
	// In XDP the stack takes it first: the harness's uplink takes no XDP frames.
	if verdict, _ := b.send(t, "tc", "from_pod", "wta",
		fromA(far).udp(1, 2, 8).bytes()); verdict != "redirect" {
		t.Errorf("a pod to it: %s, want it sealed and redirected; %v", verdict, b.counted(t))
	}
	for _, context := range contexts {
		before := b.counted(t)
		verdict, _ := b.send(t, context, "from_wire", "wtup",
			fromPeer(podA.IPv6).src(far).udp(1, 2, 8).bytes())
		if reasons := reasonsIn(subtract(b.counted(t), before)); verdict != "drop" ||
			!slices.Equal(reasons, []string{"plaintext"}) {
			t.Errorf("%s: in its name, in cleartext: %s %v, want drop [plaintext]", context,
				verdict, reasons)
		}
	}
}
