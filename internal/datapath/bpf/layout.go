package bpf

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// pinName is maps-NAME-LAYOUT-ENTRIES.
func pinName(spec *ebpf.MapSpec) string {
	return fmt.Sprintf("%s%s-%s-%d", MapPin, spec.Name, layoutHash(spec), spec.MaxEntries)
}

// layoutHash covers what two programs must agree on to share a map, but for its size: its kind, and
// the names, types and offsets of every field of key and value.
func layoutHash(spec *ebpf.MapSpec) string {
	h := sha256.New()
	fmt.Fprintln(h, spec.Type, spec.KeySize, spec.ValueSize, spec.Flags)
	for _, t := range []btf.Type{spec.Key, spec.Value} {
		if t != nil {
			fmt.Fprintf(h, "%s\n", layoutText(t))
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:8]
}

// layoutText is a BTF type with all its members, written out.
func layoutText(t btf.Type) string {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		return membersText("struct", t.Members)
	case *btf.Union:
		return membersText("union", t.Members)
	case *btf.Array:
		return fmt.Sprintf("[%d]%s", t.Nelems, layoutText(t.Type))
	case *btf.Pointer:
		return "*" + layoutText(t.Target) // a kptr: programs read what it points to
	case *btf.Int:
		return t.Name
	default:
		return fmt.Sprintf("%T", t)
	}
}

func membersText(kind string, members []btf.Member) string {
	var b strings.Builder
	b.WriteString(kind + "{")
	for _, m := range members {
		fmt.Fprintf(&b, "%s@%d:%s;", m.Name, m.Offset, layoutText(m.Type))
	}
	b.WriteString("}")
	return b.String()
}

// migrate fills a new map from the pin of an older layout where the bytes still mean the same: same
// key and value, another number of entries. Of routes it takes the fields that both layouts have.
// Everything else is rebuilt by the agent (endpoints) or by traffic (flows, counters). It reports
// what happened, or "" if there was no older map.
func migrate(dir string, spec *ebpf.MapSpec, to *ebpf.Map) string {
	old := stalePins(dir, spec)
	if len(old) == 0 {
		return ""
	}
	sameLayout := func(path string) bool {
		return strings.HasPrefix(filepath.Base(path), MapPin+spec.Name+"-"+layoutHash(spec))
	}
	at := max(slices.IndexFunc(old, sameLayout), 0)
	from, err := ebpf.LoadPinnedMap(old[at], nil)
	if err != nil {
		return "none: " + err.Error()
	}
	defer from.Close()
	if !sameLayout(old[at]) {
		if spec.Name == "weft_peer_ids" && from.Type() == spec.Type &&
			from.KeySize() == spec.KeySize {
			return copyPeerIDs(from, to)
		}
		if spec.Name == "weft_routes" && from.Type() == spec.Type {
			return copyRoutes(from, to, spec)
		}
		return "none: key or value changed"
	}
	if spec.Name == "weft_sa_out" || spec.Name == "weft_sa_in" {
		return "none: keys cannot be copied" // nor counters without them; the agents meet and make new ones
	}
	if strings.HasPrefix(spec.Name, "weft_cells") {
		return "none: given out anew" // see flowTable.adopt
	}
	if spec.Type != ebpf.Hash && spec.Type != ebpf.LRUHash && spec.Type != ebpf.LPMTrie &&
		spec.Type != ebpf.Array {
		return "none"
	}
	copied, key, value := 0, make([]byte, from.KeySize()), make([]byte, from.ValueSize())
	for entries := from.Iterate(); entries.Next(&key, &value); {
		if to.Put(key, value) == nil {
			copied++
		}
	}
	return fmt.Sprint(copied)
}

// copyPeerIDs takes over which node hosts whom from a release whose map had no handles. Handle 0
// lets sealed packets in as before, and SetPeerIdentities gives out the real ones.
func copyPeerIDs(from, to *ebpf.Map) string {
	copied, key, value := 0, make([]byte, from.KeySize()), make([]byte, from.ValueSize())
	for entries := from.Iterate(); entries.Next(&key, &value); {
		if to.Put(key, uint16(0)) == nil {
			copied++
		}
	}
	return fmt.Sprintf("%d, without handles", copied)
}

// stalePins lists the pins of a map of other layouts or sizes than spec's.
func stalePins(dir string, spec *ebpf.MapSpec) []string {
	all, _ := filepath.Glob(filepath.Join(dir, MapPin+spec.Name+"-*"))
	var stale []string
	for _, path := range all {
		if filepath.Base(path) != pinName(spec) {
			stale = append(stale, path)
		}
	}
	return stale
}
