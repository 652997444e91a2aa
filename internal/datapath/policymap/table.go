package policymap

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// Table keeps the maps. Its methods are safe for concurrent use. It voids no cached decision: who
// changes what an endpoint may do raises the generation then.
type Table struct {
	maps *bpf.Maps

	mu   sync.Mutex
	sets map[uint32][]bpf.PolicyKey // nil for those of a previous run
	last uint32                     // the number given out last
	// marked: what numbers of sets say is true of those of a previous run, too.
	marked bool
	// identities are those in the map, nil while that is not known.
	identities map[netip.Addr]uint32
	// entered are the classes in the map, nil while that is not known.
	entered map[bpf.RouteKey]uint32
}

// Open takes over the sets of a previous run: endpoints refer to them until they are told
// otherwise.
func Open(m *bpf.Maps) (*Table, error) {
	t := &Table{maps: m, sets: map[uint32][]bpf.PolicyKey{}, marked: true}
	var key bpf.PolicyKey
	var value bpf.PolicyEntry
	entries := m.Policy.Iterate()
	for entries.Next(&key, &value) {
		t.sets[key.Set] = nil
		if key.Peer == Anybody && key.Set&bpf.PolicySetNoAnybody != 0 {
			t.marked = false
		}
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read policy entries: %w", err)
	}
	used, err := t.used()
	if err != nil {
		return nil, err
	}
	for set := range used {
		t.sets[set] = nil // also one without entries
	}
	for set := range t.sets {
		t.last = max(t.last, set&^bpf.PolicySetNoAnybody)
	}
	return t, nil
}

// slots are those of all endpoints, by number.
func (t *Table) slots() ([]bpf.EpSlot, error) {
	n := int(t.maps.EpSlot.MaxEntries())
	keys, slots := make([]uint32, n), make([]bpf.EpSlot, n)
	n, err := t.maps.EpSlot.BatchLookup(new(ebpf.MapBatchCursor), keys, slots, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("read slots: %w", err)
	}
	return slots[:n], nil
}

// EnteredSlots are those of endpoints that are in the maps, since a previous run too.
func (t *Table) EnteredSlots() (out []uint16, err error) {
	slots, err := t.slots()
	for i, slot := range slots {
		if slot != (bpf.EpSlot{}) {
			out = append(out, uint16(i))
		}
	}
	return out, err
}

// used are the sets that endpoints refer to.
func (t *Table) used() (map[uint32]bool, error) {
	slots, err := t.slots()
	if err != nil {
		return nil, err
	}
	used := map[uint32]bool{}
	for _, slot := range slots {
		for _, set := range slot.Sets {
			if set != 0 {
				used[set] = true
			}
		}
	}
	return used, nil
}

// InUse says whether an endpoint has a set, as the programs see it.
func (t *Table) InUse() (bool, error) {
	used, err := t.used()
	return len(used) > 0, err
}

// Add enters a set and returns its number, which no endpoint has and no set had in this run. A set
// never changes: another takes its place, so no packet meets half of one. Without entries it denies
// everything. On an error, ErrFull among them, nothing is left of it.
func (t *Table) Add(entries []Entry) (uint32, error) {
	values := make(map[bpf.PolicyKey]bpf.PolicyEntry, len(entries))
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.free()
	set := last | kindOf(entries)
	for i, e := range entries {
		if err := e.check(); err != nil {
			return 0, fmt.Errorf("policy entry %d: %w", i, err)
		}
		key := e.key(set)
		if _, twice := values[key]; twice {
			return 0, fmt.Errorf("policy entry %d: another is about the same peer, protocol and port", i)
		}
		values[key] = e.value()
	}
	keys, err := t.enter(values)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("enter policy set: %w", err), t.remove(keys))
	}
	t.sets[set], t.last = keys, last
	return set, nil
}

// Marked says whether what the numbers of all sets say of them (enum weft_policy_set) was true when
// the table was opened: a build that knows nothing of it may have gone on counting from such a one.
func (t *Table) Marked() bool { return t.marked }

// kindOf is what a set's number says of it (enum weft_policy_set).
func kindOf(entries []Entry) uint32 {
	for _, e := range entries {
		if e.Peer == Anybody {
			return 0
		}
	}
	return bpf.PolicySetNoAnybody
}

// enter returns the keys in the order in which to remove them: whoever still asks the set then is
// not allowed by one entry what another has denied.
func (t *Table) enter(values map[bpf.PolicyKey]bpf.PolicyEntry) ([]bpf.PolicyKey, error) {
	keys := slices.AppendSeq(make([]bpf.PolicyKey, 0, len(values)), maps.Keys(values))
	if len(keys) == 0 {
		return keys, nil // the kernel takes no empty batch
	}
	slices.SortFunc(keys, func(a, b bpf.PolicyKey) int {
		return cmp.Compare(values[b].Verdict, values[a].Verdict)
	})
	entries := make([]bpf.PolicyEntry, len(keys))
	for i, key := range keys {
		entries[i] = values[key]
	}
	_, err := t.maps.Policy.BatchUpdate(keys, entries, nil)
	return keys, full(t.maps.Policy, err)
}

// free is the next number that no set has, of either kind.
func (t *Table) free() uint32 {
	for set := (t.last + 1) % bpf.PolicySetNoAnybody; ; set = (set + 1) % bpf.PolicySetNoAnybody {
		_, taken := t.sets[set]
		_, other := t.sets[set|bpf.PolicySetNoAnybody]
		if set != 0 && !taken && !other {
			return set
		}
	}
}

// remove has the kernel remove one by one what it does not remove together, as one is missing.
func (t *Table) remove(keys []bpf.PolicyKey) (err error) {
	if len(keys) == 0 {
		return nil
	}
	if _, err := t.maps.Policy.BatchDelete(keys, nil); err == nil {
		return nil
	}
	for _, key := range keys {
		err = errors.Join(err, bpf.DeleteKey(t.maps.Policy, &key))
	}
	return err
}

// Remove takes sets away, and those of a previous run, and returns which of these it has not. What
// an endpoint still refers to stays: without the entries of its set it would be cut off.
func (t *Table) Remove(sets ...uint32) (left []uint32, err error) {
	used, err := t.used()
	if err != nil {
		return sets, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	gone := func(set uint32) bool {
		keys, there := t.sets[set]
		return there && !used[set] && (keys == nil || slices.Contains(sets, set))
	}
	if err := t.drop(gone); err != nil {
		return sets, err
	}
	return slices.DeleteFunc(slices.Clone(sets), func(set uint32) bool { return !used[set] }), nil
}

// drop is called with mu held.
func (t *Table) drop(gone func(set uint32) bool) (err error) {
	adopted := false
	for set, keys := range t.sets {
		if gone(set) {
			err = errors.Join(err, t.remove(keys))
			adopted = adopted || keys == nil
		}
	}
	if adopted {
		err = errors.Join(err,
			bpf.DeleteWhere(t.maps.Policy,
				func(key bpf.PolicyKey, _ bpf.PolicyEntry) bool { return gone(key.Set) }))
	}
	if err != nil {
		return fmt.Errorf("remove policy sets: %w", err)
	}
	maps.DeleteFunc(t.sets, func(set uint32, _ []bpf.PolicyKey) bool { return gone(set) })
	return nil
}

// Sets is how many sets there are.
func (t *Table) Sets() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sets)
}

// SetIdentities makes these, and no others, the identities of other nodes' endpoints by their
// addresses. It writes what is different from what it has written before.
func (t *Table) SetIdentities(want map[netip.Addr]uint32) (changed bool, err error) {
	for a, identity := range want {
		if identity == 0 || identity > MaxIdentity {
			return false, fmt.Errorf("identity %d of %s: want 1 to %d", identity, a, MaxIdentity)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.identities == nil {
		changed, err = t.syncIdentities(want)
	} else {
		changed, err = t.changeIdentities(want)
	}
	t.identities = nil
	if err == nil {
		t.identities = make(map[netip.Addr]uint32, len(want))
		maps.Copy(t.identities, want)
	}
	return changed, named("identities of addresses", err)
}

// syncIdentities compares with what is in the map, whoever has written it.
func (t *Table) syncIdentities(want map[netip.Addr]uint32) (changed bool, err error) {
	keys, values := map[bpf.AddrKey]bool{}, map[bpf.AddrKey]uint32{}
	for a, identity := range want {
		key := bpf.AddrKeyOf(0, a)
		keys[key], values[key] = true, identity
	}
	return bpf.SyncMap(t.maps.AddrIDs, keys,
		func(key bpf.AddrKey) uint32 { return values[key] })
}

// changeIdentities removes first, so that there is room.
func (t *Table) changeIdentities(want map[netip.Addr]uint32) (changed bool, err error) {
	var failed error
	for a := range t.identities {
		if _, stays := want[a]; !stays {
			key := bpf.AddrKeyOf(0, a)
			changed, failed = true, errors.Join(failed, bpf.DeleteKey(t.maps.AddrIDs, &key))
		}
	}
	for a, identity := range want {
		if t.identities[a] != identity {
			key := bpf.AddrKeyOf(0, a)
			changed, failed = true, errors.Join(failed, put(t.maps.AddrIDs, &key, &identity))
		}
	}
	return changed, failed
}

// put enters a pair; ErrFull if there is no room.
func put(m *ebpf.Map, key, value any) error { return full(m, m.Put(key, value)) }

// full is ErrFull where the kernel says that a map has no room.
func full(m *ebpf.Map, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("%w: it holds %d entries", ErrFull, m.MaxEntries())
	}
	return err
}

func named(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
