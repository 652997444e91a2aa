package sadb

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath/esp"
)

// TestInstall installs keys over what a group holds already. Lanes of other keys must not stay
// beside the new ones; but keys in use go on where the datapath itself replaces each.
func TestInstall(t *testing.T) {
	for name, row := range map[string]struct {
		before  [3]uint64 // number, fingerprint and lanes; 0 for nothing
		removes bool
	}{
		"nothing":                      {[3]uint64{}, false},
		"the same keys":                {[3]uint64{3, 70, 2}, false},
		"other keys of the same lanes": {[3]uint64{3, 71, 2}, false},
		"other keys of more lanes":     {[3]uint64{3, 71, 3}, true},
		"keys of an epoch of before":   {[3]uint64{18, 71, 2}, true}, // the same number on the wire
	} {
		t.Run(name, func(t *testing.T) {
			table, dp, c := newTable(t)
			if number := row.before[0]; number != 0 {
				must(t,
					table.Install("b", true, direction(number, row.before[1], uint8(row.before[2])),
						begin+time.Hour))
				dp.done = nil
			}
			c.pass(time.Minute)
			must(t, table.Install("b", true, direction(3, 70, 2), begin+2*time.Hour))
			removed := slices.ContainsFunc(dp.done,
				func(s string) bool { return strings.HasPrefix(s, "remove") })
			if removed != row.removes || removed &&
				!strings.HasPrefix(dp.done[0], "remove b true 3") {
				t.Errorf("did %q", dp.done)
			}
			h := table.Of("b").Groups[Group{true, 3}]
			if h.Number != 3 || h.ID != 70 || h.Lanes != 0b11 || h.Mixed ||
				h.Deadline != begin+2*time.Hour || h.At != c.boot || !h.Installed.Equal(c.wall) {
				t.Errorf("holds %+v", h)
			}
			if want := c.wall.Add(2*time.Hour - time.Minute); !h.Expires.Equal(want) {
				t.Errorf("expires %s, want %s", h.Expires, want)
			}
			for _, sa := range dp.keys {
				if sa.Key != [32]byte{} || sa.Salt != [4]byte{} {
					t.Errorf("a copy of a key is left: lane %d", sa.Lane)
				}
			}
		})
	}
}

// TestInstallBreaksOff: keys of which only a part is there are good for nothing.
func TestInstallBreaksOff(t *testing.T) {
	table, dp, c := newTable(t)
	must(t, table.Install("b", true, direction(3, 70, 2), begin+time.Hour))
	must(t, table.Seal("b", 3))
	dp.fails = "install"
	if err := table.Install("b", true, direction(3, 71, 2), begin+time.Hour); !errors.Is(err,
		errDatapath) || !strings.Contains(err.Error(), "lane 0, epoch 3, peer b") {
		t.Errorf("install: %v", err)
	}
	if tx, _ := table.Pair("b"); tx.ID != 0 {
		t.Errorf("sends with %+v", tx)
	}
	if err := table.Install("b", false, direction(3, 80, 2), begin+time.Hour); !errors.Is(err,
		errDatapath) {
		t.Errorf("install: %v", err)
	}
	if _, rx := table.Pair("b"); rx.ID != 0 {
		t.Errorf("receives with %+v", rx)
	}
	if rx, tx := table.Of("b").Valid(3, c.boot); rx != 0 || tx != 0 {
		t.Errorf("relies on %d and %d", rx, tx)
	}
	dp.fails = "remove"
	done := len(dp.done)
	if err := table.Install("b", true, direction(18, 72, 2), begin+time.Hour); !errors.Is(err,
		errDatapath) {
		t.Errorf("install over what cannot be removed: %v", err)
	}
	if len(dp.done) != done+1 {
		t.Errorf("went on: %q", dp.done[done:])
	}
}

// TestLoad reads the datapath: lanes are put together, and what is known of keys from before stays.
func TestLoad(t *testing.T) {
	table, dp, c := newTable(t)
	at := c.wall
	sa := func(node string, out bool, number, id uint64, lane uint8, counter uint64) esp.SAStatus {
		return esp.SAStatus{Node: node, Out: out, Epoch: uint8(number), Lane: lane, ID: id,
			Number: number, Counter: counter, Packets: counter, Installed: at,
			Expires: at.Add(time.Hour)}
	}
	whole := []esp.SAStatus{sa("b", true, 3, 70, 0, 5), sa("b", true, 3, 70, 1, 9),
		sa("b", false, 3, 80, 0, 4)}
	mixed := []esp.SAStatus{sa("c", true, 3, 90, 0, 50), sa("c", true, 3, 91, 1, 60)}
	strange := sa("d", true, 3, 92, 0, 70)
	strange.Epoch = 4 // no Table has installed that
	early := sa("b", false, 2, 79, 0, 1)
	early.Installed, early.Expires = at.Add(-time.Hour), at.Add(time.Minute)
	nameless := sa("e", true, 3, 0, 0, 80)
	dp.sas = append(append(slices.Clone(whole), mixed...), strange, nameless, early)
	dp.sealing["b"], dp.sealing["gone"] = 3, 3
	must(t, table.Load())

	b := table.Of("b")
	tx, rx := b.Groups[Group{true, 3}], b.Groups[Group{false, 3}]
	if tx.Lanes != 0b11 || tx.Mixed || tx.Counter != 9 || tx.Packets != 14 ||
		tx.Deadline != begin+time.Hour || rx.ID != 80 || b.Sealing != 3 {
		t.Errorf("peer b: %+v", b)
	}
	if got, _ := table.Pair("b"); got.ID != 70 {
		t.Errorf("sends with %+v", got)
	}
	for peer, g := range map[string]Group{"c": {true, 3}, "d": {true, 4}, "e": {true, 3}} {
		if h := table.Of(peer).Groups[g]; !h.Mixed {
			t.Errorf("peer %s: %+v, want mixed", peer, h)
		}
	}
	if n, ok := table.Sent(3); n != 9 || !ok {
		t.Errorf("sent %d, %t: mixed keys do not count", n, ok)
	}
	if _, ok := table.Sent(2); ok {
		t.Error("nothing is sent with epoch 2")
	}
	if table.Highest() != 3 || !table.Oldest().Equal(early.Installed) || table.Loaded() != begin {
		t.Errorf("highest %d, oldest %s, loaded %s", table.Highest(), table.Oldest(),
			table.Loaded())
	}
	peers := table.Peers()
	if slices.Sort(peers); !slices.Equal(peers, []string{"b", "c", "d", "e", "gone"}) {
		t.Errorf("peers %q", peers)
	}

	// The wall clock is set: times that are known do not move with it. Packets end the quiet.
	c.pass(time.Minute)
	c.wall = c.wall.Add(24 * time.Hour)
	dp.sas[0].Packets++
	must(t, table.Load())
	b = table.Of("b")
	tx, rx = b.Groups[Group{true, 3}], b.Groups[Group{false, 3}]
	if tx.Deadline != begin+time.Hour || rx.At != begin {
		t.Errorf("after the clock was set: %+v", b)
	}
	if rx.quiet(2*time.Minute) || !rx.quiet(time.Minute) || tx.quiet(time.Second) {
		t.Errorf("quiet: %+v", b)
	}
	// Other keys in the same place are not those of before.
	for i := range dp.sas[:2] {
		dp.sas[i].ID, dp.sas[i].Expires = 71, c.wall.Add(3*time.Hour)
	}
	must(t, table.Load())
	if h := table.Of("b").Groups[Group{true, 3}]; h.ID != 71 || h.Deadline != c.boot+3*time.Hour {
		t.Errorf("new keys: %+v", h)
	}
}

// TestLoadFails: what was known stays.
func TestLoadFails(t *testing.T) {
	for _, what := range []string{"read", "read sealing"} {
		table, dp, c := newTable(t)
		must(t, table.Install("b", true, direction(3, 70, 2), begin+time.Hour))
		must(t, table.Seal("b", 3))
		must(t, table.Load())
		c.pass(time.Minute)
		dp.fails, dp.sas = what, nil
		if err := table.Load(); !errors.Is(err, errDatapath) {
			t.Errorf("%s: %v", what, err)
		}
		if tx, _ := table.Pair("b"); tx.ID != 70 || table.Loaded() != begin {
			t.Errorf("%s fails: %+v, loaded %s", what, tx, table.Loaded())
		}
	}
}

func TestExtend(t *testing.T) {
	out := Group{true, 3}
	for name, row := range map[string]struct {
		g     Group
		id    uint64
		until time.Duration
		fails string
		want  time.Duration // the end afterwards
	}{
		"later":              {out, 70, begin + 2*time.Hour, "", begin + 2*time.Hour},
		"as late":            {out, 70, begin + time.Hour, "", begin + time.Hour},
		"sooner":             {out, 70, begin + time.Minute, "", begin + time.Hour},
		"of other keys":      {out, 71, begin + 2*time.Hour, "", begin + time.Hour},
		"another direction":  {Group{false, 3}, 70, begin + 2*time.Hour, "", begin + time.Hour},
		"the datapath fails": {out, 70, begin + 2*time.Hour, "extend", begin + time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			table, dp, c := newTable(t)
			must(t, table.Install("b", true, direction(3, 70, 2), begin+time.Hour))
			c.pass(time.Minute)
			dp.done, dp.fails = nil, row.fails
			if err := table.Extend("b", row.g, row.id,
				row.until); (row.fails != "") != errors.Is(err, errDatapath) {
				t.Errorf("extend: %v", err)
			}
			h := table.Of("b").Groups[out]
			if h.Deadline != row.want || !h.Expires.Equal(c.wall.Add(row.want-c.boot)) {
				t.Errorf("ends at %s, want %s: %+v", h.Deadline-begin, row.want-begin, h)
			}
			if asked := len(dp.done) > 0; asked != (row.want != begin+time.Hour ||
				row.fails != "") {
				t.Errorf("did %q", dp.done)
			}
			must(t, table.Load()) // takes the writer's lock: Extend has let go of it
		})
	}
}

func TestSealAndRemove(t *testing.T) {
	table, dp, _ := newTable(t)
	must(t, table.Install("b", true, direction(3, 70, 2), begin+time.Hour))
	dp.fails = "seal"
	if err := table.Seal("b", 3); !errors.Is(err, errDatapath) || table.Of("b").Sealing != 0 {
		t.Errorf("seal: %v, %+v", err, table.Of("b"))
	}
	dp.fails = ""
	must(t, table.Seal("b", 3))
	if got := table.Of("b").Sealing; got != 3 {
		t.Errorf("seals with %d", got)
	}
	dp.fails = "remove"
	if err := table.Remove("b", Group{true, 3}); !errors.Is(err, errDatapath) ||
		len(table.Of("b").Groups) != 1 {
		t.Errorf("remove: %v, %+v", err, table.Of("b"))
	}
	dp.fails = ""
	must(t, table.Seal("b", 0))
	must(t, table.Remove("b", Group{true, 3}))
	if s := table.Of("b"); s.Sealing != 0 || len(s.Groups) != 0 || len(table.Peers()) != 0 {
		t.Errorf("left: %+v, peers %q", s, table.Peers())
	}
}

// TestReplaced: when sending was switched from keys stays known, through a reading and further
// switches, until they are sent with again.
func TestReplaced(t *testing.T) {
	table, dp, c := newTable(t)
	at := map[uint64]time.Duration{}
	check := func(what string) {
		t.Helper()
		for number := range uint64(4) {
			if h := table.Of("b").Groups[Group{true,
				uint8(number + 1)}]; h.Replaced != at[number+1] {
				t.Errorf("%s: epoch %d was replaced at %s, want %s", what, number+1, h.Replaced,
					at[number+1])
			}
		}
	}
	for number := range uint64(3) {
		c.pass(time.Second)
		must(t, table.Install("b", true, direction(number+1, 70+number, 2), begin+time.Hour))
		must(t, table.Seal("b", uint8(number+1)))
		must(t, table.Seal("b", uint8(number+1)))
		if number > 0 {
			at[number] = c.boot
		}
		check("switched on")
	}
	dp.sealing["b"] = 3
	c.pass(time.Second)
	must(t, table.Load())
	check("read again")
	must(t, table.Seal("b", 1))
	at[1], at[3] = 0, c.boot
	check("switched back")
	must(t, table.Seal("b", 0))
	at[1] = c.boot
	check("stopped")
}

// TestOfIsACopy: what a caller was given does not change behind its back, nor it what is known.
func TestOfIsACopy(t *testing.T) {
	table, _, _ := newTable(t)
	must(t, table.Install("b", true, direction(3, 70, 2), begin+time.Hour))
	s := table.Of("b")
	delete(s.Groups, Group{true, 3})
	must(t, table.Install("b", false, direction(3, 80, 2), begin+time.Hour))
	if len(s.Groups) != 0 || len(table.Of("b").Groups) != 2 {
		t.Errorf("%+v, %+v", s, table.Of("b"))
	}
	nobody := table.Of("nobody")
	nobody.Groups[Group{true, 1}] = Held{} // there is a map to write to
}

// TestLock: two writers of one peer come one after the other, and a reading of all waits for every
// writer.
func TestLock(t *testing.T) {
	table, _, _ := newTable(t)
	unlock := table.Lock("b")
	var done atomic.Int32
	ended := make(chan error, 2)
	go func() { table.Lock("b")(); done.Add(1); ended <- nil }()
	go func() { err := table.Load(); done.Add(1); ended <- err }()
	time.Sleep(20 * time.Millisecond)
	if n := done.Load(); n != 0 {
		t.Errorf("%d came between", n)
	}
	unlock()
	must(t, <-ended)
	must(t, <-ended)
}
