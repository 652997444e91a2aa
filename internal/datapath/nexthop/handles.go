package nexthop

import (
	"fmt"
	"slices"

	"weft.dev/weft/internal/datapath/bpf"
)

// Handles of identities: 14 bits have to do for 22 where a packet goes through the host's stack
// (bpf/lib/provenance.h). Reserved identities are their own handles.
const (
	firstHandle = 256
	maxHandles  = 16384
)

// identityHandles says which handle each workload identity of other nodes has. Guarded by
// Table.work.
type identityHandles struct {
	byIdentity map[uint32]uint16
	next       uint16
}

// restore takes over what a previous run gave out: packets may be on their way with it.
func (h *identityHandles) restore(m *bpf.Maps) error {
	h.byIdentity, h.next = map[uint32]uint16{}, firstHandle
	var key bpf.PeerId
	var handle uint16
	entries := m.PeerIDs.Iterate()
	for entries.Next(&key, &handle) {
		if handle >= firstHandle {
			h.byIdentity[key.Identity] = handle
			h.next = max(h.next, min(handle+1, maxHandles))
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read identities of peers: %w", err)
	}
	return nil
}

// assign gives every identity in use a handle, 0 where there are none left, and writes the table
// that turns handles back. A handle goes to another identity as late as possible.
func (h *identityHandles) assign(m *bpf.Maps,
	identities map[uint32]bool) (map[uint32]uint16, error) {
	taken := make(map[uint16]bool, len(h.byIdentity))
	for identity, handle := range h.byIdentity {
		if !identities[identity] {
			delete(h.byIdentity, identity)
			continue
		}
		taken[handle] = true
	}
	fresh := make([]uint32, 0)
	for identity := range identities {
		if _, has := h.byIdentity[identity]; !has {
			fresh = append(fresh, identity)
		}
	}
	slices.Sort(fresh)
	for _, identity := range fresh {
		if len(taken) == maxHandles-firstHandle {
			h.byIdentity[identity] = 0
			continue
		}
		handle := h.free(taken)
		if err := m.Handles.Put(uint32(handle), identity); err != nil {
			return nil, fmt.Errorf("enter handle %d: %w", handle, err)
		}
		h.byIdentity[identity], taken[handle] = handle, true
	}
	return h.byIdentity, nil
}

// free is the handle after the last one given out that nobody has. There is one.
func (h *identityHandles) free(taken map[uint16]bool) uint16 {
	for {
		handle := h.next
		if h.next++; handle >= maxHandles {
			h.next = firstHandle
			continue
		}
		if !taken[handle] {
			return handle
		}
	}
}

// SetPeerIdentities says which identities' pods each node hosts: what it seals under another is
// refused.
func (t *Table) SetPeerIdentities(nodes map[string][]uint32) error {
	t.work.Lock() // no index changes hands meanwhile
	defer t.work.Unlock()
	want := map[bpf.PeerId]bool{}
	used := map[uint32]bool{}
	for name, ids := range nodes {
		slot, known := t.Index(name)
		if !known {
			continue
		}
		for _, id := range ids {
			want[bpf.PeerId{Node: slot, Identity: id}], used[id] = true, true
		}
	}
	handles, err := t.handles.assign(t.maps, used)
	if err != nil {
		return err
	}
	// No decision in a flow depends on it: who sealed a packet is checked each time.
	if _, err := bpf.SyncMap(t.maps.PeerIDs, want,
		func(id bpf.PeerId) uint16 { return handles[id.Identity] }); err != nil {
		return fmt.Errorf("identities of peers: %w", err)
	}
	return nil
}
