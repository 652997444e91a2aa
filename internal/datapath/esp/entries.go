package esp

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// bootNow is the clock of SAs' lifetimes: it runs while the machine sleeps, and nobody can set it.
func bootNow() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err)) // the kernel has had it since 2.6.39
	}
	return uint64(ts.Nano())
}

// bootTime turns a point of that clock into one of the wall clock.
func bootTime(ns uint64) time.Time {
	return time.Now().Add(time.Duration(ns - bootNow())).Round(time.Millisecond)
}

func (a *Associations) saMap(out bool) *ebpf.Map {
	if out {
		return a.maps.SAOut
	}
	return a.maps.SAIn
}

// entry is what both directions' entries have in common.
type entry struct {
	SAStatus
	vmGeneration uint64
	state        uint32
	sealer       bool
}

// named fills in what an entry's key says; names are those of the peers, by index.
func (e *entry) named(out bool, id uint32, names map[uint32]string) SAStatus {
	e.Node, e.Out, e.Epoch, e.Lane = names[id>>10], out, uint8(id>>6&maxEpoch), uint8(id)%maxLanes
	return e.SAStatus
}

func newEntry(h *bpf.SaHead, counter, packets uint64) *entry {
	return &entry{SAStatus{
		ID: h.Fingerprint, Number: h.Number, Engine: bpf.EngineNames.Of(uint8(h.Engine)),
		Counter: counter, Packets: packets, Bytes: h.Bytes,
		Installed: bootTime(h.InstalledNs), Expires: bootTime(h.ExpiresNs),
	}, h.VmGeneration, h.State, h.Sealer != 0}
}

func entryOut(v *bpf.SaOut) *entry {
	counter := min(v.Counter, v.Limit) // attempts beyond the limit count too
	return newEntry(&v.Head, counter, counter)
}

func entryIn(v *bpf.SaIn) *entry { return newEntry(&v.Head, v.Top, v.Packets) }

// readSA returns nil if there is no such entry.
func (a *Associations) readSA(out bool, id uint32) (*entry, error) {
	var vout bpf.SaOut
	var vin bpf.SaIn
	var err error
	if out {
		err = a.maps.SAOut.Lookup(&id, &vout)
	} else {
		err = a.maps.SAIn.Lookup(&id, &vin)
	}
	switch {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read SA map: %w", err)
	case out:
		return entryOut(&vout), nil
	}
	return entryIn(&vin), nil
}

// lanesOf lists the entries of an epoch.
func (a *Associations) lanesOf(out bool, slot uint32, epoch uint8) (ids []uint32, err error) {
	for lane := range uint8(maxLanes) {
		id := saKey(slot, epoch, lane)
		entry, err := a.readSA(out, id)
		if err != nil {
			return nil, err
		}
		if entry != nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// eachSA visits all entries of one direction.
func (a *Associations) eachSA(out bool, visit func(id uint32, sa *entry)) error {
	var id uint32
	var err error
	if out {
		var v bpf.SaOut
		entries := a.maps.SAOut.Iterate()
		for entries.Next(&id, &v) {
			visit(id, entryOut(&v))
		}
		err = entries.Err()
	} else {
		var v bpf.SaIn
		entries := a.maps.SAIn.Iterate()
		for entries.Next(&id, &v) {
			visit(id, entryIn(&v))
		}
		err = entries.Err()
	}
	if err != nil {
		return fmt.Errorf("read SA map: %w", err)
	}
	return nil
}

// retire removes entries: notes that their keys were used, forbids their use, waits until no packet
// is being handled that may have begun before, and only then wipes and deletes them. A crash in
// between leaves dead entries, which the next start retires.
func (a *Associations) retire(out bool, ids []uint32) error {
	if len(ids) == 0 {
		return nil
	}
	for _, id := range ids {
		if err := a.markUsed(out, id); err != nil {
			return err
		}
		if err := a.writer.setState(id, out, bpf.SaDead); err != nil {
			return err
		}
	}
	if err := a.waitForPackets(); err != nil {
		return err
	}
	var failed error
	for _, id := range ids {
		// What the last packets have counted meanwhile.
		if err := a.markUsed(out, id); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if err := a.writer.wipe(id, out); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		a.sealer.forget(out, id)
		failed = errors.Join(failed, bpf.DeleteKey(a.saMap(out), &id))
	}
	return failed
}

func (a *Associations) waitForPackets() error {
	if a.host.Expedite != nil {
		defer a.host.Expedite()()
	}
	return a.writer.waitForPackets()
}

func usedKey(out bool, lane uint8, fingerprint uint64) bpf.SaUsedKey {
	return bpf.SaUsedKey{Fingerprint: fingerprint, Lane: lane, Out: bpf.Flag(out)}
}

func (a *Associations) markUsed(out bool, id uint32) error {
	entry, err := a.readSA(out, id)
	if err != nil || entry == nil || entry.state == bpf.SaNew {
		return err
	}
	key := usedKey(out, uint8(id)%maxLanes, entry.ID)
	if err := a.maps.SAUsed.Put(&key, entry.Counter); err != nil {
		return fmt.Errorf("note that keys were used: %w", err)
	}
	return nil
}

func (a *Associations) wasUsed(out bool, lane uint8, fingerprint uint64) (bool, error) {
	key := usedKey(out, lane, fingerprint)
	var counter uint64
	err := a.maps.SAUsed.Lookup(&key, &counter)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the map of used keys: %w", err)
	}
	return true, nil
}

// nodeName is struct weft_node_name.
type nodeName [256]byte

func (n nodeName) String() string {
	name, _, _ := bytes.Cut(n[:], []byte{0})
	return string(name)
}

// ownSlot notes whose the SAs of a node's index are. Those of another node, left from an earlier
// run, are removed.
func (a *Associations) ownSlot(slot uint32, node string) error {
	var name, want nodeName
	if len(node) >= len(want) {
		return fmt.Errorf("node name: longer than %d bytes", len(want)-1)
	}
	copy(want[:], node)
	err := a.maps.SANodes.Lookup(&slot, &name)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read the map of nodes' names: %w", err)
	}
	if err == nil && name == want {
		return nil
	}
	if err == nil {
		if err := errors.Join(a.putSealing(slot, 0, 0), a.removeAll(slot)); err != nil {
			return err
		}
	}
	if err := a.maps.SANodes.Put(&slot, &want); err != nil {
		return fmt.Errorf("write the map of nodes' names: %w", err)
	}
	return nil
}

// names reads whose index is whose. Callers hold a.mu.
func (a *Associations) names() (map[uint32]string, error) {
	names := map[uint32]string{}
	var slot uint32
	var name nodeName
	entries := a.maps.SANodes.Iterate()
	for entries.Next(&slot, &name) {
		names[slot] = name.String()
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read the map of nodes' names: %w", err)
	}
	return names, nil
}

// slotOf finds the index of a node that has or had SAs.
func (a *Associations) slotOf(node string) (uint32, bool, error) {
	names, err := a.names()
	if err != nil {
		return 0, false, err
	}
	for slot, name := range names {
		if name == node {
			return slot, true, nil
		}
	}
	return 0, false, nil
}

// SAs lists all SAs, from the pinned maps: also those of an earlier run.
func (a *Associations) SAs() ([]SAStatus, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usable(); err != nil {
		return nil, err
	}
	names, err := a.names()
	if err != nil {
		return nil, err
	}
	var list []SAStatus
	for _, out := range []bool{true, false} {
		err := a.eachSA(out, func(id uint32, sa *entry) {
			if sa.state == bpf.SaLive {
				list = append(list, sa.named(out, id, names))
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Sealing lists with which epoch each peer that has or had SAs is sent to, from the pinned maps.
func (a *Associations) Sealing() ([]Sealing, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usable(); err != nil {
		return nil, err
	}
	names, err := a.names()
	if err != nil {
		return nil, err
	}
	var list []Sealing
	for slot, name := range names {
		var peer bpf.Peer
		if err := a.maps.Peers.Lookup(slot, &peer); err != nil {
			return nil, fmt.Errorf("read peers map: %w", err)
		}
		list = append(list, Sealing{Node: name, Epoch: peer.Epoch, ID: peer.Id})
	}
	return list, nil
}
