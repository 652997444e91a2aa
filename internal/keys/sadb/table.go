// Package sadb owns the security associations that are installed in the datapath: it
// remembers what is there, installs, extends and removes keys, and knows what the last
// reading counted. What it writes outlives the process; a new Table reads it again.
package sadb

import (
	"fmt"
	"hash/maphash"
	"maps"
	"sync"
	"time"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/schedule"
)

// Datapath holds the keys. What it holds outlives this process. *esp.Associations is one.
type Datapath interface {
	// InstallSA keeps the counter of an SA of the same ID and replaces one of another.
	// It zeroes Key and Salt before it returns.
	InstallSA(*esp.SA) error
	// RemoveSAs removes all lanes; none is no error.
	RemoveSAs(node string, out bool, epoch uint8) error
	// ExtendSAs moves the end of all lanes to a later time; an error if they have not this ID or
	// have ended.
	ExtendSAs(node string, out bool, epoch uint8, id uint64, until time.Time) error
	// SealWith switches what the node sends towards a peer, atomically for packets.
	// 0 stops sending, also to a peer that is gone.
	SealWith(node string, epoch uint8) error
	SAs() ([]esp.SAStatus, error)
	Sealing() ([]esp.Sealing, error)
	// VMGeneration counts the times that this virtual machine was resumed from a snapshot or
	// copied. Keys of another than the present one are refused, and void.
	VMGeneration() (uint64, error)
	// Lanes is how many lanes this node sends with.
	Lanes() int
}

// Table remembers what the datapath holds, so that an exchange need not read all of it. This
// process is the only one that writes there.
//
// Locks: a peer's writer lock (Lock) is held over the datapath's calls, since two writers must
// not come between each other's steps, and Load excludes them all. mu is held over no call, and
// is the last to be taken: whoever holds another owner's lock may ask the table.
type Table struct {
	dp         Datapath
	clock      clock.Clock
	maxPackets uint64
	// reading excludes writers while everything is read.
	reading sync.RWMutex
	// stripes keep two writers away from one peer.
	stripes [64]sync.Mutex
	seed    maphash.Seed

	mu      sync.Mutex
	groups  map[string]map[Group]Held
	sealing map[string]uint8
	// sent is the highest counter of a lane, by epoch, and loaded when it was read.
	sent   map[uint64]uint64
	loaded time.Duration
}

// New makes an empty Table; Load fills it. maxPackets is how many packets an SA may seal.
func New(dp Datapath, c clock.Clock, maxPackets uint64) *Table {
	return &Table{
		dp: dp, clock: c, maxPackets: maxPackets, seed: maphash.MakeSeed(),
		groups: map[string]map[Group]Held{}, sealing: map[string]uint8{}, sent: map[uint64]uint64{},
	}
}

// Lanes is how many lanes this node sends with.
func (t *Table) Lanes() int { return t.dp.Lanes() }

// Lock keeps other writers away from a peer.
func (t *Table) Lock(peer string) (unlock func()) {
	t.reading.RLock()
	stripe := &t.stripes[maphash.String(t.seed, peer)%uint64(len(t.stripes))]
	stripe.Lock()
	return func() {
		stripe.Unlock()
		t.reading.RUnlock()
	}
}

// Load reads everything.
func (t *Table) Load() error {
	t.reading.Lock()
	defer t.reading.Unlock()
	list, err := t.dp.SAs()
	if err != nil {
		return fmt.Errorf("read keys of the datapath: %w", err)
	}
	sealing, err := t.dp.Sealing()
	if err != nil {
		return fmt.Errorf("read what the datapath seals with: %w", err)
	}
	groups := grouped(t.clock, list)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keep(groups)
	t.groups, t.sealing = groups, map[string]uint8{}
	for _, s := range sealing {
		t.sealing[s.Node] = s.Epoch
	}
	t.sent, t.loaded = t.counters(), t.clock.Boot()
	return nil
}

// keep takes over what is known of groups from before. The caller holds mu.
func (t *Table) keep(groups map[string]map[Group]Held) {
	now := t.clock.Boot()
	for node, of := range groups {
		for g, h := range of {
			h.QuietFrom, h.QuietTo = now, now
			// Times once known do not move with the wall clock.
			if old, ok := t.groups[node][g]; ok && old.ID == h.ID && old.Number == h.Number {
				h.Deadline, h.At, h.Replaced = old.Deadline, old.At, old.Replaced
				if old.Packets == h.Packets && old.QuietTo != 0 {
					h.QuietFrom = old.QuietFrom
				}
			}
			of[g] = h
		}
	}
}

// counters are the highest numbers that a lane has sent with, by epoch. The caller holds mu.
func (t *Table) counters() map[uint64]uint64 {
	out := map[uint64]uint64{}
	for _, of := range t.groups {
		for g, h := range of {
			if g.Out && !h.Mixed {
				out[h.Number] = max(out[h.Number], h.Counter)
			}
		}
	}
	return out
}

// Loaded is when Load was last good, by Clock.Boot.
func (t *Table) Loaded() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.loaded
}

// Sent is the highest counter of a lane in an epoch, when the datapath was last read; false
// when nothing is there to be sealed with in it.
func (t *Table) Sent(epoch uint64) (counter uint64, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	counter, found = t.sent[epoch]
	return counter, found
}

// Highest is the highest number of an epoch that there are keys of, 0 for none.
func (t *Table) Highest() uint64 {
	highest := uint64(0)
	t.each(func(h Held) { highest = max(highest, h.Number) })
	return highest
}

// Oldest is when the oldest key was installed, zero for none.
func (t *Table) Oldest() time.Time {
	var oldest time.Time
	t.each(func(h Held) {
		if oldest.IsZero() || h.Installed.Before(oldest) {
			oldest = h.Installed
		}
	})
	return oldest
}

// each visits the groups that are of one exchange.
func (t *Table) each(visit func(Held)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range t.groups {
		for _, h := range of {
			if !h.Mixed {
				visit(h)
			}
		}
	}
}

// Peers are those that the datapath knows keys of.
func (t *Table) Peers() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for node, of := range t.groups {
		if len(of) > 0 || t.sealing[node] != 0 {
			out = append(out, node)
		}
	}
	for node, wire := range t.sealing {
		if t.groups[node] == nil && wire != 0 {
			out = append(out, node)
		}
	}
	return out
}

// Of is what the datapath holds of a peer.
func (t *Table) Of(peer string) State {
	lanes := t.dp.Lanes()
	t.mu.Lock()
	defer t.mu.Unlock()
	s := State{Groups: maps.Clone(t.groups[peer]), Sealing: t.sealing[peer], lanes: lanes}
	if s.Groups == nil {
		s.Groups = map[Group]Held{}
	}
	return s
}

// Pair is what a peer can be talked to with now: the newest keys of each direction, zero for none.
func (t *Table) Pair(peer string) (tx, rx Held) { return t.Of(peer).pair(t.clock.Boot()) }

// Install puts the lanes of a direction in place of what its group holds. The caller holds the
// peer's writer lock.
func (t *Table) Install(peer string, out bool, keys *schedule.Direction,
	deadline time.Duration) error {
	g := Group{out, schedule.WireNumber(keys.Number)}
	if old, ok := t.Of(peer).Groups[g]; ok && old.ID != keys.ID {
		if old.Number != keys.Number || old.Lanes>>len(keys.Lanes) != 0 {
			// Lanes of before would stay beside the new ones.
			if err := t.Remove(peer, g); err != nil {
				return err
			}
		}
	}
	wall := t.clock.Wall()
	h := Held{
		Number: keys.Number, ID: keys.ID, Mixed: true, Deadline: deadline,
		Expires: wall.Add(deadline - t.clock.Boot()), Installed: wall,
	}
	t.Put(peer, g, h)
	for i := range keys.Lanes {
		lane := &keys.Lanes[i]
		sa := esp.SA{
			Node: peer, Out: out, Epoch: g.Wire, Lane: lane.Lane, Last: i == len(keys.Lanes)-1,
			ID: keys.ID, Number: keys.Number,
			Key: lane.Key, Salt: lane.Salt, Expires: h.Expires, MaxPackets: t.maxPackets,
			VMGeneration: keys.VMGeneration,
		}
		err := t.dp.InstallSA(&sa)
		clear(sa.Key[:])
		clear(sa.Salt[:])
		if err != nil {
			return fmt.Errorf("install key of lane %d, epoch %d, peer %s: %w", lane.Lane,
				keys.Number, peer, err)
		}
		h.Lanes |= 1 << (lane.Lane % 64)
	}
	h.Mixed, h.At = false, t.clock.Boot()
	t.Put(peer, g, h)
	return nil
}

// Put notes what a group holds.
func (t *Table) Put(peer string, g Group, h Held) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.groups[peer] == nil {
		t.groups[peer] = map[Group]Held{}
	}
	t.groups[peer][g] = h
}

// Seal switches what a peer is sent with. The caller holds the peer's writer lock.
func (t *Table) Seal(peer string, wire uint8) error {
	if err := t.dp.SealWith(peer, wire); err != nil {
		return fmt.Errorf("switch peer %s to epoch %d of the wire: %w", peer, wire, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.groups[peer]; t.sealing[peer] != wire {
		t.replaced(of, t.sealing[peer], t.clock.Boot())
		t.replaced(of, wire, 0)
	}
	if wire == 0 {
		delete(t.sealing, peer)
	} else {
		t.sealing[peer] = wire
	}
	return nil
}

// replaced notes when sending was switched from keys. The caller holds mu.
func (t *Table) replaced(of map[Group]Held, wire uint8, at time.Duration) {
	g := Group{Out: true, Wire: wire}
	if h, ok := of[g]; ok {
		h.Replaced = at
		of[g] = h
	}
}

// Remove destroys the keys of a group. The caller holds the peer's writer lock.
func (t *Table) Remove(peer string, g Group) error {
	if err := t.dp.RemoveSAs(peer, g.Out, g.Wire); err != nil {
		return fmt.Errorf("remove keys of peer %s: %w", peer, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.groups[peer], g)
	if len(t.groups[peer]) == 0 {
		delete(t.groups, peer)
	}
	return nil
}

// Extend moves the end of one direction's keys, unless they were replaced meanwhile or end
// later already.
func (t *Table) Extend(peer string, g Group, id uint64, until time.Duration) error {
	defer t.Lock(peer)()
	h, ok := t.Of(peer).Groups[g]
	if !ok || h.ID != id || h.Deadline >= until {
		return nil
	}
	expires := t.clock.Wall().Add(until - t.clock.Boot())
	if err := t.dp.ExtendSAs(peer, g.Out, g.Wire, id, expires); err != nil {
		return fmt.Errorf("extend keys of peer %s, epoch %d: %w", peer, h.Number, err)
	}
	h.Deadline, h.Expires = until, expires
	t.Put(peer, g, h)
	return nil
}
