package model

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/lab"
)

// routes lists a node's routes map as it is listed, and what a look-up finds for the first address
// of each range of both nodes: the two differ where an entry is there and not listed, or listed and
// not found.
func (w *world) routes(h *host) string {
	found, err := filepath.Glob(filepath.Join(lab.BPFFS, "weft", w.lab.Name()+"-"+h.Name,
		"*weft_routes*"))
	if err != nil || len(found) == 0 {
		return fmt.Sprintf("no routes map: %v", err)
	}
	var out []string
	for _, path := range found {
		m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			out = append(out, err.Error())
			continue
		}
		out = append(out, filepath.Base(path))
		out = append(out, listRoutes(m)...)
		for _, other := range w.hosts {
			for _, p := range other.PodCIDRs {
				key := bpf.RouteKeyOf(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
				var value bpf.Route
				err := m.Lookup(&key, &value)
				out = append(out,
					fmt.Sprintf("looked up %s: node %d flags %#x, %v", p, value.Node, value.Flags,
						err))
			}
		}
		m.Close()
	}
	return strings.Join(out, "\n  ")
}

func listRoutes(m *ebpf.Map) (out []string) {
	var key bpf.RouteKey
	var value bpf.Route
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		out = append(out,
			fmt.Sprintf("%s/%d of network %d: node %d flags %#x", netip.AddrFrom16(key.Addr),
				key.Prefixlen,
				key.Network, value.Node, value.Flags))
	}
	return append(out, fmt.Sprint("listed, ", entries.Err()))
}
