package nexthop

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestRoutesPlan: what makes room goes first, and what others must cover first goes last.
func TestRoutesPlan(t *testing.T) {
	table := func(text string) map[bpf.RouteKey]bpf.Route {
		out := map[bpf.RouteKey]bpf.Route{}
		for _, field := range strings.Fields(text) {
			var r bpf.Route
			prefix, node, _ := strings.Cut(field, "=")
			switch node {
			case "lost":
				r.Flags = bpf.RouteNoNode
			case "host":
				r = bpf.Route{Node: 1, Flags: bpf.RouteHost}
			default:
				_, err := fmt.Sscan(node, &r.Node)
				if err != nil {
					t.Fatal(err)
				}
			}
			out[bpf.RouteKeyOf(netip.MustParsePrefix(prefix))] = r
		}
		return out
	}
	text := func(keys []bpf.RouteKey) string {
		var out []string
		for _, k := range keys {
			out = append(out, bpf.PrefixOf(k).String())
		}
		return strings.Join(out, " ")
	}
	for _, tt := range []struct {
		name, have, want               string
		room                           int
		replace, first, add, last, out string
	}{
		{"changes hands", "10.2.0.0/24=1", "10.2.0.0/24=2", 9, "10.2.0.0/24", "", "", "", ""},
		{"one for another", "10.2.0.0/24=1", "10.3.0.0/24=2", 9, "", "10.2.0.0/24", "10.3.0.0/24",
			"", ""},
		{"split", "10.2.0.0/24=1", "10.2.0.0/25=1 10.2.0.128/25=2", 9, "", "",
			"10.2.0.0/25 10.2.0.128/25", "10.2.0.0/24", ""},
		{"joined", "10.2.0.0/25=1 10.2.0.128/25=2 fd00::/64=2", "10.2.0.0/24=1", 9, "", "fd00::/64",
			"10.2.0.0/24", "10.2.0.0/25 10.2.0.128/25", ""},
		{"order", "",
			"10.2.0.7/32=1 10.4.0.0/16=lost 192.0.2.2/32=host 10.2.0.0/24=2 10.4.0.7/32=lost", 4,
			"", "", "10.2.0.0/24 10.4.0.0/16 192.0.2.2/32 10.2.0.7/32", "", "10.4.0.7/32"},
		{"a range pushes an address out", "10.2.0.7/32=1 10.2.0.8/32=1",
			"10.2.0.7/32=1 10.2.0.8/32=1 10.3.0.0/24=2", 2, "", "10.2.0.8/32", "10.3.0.0/24", "",
			"10.2.0.8/32"},
		{"own ranges take places and stay", "10.1.0.0/24=0",
			"10.1.0.0/24=lost 10.2.0.0/24=1 10.3.0.0/24=1", 2, "", "", "10.2.0.0/24", "",
			"10.3.0.0/24"},
	} {
		p := planRoutes(table(tt.have), table(tt.want), tt.room)
		got := fmt.Sprintf("%s|%s|%s|%s|%s", text(p.replace), text(p.first), text(p.add),
			text(p.last), text(p.left))
		if want := fmt.Sprintf("%s|%s|%s|%s|%s", tt.replace, tt.first, tt.add, tt.last,
			tt.out); got != want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, want)
		}
	}
}
