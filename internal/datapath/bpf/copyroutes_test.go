package bpf

import (
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// TestRoutesWithoutNetwork: routes of a layout whose key had no network are the cluster's, as long
// as they were.
func TestRoutesWithoutNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes BPF maps")
	}
	specs, err := SharedMaps(0, true)
	if err != nil {
		t.Fatal(err)
	}
	spec := specs["weft_routes"]
	word, char := &btf.Int{Name: "unsigned int", Size: 4}, &btf.Int{Name: "unsigned char", Size: 1}
	key := &btf.Struct{Name: "weft_route_key", Size: 20, Members: []btf.Member{
		{Name: "prefixlen", Type: word},
		{Name: "addr", Type: &btf.Array{Index: word, Type: char, Nelems: 16}, Offset: 32},
	}}
	from, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "former", Type: ebpf.LPMTrie, Key: key, Value: spec.Value, KeySize: 20,
		ValueSize: spec.ValueSize, Flags: spec.Flags, MaxEntries: 16,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	routes := map[string]Route{"10.1.0.0/24": {}, "10.2.0.0/16": {Node: 7},
		"fd00:2::/64": {Node: 7}, "192.0.2.2/32": {Node: 7, Flags: RouteHost},
		"::/0": {Flags: RouteNoNode}}
	for text, route := range routes {
		now := RouteKeyOf(netip.MustParsePrefix(text))
		former := struct {
			Prefixlen uint32
			Addr      [16]uint8
		}{now.Prefixlen - networkBits, now.Addr}
		if err := from.Put(&former, &route); err != nil {
			t.Fatal(err)
		}
	}
	if got := copyRoutes(from, to, spec); got != "5, by their fields" {
		t.Errorf("copied %s", got)
	}
	for text, want := range routes {
		key, got := RouteKeyOf(netip.MustParsePrefix(text)), Route{}
		if err := to.Lookup(&key, &got); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	blue := RouteKeyIn(7, netip.MustParsePrefix("10.1.0.0/24"))
	if err := to.Lookup(&blue, &Route{}); err == nil {
		t.Error("a route of the cluster's is another network's, too")
	}
}
