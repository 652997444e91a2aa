package keys

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/schedule"
	"weft.dev/weft/internal/keys/secmem"
)

// stillClock stands: what is decided at a moment depends on nothing else.
type stillClock time.Duration

func (c stillClock) Boot() time.Duration { return time.Duration(c) }
func (c stillClock) Wall() time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(c))
}
func (c stillClock) After(time.Duration) <-chan time.Time { return nil }

const (
	stillNow   = 100 * time.Second
	stillDrain = 10 * time.Second
)

// notes is a datapath that writes down what it is told.
type notes struct {
	Datapath
	steps []string
}

func (n *notes) Lanes() int { return 2 }

func (n *notes) SealWith(node string, epoch uint8) error {
	n.steps = append(n.steps, fmt.Sprintf("seal %s %d", node, epoch))
	return nil
}

func (n *notes) RemoveSAs(node string, out bool, epoch uint8) error {
	n.steps = append(n.steps, fmt.Sprintf("remove %s %v %d", node, out, epoch))
	return nil
}

// still is a manager that does not run, with peer b, live epochs of these numbers, and keys of them.
func still(t *testing.T, groups map[group]held, sealing uint8, numbers ...uint64) (*Manager, *peer, *notes) {
	t.Helper()
	dp, clock := &notes{}, stillClock(stillNow)
	m := &Manager{
		opt:   Options{Node: "a", Datapath: dp, Drain: stillDrain, KEK: &fakeKEK{unwraps: map[uint64]int{}, life: &life{}}, HardTTL: time.Hour, MaxAge: time.Hour, MaxPackets: 1600},
		clock: clock, log: slog.New(slog.DiscardHandler), kernel: newKernel(dp, clock), wake: make(chan struct{}, 1), changed: make(chan struct{}),
		peers: map[string]*peer{}, epochs: map[uint64]*epoch{}, problems: map[string]string{}, journal: audit.NewJournal(clock.Wall, nil), sent: map[uint64]uint64{},
		counters: Counters{UnwrapErrors: map[string]uint64{}, Rotations: map[string]uint64{}}, ready: true, listed: true,
	}
	m.seen, _ = openSeen("")
	p := newPeer(Peer{Name: "b"}, stillNow)
	m.peers["b"] = p
	m.kernel.groups["b"], m.kernel.sealing["b"] = groups, sealing
	for _, number := range numbers {
		secret, err := secmem.Random(schedule.DEKSize)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(secret.Release)
		m.epochs[number] = &epoch{Epoch: Epoch{Number: number}, dek: secret, deadline: stillNow + time.Hour, end: stillNow + time.Hour, rotateAt: stillNow + time.Hour}
		m.highest, m.target = max(m.highest, number), max(m.target, number)
	}
	return m, p, dp
}

// keys are whole, live keys of an epoch, installed at a time.
func keysOf(number uint64, at time.Duration) held {
	return held{number: number, id: 100 + number, lanes: 3, deadline: stillNow + time.Hour, at: at}
}

func TestNibble(t *testing.T) {
	for number, want := range map[uint64]uint8{1: 1, 2: 2, 14: 14, 15: 15, 16: 1, 30: 15, 31: 1} {
		if got := Nibble(number); got != want {
			t.Errorf("epoch %d is %d on the wire, want %d", number, got, want)
		}
	}
}

// TestWhenKeysGo: when the keys of one direction are removed, and why.
func TestWhenKeysGo(t *testing.T) {
	in, out := func(n uint8) group { return group{false, n} }, func(n uint8) group { return group{true, n} }
	heard := keysOf(2, 20*time.Second) // the peer was heard to send with these
	heard.packets = 5
	over := keysOf(1, 10*time.Second)
	over.deadline = stillNow - time.Second
	for name, row := range map[string]struct {
		of     group
		groups map[group]held
		peer   peer
		at     time.Duration
		why    string
	}{
		"past the hard TTL":                     {in(1), map[group]held{in(1): over}, peer{}, over.deadline, "hard TTL"},
		"past the hard TTL, in an exchange too": {in(1), map[group]held{in(1): over}, peer{session: 1, sessionAt: stillNow}, over.deadline, "hard TTL"},
		"an exchange about them":                {in(1), map[group]held{in(1): keysOf(1, 0)}, peer{session: 1, sessionAt: stillNow, confirmed: 2}, 0, ""},
		"for sending, not switched to":          {out(1), map[group]held{out(1): keysOf(1, 0)}, peer{confirmed: 2}, stillNow, "a newer epoch is in use"},
		"for sending, in use":                   {out(2), map[group]held{out(2): keysOf(2, 0)}, peer{confirmed: 3}, stillNow + time.Hour, "hard TTL"},
		"the peer's newest":                     {in(2), map[group]held{in(2): keysOf(2, 0)}, peer{confirmed: 2}, stillNow + time.Hour, "hard TTL"},
		"left, by what it told":                 {in(1), map[group]held{in(1): keysOf(1, 0)}, peer{confirmed: 2, left: map[uint64]time.Duration{1: 95 * time.Second}}, 105 * time.Second, "drained"},
		"left, by what came":                    {in(1), map[group]held{in(1): keysOf(1, 0), in(2): heard, in(3): keysOf(3, 98*time.Second)}, peer{confirmed: 3}, 108 * time.Second, "drained"},
		"not left, as far as is known":          {in(1), map[group]held{in(1): keysOf(1, 0), in(2): keysOf(2, 20*time.Second)}, peer{confirmed: 2}, stillNow + time.Hour, "hard TTL"},
	} {
		m, _, _ := still(t, row.groups, 2)
		at, why := m.removeAt(&row.peer, row.of, row.groups[row.of], row.groups, 2, stillNow)
		if at != row.at || why != row.why {
			t.Errorf("%s: at %s, %q: want %s, %q", name, at, why, row.at, row.why)
		}
	}
}

// TestCleanStopsSendingFirst: the datapath is told to stop before the keys that it seals with go.
func TestCleanStopsSendingFirst(t *testing.T) {
	over := keysOf(1, 0)
	over.deadline = stillNow
	m, p, dp := still(t, map[group]held{{true, 1}: over}, 1)
	if _, err := m.clean("b"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"seal b 0", "remove b true 1"}; !slices.Equal(dp.steps, want) || !p.expired {
		t.Errorf("%v, expired %v: want %v", dp.steps, p.expired, want)
	}
}

// TestNodeThatIsGoneKeepsItsKeysForTheDrain, no longer.
func TestNodeThatIsGoneKeepsItsKeysForTheDrain(t *testing.T) {
	for since, want := range map[time.Duration][]string{
		stillDrain - time.Second: nil,
		stillDrain:               {"seal b 0", "remove b false 1"},
	} {
		m, p, dp := still(t, map[group]held{{false, 1}: keysOf(1, 0)}, 1)
		p.gone, p.goneAt = true, stillNow-since
		if _, err := m.clean("b"); err != nil {
			t.Fatal(err)
		}
		if left := m.peers["b"] != nil; !slices.Equal(dp.steps, want) || left != (want == nil) {
			t.Errorf("gone for %s: %v, still a peer %v: want %v", since, dp.steps, left, want)
		}
	}
}

// TestWhatAnExchangeIsTold: State names only keys that both ends may rely on, and is refused where an exchange must not begin.
func TestWhatAnExchangeIsTold(t *testing.T) {
	mixed, over := keysOf(2, 0), keysOf(2, 0)
	mixed.mixed, over.deadline = true, stillNow
	in, out := group{false, 2}, group{true, 2}
	both := map[group]held{in: keysOf(2, 0), out: keysOf(2, 0)}
	for name, row := range map[string]struct {
		groups  map[group]held
		sealing uint8
		rx, tx  uint64
	}{
		"in use":                 {both, 2, 102, 102},
		"never switched to":      {map[group]held{in: keysOf(2, 0), out: keysOf(2, 0), {true, 1}: keysOf(1, 0)}, 1, 102, 0},
		"nothing is sealed with": {both, 0, 102, 0},
		"lanes of two exchanges": {map[group]held{in: mixed, out: mixed}, 2, 0, 0},
		"past their end":         {map[group]held{in: over, out: over}, 2, 0, 0},
		"none":                   {nil, 0, 0, 0},
	} {
		m, p, _ := still(t, row.groups, row.sealing, 2)
		state, err := installer{m}.State("b", 2)
		if err != nil || state.RX != row.rx || state.TX != row.tx || state.Lanes != 2 || p.session != 2 {
			t.Errorf("%s: %+v, %v, session of epoch %d: want RX %d, TX %d", name, state, err, p.session, row.rx, row.tx)
		}
	}
	m, p, _ := still(t, both, 2, 2)
	p.gone = true
	if _, err := (installer{m}).State("b", 2); !errors.Is(err, handshake.ErrUnknownNode) {
		t.Errorf("a node that is gone: %v", err)
	}
	m.epochs[2].deadline, m.epochs[2].end = stillNow, stillNow
	if err := (installer{m}).InstallRX("b", &schedule.Direction{Number: 2}); !errors.Is(err, handshake.ErrNoEpoch) {
		t.Errorf("an epoch that has ended: %v", err)
	}
}

// TestSameNumberOnTheWire: keys of an epoch 15 earlier are in the way as long as a packet may need them.
func TestSameNumberOnTheWire(t *testing.T) {
	over, quiet := keysOf(1, 0), keysOf(1, 0)
	over.deadline = stillNow
	quiet.quietTo = stillDrain
	for name, row := range map[string]struct {
		of      group
		held    held
		sealing uint8
		want    uint64
	}{
		"sealed with":           {group{true, 1}, keysOf(1, 0), 1, 1},
		"no longer sealed with": {group{true, 1}, keysOf(1, 0), 2, 0},
		"packets may come":      {group{false, 1}, keysOf(1, 0), 2, 1},
		"nothing comes":         {group{false, 1}, quiet, 2, 0},
		"past their end":        {group{false, 1}, over, 1, 0},
		"another number":        {group{false, 2}, keysOf(2, 0), 1, 0},
		"the same epoch":        {group{false, 1}, keysOf(16, 0), 1, 0},
	} {
		groups := map[group]held{row.of: row.held}
		m, _, _ := still(t, groups, row.sealing)
		if got, found := m.inTheWay("b", 16, groups, row.sealing); got != row.want || found != (row.want != 0) {
			t.Errorf("%s: epoch %d, %v: want %d", name, got, found, row.want)
		}
	}
}

// TestWhichEpochsToMeetIn: none that is older than what works.
func TestWhichEpochsToMeetIn(t *testing.T) {
	works := map[group]held{{true, 2}: keysOf(2, 0), {false, 2}: keysOf(2, 0)}
	for name, row := range map[string]struct {
		groups map[group]held
		set    func(*peer)
		want   []uint64
	}{
		"nothing works":                    {nil, func(*peer) {}, []uint64{3, 2, 1}},
		"one works":                        {works, func(*peer) {}, []uint64{3, 2}},
		"one works, and was put in order":  {works, func(p *peer) { p.confirmed = 2 }, []uint64{3}},
		"packets are dropped for its want": {works, func(p *peer) { p.confirmed, p.kicked = 2, true }, []uint64{3, 2, 1}},
	} {
		m, p, _ := still(t, row.groups, 2, 1, 2, 3)
		row.set(p)
		if got := m.candidates(p); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// TestWhyAnEpochIsMade, and that none is made for less.
func TestWhyAnEpochIsMade(t *testing.T) {
	for name, row := range map[string]struct {
		set  func(*Manager)
		want string
	}{
		"nothing is due":          {func(m *Manager) { m.leader = true }, ""},
		"it is old":               {func(m *Manager) { m.leader, m.epochs[2].rotateAt = true, stillNow }, ReasonAge},
		"it is old, not leading":  {func(m *Manager) { m.epochs[2].rotateAt = stillNow }, ""},
		"there is none":           {func(m *Manager) { m.leader = true; clear(m.epochs) }, ReasonFirst},
		"the newest was removed":  {func(m *Manager) { m.leader, m.highest = true, 3 }, ReasonRemoved},
		"many packets":            {func(m *Manager) { m.sent[2] = 1500 }, ReasonPackets},
		"nearly as many":          {func(m *Manager) { m.sent[2] = 1499 }, ""},
		"many, in the one before": {func(m *Manager) { m.sent[1] = 1600 }, ""},
		"the newest cannot be read, the one before is old": {func(m *Manager) {
			m.leader, m.epochs[1].rotateAt = true, stillNow
			closed(m, 2, kek.ErrCorrupt)
		}, ReasonAge},
		"the newest cannot be read, the one before is not old": {func(m *Manager) { m.leader = true; closed(m, 2, kek.ErrCorrupt) }, ""},
		"the newest cannot be read, many packets in the one before": {func(m *Manager) {
			m.sent[1] = 1500
			closed(m, 2, kek.ErrWrongBinding)
		}, ReasonPackets},
		"the newest was not tried so far, the one before is old": {func(m *Manager) {
			m.leader, m.epochs[1].rotateAt = true, stillNow
			closed(m, 2, nil)
		}, ""},
		"the newest was not tried so far, many packets in the one before": {func(m *Manager) {
			m.sent[1] = 1500
			closed(m, 2, nil)
		}, ""},
		"the KMS is away for the newest, the one before is old": {func(m *Manager) {
			m.leader, m.epochs[1].rotateAt = true, stillNow
			closed(m, 2, kek.ErrUnreachable)
		}, ""},
		"the same, for as long as that is waited for": {func(m *Manager) {
			m.leader, m.epochs[1].rotateAt, m.due.decide = true, stillNow, stillNow
			closed(m, 2, kek.ErrUnreachable)
		}, ReasonAge},
		"none can be read": {func(m *Manager) {
			m.leader = true
			closed(m, 1, kek.ErrCorrupt)
			closed(m, 2, kek.ErrCorrupt)
		}, ReasonFirst},
		"none can be read, not leading": {func(m *Manager) {
			closed(m, 1, kek.ErrCorrupt)
			closed(m, 2, kek.ErrCorrupt)
		}, ""},
		"none was tried so far": {func(m *Manager) {
			m.leader = true
			closed(m, 1, nil)
			closed(m, 2, nil)
		}, ""},
	} {
		m, _, _ := still(t, nil, 0, 1, 2)
		m.opt.HardTTL = 5 * time.Hour
		row.set(m)
		if got, _ := m.reason(stillNow); got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}

// closed takes an epoch's key away: it could not be unwrapped, or was not tried so far.
func closed(m *Manager, number uint64, kind error) {
	e := m.epochs[number]
	e.dek, e.err = nil, nil
	if kind != nil {
		e.err, e.failures, e.nextTry = &kek.Error{Kind: kind}, 1, stillNow+time.Second
	}
}

// TestWhichEpochsAreDeleted: two are kept, and those that a peer may still run on.
func TestWhichEpochsAreDeleted(t *testing.T) {
	for name, row := range map[string]struct {
		set  func(*Manager, *peer)
		want []uint64
	}{
		"the peer is on the newest": {func(_ *Manager, p *peer) { p.confirmed = 4 }, []uint64{2, 1}},
		"the peer is on an old one": {func(_ *Manager, p *peer) { p.confirmed = 2 }, []uint64{1}},
		"the peer is on the first":  {func(_ *Manager, p *peer) { p.confirmed = 1 }, nil},
		"that peer is gone":         {func(_ *Manager, p *peer) { p.confirmed, p.gone = 1, true }, []uint64{2, 1}},
		"keys of the first are there": {func(m *Manager, p *peer) {
			p.confirmed = 4
			m.kernel.groups["b"] = map[group]held{{false, 1}: keysOf(1, 0)}
		}, nil},
		"the newest two cannot be read": {func(m *Manager, p *peer) {
			p.confirmed = 4
			closed(m, 3, kek.ErrCorrupt)
			closed(m, 4, nil)
		}, nil},
		"the newest is past its end": {func(m *Manager, p *peer) { p.confirmed, m.epochs[4].end = 1, stillNow }, []uint64{4}},
	} {
		m, p, _ := still(t, nil, 0, 1, 2, 3, 4)
		row.set(m, p)
		if got := m.outdated(); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// TestRotateWaits for peers that still take the epoch before into use.
func TestRotateWaits(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m, _, _ := still(t, nil, 0, 1)
	store := &memStore{epochs: map[uint64]Epoch{1: m.epochs[1].Epoch}, changed: func() {}}
	m.opt.Store = store
	if _, err := m.Rotate(ctx); !errors.Is(err, context.Canceled) || len(store.epochs) != 1 {
		t.Errorf("%v, and %d epochs are in the store", err, len(store.epochs))
	}
}

// TestKeysOfOldEpochsAreForgotten: this node holds those of the two newest, and of what a peer runs on.
func TestKeysOfOldEpochsAreForgotten(t *testing.T) {
	for confirmed, want := range map[uint64][]uint64{4: {3, 4}, 1: {1, 3, 4}} {
		m, p, _ := still(t, nil, 0, 1, 2, 3, 4)
		p.confirmed = confirmed
		m.unwrapDue(t.Context())
		var got []uint64
		for _, number := range slices.Sorted(maps.Keys(m.epochs)) {
			if m.epochs[number].dek != nil {
				got = append(got, number)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("with a peer on epoch %d: keys of %v, want %v", confirmed, got, want)
		}
	}
}

// TestReplacedEpoch: where somebody put another epoch under the same number, the key of the one before is gone.
func TestReplacedEpoch(t *testing.T) {
	m, _, _ := still(t, nil, 0, 1)
	old := m.epochs[1]
	secret := old.dek
	created := m.clock.Wall()
	added := m.add(Epoch{Number: 1, Created: created, Expires: created.Add(time.Hour), Wrapped: []byte("another")}, 1)
	if added == old || old.dek != nil || !old.uninvited {
		t.Errorf("the one before is %+v", old)
	}
	if _, err := secret.Copy(); !errors.Is(err, secmem.ErrReleased) {
		t.Errorf("its key: %v", err)
	}
}

// TestHowFarKeysAreExtended: by a step, and never beyond keys.extendTTL.
func TestHowFarKeysAreExtended(t *testing.T) {
	const step = time.Hour / 8
	for name, row := range map[string]struct{ keys, end, want time.Duration }{
		"a step":                  {time.Minute, time.Hour, time.Minute + step},
		"what is left of a step":  {time.Minute, 2 * time.Minute, 2 * time.Minute},
		"nothing is left":         {2 * time.Minute, 2 * time.Minute, 2 * time.Minute},
		"they are not due so far": {time.Hour, 2 * time.Hour, -stillNow},
	} {
		used := keysOf(1, 0)
		used.deadline = stillNow + row.keys
		m, _, _ := still(t, map[group]held{{true, 1}: used}, 1, 1)
		m.opt.ExtendTTL = time.Hour
		e := m.epochs[1]
		e.deadline, e.end, e.askedOf = stillNow, stillNow+row.end, used.deadline
		if until, _, _ := m.nextEnd(t.Context(), e, stillNow); until != stillNow+row.want {
			t.Errorf("%s: to %s from now, want %s", name, until-stillNow, row.want)
		}
	}
}

// shortKEK unwraps everything to fewer bytes than a key has.
type shortKEK struct{ KEK }

func (shortKEK) Unwrap(context.Context, []byte, kek.Binding) ([]byte, error) {
	return make([]byte, schedule.DEKSize-1), nil
}

func TestUnwrappedToTooFewBytes(t *testing.T) {
	m, _, _ := still(t, nil, 0, 1)
	m.opt.KEK = shortKEK{m.opt.KEK}
	e := m.epochs[1]
	e.dek = nil
	m.unwrap(t.Context(), e)
	if e.dek != nil || !errors.Is(e.err, kek.ErrCorrupt) {
		t.Errorf("key %v, error %v", e.dek, e.err)
	}
}
