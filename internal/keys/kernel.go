package keys

import (
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/schedule"
)

// group is what the datapath holds for one direction and epoch: all lanes.
type group struct {
	out    bool
	nibble uint8
}

// held is the contents of a group.
type held struct {
	number, id uint64
	// lanes has a bit for each.
	lanes uint64
	// mixed: the lanes are not of one epoch and fingerprint, since a crash or an error came between.
	mixed bool
	// deadline is when the keys expire, by Clock.Boot.
	deadline  time.Duration
	expires   time.Time
	installed time.Time
	// at is when the last of them was installed, by Clock.Boot.
	at time.Duration
	// counter and packets are of all lanes, when they were last looked at.
	counter, packets uint64
	// quietFrom to quietTo is a time in which no packet came, at most to the last look.
	quietFrom, quietTo time.Duration
}

// kernel remembers what the datapath holds, so that an exchange need not read all of
// it. This process is the only one that writes there.
type kernel struct {
	dp    Datapath
	clock clock.Clock
	// reading excludes writers while everything is read.
	reading sync.RWMutex
	// stripes keep two writers away from one peer.
	stripes [64]sync.Mutex
	seed    maphash.Seed

	mu      sync.Mutex
	groups  map[string]map[group]held
	sealing map[string]uint8
}

func newKernel(dp Datapath, clock clock.Clock) *kernel {
	return &kernel{dp: dp, clock: clock, seed: maphash.MakeSeed(), groups: map[string]map[group]held{}, sealing: map[string]uint8{}}
}

// lock keeps other writers away from a peer.
func (k *kernel) lock(peer string) (unlock func()) {
	k.reading.RLock()
	stripe := &k.stripes[maphash.String(k.seed, peer)%uint64(len(k.stripes))]
	stripe.Lock()
	return func() {
		stripe.Unlock()
		k.reading.RUnlock()
	}
}

// load reads everything.
func (k *kernel) load() error {
	k.reading.Lock()
	defer k.reading.Unlock()
	list, err := k.dp.SAs()
	if err != nil {
		return fmt.Errorf("read keys of the datapath: %w", err)
	}
	sealing, err := k.dp.Sealing()
	if err != nil {
		return fmt.Errorf("read what the datapath seals with: %w", err)
	}
	groups := k.group(list)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remember(groups)
	k.groups, k.sealing = groups, map[string]uint8{}
	for _, s := range sealing {
		k.sealing[s.Node] = s.Epoch
	}
	return nil
}

// group puts the lanes of each direction and epoch together.
func (k *kernel) group(list []SAStatus) map[string]map[group]held {
	groups := map[string]map[group]held{}
	for i := range list {
		sa := &list[i]
		of := groups[sa.Node]
		if of == nil {
			of = map[group]held{}
			groups[sa.Node] = of
		}
		g := group{sa.Out, sa.Epoch}
		h, found := of[g]
		of[g] = k.merge(h, found, sa)
	}
	return groups
}

// remember takes over what is known of groups from before. The caller holds mu.
func (k *kernel) remember(groups map[string]map[group]held) {
	now := k.clock.Boot()
	for node, of := range groups {
		for g, h := range of {
			h.quietFrom, h.quietTo = now, now
			// Times once known do not move with the wall clock.
			if old, ok := k.groups[node][g]; ok && old.id == h.id && old.number == h.number {
				h.deadline, h.at = old.deadline, old.at
				if old.packets == h.packets && old.quietTo != 0 {
					h.quietFrom = old.quietFrom
				}
			}
			of[g] = h
		}
	}
}

// merge adds one lane to a group.
func (k *kernel) merge(h held, found bool, sa *SAStatus) held {
	now, wall := k.clock.Boot(), k.clock.Wall()
	deadline := now + sa.Expires.Sub(wall)
	if !found {
		h = held{number: sa.Number, id: sa.ID, deadline: deadline, expires: sa.Expires, installed: sa.Installed, at: now + sa.Installed.Sub(wall)}
	}
	h.at = max(h.at, now+sa.Installed.Sub(wall))
	// A number that does not fit the nibble is nothing that a Manager has installed.
	h.mixed = h.mixed || h.number != sa.Number || h.id != sa.ID || sa.ID == 0 || Nibble(sa.Number) != sa.Epoch
	h.lanes |= 1 << (sa.Lane % 64)
	h.counter = max(h.counter, sa.Counter)
	h.packets += sa.Packets
	if sa.Installed.Before(h.installed) {
		h.installed = sa.Installed
	}
	if deadline < h.deadline {
		h.deadline, h.expires = deadline, sa.Expires
	}
	return h
}

// nodes are the peers that the datapath knows keys of.
func (k *kernel) nodes() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for node, of := range k.groups {
		if len(of) > 0 || k.sealing[node] != 0 {
			out = append(out, node)
		}
	}
	for node, nibble := range k.sealing {
		if k.groups[node] == nil && nibble != 0 {
			out = append(out, node)
		}
	}
	return out
}

// of is what the datapath holds of a peer, and which epoch it seals with.
func (k *kernel) of(peer string) (groups map[group]held, sealing uint8) {
	k.mu.Lock()
	defer k.mu.Unlock()
	groups = make(map[group]held, len(k.groups[peer]))
	for g, h := range k.groups[peer] {
		groups[g] = h
	}
	return groups, k.sealing[peer]
}

// whole says whether a group for sending has all lanes under one fingerprint.
func (k *kernel) whole(h held) bool {
	lanes := k.dp.Lanes()
	all := ^uint64(0)
	if lanes < 64 {
		all = 1<<lanes - 1
	}
	return !h.mixed && h.lanes&all == all
}

// pair is what a peer can be talked to with now: the epochs' numbers, 0 for none.
func (k *kernel) pair(peer string) (tx, rx held) {
	groups, sealing := k.of(peer)
	now := k.clock.Boot()
	if h, ok := groups[group{true, sealing}]; ok && sealing != 0 && k.whole(h) && now < h.deadline {
		tx = h
	}
	for g, h := range groups {
		if !g.out && !h.mixed && now < h.deadline && h.number > rx.number {
			rx = h
		}
	}
	return tx, rx
}

// install puts the lanes of a direction in place of what its group holds. The caller
// holds the peer's lock.
func (k *kernel) install(peer string, out bool, keys *schedule.Direction, deadline time.Duration) error {
	g := group{out, Nibble(keys.Number)}
	groups, _ := k.of(peer)
	if old, ok := groups[g]; ok && old.id != keys.ID {
		if old.number != keys.Number || old.lanes>>len(keys.Lanes) != 0 {
			// Lanes of before would stay beside the new ones.
			if err := k.remove(peer, g); err != nil {
				return err
			}
		}
	}
	wall := k.clock.Wall()
	h := held{number: keys.Number, id: keys.ID, mixed: true, deadline: deadline, expires: wall.Add(deadline - k.clock.Boot()), installed: wall}
	k.put(peer, g, h)
	for i := range keys.Lanes {
		lane := &keys.Lanes[i]
		sa := SA{
			Node: peer, Out: out, Epoch: g.nibble, Lane: lane.Lane, ID: keys.ID, Number: keys.Number,
			Key: lane.Key, Salt: lane.Salt, Expires: h.expires, VMGeneration: keys.VMGeneration,
		}
		err := k.dp.InstallSA(&sa)
		clear(sa.Key[:])
		clear(sa.Salt[:])
		if err != nil {
			return fmt.Errorf("install key of lane %d, epoch %d, peer %s: %w", lane.Lane, keys.Number, peer, err)
		}
		h.lanes |= 1 << (lane.Lane % 64)
	}
	h.mixed, h.at = false, k.clock.Boot()
	k.put(peer, g, h)
	return nil
}

// leftAt is a moment by which the peer had stopped sending with old keys, as far as
// what was received tells. Exchanges with a peer come one after the other, and a sender
// switches inside of one. So a packet in a newer epoch means that the switch to that one
// was before the next exchange, that is, before the next keys were installed.
func leftAt(old held, groups map[group]held) (time.Duration, bool) {
	var switched, next time.Duration
	found := false
	for g, h := range groups {
		if !g.out && h.number > old.number && h.at > old.at && h.packets > 0 && (!found || h.at < switched) {
			switched, found = h.at, true
		}
	}
	if !found {
		return 0, false
	}
	found = false
	for g, h := range groups {
		if !g.out && h.at > switched && (!found || h.at < next) {
			next, found = h.at, true
		}
	}
	return next, found
}

// quiet says whether no packet came with these keys for some time.
func (h *held) quiet(d time.Duration) bool { return h.quietTo-h.quietFrom >= d }

func (k *kernel) put(peer string, g group, h held) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.groups[peer] == nil {
		k.groups[peer] = map[group]held{}
	}
	k.groups[peer][g] = h
}

// seal switches what a peer is sent with. The caller holds the peer's lock.
func (k *kernel) seal(peer string, nibble uint8) error {
	if err := k.dp.SealWith(peer, nibble); err != nil {
		return fmt.Errorf("switch peer %s to epoch %d of the wire: %w", peer, nibble, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if nibble == 0 {
		delete(k.sealing, peer)
	} else {
		k.sealing[peer] = nibble
	}
	return nil
}

// remove destroys the keys of a group. The caller holds the peer's lock.
func (k *kernel) remove(peer string, g group) error {
	if err := k.dp.RemoveSAs(peer, g.out, g.nibble); err != nil {
		return fmt.Errorf("remove keys of peer %s: %w", peer, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.groups[peer], g)
	if len(k.groups[peer]) == 0 {
		delete(k.groups, peer)
	}
	return nil
}

// extend moves the end of a group's keys. The caller holds the peer's lock.
func (k *kernel) extend(peer string, g group, until time.Duration) error {
	groups, _ := k.of(peer)
	h := groups[g]
	expires := k.clock.Wall().Add(until - k.clock.Boot())
	if err := k.dp.ExtendSAs(peer, g.out, g.nibble, h.id, expires); err != nil {
		return fmt.Errorf("extend keys of peer %s, epoch %d: %w", peer, h.number, err)
	}
	h.deadline, h.expires = until, expires
	k.put(peer, g, h)
	return nil
}

// sum is what Status and the packet budget need of all peers.
type sum struct {
	highest uint64 // number of any epoch
	oldest  time.Time
	// counter is the highest per number of epoch that a lane has sent with.
	counter map[uint64]uint64
}

func (k *kernel) sum() sum {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := sum{counter: map[uint64]uint64{}}
	for _, of := range k.groups {
		for g, h := range of {
			if h.mixed {
				continue
			}
			s.highest = max(s.highest, h.number)
			if g.out {
				s.counter[h.number] = max(s.counter[h.number], h.counter)
			}
			if s.oldest.IsZero() || h.installed.Before(s.oldest) {
				s.oldest = h.installed
			}
		}
	}
	return s
}
