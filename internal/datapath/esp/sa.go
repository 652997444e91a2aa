package esp

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// SA is a security association: the key of one lane, in one direction, in one epoch.
type SA struct {
	Node    string    // the peer
	Out     bool      // this node seals with it; else it opens with it
	Epoch   uint8     // 1 to 15, as in the SPI
	Lane    uint8     // 0 to 63
	Last    bool      // the highest lane of its direction, which a sealer opens
	ID      uint64    // fingerprint of the direction's keys, never 0
	Number  uint64    // the epoch's full number
	Key     [32]byte  // zeroed by InstallSA
	Salt    [4]byte   // zeroed by InstallSA
	Expires time.Time // the programs refuse it afterwards, whatever the agent does
	// MaxPackets is how many packets it may seal; 0 for 2^48.
	MaxPackets uint64
	// VMGeneration is what Associations.VMGeneration said before the handshake began.
	VMGeneration uint64
}

// SAStatus is an SA in use.
type SAStatus struct {
	Node      string    `json:"node"`
	Out       bool      `json:"out"`
	Epoch     uint8     `json:"epoch"`
	Lane      uint8     `json:"lane"`
	ID        uint64    `json:"id"`
	Number    uint64    `json:"number"`
	Engine    string    `json:"engine"`
	Counter   uint64    `json:"counter"` // last sent, or highest received
	Packets   uint64    `json:"packets"`
	Bytes     uint64    `json:"bytes"`
	Installed time.Time `json:"installed"`
	Expires   time.Time `json:"expires"`
}

// Sealing says with which epoch a peer is sent to; Epoch 0 means that packets for it are dropped
// (no_key).
type Sealing struct {
	Node  string `json:"node"`
	Epoch uint8  `json:"epoch"`
	ID    uint64 `json:"id"`
}

// Errors that callers tell apart.
var (
	// ErrClosed says that it was closed.
	ErrClosed = errors.New("the datapath is closed")
	// ErrEncryptionOff says that it was opened without encryption.
	ErrEncryptionOff = errors.New("encryption is off")
	// ErrUnknownNode says that EnterPeer has not named the node.
	ErrUnknownNode = errors.New("no such node")
	// ErrKeyUsed says that keys were in use before and were removed: sealing with them again could
	// repeat a nonce.
	ErrKeyUsed = errors.New("these keys were removed before: new ones are needed")
	// ErrNoSA says that there is no SA in use with these keys.
	ErrNoSA = errors.New("no SA in use has these keys")
	// ErrSAExpired says that an SA's time is over, which nothing brings back.
	ErrSAExpired = errors.New("its keys have expired: new ones are needed")
)

const (
	maxLanes         = 64
	maxEpoch         = 15
	defaultMaxPacket = 1 << 48
	// sealerMaxPackets is what the numbers in weft_sealer_header can count (SEALER_SEQ_LIMIT).
	sealerMaxPackets = 1<<39 - 1
)

func (sa *SA) check(now time.Time) error {
	switch {
	case sa.Epoch < 1 || sa.Epoch > maxEpoch:
		return fmt.Errorf("epoch %d: must be 1 to %d", sa.Epoch, maxEpoch)
	case sa.Lane >= maxLanes:
		return fmt.Errorf("lane %d: must be below %d", sa.Lane, maxLanes)
	case sa.ID == 0:
		return errors.New("id: must not be 0")
	case sa.Key == [32]byte{}:
		return errors.New("key: must not be zero")
	case !sa.Expires.After(now):
		return fmt.Errorf("expires: %s has passed", sa.Expires.UTC().Format(time.RFC3339))
	}
	return nil
}

func saKey(slot uint32, epoch,
	lane uint8) uint32 {
	return slot<<10 | uint32(epoch)<<6 | uint32(lane)
}

// InstallSA makes an SA usable. One that is there already, with the same ID, is left as it is,
// counter and window included; one with another ID is replaced. The SA's key and salt are zeroed in
// any case.
func (a *Associations) InstallSA(sa *SA) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { sa.Key, sa.Salt = [32]byte{}, [4]byte{} }()
	if err := a.usable(); err != nil {
		return err
	}
	if err := sa.check(time.Now()); err != nil {
		return fmt.Errorf("install SA for node %s: %w", sa.Node, err)
	}
	slot, ok := a.peers[sa.Node]
	if !ok {
		return fmt.Errorf("install SA for node %s: %w", sa.Node, ErrUnknownNode)
	}
	if err := a.installSA(slot, sa); err != nil {
		return fmt.Errorf("install SA for node %s, epoch %d, lane %d: %w", sa.Node, sa.Epoch,
			sa.Lane, err)
	}
	return nil
}

func (a *Associations) installSA(slot uint32, sa *SA) error {
	if err := a.ownSlot(slot, sa.Node); err != nil {
		return err
	}
	id := saKey(slot, sa.Epoch, sa.Lane)
	now, err := a.readSA(sa.Out, id)
	if err != nil {
		return err
	}
	if now != nil && now.ID == sa.ID && now.state == bpf.SaLive &&
		now.vmGeneration == sa.VMGeneration {
		return nil
	}
	if now != nil {
		if err := a.retire(sa.Out, []uint32{id}); err != nil {
			return err
		}
	}
	vm, err := a.readVM()
	if err != nil {
		return err
	}
	if sa.VMGeneration != vm.Generation {
		return ErrVMForked
	}
	used, err := a.wasUsed(sa.Out, sa.Lane, sa.ID)
	if err != nil {
		return err
	}
	if used {
		return ErrKeyUsed
	}
	if err := a.addOrKeep(id, sa); err != nil {
		// Half of an SA is none: it never was alive.
		a.sealer.forget(sa.Out, id)
		return errors.Join(err, a.writer.wipe(id, sa.Out), bpf.DeleteKey(a.saMap(sa.Out), &id))
	}
	return nil
}

// addOrKeep makes the entry, and keeps the key where the sealer is to have it.
func (a *Associations) addOrKeep(id uint32, sa *SA) error {
	if a.forSealer(sa) {
		if err := a.keepForSealer(id, sa); err != nil {
			return err
		}
	}
	return a.addSA(id, sa)
}

// addSA makes the entry, step by step, and declares it alive last.
func (a *Associations) addSA(id uint32, sa *SA) error {
	entry := a.newEntry(sa)
	if err := a.saMap(sa.Out).Update(&id, entry, ebpf.UpdateNoExist); err != nil {
		return fmt.Errorf("add entry: %w", err)
	}
	if sa.Out && a.forSealer(sa) {
		// No cipher: a hook that seals with it by mistake fails.
		return a.writer.setState(id, sa.Out, bpf.SaLive)
	}
	allocator := a.writer.allocIn
	if sa.Out {
		allocator = a.writer.allocOut
	}
	if err := allocator.alloc(id); err != nil {
		return err
	}
	if err := a.writer.fill(id, sa, a.writer.engine); err != nil {
		return fmt.Errorf("create the %s cipher: %w", bpf.EngineNames[a.writer.engine], err)
	}
	if a.writer.engine == bpf.EngineBpf {
		if err := a.writer.powers(id, sa.Out); err != nil {
			return fmt.Errorf("prepare GHASH: %w", err)
		}
	}
	return a.writer.setState(id, sa.Out, bpf.SaLive)
}

func (a *Associations) newEntry(sa *SA) any {
	now := bootNow()
	head := bpf.SaHead{
		Fingerprint: sa.ID, Number: sa.Number, InstalledNs: now,
		ExpiresNs:    now + uint64(time.Until(sa.Expires)),
		VmGeneration: sa.VMGeneration, State: bpf.SaNew, Engine: a.writer.engine,
	}
	if sa.Out {
		limit := sa.MaxPackets
		if limit == 0 {
			limit = defaultMaxPacket
		}
		if a.forSealer(sa) {
			head.Engine, limit = bpf.EngineUser, min(limit, sealerMaxPackets)
		}
		return &bpf.SaOut{Head: head, Limit: limit}
	}
	return &bpf.SaIn{Head: head}
}

// RemoveSAs removes all lanes of an epoch in one direction. Packets for the node are dropped if it
// was what they are sealed with.
func (a *Associations) RemoveSAs(node string, out bool, epoch uint8) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usable(); err != nil {
		return err
	}
	slot, ok, err := a.slotOf(node)
	if err != nil || !ok {
		return err
	}
	if out {
		if err := a.stopSealing(slot, epoch); err != nil {
			return err
		}
	}
	ids, err := a.lanesOf(out, slot, epoch)
	if err != nil {
		return err
	}
	if err := a.retire(out, ids); err != nil {
		return fmt.Errorf("remove SAs of node %s, epoch %d: %w", node, epoch, err)
	}
	return nil
}

// ExtendSAs moves the end of all lanes of an epoch in one direction to a later time; an earlier one
// changes nothing. The lanes must have the keys with this fingerprint, and must not have ended:
// what has ended stays so. Counters and windows go on.
func (a *Associations) ExtendSAs(node string, out bool, epoch uint8, id uint64,
	until time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usable(); err != nil {
		return err
	}
	fail := func(err error) error {
		return fmt.Errorf("extend SAs of node %s, epoch %d: %w", node, epoch, err)
	}
	slot, ok, err := a.slotOf(node)
	if err != nil {
		return fail(err)
	}
	if !ok {
		return fail(ErrUnknownNode)
	}
	lanes, err := a.lanesOf(out, slot, epoch)
	if err != nil {
		return fail(err)
	}
	if len(lanes) == 0 {
		return fail(ErrNoSA)
	}
	expires := bootNow() + uint64(max(time.Until(until), 0))
	for _, lane := range lanes {
		if err := a.writer.extend(lane, out, id, expires); err != nil {
			return fail(fmt.Errorf("lane %d: %w", lane%maxLanes, extendError(err)))
		}
	}
	return nil
}

// extendError names what bpf/sa.bpf.c refuses.
func extendError(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE):
		return ErrNoSA
	case errors.Is(err, unix.EKEYEXPIRED):
		return ErrSAExpired
	}
	return err
}

// removeAll forgets every key under an index, and whose it is. Callers hold a.mu.
func (a *Associations) removeAll(slot uint32) error {
	var failed error
	for _, out := range []bool{true, false} {
		var all []uint32
		for epoch := range uint8(maxEpoch) {
			ids, err := a.lanesOf(out, slot, epoch+1)
			if err != nil {
				return err
			}
			all = append(all, ids...)
		}
		failed = errors.Join(failed, a.retire(out, all))
	}
	if failed != nil {
		return fmt.Errorf("remove the SAs of node index %d: %w", slot, failed)
	}
	if err := bpf.DeleteKey(a.maps.SANodes, &slot); err != nil {
		return fmt.Errorf("forget node index %d: %w", slot, err)
	}
	return nil
}

// SealWith switches what this node sends to a peer to another epoch, whose SAs must all be there; 0
// stops sending, which is no error for a node that is gone. Each packet is sealed with either the
// one or the other.
func (a *Associations) SealWith(node string, epoch uint8) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usable(); err != nil {
		return err
	}
	slot, ok := a.peers[node]
	switch {
	case !ok && epoch == 0:
		return nil // its entry went with it
	case !ok:
		return fmt.Errorf("seal for node %s: %w", node, ErrUnknownNode)
	case epoch == 0:
		return a.putSealing(slot, 0, 0)
	}
	var id uint64
	for lane := range uint8(a.Lanes()) {
		sa, err := a.readSA(true, saKey(slot, epoch, lane))
		switch {
		case err != nil:
			return err
		case sa == nil || sa.state != bpf.SaLive:
			return fmt.Errorf("seal for node %s with epoch %d: lane %d has no SA: install all %d lanes first", node, epoch, lane, a.Lanes())
		case id != 0 && id != sa.ID:
			return fmt.Errorf("seal for node %s with epoch %d: lane %d has the keys of another handshake: install all lanes again", node, epoch, lane)
		}
		id = sa.ID
	}
	return a.putSealing(slot, epoch, id)
}

// stopSealing stops sending with an epoch that is about to be removed.
func (a *Associations) stopSealing(slot uint32, epoch uint8) error {
	_, err := a.changePeer(slot, func(p *bpf.Peer) {
		if p.Epoch == epoch {
			p.Epoch, p.Id = 0, 0
		}
	})
	return err
}

// putSealing changes the epoch of a peer and leaves the rest. One byte says which epoch, so no
// packet sees half of it.
func (a *Associations) putSealing(slot uint32, epoch uint8, id uint64) error {
	_, err := a.changePeer(slot, func(p *bpf.Peer) {
		p.Epoch, p.Id = epoch, id
		if epoch != 0 {
			p.Lanes = uint8(a.hookLanes())
		}
	})
	return err
}
