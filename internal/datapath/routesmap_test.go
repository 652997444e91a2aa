package datapath

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
)

// smallRoutes gives the agent a routes map with room for few entries beside the reserve.
func smallRoutes(t *testing.T, b *sealHarness, room uint32) {
	t.Helper()
	small, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: b.maps.Routes.KeySize(),
		ValueSize: b.maps.Routes.ValueSize(), Flags: 1, MaxEntries: 256 + room})
	must(t, err)
	before := b.maps.Routes
	b.maps.Routes = small
	t.Cleanup(func() {
		b.maps.Routes = before
		small.Close()
	})
}

func singles(second byte, count int) (out []netip.Prefix) {
	for i := range count {
		out = append(out,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{172, second, byte(i >> 8), byte(i)}), 32))
	}
	return out
}

// TestRoutesMapFull: what does not fit into the routes map is named and gets no route by a gateway;
// ranges come before single addresses, whatever was there before, and all is well once there is
// room.
func TestRoutesMapFull(t *testing.T) {
	b := sealNodeHarness(t)
	smallRoutes(t, b, 10)
	own := bpf.RouteKeyOf(mustPrefix("10.1.0.0/24"))
	must(t, b.maps.Routes.Put(&own, &bpf.Route{}))
	ranges := []string{"10.2.0.0/24", "fd00:2::/64", "10.3.0.0/24", "10.9.0.0/24"}
	n2, n3 := peerNode("n2", 2, "10.2.0.0/24", "fd00:2::/64"), peerNode("n3", 3, "10.3.0.0/24")
	lost := missing(Node{PodCIDRs: []netip.Prefix{mustPrefix("10.9.0.0/24")}})
	grown := n2
	grown.PodCIDRs = slices.Concat(singles(16, 300), n2.PodCIDRs)
	only := peerNode("n3", 3)
	only.PodCIDRs = singles(17, 300)
	for i, nodes := range [][]Node{{grown, n3, lost}, {only}, {only, n2}, {grown, n3, lost},
		{grown, lost, n3}} {
		must(t, b.inside(func() error { _ = b.SetNodes(t.Context(), nodes); return nil }))
		if i == 1 || i == 2 {
			continue // fills the map with single addresses
		}
		for _, prefix := range ranges {
			if _, ok := b.route(t, prefix); !ok {
				t.Errorf("step %d: %s is not in the map", i, prefix)
			}
		}
		out := 0
		for _, p := range singles(16, 300) {
			_, in := b.route(t, p.String())
			if !in {
				out++
			}
			if p.Addr().As4()[3]%50 != 0 { // the kernel's list is read whole for each
				continue
			}
			if via := slices.Contains(b.kernelTo(t, p.String()), "via"); via != in {
				t.Errorf("step %d: %s in the map %v, kernel route by a gateway %v", i, p, in, via)
			}
			if !slices.Contains(b.kernelTo(t, p.String()), "unreachable") {
				t.Errorf("step %d: %s has no last resort", i, p)
			}
		}
		want := fmt.Sprintf("%d ranges and addresses of the cluster are not in the routes map", out)
		if problems := strings.Join(b.Problems(), "\n"); out < 290 ||
			!strings.Contains(problems, want) {
			t.Errorf("step %d: %d are not in the map; problems %q", i, out, problems)
		}
	}
	if r, ok := b.route(t, "10.1.0.0/24"); !ok || r != (bpf.Route{}) {
		t.Errorf("this node's own range: %+v, %v", r, ok)
	}
	b.setNodes(t, n2, n3)
	if problems := b.Problems(); len(problems) != 0 {
		t.Errorf("with room again: %v", problems)
	}
}
