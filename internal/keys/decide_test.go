package keys

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/sadb"
	"weft.dev/weft/internal/keys/schedule"
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
	sadb.Datapath
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

// fakeEpochs can be read, the newest first; none is over but those in ended.
type fakeEpochs struct {
	numbers []uint64
	ended   map[uint64]bool
}

func (e *fakeEpochs) Readable() []uint64 { return e.numbers }

func (e *fakeEpochs) Target() uint64 {
	if len(e.numbers) == 0 {
		return 0
	}
	return e.numbers[0]
}

func (e *fakeEpochs) View() epochs.View {
	return epochs.View{Listed: true, Target: e.Target(), Newest: e.Target(), Readable: true}
}

func (e *fakeEpochs) Until(number uint64) (time.Duration, bool) {
	return stillNow + time.Hour, slices.Contains(e.numbers, number) && !e.ended[number]
}

// noIdentity is one that nobody asks for.
type noIdentity struct{ nodeid.Source }

func noExchanger(handshake.Config) (client, server, error) { return nil, nil, nil }

// stillManager does not run.
func stillManager(t *testing.T, dp sadb.Datapath, change func(*Options)) *Manager {
	t.Helper()
	opt := Options{
		Node: "a", TrustDomain: "t", Cluster: "test", Identity: noIdentity{}, Datapath: dp, Drain: stillDrain,
		KEK: &fakeKEK{unwraps: map[uint64]int{}, life: &life{}}, Leader: fakeLeader{&election{}, "a"},
		Store:   &memStore{epochs: map[uint64]epochs.Epoch{}, changed: func() {}},
		HardTTL: 2 * time.Hour, MaxAge: time.Hour, MaxPackets: 1600, Spread: -1,
		Clock: stillClock(stillNow), newExchanger: noExchanger,
	}
	change(&opt)
	m, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	m.ready = true
	return m
}

// still are the peers of a manager that does not run: one, b, with keys and live epochs of these
// numbers.
func still(t *testing.T, groups map[sadb.Group]sadb.Held, sealing uint8, numbers ...uint64) (*peers, *peer, *notes) {
	t.Helper()
	dp := &notes{}
	p := stillManager(t, dp, func(*Options) {}).peers
	slices.Reverse(numbers)
	p.epochs = &fakeEpochs{numbers: numbers, ended: map[uint64]bool{}}
	q := newPeer(Peer{Name: "b"}, stillNow)
	p.byName["b"] = q
	for g, h := range groups {
		p.table.Put("b", g, h)
	}
	if err := p.table.Seal("b", sealing); err != nil {
		t.Fatal(err)
	}
	dp.steps = nil
	return p, q, dp
}

// keysOf are whole, live keys of an epoch, installed at a time.
func keysOf(number uint64, at time.Duration) sadb.Held {
	return sadb.Held{Number: number, ID: 100 + number, Lanes: 3, Deadline: stillNow + time.Hour, At: at}
}

// TestWhenKeysGo: when the keys of one direction are removed, and why.
func TestWhenKeysGo(t *testing.T) {
	in, out := func(n uint8) sadb.Group { return sadb.Group{Wire: n} }, func(n uint8) sadb.Group { return sadb.Group{Out: true, Wire: n} }
	heard := keysOf(2, 20*time.Second) // the peer was heard to send with these
	heard.Packets = 5
	over := keysOf(1, 10*time.Second)
	over.Deadline = stillNow - time.Second
	replaced := keysOf(1, 0)
	replaced.Replaced = 90 * time.Second
	ending := keysOf(1, 0)
	ending.Deadline = stillNow + sendDrain/2
	for name, row := range map[string]struct {
		of     sadb.Group
		groups map[sadb.Group]sadb.Held
		peer   peer
		at     time.Duration
		why    string
	}{
		"past the hard TTL":                      {in(1), map[sadb.Group]sadb.Held{in(1): over}, peer{}, over.Deadline, "hard TTL"},
		"past the hard TTL, in an exchange too":  {in(1), map[sadb.Group]sadb.Held{in(1): over}, peer{session: 1, sessionAt: stillNow}, over.Deadline, "hard TTL"},
		"an exchange about them":                 {in(1), map[sadb.Group]sadb.Held{in(1): keysOf(1, 0)}, peer{session: 1, sessionAt: stillNow, confirmed: 2}, 0, ""},
		"for sending, switched from just now":    {out(1), map[sadb.Group]sadb.Held{out(1): keysOf(1, 0), out(2): keysOf(2, stillNow)}, peer{confirmed: 2}, stillNow + sendDrain, "a newer epoch is in use"},
		"for sending, switched from long ago":    {out(1), map[sadb.Group]sadb.Held{out(1): keysOf(1, 0), out(2): keysOf(2, 20*time.Second)}, peer{confirmed: 2}, 20*time.Second + sendDrain, "a newer epoch is in use"},
		"for sending, switched from twice since": {out(1), map[sadb.Group]sadb.Held{out(1): replaced, out(2): keysOf(2, stillNow)}, peer{confirmed: 2}, replaced.Replaced + sendDrain, "a newer epoch is in use"},
		"for sending, and the peer was not met":  {out(1), map[sadb.Group]sadb.Held{out(1): keysOf(1, 0), out(2): keysOf(2, 20*time.Second)}, peer{}, 20*time.Second + sendDrain, "a newer epoch is in use"},
		"for sending, newer, and not met":        {out(1), map[sadb.Group]sadb.Held{out(1): keysOf(3, 0), out(2): keysOf(2, 20*time.Second)}, peer{}, keysOf(3, 0).Deadline, "hard TTL"},
		"for sending, and about to end":          {out(1), map[sadb.Group]sadb.Held{out(1): ending, out(2): keysOf(2, stillNow)}, peer{confirmed: 2}, ending.Deadline, "a newer epoch is in use"},
		"for sending, and nothing is sent":       {out(1), map[sadb.Group]sadb.Held{out(1): keysOf(1, 0)}, peer{confirmed: 2}, sendDrain, "a newer epoch is in use"},
		"for sending, in use":                    {out(2), map[sadb.Group]sadb.Held{out(2): keysOf(2, 0)}, peer{confirmed: 3}, stillNow + time.Hour, "hard TTL"},
		"the peer's newest":                      {in(2), map[sadb.Group]sadb.Held{in(2): keysOf(2, 0)}, peer{confirmed: 2}, stillNow + time.Hour, "hard TTL"},
		"left, by what it told":                  {in(1), map[sadb.Group]sadb.Held{in(1): keysOf(1, 0)}, peer{confirmed: 2, left: map[uint64]time.Duration{1: 95 * time.Second}}, 105 * time.Second, "drained"},
		"left, by what came":                     {in(1), map[sadb.Group]sadb.Held{in(1): keysOf(1, 0), in(2): heard, in(3): keysOf(3, 98*time.Second)}, peer{confirmed: 3}, 108 * time.Second, "drained"},
		"not left, as far as is known":           {in(1), map[sadb.Group]sadb.Held{in(1): keysOf(1, 0), in(2): keysOf(2, 20*time.Second)}, peer{confirmed: 2}, stillNow + time.Hour, "hard TTL"},
	} {
		p, _, _ := still(t, row.groups, 2)
		at, why := p.removeAt(&row.peer, row.of, row.groups[row.of], p.table.Of("b"), stillNow)
		if at != row.at || why != row.why {
			t.Errorf("%s: at %s, %q: want %s, %q", name, at, why, row.at, row.why)
		}
	}
}

// TestSendKeysDrain: those that were switched from stay until what the sealer was given is through,
// and go before the peer's receive keys do.
func TestSendKeysDrain(t *testing.T) {
	for drain, want := range map[time.Duration]time.Duration{
		stillDrain: sendDrain, 2 * sendDrain: sendDrain, 300 * time.Millisecond: 150 * time.Millisecond,
	} {
		for since, steps := range map[time.Duration][]string{
			0: nil, want - 1: nil, want: {"remove b true 1"},
		} {
			out := map[sadb.Group]sadb.Held{
				{Out: true, Wire: 1}: keysOf(1, 0), {Out: true, Wire: 2}: keysOf(2, stillNow-since),
			}
			p, q, dp := still(t, out, 2, 1, 2)
			p.opt.Drain, q.confirmed = drain, 2
			next, err := p.clean("b")
			if err != nil || !slices.Equal(dp.steps, steps) {
				t.Errorf("drain %s, switched %s ago: %v, %v: want %v", drain, since, dp.steps, err, steps)
			}
			if steps == nil && next != stillNow-since+want {
				t.Errorf("drain %s, switched %s ago: looks again at %s", drain, since, next-stillNow)
			}
		}
	}
}

// TestCleanStopsSendingFirst: the datapath is told to stop before the keys that it seals with go.
func TestCleanStopsSendingFirst(t *testing.T) {
	over := keysOf(1, 0)
	over.Deadline = stillNow
	p, q, dp := still(t, map[sadb.Group]sadb.Held{{Out: true, Wire: 1}: over}, 1)
	if _, err := p.clean("b"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"seal b 0", "remove b true 1"}; !slices.Equal(dp.steps, want) || !q.expired {
		t.Errorf("%v, expired %v: want %v", dp.steps, q.expired, want)
	}
}

// TestNodeThatIsGoneKeepsItsKeysForTheDrain, no longer.
func TestNodeThatIsGoneKeepsItsKeysForTheDrain(t *testing.T) {
	for since, want := range map[time.Duration][]string{
		stillDrain - time.Second: nil,
		stillDrain:               {"seal b 0", "remove b false 1"},
	} {
		p, q, dp := still(t, map[sadb.Group]sadb.Held{{Wire: 1}: keysOf(1, 0)}, 1)
		q.gone, q.goneAt = true, stillNow-since
		if _, err := p.clean("b"); err != nil {
			t.Fatal(err)
		}
		if left := p.byName["b"] != nil; !slices.Equal(dp.steps, want) || left != (want == nil) {
			t.Errorf("gone for %s: %v, still a peer %v: want %v", since, dp.steps, left, want)
		}
	}
}

// TestWhatAnExchangeIsTold: State names only keys that both ends may rely on, and is refused where
// an exchange must not begin.
func TestWhatAnExchangeIsTold(t *testing.T) {
	mixed, over := keysOf(2, 0), keysOf(2, 0)
	mixed.Mixed, over.Deadline = true, stillNow
	in, out := sadb.Group{Wire: 2}, sadb.Group{Out: true, Wire: 2}
	both := map[sadb.Group]sadb.Held{in: keysOf(2, 0), out: keysOf(2, 0)}
	for name, row := range map[string]struct {
		groups  map[sadb.Group]sadb.Held
		sealing uint8
		rx, tx  uint64
	}{
		"in use":                 {both, 2, 102, 102},
		"never switched to":      {map[sadb.Group]sadb.Held{in: keysOf(2, 0), out: keysOf(2, 0), {Out: true, Wire: 1}: keysOf(1, 0)}, 1, 102, 0},
		"nothing is sealed with": {both, 0, 102, 0},
		"lanes of two exchanges": {map[sadb.Group]sadb.Held{in: mixed, out: mixed}, 2, 0, 0},
		"past their end":         {map[sadb.Group]sadb.Held{in: over, out: over}, 2, 0, 0},
		"none":                   {nil, 0, 0, 0},
	} {
		p, q, _ := still(t, row.groups, row.sealing, 2)
		state, err := installer{p}.State("b", 2)
		if err != nil || state.RX != row.rx || state.TX != row.tx || state.Lanes != 2 || q.session != 2 {
			t.Errorf("%s: %+v, %v, session of epoch %d: want RX %d, TX %d", name, state, err, q.session, row.rx, row.tx)
		}
	}
	p, q, _ := still(t, both, 2, 2)
	q.gone = true
	if _, err := (installer{p}).State("b", 2); !errors.Is(err, handshake.ErrUnknownNode) {
		t.Errorf("a node that is gone: %v", err)
	}
	p.epochs.(*fakeEpochs).ended[2] = true
	if err := (installer{p}).InstallRX("b", &schedule.Direction{Number: 2}); !errors.Is(err, handshake.ErrNoEpoch) {
		t.Errorf("an epoch that has ended: %v", err)
	}
}

// TestSameNumberOnTheWire: keys of an epoch 15 earlier are in the way as long as a packet may need
// them.
func TestSameNumberOnTheWire(t *testing.T) {
	over, quiet := keysOf(1, 0), keysOf(1, 0)
	over.Deadline = stillNow
	quiet.QuietTo = stillDrain
	for name, row := range map[string]struct {
		of      sadb.Group
		held    sadb.Held
		sealing uint8
		want    uint64
	}{
		"sealed with":           {sadb.Group{Out: true, Wire: 1}, keysOf(1, 0), 1, 1},
		"no longer sealed with": {sadb.Group{Out: true, Wire: 1}, keysOf(1, 0), 2, 0},
		"packets may come":      {sadb.Group{Wire: 1}, keysOf(1, 0), 2, 1},
		"nothing comes":         {sadb.Group{Wire: 1}, quiet, 2, 0},
		"past their end":        {sadb.Group{Wire: 1}, over, 1, 0},
		"another number":        {sadb.Group{Wire: 2}, keysOf(2, 0), 1, 0},
		"the same epoch":        {sadb.Group{Wire: 1}, keysOf(16, 0), 1, 0},
	} {
		groups := map[sadb.Group]sadb.Held{row.of: row.held}
		p, _, _ := still(t, groups, row.sealing)
		if got, found := p.table.Of("b").InTheWay(16, stillNow, stillDrain); got != row.want || found != (row.want != 0) {
			t.Errorf("%s: epoch %d, %v: want %d", name, got, found, row.want)
		}
	}
}

// TestWhichEpochsToMeetIn: none that is older than what works.
func TestWhichEpochsToMeetIn(t *testing.T) {
	works := map[sadb.Group]sadb.Held{{Out: true, Wire: 2}: keysOf(2, 0), {Wire: 2}: keysOf(2, 0)}
	for name, row := range map[string]struct {
		groups map[sadb.Group]sadb.Held
		set    func(*peer)
		want   []uint64
	}{
		"nothing works":                    {nil, func(*peer) {}, []uint64{3, 2, 1}},
		"one works":                        {works, func(*peer) {}, []uint64{3, 2}},
		"one works, and was put in order":  {works, func(q *peer) { q.confirmed = 2 }, []uint64{3}},
		"packets are dropped for its want": {works, func(q *peer) { q.confirmed, q.rekey = 2, true }, []uint64{3, 2, 1}},
	} {
		p, q, _ := still(t, row.groups, 2, 1, 2, 3)
		row.set(q)
		if got := p.candidates(q); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// TestOldestInUse: by what peers run on or have keys of still, not by those that are gone.
func TestOldestInUse(t *testing.T) {
	first := map[sadb.Group]sadb.Held{{Wire: 1}: keysOf(1, 0)}
	for name, row := range map[string]struct {
		groups map[sadb.Group]sadb.Held
		set    func(*peer)
		want   uint64
	}{
		"the peer is on the newest":   {nil, func(q *peer) { q.confirmed = 4 }, 4},
		"the peer is on the first":    {nil, func(q *peer) { q.confirmed = 1 }, 1},
		"that peer is gone":           {nil, func(q *peer) { q.confirmed, q.gone = 1, true }, 0},
		"keys of the first are there": {first, func(q *peer) { q.confirmed = 4 }, 1},
	} {
		p, q, _ := still(t, row.groups, 0)
		row.set(q)
		if got := p.OldestInUse(); got != row.want {
			t.Errorf("%s: %d, want %d", name, got, row.want)
		}
		if want := q.confirmed != 0 && !q.gone; p.Confirmed()[q.confirmed] != want {
			t.Errorf("%s: confirmed are %v", name, p.Confirmed())
		}
	}
}

// TestRotateWaits for peers that still take the epoch before into use.
func TestRotateWaits(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store := &memStore{epochs: map[uint64]epochs.Epoch{}, changed: func() {}}
	m := stillManager(t, &notes{}, func(o *Options) { o.Store = store })
	defer func() { cancel(); m.epochs.Close() }()
	if _, err := m.epochs.Make(ctx); err != nil {
		t.Fatal(err)
	}
	m.SetPeers([]Peer{{Name: "b"}})
	cancel()
	_, err := m.Rotate(ctx)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "peer b is not on epoch 1 yet") ||
		len(store.epochs) != 1 {
		t.Errorf("%v, and %d epochs are in the store", err, len(store.epochs))
	}
}

// TestHowFarKeysAreExtended: by a step, and never beyond keys.extendTTL.
func TestHowFarKeysAreExtended(t *testing.T) {
	const step = time.Hour / 8
	m := stillManager(t, &notes{}, func(o *Options) { o.ExtendTTL = time.Hour })
	for name, row := range map[string]struct{ keys, end, want time.Duration }{
		"a step":                  {time.Minute, time.Hour, time.Minute + step},
		"what is left of a step":  {time.Minute, 2 * time.Minute, 2 * time.Minute},
		"nothing is left":         {2 * time.Minute, 2 * time.Minute, 2 * time.Minute},
		"they are not due so far": {time.Hour, 2 * time.Hour, -stillNow},
	} {
		used := keysOf(1, 0)
		used.Deadline = stillNow + row.keys
		e := epochs.Ending{Number: 1, Deadline: stillNow, End: stillNow + row.end, Extendable: true}
		uses := []use{{"b", sadb.Group{Out: true, Wire: 1}, used}}
		if until, _, _ := m.nextEnd(t.Context(), e, uses, stillNow); until != stillNow+row.want {
			t.Errorf("%s: to %s from now, want %s", name, until-stillNow, row.want)
		}
	}
}
