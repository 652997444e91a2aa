package datapath

import (
	"net/netip"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestOwnRangesStay: whether endpoints are still to be restored or other plugins' pods share the
// ranges: what nobody has in them is the stack's as a destination, and nobody's as a source on the
// wire, also where all around is the cluster's.
func TestOwnRangesStay(t *testing.T) {
	u := func(p packet) packet { return p.udp(1000, 53, 24) }
	enter := func(t *testing.T, b *harness) {
		before := b.opts.PodCIDRs
		b.opts.PodCIDRs = []netip.Prefix{mustPrefix("10.1.0.0/24"), mustPrefix("fd00:1::/64")}
		t.Cleanup(func() { b.opts.PodCIDRs = before })
		must(t, b.openNextHops())
		for _, prefix := range []string{"10.0.0.0/8", "fd00::/16"} {
			key := bpf.RouteKeyOf(mustPrefix(prefix))
			must(t, b.maps.Routes.Put(&key, &bpf.Route{Flags: bpf.RouteNoNode}))
		}
		other := bpf.RouteKeyOf(mustPrefix("10.99.0.0/24")) // of another configuration
		must(t, b.maps.Routes.Put(&other, &bpf.Route{}))
	}
	first := func(t *testing.T, b *harness) {
		enter(t, b)
		for _, prefix := range b.opts.PodCIDRs {
			key := bpf.RouteKeyOf(prefix)
			must(t, b.maps.Routes.Delete(&key))
		}
		must(t, b.enterOwnRanges())
		must(t, b.changed())
		if r, _ := b.route(t, "10.99.0.0/24"); r.Flags != bpf.RouteNoNode {
			t.Errorf("a range of another configuration: %+v", r)
		}
	}
	shared := func(t *testing.T, b *harness) {
		enter(t, b)
		must(t, b.inside(b.setOwnRanges))
		other := Endpoint{Slot: 3, HostIf: "wtx", MAC: mac(3), GatewayMAC: gatewayMAC,
			IPv4: addr("10.1.0.33"), MTU: 1500, Chained: true}
		must(t, b.inside(func() error { return b.putEndpoint(other, []int{b.index["wtx"]}) }))
		must(t, b.inside(b.setOwnRanges))
	}
	restart := func(t *testing.T, b *harness) {
		settled, created := b.settled, b.maps.Created["weft_ep_addr"]
		t.Cleanup(func() { b.settled, b.maps.Created["weft_ep_addr"] = settled, created })
		b.settled, b.maps.Created["weft_ep_addr"] = false, false
		must(t, b.enterOwnRanges())
		must(t, b.changed())
	}
	// A run that knew its endpoints, then one that does not yet, and may end so.
	again := func(t *testing.T, b *harness) {
		enter(t, b)
		must(t, b.inside(b.setOwnRanges))
		restart(t, b)
	}
	// A run whose ranges were another node's or nobody's before, and which may end before it knows
	// its endpoints.
	moved := func(was bpf.Route) func(t *testing.T, b *harness) {
		return func(t *testing.T, b *harness) {
			enter(t, b)
			for _, prefix := range b.opts.PodCIDRs {
				key := bpf.RouteKeyOf(prefix)
				must(t, b.maps.Routes.Put(&key, &was))
			}
			restart(t, b)
		}
	}
	closed := func(t *testing.T, b *harness) {
		shared(t, b)
		must(t, b.inside(func() error { return b.forgetEndpoint(b.eps[3]) }))
	}
	var rows []row
	for name, setup := range map[string]func(*testing.T, *harness){"first start": first, "shared": shared} {
		rows = append(rows, []row{
			{name: name + ", IPv4 to an address that no endpoint has", setup: setup,
				in: u(fromA(nobody4)), want: "pass"},
			{name: name + ", IPv6 to an address that no endpoint has", setup: setup,
				in: u(fromA(nobody6)), want: "pass"},
			{name: name + ", IPv4 from one, from the wire to a pod", setup: setup,
				hook: "from_wire", in: u(fromPeer(podA.IPv4).src(nobody4)), want: "drop",
				reason: bpf.ReasonForeignSource},
			{name: name + ", IPv6 from one, from the wire to a pod", setup: setup,
				hook: "from_wire", in: u(fromPeer(podA.IPv6).src(nobody6)), want: "drop",
				reason: bpf.ReasonForeignSource},
			{name: name + ", IPv4 from one, from the wire to the host", setup: setup,
				hook: "from_wire", in: u(fromPeer(node4).src(nobody4)), want: "drop",
				reason: bpf.ReasonForeignSource},
			{name: name + ", to the cluster's around it", setup: setup,
				in: u(fromA(addr("10.7.0.1"))), want: "drop", reason: bpf.ReasonNoNode},
		}...)
	}
	rows = append(rows,
		row{name: "closed, and restarted", setup: again, in: u(fromA(nobody4)), want: "drop",
			reason: bpf.ReasonNoEndpoint})
	for name, setup := range map[string]func(*testing.T, *harness){
		"another node's before": moved(bpf.Route{Node: 1}),
		"nobody's before":       moved(bpf.Route{Flags: bpf.RouteNoNode}),
	} {
		rows = append(rows,
			row{name: name + ", IPv4", setup: setup, in: u(fromA(nobody4)), want: "drop",
				reason: bpf.ReasonNoEndpoint},
			row{name: name + ", IPv6", setup: setup, in: u(fromA(nobody6)), want: "drop",
				reason: bpf.ReasonNoEndpoint})
	}
	// Ranges that are larger than those that another node had of them.
	joined := func(t *testing.T, b *harness) {
		enter(t, b)
		for _, prefix := range b.opts.PodCIDRs {
			key := bpf.RouteKeyOf(prefix)
			_ = b.maps.Routes.Delete(&key)
		}
		for _, around := range []string{"10.0.0.0/8", "fd00::/16"} {
			key := bpf.RouteKeyOf(mustPrefix(around))
			must(t, b.maps.Routes.Delete(&key))
		}
		for _, half := range []string{"10.1.0.128/25", "fd00:1:0:0:8000::/65"} {
			key := bpf.RouteKeyOf(mustPrefix(half))
			must(t, b.maps.Routes.Put(&key, &bpf.Route{Node: 1}))
			t.Cleanup(func() { _ = b.maps.Routes.Delete(&key) })
		}
		restart(t, b)
		for _, prefix := range []string{"10.1.0.0/24", "fd00:1::/64"} {
			if r, ok := b.route(t, prefix); !ok || r != (bpf.Route{}) {
				t.Errorf("%s: %+v, %v: want that it is closed", prefix, r, ok)
			}
		}
	}
	rows = append(rows,
		row{name: "larger than another node's before", setup: joined, in: u(fromA(nobody4)),
			want: "drop", reason: bpf.ReasonNoEndpoint})
	rows = append(rows,
		row{name: "shared, and restarted", setup: moved(bpf.Route{Flags: bpf.RouteOpen}),
			in: u(fromA(nobody4)), want: "pass"})
	rows = append(rows,
		row{name: "no longer shared", setup: closed, in: u(fromA(nobody4)), want: "drop",
			reason: bpf.ReasonNoEndpoint})
	runTable(t, rows)
}
