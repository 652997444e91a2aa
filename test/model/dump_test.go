package model

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/lab"
)

// routes lists a node's routes map as it is listed, and what a look-up finds for the first address of each range of both nodes:
// the two differ where an entry is there and not listed, or listed and not found.
func (w *world) routes(h *host) string {
	found, err := filepath.Glob(filepath.Join(lab.BPFFS, "weft", w.lab.Name()+"-"+h.Name, "*weft_routes*"))
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
				key := make([]byte, 20)
				binary.NativeEndian.PutUint32(key, 128)
				a := p.Addr().As16()
				copy(key[4:], a[:])
				var value [8]byte
				err := m.Lookup(key, &value)
				out = append(out, fmt.Sprintf("looked up %s: node %d flags %#x, %v", p,
					binary.NativeEndian.Uint32(value[:]), binary.NativeEndian.Uint32(value[4:]), err))
			}
		}
		m.Close()
	}
	return strings.Join(out, "\n  ")
}

func listRoutes(m *ebpf.Map) (out []string) {
	var key [20]byte
	var value [8]byte
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		addr := netip.AddrFrom16([16]byte(key[4:]))
		out = append(out, fmt.Sprintf("%s/%d: node %d flags %#x", addr, binary.NativeEndian.Uint32(key[:]),
			binary.NativeEndian.Uint32(value[:]), binary.NativeEndian.Uint32(value[4:])))
	}
	return append(out, fmt.Sprint("listed, ", entries.Err()))
}
