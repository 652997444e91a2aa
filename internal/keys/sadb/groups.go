package sadb

import (
	"time"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/schedule"
)

// Group names what the datapath holds for one direction and epoch: all lanes.
type Group struct {
	Out bool
	// Wire is the epoch as it stands in the SPI.
	Wire uint8
}

// Held is the contents of a group.
type Held struct {
	Number, ID uint64
	// Lanes has a bit for each.
	Lanes uint64
	// Mixed: the lanes are not of one epoch and fingerprint, since a crash or an error came
	// between.
	Mixed bool
	// Deadline is when the keys expire, by Clock.Boot.
	Deadline  time.Duration
	Expires   time.Time
	Installed time.Time
	// At is when the last of them was installed, by Clock.Boot.
	At time.Duration
	// Replaced is when sending was switched to other keys, by Clock.Boot; 0 if it was not, or
	// before this process began.
	Replaced time.Duration
	// Counter and Packets are of all lanes, when they were last looked at.
	Counter, Packets uint64
	// QuietFrom to QuietTo is a time in which no packet came, at most to the last look.
	QuietFrom, QuietTo time.Duration
}

// quiet says whether no packet came with these keys for some time.
func (h *Held) quiet(d time.Duration) bool { return h.QuietTo-h.QuietFrom >= d }

// whole says whether a group for sending has all lanes under one fingerprint.
func (h *Held) whole(lanes int) bool {
	all := ^uint64(0)
	if lanes < 64 {
		all = 1<<lanes - 1
	}
	return !h.Mixed && h.Lanes&all == all
}

// State is what the datapath holds of a peer, and which epoch it seals with; 0 for none.
type State struct {
	Groups  map[Group]Held
	Sealing uint8
	lanes   int
}

// InTheWay finds keys of another epoch with the same number on the wire that packets are
// sealed with, or may come with still, unless none came for the drain.
func (s State) InTheWay(number uint64, now, drain time.Duration) (uint64, bool) {
	wire := schedule.WireNumber(number)
	for g, h := range s.Groups {
		if g.Wire != wire || h.Number == number || now >= h.Deadline {
			continue
		}
		// Keys for receiving that were never seen to be left, but bring nothing, stand in no way.
		if (g.Out && wire == s.Sealing) || (!g.Out && !h.quiet(drain)) {
			return h.Number, true
		}
	}
	return 0, false
}

// Left is a moment by which the peer had switched away from old keys, as far as what was
// received tells. Exchanges with a peer come one after the other, and a sender switches inside
// of one. So a packet in a newer epoch means that the switch to that one was before the next
// exchange, that is, before the next keys were installed.
func (s State) Left(old Held) (time.Duration, bool) {
	var switched, next time.Duration
	found := false
	for g, h := range s.Groups {
		if !g.Out && h.Number > old.Number && h.At > old.At && h.Packets > 0 &&
			(!found || h.At < switched) {
			switched, found = h.At, true
		}
	}
	if !found {
		return 0, false
	}
	found = false
	for g, h := range s.Groups {
		if !g.Out && h.At > switched && (!found || h.At < next) {
			next, found = h.At, true
		}
	}
	return next, found
}

// Valid gives the fingerprints of an epoch's keys that both ends of an exchange may rely on, 0
// for none. Keys for sending that were never switched to may be those of an exchange that broke
// off.
func (s State) Valid(number uint64, now time.Duration) (rx, tx uint64) {
	wire := schedule.WireNumber(number)
	valid := func(h Held) bool { return h.Number == number && !h.Mixed && now < h.Deadline }
	if h, ok := s.Groups[Group{false, wire}]; ok && valid(h) {
		rx = h.ID
	}
	if h, ok := s.Groups[Group{true, wire}]; ok && valid(h) && h.whole(s.lanes) {
		with, ok := s.Groups[Group{true, s.Sealing}]
		if ok && s.Sealing != 0 && with.Number >= number {
			tx = h.ID
		}
	}
	return rx, tx
}

// pair is what the peer can be talked to with: the newest keys of each direction, zero for none.
func (s State) pair(now time.Duration) (tx, rx Held) {
	h, ok := s.Groups[Group{true, s.Sealing}]
	if ok && s.Sealing != 0 && h.whole(s.lanes) && now < h.Deadline {
		tx = h
	}
	for g, h := range s.Groups {
		if !g.Out && !h.Mixed && now < h.Deadline && h.Number > rx.Number {
			rx = h
		}
	}
	return tx, rx
}

// grouped puts the lanes of each direction and epoch together.
func grouped(c clock.Clock, list []esp.SAStatus) map[string]map[Group]Held {
	groups := map[string]map[Group]Held{}
	for i := range list {
		sa := &list[i]
		of := groups[sa.Node]
		if of == nil {
			of = map[Group]Held{}
			groups[sa.Node] = of
		}
		g := Group{sa.Out, sa.Epoch}
		h, found := of[g]
		of[g] = merged(c, h, found, sa)
	}
	return groups
}

// merged adds one lane to a group.
func merged(c clock.Clock, h Held, found bool, sa *esp.SAStatus) Held {
	now, wall := c.Boot(), c.Wall()
	deadline, at := now+sa.Expires.Sub(wall), now+sa.Installed.Sub(wall)
	if !found {
		h = Held{
			Number: sa.Number, ID: sa.ID, Deadline: deadline, Expires: sa.Expires,
			Installed: sa.Installed, At: at,
		}
	}
	h.At = max(h.At, at)
	// A number that does not fit the wire's is nothing that a Table has installed.
	h.Mixed = h.Mixed || h.Number != sa.Number || h.ID != sa.ID || sa.ID == 0 ||
		schedule.WireNumber(sa.Number) != sa.Epoch
	h.Lanes |= 1 << (sa.Lane % 64)
	h.Counter = max(h.Counter, sa.Counter)
	h.Packets += sa.Packets
	if sa.Installed.Before(h.Installed) {
		h.Installed = sa.Installed
	}
	if deadline < h.Deadline {
		h.Deadline, h.Expires = deadline, sa.Expires
	}
	return h
}
