package datapath

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

// identityHandles says which handle each workload identity of other nodes has. Guarded by Datapath.mu.
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

// assign gives every identity in use a handle, 0 where there are none left, and writes the table that
// turns handles back. A handle goes to another identity as late as possible.
func (d *Datapath) assignHandles(identities map[uint32]bool) (map[uint32]uint16, error) {
	h := &d.handles
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
		if err := d.maps.Handles.Put(uint32(handle), identity); err != nil {
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
