package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	stdmaps "maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// MapPin begins the name of every map's pin.
const MapPin = "maps-"

// Maps are the pinned maps of one instance.
type Maps struct {
	Config   *ebpf.Map `ebpf:"weft_config"`
	EpIf     *ebpf.Map `ebpf:"weft_ep_if"`
	EpAddr   *ebpf.Map `ebpf:"weft_ep_addr"`
	Routes   *ebpf.Map `ebpf:"weft_routes"`
	Nexthops *ebpf.Map `ebpf:"weft_nexthops"`
	Flows4   *ebpf.Map `ebpf:"weft_flows4"`
	Flows6   *ebpf.Map `ebpf:"weft_flows6"`
	Cells4   *ebpf.Map `ebpf:"weft_cells4"`
	Cells6   *ebpf.Map `ebpf:"weft_cells6"`
	Owners   *ebpf.Map `ebpf:"weft_owners"`
	Claims   *ebpf.Map `ebpf:"weft_claims"`
	Claimed  *ebpf.Map `ebpf:"weft_claimed"`
	Frags    *ebpf.Map `ebpf:"weft_frags"`
	Counters *ebpf.Map `ebpf:"weft_counters"`
	Drops    *ebpf.Map `ebpf:"weft_drops"`
	EvStats  *ebpf.Map `ebpf:"weft_evstats"`
	Buckets  *ebpf.Map `ebpf:"weft_buckets"`
	Events   *ebpf.Map `ebpf:"weft_events"`
	Trace    *ebpf.Map `ebpf:"weft_trace"`
	PeerAddr *ebpf.Map `ebpf:"weft_peer_addr"`
	PeerIDs  *ebpf.Map `ebpf:"weft_peer_ids"`
	Plain    *ebpf.Map `ebpf:"weft_plain"`
	Policy   *ebpf.Map `ebpf:"weft_policy"`
	AddrIDs  *ebpf.Map `ebpf:"weft_addr_ids"`
	Classes  *ebpf.Map `ebpf:"weft_classes"`
	Handles  *ebpf.Map `ebpf:"weft_handles"`
	EpSlot   *ebpf.Map `ebpf:"weft_ep_slot"`
	Uplinks  *ebpf.Map `ebpf:"weft_uplinks"`
	Peers    *ebpf.Map `ebpf:"weft_peers"`
	SAOut    *ebpf.Map `ebpf:"weft_sa_out"`
	SAIn     *ebpf.Map `ebpf:"weft_sa_in"`
	SAUsed   *ebpf.Map `ebpf:"weft_sa_used"`
	SANodes  *ebpf.Map `ebpf:"weft_sa_nodes"`
	VM       *ebpf.Map `ebpf:"weft_vm"`
	Sealer   *ebpf.Map `ebpf:"weft_sealer"`
	// SealerQueue and SealerShares are what waits for the sealer, and whose it is.
	SealerQueue  *ebpf.Map `ebpf:"weft_seal_queue"`
	SealerShares *ebpf.Map `ebpf:"weft_seal_share"`

	// ByName are the same, and those that only programs use.
	ByName map[string]*ebpf.Map
	// Created says which were not adopted from a previous run.
	Created map[string]bool
	// Emptied were made anew in place of maps of former layouts, and hold nothing of those.
	Emptied map[string]bool
	// Late were created, and are to be pinned once they are filled: see PinLate.
	Late []LateMap
	// Hooked says that hooks of a previous run decide until they are replaced.
	Hooked bool
}

// Deciding are the maps in which absence lets pass: an address without a route is the world's, who
// has no endpoint is no pod, and a rule that denies an identity or a range does not meet an address
// that is not known to have it. What the others lack is refused (keys, peers, uplinks, a policy
// set's entries), or looked up anew (flows).
var Deciding = []string{"weft_routes", "weft_ep_if", "weft_ep_addr", "weft_ep_slot",
	"weft_addr_ids", "weft_classes"}

// LateMap is a deciding map that was made anew while hooks of a previous run are in force.
type LateMap struct {
	*ebpf.Map
	spec *ebpf.MapSpec
}

// Close lets go of the maps' descriptors. What is pinned stays.
func (m *Maps) Close() {
	for _, each := range m.ByName {
		each.Close()
	}
}

// SharedMaps are the maps that all programs use together, as this version lays them out.
func SharedMaps(flowEntries uint32, sealing bool) (map[string]*ebpf.MapSpec, error) {
	// Each object holds only the maps that its programs use; these use all.
	spec, err := LoadSpec("from_pod_tc")
	if err != nil {
		return nil, err
	}
	for _, object := range []string{"from_wire_tc", "to_pod_tc", "sa_xdp", "flows_xdp"} {
		more, err := LoadSpec(object)
		if err != nil {
			return nil, err
		}
		stdmaps.Copy(spec.Maps, more.Maps)
	}
	for name, ms := range spec.Maps {
		if !strings.HasPrefix(name, "weft_") {
			delete(spec.Maps, name) // .rodata belongs to one program
		} else if flowEntries != 0 &&
			(strings.HasPrefix(name, "weft_flows") || strings.HasPrefix(name, "weft_cells")) {
			ms.MaxEntries = flowEntries
		} else if !sealing && strings.HasPrefix(name, "weft_sa_") {
			// No live code looks into them: they need not hold what older kernels have no names
			// for.
			ms.MaxEntries, ms.Key, ms.Value = 1, nil, nil
		}
	}
	return spec.Maps, nil
}

// OpenMaps adopts the pinned maps whose layout is today's and makes the others. A pin's name holds
// a hash of the layout, so a map of another layout is never read by the wrong program. Programs
// that still run keep their old maps alive until they are replaced: where hooked says that some
// decide now, deciding maps that are made anew are Late.
func OpenMaps(dir string, flowEntries uint32, sealing, hooked bool,
	log *slog.Logger) (*Maps, error) {
	specs, err := SharedMaps(flowEntries, sealing)
	if err != nil {
		return nil, err
	}
	m := &Maps{ByName: map[string]*ebpf.Map{}, Created: map[string]bool{},
		Emptied: map[string]bool{}, Hooked: hooked}
	for name, ms := range specs {
		late := hooked && slices.Contains(Deciding, name)
		opened, how, err := openMap(dir, ms, !late, log)
		if err != nil {
			m.Close()
			return nil, err
		}
		m.ByName[name], m.Created[name], m.Emptied[name] = opened, how != adopted, how == emptied
		if late && how != adopted {
			m.Late = append(m.Late, LateMap{opened, ms})
		}
	}
	// Assign takes what it assigns out of the collection.
	if err := (&ebpf.Collection{Maps: stdmaps.Clone(m.ByName)}).Assign(m); err != nil {
		m.Close()
		return nil, fmt.Errorf("find the BPF objects' maps: %w", err)
	}
	return m, nil
}

// SharedWith are the maps that an object's programs use in place of their own. Its spec takes their
// sizes.
func (m *Maps) SharedWith(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	shared := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if existing := m.ByName[name]; existing != nil {
			shared[name] = existing
			spec.Maps[name].MaxEntries = existing.MaxEntries()
		}
	}
	return shared
}

// origin says how a map came to be.
type origin uint8

const (
	adopted origin = iota
	created        // the first of its name, or with the entries of a former one
	emptied        // without those
)

func openMap(dir string, spec *ebpf.MapSpec, pin bool,
	log *slog.Logger) (m *ebpf.Map, how origin, err error) {
	path := filepath.Join(dir, pinName(spec))
	pinned, err := ebpf.LoadPinnedMap(path, nil)
	if err == nil {
		return pinned, adopted, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, adopted, fmt.Errorf("open pinned map %s: %w", path, err)
	}
	m, err = ebpf.NewMap(spec)
	if err != nil {
		return nil, adopted, fmt.Errorf("create map %s: %w", spec.Name, NotAllowed(err))
	}
	how = created
	if n := migrate(dir, spec, m); n != "" {
		log.Warn("map layout changed: a new map was made", "map", spec.Name, "entries", n)
		if strings.HasPrefix(n, "none") {
			how = emptied
		}
	}
	if !pin {
		return m, how, nil
	}
	if err := m.Pin(path); err != nil {
		m.Close()
		return nil, adopted, fmt.Errorf("pin map %s: %w", spec.Name, err)
	}
	return m, how, nil
}

// PinLate pins the late maps, which are filled now, and takes the pins of former layouts away:
// programs that use those keep them alive, and an agent that would adopt them could not know how
// old they are.
func (m *Maps) PinLate(dir string) error {
	for len(m.Late) > 0 {
		late := m.Late[0]
		if err := late.Pin(filepath.Join(dir, pinName(late.spec))); err != nil {
			return fmt.Errorf("pin map %s: %w", late.spec.Name, err)
		}
		for _, path := range stalePins(dir, late.spec) {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove map of a former layout: %w", err)
			}
		}
		m.Late = m.Late[1:]
	}
	return nil
}

// DropStale removes the pins of older layouts, once no program uses them any more.
func DropStale(dir string, flowEntries uint32, sealing bool, log *slog.Logger) {
	specs, err := SharedMaps(flowEntries, sealing)
	if err != nil {
		return
	}
	for _, ms := range specs {
		for _, path := range stalePins(dir, ms) {
			if err := os.Remove(path); err != nil {
				log.Warn("remove stale map", "path", path, "err", err)
			}
		}
	}
}
