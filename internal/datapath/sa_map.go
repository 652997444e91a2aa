package datapath

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

func (d *Datapath) saMap(out bool) *ebpf.Map {
	if out {
		return d.maps.SAOut
	}
	return d.maps.SAIn
}

// saEntry is what both directions' entries have in common.
type saEntry struct {
	fingerprint, number      uint64
	installed, expires       uint64
	counter, packets, octets uint64
	vmGeneration             uint64
	state, engine            uint32
}

func entryOut(v *bpf.SaOut) *saEntry {
	counter := min(v.Counter, v.Limit) // attempts beyond the limit count too
	return &saEntry{v.Fingerprint, v.Number, v.InstalledNs, v.ExpiresNs, counter, counter, v.Bytes, v.VmGeneration, v.State, v.Engine}
}

func entryIn(v *bpf.SaIn) *saEntry {
	return &saEntry{v.Fingerprint, v.Number, v.InstalledNs, v.ExpiresNs, v.Top, v.Packets, v.Bytes, v.VmGeneration, v.State, v.Engine}
}

// readSA returns nil if there is no such entry.
func (d *Datapath) readSA(out bool, id uint32) (*saEntry, error) {
	var vout bpf.SaOut
	var vin bpf.SaIn
	var err error
	if out {
		err = d.maps.SAOut.Lookup(&id, &vout)
	} else {
		err = d.maps.SAIn.Lookup(&id, &vin)
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
func (d *Datapath) lanesOf(out bool, slot uint32, epoch uint8) (ids []uint32, err error) {
	for lane := range uint8(maxLanes) {
		id := saKey(slot, epoch, lane)
		entry, err := d.readSA(out, id)
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
func (d *Datapath) eachSA(out bool, visit func(id uint32, sa *saEntry)) error {
	var id uint32
	var err error
	if out {
		var v bpf.SaOut
		entries := d.maps.SAOut.Iterate()
		for entries.Next(&id, &v) {
			visit(id, entryOut(&v))
		}
		err = entries.Err()
	} else {
		var v bpf.SaIn
		entries := d.maps.SAIn.Iterate()
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

// retire removes entries: notes that their keys were used, forbids their use, waits until no packet is being handled that
// may have begun before, and only then wipes and deletes them. A crash in between leaves dead entries,
// which the next start retires.
func (d *Datapath) retire(out bool, ids []uint32) error {
	if len(ids) == 0 {
		return nil
	}
	for _, id := range ids {
		if err := d.markUsed(out, id); err != nil {
			return err
		}
		if err := d.sas.setState(id, out, bpf.SaDead); err != nil {
			return err
		}
	}
	if err := d.sas.waitForPackets(&d.expedite); err != nil {
		return err
	}
	var failed error
	for _, id := range ids {
		// What the last packets have counted meanwhile.
		if err := d.markUsed(out, id); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if err := d.sas.wipe(id, out); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		failed = errors.Join(failed, bpf.DeleteKey(d.saMap(out), &id))
	}
	return failed
}

func usedKey(out bool, lane uint8, fingerprint uint64) bpf.SaUsedKey {
	return bpf.SaUsedKey{Fingerprint: fingerprint, Lane: lane, Out: bpf.Flag(out)}
}

func (d *Datapath) markUsed(out bool, id uint32) error {
	entry, err := d.readSA(out, id)
	if err != nil || entry == nil || entry.state == bpf.SaNew {
		return err
	}
	key := usedKey(out, uint8(id)%maxLanes, entry.fingerprint)
	if err := d.maps.SAUsed.Put(&key, entry.counter); err != nil {
		return fmt.Errorf("note that keys were used: %w", err)
	}
	return nil
}

func (d *Datapath) wasUsed(out bool, lane uint8, fingerprint uint64) (bool, error) {
	key := usedKey(out, lane, fingerprint)
	var counter uint64
	err := d.maps.SAUsed.Lookup(&key, &counter)
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

// ownSlot notes whose the SAs of a node's index are. Those of another node, left from an earlier run, are removed.
func (d *Datapath) ownSlot(slot uint32, node string) error {
	var name, want nodeName
	if len(node) >= len(want) {
		return fmt.Errorf("node name: longer than %d bytes", len(want)-1)
	}
	copy(want[:], node)
	err := d.maps.SANodes.Lookup(&slot, &name)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read the map of nodes' names: %w", err)
	}
	if err == nil && name == want {
		return nil
	}
	if err == nil {
		if err := errors.Join(d.putSealing(slot, 0, 0), d.removeAllSAs(slot)); err != nil {
			return err
		}
	}
	if err := d.maps.SANodes.Put(&slot, &want); err != nil {
		return fmt.Errorf("write the map of nodes' names: %w", err)
	}
	return nil
}

// saNodes reads whose index is whose, from the pinned map: also before SetNodes.
func (d *Datapath) saNodes() (map[uint32]string, error) {
	names := map[uint32]string{}
	var slot uint32
	var name nodeName
	entries := d.maps.SANodes.Iterate()
	for entries.Next(&slot, &name) {
		names[slot] = name.String()
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read the map of nodes' names: %w", err)
	}
	return names, nil
}

// slotOf finds the index of a node that has or had SAs.
func (d *Datapath) slotOf(node string) (uint32, bool, error) {
	names, err := d.saNodes()
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
func (d *Datapath) SAs() ([]SAStatus, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names, err := d.saNodes()
	if err != nil {
		return nil, err
	}
	var list []SAStatus
	for _, out := range []bool{true, false} {
		err := d.eachSA(out, func(id uint32, sa *saEntry) {
			if sa.state != bpf.SaLive {
				return
			}
			list = append(list, SAStatus{
				Node: names[id>>10], Out: out, Epoch: uint8(id >> 6 & maxEpoch), Lane: uint8(id) % maxLanes,
				ID: sa.fingerprint, Number: sa.number, Engine: bpf.EngineNames.Of(uint8(sa.engine)),
				Counter: sa.counter, Packets: sa.packets, Bytes: sa.octets,
				Installed: bootTime(sa.installed), Expires: bootTime(sa.expires),
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Sealing lists with which epoch each peer that has or had SAs is sent to, from the pinned maps.
func (d *Datapath) Sealing() ([]Sealing, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names, err := d.saNodes()
	if err != nil {
		return nil, err
	}
	var list []Sealing
	for slot, name := range names {
		var peer bpf.Peer
		if err := d.maps.Peers.Lookup(slot, &peer); err != nil {
			return nil, fmt.Errorf("read peers map: %w", err)
		}
		list = append(list, Sealing{Node: name, Epoch: peer.Epoch, ID: peer.Id})
	}
	return list, nil
}
