package datapath

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	stdmaps "maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

//go:embed obj/*_xdp.o obj/*_tc.o obj/vmfork.o obj/strangers.o
var embedded embed.FS

// objects is where BPF objects come from; a test may put others there.
var objects fs.FS = embedded

const mapPin = "maps-"

// maps are the pinned maps of one instance.
type maps struct {
	Config   *ebpf.Map
	EpIf     *ebpf.Map
	EpAddr   *ebpf.Map
	Routes   *ebpf.Map
	Nodes    *ebpf.Map
	Flows4   *ebpf.Map
	Flows6   *ebpf.Map
	Cells4   *ebpf.Map
	Cells6   *ebpf.Map
	Owners   *ebpf.Map
	Claims   *ebpf.Map
	Claimed  *ebpf.Map
	Frags    *ebpf.Map
	Counters *ebpf.Map
	Drops    *ebpf.Map
	EvStats  *ebpf.Map
	Buckets  *ebpf.Map
	Events   *ebpf.Map
	Trace    *ebpf.Map
	PeerAddr *ebpf.Map
	PeerIDs  *ebpf.Map
	Plain    *ebpf.Map
	Handles  *ebpf.Map
	EpSlot   *ebpf.Map
	Uplinks  *ebpf.Map
	Peers    *ebpf.Map
	SAOut    *ebpf.Map
	SAIn     *ebpf.Map
	SAUsed   *ebpf.Map
	SANodes  *ebpf.Map
	VM       *ebpf.Map
	byName   map[string]*ebpf.Map
	created  map[string]bool // not adopted from a previous run
	late     []lateMap       // created, and pinned once they are filled: see hold
	hooked   bool            // hooks of a previous run decide until they are replaced
}

func (m *maps) Close() {
	for _, each := range m.byName {
		each.Close()
	}
}

func loadSpec(object string) (*ebpf.CollectionSpec, error) {
	file, err := objects.Open("obj/" + object + ".o")
	if err != nil {
		return nil, fmt.Errorf("open BPF object %s: %w", object, err)
	}
	defer file.Close()
	spec, err := ebpf.LoadCollectionSpecFromReader(file.(interface {
		fs.File
		ReadAt([]byte, int64) (int, error)
	}))
	if err != nil {
		return nil, fmt.Errorf("read BPF object %s: %w", object, err)
	}
	return spec, nil
}

// sharedMaps are the maps that all programs use together, as this version lays them out.
func sharedMaps(flowEntries uint32, sealing bool) (map[string]*ebpf.MapSpec, error) {
	// Each object holds only the maps that its programs use; these use all.
	spec, err := loadSpec("from_pod_tc")
	if err != nil {
		return nil, err
	}
	for _, object := range []string{"from_wire_tc", "to_pod_tc", "sa_xdp", "flows_xdp"} {
		more, err := loadSpec(object)
		if err != nil {
			return nil, err
		}
		stdmaps.Copy(spec.Maps, more.Maps)
	}
	for name, ms := range spec.Maps {
		if !strings.HasPrefix(name, "weft_") {
			delete(spec.Maps, name) // .rodata belongs to one program
		} else if flowEntries != 0 && (strings.HasPrefix(name, "weft_flows") || strings.HasPrefix(name, "weft_cells")) {
			ms.MaxEntries = flowEntries
		} else if !sealing && strings.HasPrefix(name, "weft_sa_") {
			// No live code looks into them: they need not hold what older kernels have no names for.
			ms.MaxEntries, ms.Key, ms.Value = 1, nil, nil
		}
	}
	return spec.Maps, nil
}

// openMaps adopts the pinned maps whose layout is today's and makes the others. A pin's name
// holds a hash of the layout, so a map of another layout is never read by the wrong program.
// Programs that still run keep their old maps alive until they are replaced.
func openMaps(dir string, flowEntries uint32, sealing bool, log *slog.Logger) (*maps, error) {
	specs, err := sharedMaps(flowEntries, sealing)
	if err != nil {
		return nil, err
	}
	hooked, err := isHooked(dir)
	if err != nil {
		return nil, err
	}
	m := &maps{byName: map[string]*ebpf.Map{}, created: map[string]bool{}, hooked: hooked}
	for name, ms := range specs {
		late := hooked && slices.Contains(decidingMaps, name)
		opened, created, err := openMap(dir, ms, !late, log)
		if err != nil {
			m.Close()
			return nil, err
		}
		m.byName[name], m.created[name] = opened, created
		if late && created {
			m.late = append(m.late, lateMap{opened, ms})
		}
	}
	for name, field := range map[string]**ebpf.Map{
		"weft_config": &m.Config, "weft_ep_if": &m.EpIf, "weft_ep_addr": &m.EpAddr, "weft_routes": &m.Routes,
		"weft_nodes": &m.Nodes, "weft_flows4": &m.Flows4, "weft_flows6": &m.Flows6,
		"weft_cells4": &m.Cells4, "weft_cells6": &m.Cells6, "weft_owners": &m.Owners, "weft_claims": &m.Claims, "weft_claimed": &m.Claimed, "weft_frags": &m.Frags,
		"weft_counters": &m.Counters, "weft_drops": &m.Drops, "weft_evstats": &m.EvStats,
		"weft_buckets": &m.Buckets, "weft_events": &m.Events, "weft_trace": &m.Trace,
		"weft_peer_addr": &m.PeerAddr, "weft_peer_ids": &m.PeerIDs, "weft_plain": &m.Plain, "weft_peers": &m.Peers,
		"weft_sa_out": &m.SAOut, "weft_sa_in": &m.SAIn,
		"weft_handles": &m.Handles, "weft_ep_slot": &m.EpSlot, "weft_uplinks": &m.Uplinks,
		"weft_sa_used": &m.SAUsed, "weft_sa_nodes": &m.SANodes, "weft_vm": &m.VM,
	} {
		if *field = m.byName[name]; *field == nil {
			m.Close()
			return nil, fmt.Errorf("the BPF object has no map %s", name)
		}
	}
	return m, nil
}

// sharedWith are the maps that an object's programs use in place of their own. Its spec takes their sizes.
func (m *maps) sharedWith(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	shared := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if existing := m.byName[name]; existing != nil {
			shared[name] = existing
			spec.Maps[name].MaxEntries = existing.MaxEntries()
		}
	}
	return shared
}

func openMap(dir string, spec *ebpf.MapSpec, pin bool, log *slog.Logger) (m *ebpf.Map, made bool, err error) {
	path := filepath.Join(dir, pinName(spec))
	pinned, err := ebpf.LoadPinnedMap(path, nil)
	if err == nil {
		return pinned, false, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, false, fmt.Errorf("open pinned map %s: %w", path, err)
	}
	created, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, false, fmt.Errorf("create map %s: %w", spec.Name, notAllowed(err))
	}
	if n := migrate(dir, spec, created); n != "" {
		log.Warn("map layout changed: a new map was made", "map", spec.Name, "entries", n)
	}
	if !pin {
		return created, true, nil
	}
	if err := created.Pin(path); err != nil {
		created.Close()
		return nil, false, fmt.Errorf("pin map %s: %w", spec.Name, err)
	}
	return created, true, nil
}

// pinName is maps-NAME-LAYOUT-ENTRIES.
func pinName(spec *ebpf.MapSpec) string {
	return fmt.Sprintf("%s%s-%s-%d", mapPin, spec.Name, layoutHash(spec), spec.MaxEntries)
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

// migrate fills a new map from the pin of an older layout where the bytes still mean the same: same key and
// value, another number of entries. Of routes it takes the fields that both layouts have. Everything else is rebuilt by
// the agent (endpoints) or by traffic (flows, counters). It reports what happened, or "" if there was no older map.
func migrate(dir string, spec *ebpf.MapSpec, to *ebpf.Map) string {
	old := stalePins(dir, spec)
	if len(old) == 0 {
		return ""
	}
	sameLayout := func(path string) bool {
		return strings.HasPrefix(filepath.Base(path), mapPin+spec.Name+"-"+layoutHash(spec))
	}
	at := max(slices.IndexFunc(old, sameLayout), 0)
	from, err := ebpf.LoadPinnedMap(old[at], nil)
	if err != nil {
		return "none: " + err.Error()
	}
	defer from.Close()
	if !sameLayout(old[at]) {
		if spec.Name == "weft_peer_ids" && from.Type() == spec.Type && from.KeySize() == spec.KeySize {
			return copyPeerIDs(from, to)
		}
		if spec.Name == "weft_routes" && from.Type() == spec.Type && from.KeySize() == spec.KeySize {
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
	if spec.Type != ebpf.Hash && spec.Type != ebpf.LRUHash && spec.Type != ebpf.LPMTrie && spec.Type != ebpf.Array {
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

// copyPeerIDs takes over which node hosts whom from a release whose map had no handles. Handle 0 lets sealed packets in as
// before, and SetPeerIdentities gives out the real ones.
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
	all, _ := filepath.Glob(filepath.Join(dir, mapPin+spec.Name+"-*"))
	var stale []string
	for _, path := range all {
		if filepath.Base(path) != pinName(spec) {
			stale = append(stale, path)
		}
	}
	return stale
}

// dropStaleMaps removes the pins of older layouts, once no program uses them any more.
func (d *Datapath) dropStaleMaps() {
	specs, err := sharedMaps(d.opts.FlowEntries, d.opts.Encrypt != nil)
	if err != nil {
		return
	}
	for _, ms := range specs {
		for _, path := range stalePins(d.opts.BPFDir, ms) {
			if err := os.Remove(path); err != nil {
				d.log.Warn("remove stale map", "path", path, "err", err)
			}
		}
	}
}
