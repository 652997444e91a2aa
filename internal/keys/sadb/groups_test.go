package sadb

import (
	"testing"
	"time"
)

const now = begin

func held(number, id uint64) Held {
	return Held{Number: number, ID: id, Lanes: 0b11, Deadline: now + time.Hour, At: now - time.Hour}
}

// with changes keys.
func with(h Held, change func(*Held)) Held {
	change(&h)
	return h
}

func TestPair(t *testing.T) {
	out := func(wire uint8) Group { return Group{true, wire} }
	in := func(wire uint8) Group { return Group{false, wire} }
	for name, row := range map[string]struct {
		groups  map[Group]Held
		sealing uint8
		tx, rx  uint64 // fingerprints
	}{
		"nothing": {nil, 0, 0, 0},
		"both": {map[Group]Held{out(3): held(3, 70), in(3): held(3, 80)}, 3, 70,
			80},
		"not switched to": {map[Group]Held{out(3): held(3, 70), in(3): held(3, 80)}, 0, 0,
			80},
		"the newest to receive": {map[Group]Held{in(3): held(18, 81), in(4): held(4, 80)}, 0, 0,
			81},
		"what is switched to": {map[Group]Held{out(3): held(3, 70), out(4): held(4, 71)}, 3,
			70, 0},
		"ended": {map[Group]Held{out(3): with(held(3, 70),
			func(h *Held) { h.Deadline = now }),
			in(3): with(held(3, 80), func(h *Held) { h.Deadline = now })}, 3, 0, 0},
		"mixed": {map[Group]Held{out(3): with(held(3, 70),
			func(h *Held) { h.Mixed = true }),
			in(3): with(held(3, 80), func(h *Held) { h.Mixed = true })}, 3, 0, 0},
		"a lane short for sending": {map[Group]Held{out(3): with(held(3, 70),
			func(h *Held) { h.Lanes = 0b10 })}, 3, 0, 0},
		"more lanes than needed": {map[Group]Held{out(3): with(held(3, 70),
			func(h *Held) { h.Lanes = 0b111 })}, 3, 70, 0},
		"a lane short to receive": {map[Group]Held{in(3): with(held(3, 80),
			func(h *Held) { h.Lanes = 0b10 })}, 0, 0, 80}, // the peer's lanes are its own
		"switched to what is gone": {map[Group]Held{out(4): held(4, 71)}, 3, 0, 0},
	} {
		tx, rx := State{row.groups, row.sealing, lanes}.pair(now)
		if tx.ID != row.tx || rx.ID != row.rx {
			t.Errorf("%s: sends with %d and receives with %d, want %d and %d", name, tx.ID, rx.ID,
				row.tx, row.rx)
		}
	}
}

func TestValid(t *testing.T) {
	in, out := Group{false, 3}, Group{true, 3}
	for name, row := range map[string]struct {
		groups  map[Group]Held
		sealing uint8
		rx, tx  uint64
	}{
		"both": {map[Group]Held{out: held(3, 70), in: held(3, 80)}, 3, 80,
			70},
		"never switched to": {map[Group]Held{out: held(3, 70), in: held(3, 80)}, 0, 80, 0},
		"switched to an older one": {map[Group]Held{out: held(3, 70), {true, 2}: held(2, 69)}, 2,
			0, 0},
		"switched on to a newer one": {map[Group]Held{out: held(3, 70), {true, 4}: held(4, 71)}, 4,
			0, 70},
		"of another epoch": {map[Group]Held{out: held(18, 70), in: held(18, 80)}, 3, 0,
			0},
		"ended": {map[Group]Held{in: with(held(3, 80),
			func(h *Held) { h.Deadline = now })}, 3, 0, 0},
		"mixed": {map[Group]Held{in: with(held(3, 80),
			func(h *Held) { h.Mixed = true })}, 3, 0, 0},
		"a lane short": {map[Group]Held{out: with(held(3, 70),
			func(h *Held) { h.Lanes = 1 })}, 3, 0, 0},
	} {
		rx, tx := State{row.groups, row.sealing, lanes}.Valid(3, now)
		if rx != row.rx || tx != row.tx {
			t.Errorf("%s: %d and %d, want %d and %d", name, rx, tx, row.rx, row.tx)
		}
	}
}

// TestInTheWay: keys of an epoch with the same number on the wire may not be replaced while a
// packet may need them, or, sealed with them, be on its way.
func TestInTheWay(t *testing.T) {
	const drain = time.Minute
	quiet := func(d time.Duration) func(*Held) { return func(h *Held) { h.QuietFrom, h.QuietTo = now-d, now } }
	for name, row := range map[string]struct {
		g       Group
		h       Held
		sealing uint8
		want    uint64
	}{
		"its own":                {Group{true, 3}, held(18, 70), 3, 0},
		"sent with":              {Group{true, 3}, held(3, 70), 3, 3},
		"not sent with any more": {Group{true, 3}, held(3, 70), 4, 0},
		"packets come": {Group{false, 3}, with(held(3, 70), quiet(drain-time.Second)),
			0, 3},
		"none came for the drain": {Group{false, 3}, with(held(3, 70), quiet(drain)), 0, 0},
		"ended": {Group{true, 3},
			with(held(3, 70), func(h *Held) { h.Deadline = now }), 3, 0},
		"another number on the wire": {Group{true, 4}, held(4, 70), 4, 0},
	} {
		number, found := State{map[Group]Held{row.g: row.h}, row.sealing, lanes}.InTheWay(18, now,
			drain)
		if number != row.want || found != (row.want != 0) {
			t.Errorf("%s: %d %t, want %d", name, number, found, row.want)
		}
	}
}

// TestLeft: a packet in a newer epoch tells that the peer had switched before the exchange after
// it.
func TestLeft(t *testing.T) {
	came := func(at time.Duration) func(*Held) { return func(h *Held) { h.At, h.Packets = at, 1 } }
	installed := func(at time.Duration) func(*Held) { return func(h *Held) { h.At = at } }
	old := with(held(3, 70), installed(now-3*time.Hour))
	for name, row := range map[string]struct {
		newer map[Group]Held
		want  time.Duration // 0: not known
	}{
		"nothing newer": {nil, 0},
		"newer, and no packet came": {map[Group]Held{{false, 4}: with(held(4, 71),
			installed(now-2*time.Hour))}, 0},
		"a packet, and no exchange": {map[Group]Held{{false, 4}: with(held(4, 71),
			came(now-2*time.Hour))}, 0},
		"a packet, and then another": {map[Group]Held{{false, 4}: with(held(4, 71),
			came(now-2*time.Hour)), {false, 5}: with(held(5, 72), installed(now-time.Hour))},
			now - time.Hour},
		"the first that is after it": {map[Group]Held{{false, 4}: with(held(4, 71),
			came(now-2*time.Hour)), {false, 5}: with(held(5, 72), came(now-time.Hour)),
			{false, 6}: with(held(6, 73), installed(now-time.Minute))}, now - time.Hour},
		"for sending, which is ours": {map[Group]Held{{true, 4}: with(held(4, 71),
			came(now-2*time.Hour)), {true, 5}: with(held(5, 72), installed(now-time.Hour))}, 0},
		"older, of which a packet is": {map[Group]Held{{false, 2}: with(held(2, 69),
			came(now-2*time.Hour)), {false, 5}: with(held(5, 72), installed(now-time.Hour))}, 0},
	} {
		groups := map[Group]Held{{false, 3}: old}
		for g, h := range row.newer {
			groups[g] = h
		}
		at, found := State{groups, 0, lanes}.Left(old)
		if at != row.want || found != (row.want != 0) {
			t.Errorf("%s: %s %t, want %s", name, at, found, row.want)
		}
	}
}
