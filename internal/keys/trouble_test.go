package keys

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/kek"
)

func TestRestartTouchesNothing(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b")
	b.up(1)
	before := b.ids()
	for _, n := range nodes {
		n.stop()
	}
	for range 10 {
		b.fabric.pump()
	}
	for _, n := range nodes {
		n.start()
	}
	b.up(1)
	if after := b.ids(); !slices.Equal(before, after) {
		t.Errorf("keys were %v, are %v", before, after)
	}
	b.sound()
}

// ids are the fingerprints of all keys that are there.
func (b *fixture) ids() []string {
	b.fabric.mu.Lock()
	defer b.fabric.mu.Unlock()
	var out []string
	for name, d := range b.fabric.nodes {
		for at, sa := range d.sas {
			out = append(out, fmt.Sprintf("%s %v %x", name, at, sa.id))
		}
	}
	slices.Sort(out)
	return out
}

func TestRebootOfOneSide(t *testing.T) {
	for _, who := range []string{"a", "b"} {
		t.Run(who, func(t *testing.T) {
			b := newFixture(t)
			b.cluster("a", "b", "c")
			b.up(1)
			before := b.ids()
			n := b.nodes[who]
			n.stop()
			n.dp.reboot()
			n.start()
			b.until("packets pass again", func() bool {
				for _, other := range b.order {
					if other != who &&
						(b.fabric.try(who, other) != "" || b.fabric.try(other, who) != "") {
						return false
					}
				}
				return true
			})
			b.up(1)
			after := b.ids()
			for _, id := range before {
				if strings.HasPrefix(id, who+" ") && slices.Contains(after, id) {
					t.Errorf("keys of before the reboot came back: %s", id)
				}
			}
			b.sound()
		})
	}
}

func TestBothDialAtOnce(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b")
	b.up(1)
	for i := range 20 {
		for _, n := range nodes {
			n.clock.skip(rekeyPause)
			go n.RequestRekey(nodes[0].name)
			go n.RequestRekey(nodes[1].name)
		}
		b.rotate(nodes[i%2])
	}
	b.up(21)
	b.sound()
}

func TestTwoHundredPeersAtOnce(t *testing.T) {
	b := newFixture(t)
	hub := b.node("hub")
	counting := &countingClient{}
	b.options = func(o *Options) {
		if o.Node != "hub" {
			return
		}
		o.newExchanger = func(c handshake.Config) (client, server, error) {
			dial, serve, err := handshake.New(c)
			counting.client = dial
			return counting, serve, err
		}
	}
	var names []string
	for i := range 200 {
		n := b.node(fmt.Sprintf("n%03d", i))
		n.dp.lanes = 1
		n.peers = func() []Peer { return []Peer{hub.info()} }
		names = append(names, n.name)
	}
	hub.start()
	for _, name := range names {
		b.nodes[name].start()
	}
	b.up(1, append(names, "hub")...)
	if counting.most > DefaultParallel {
		t.Errorf("%d exchanges at once: want at most %d", counting.most, DefaultParallel)
	}
	for _, name := range names {
		if n := b.nodes[name].kek.unwraps[1]; n > 1 {
			t.Errorf("%s unwrapped epoch 1 %d times", name, n)
		}
	}
	b.sound()
}

func TestUnreadableKeyKeepsOneNodeOut(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b", "c")
	a, c := nodes[0], nodes[2]
	b.up(1)
	denied := &kek.Error{Kind: kek.ErrDenied, Subject: "unwrap"}
	c.kek.refuse(func(epoch uint64) error {
		if epoch >= 2 {
			return denied
		}
		return nil
	})
	b.rotate(a)
	b.up(2, "a", "b")
	b.until("c says why it is behind", func() bool {
		s := c.Status()
		i := slices.IndexFunc(s.Epochs, func(e epochs.Status) bool { return e.Number == 2 })
		return i >= 0 && s.Epochs[i].DEK == epochs.DEKFailed && s.Epochs[i].ErrorKind == "denied" &&
			s.Peers[0].State == StateBehind && b.peer(a, "c").State == StateBehind &&
			b.peer(a, "c").ErrorKind == "no_epoch"
	})
	if p := b.peer(a, "c"); p.EpochTX != 1 || p.EpochRX != 1 {
		t.Errorf("a's keys with c: %+v", p)
	}
	// c restarts, and meets the others in the epoch that it can read.
	c.stop()
	c.start()
	b.until("c is back on the old epoch", func() bool {
		return c.Status().Epoch == 1 && b.peer(c, "a").State == StateBehind &&
			!b.peer(c, "a").Exchanged.IsZero()
	})
	// c reboots: only the old epoch can help.
	c.stop()
	c.dp.reboot()
	c.start()
	b.until("c works again in the old epoch", func() bool {
		return b.fabric.try("a", "c") == "" && b.fabric.try("c", "a") == "" &&
			b.fabric.try("b", "c") == "" && b.fabric.try("c", "b") == ""
	})
	b.sound()

	// At the old epoch's hard TTL c is out, by name; the others go on.
	b.rotateByAge(a)
	b.up(3, "a", "b")
	for _, n := range nodes[:2] {
		b.fabric.forgive(n.name, "c", true)
	}
	b.clock.skip(50 * time.Hour)
	b.up(3, "a", "b")
	b.until("c is out", func() bool {
		return b.fabric.try("a", "c") != "" && b.fabric.try("c", "a") != "" &&
			b.peer(c, "a").State == StateExpired && b.peer(a, "c").ErrorKind == "no_epoch"
	})
	c.kek.refuse(nil)
	b.fabric.forgive("a", "c", false)
	b.fabric.forgive("b", "c", false)
	b.until("c is back",
		func() bool { b.clock.skip(time.Second); return b.peer(c, "a").State == StateUp })
	b.sound()
}

func TestStoreAway(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b")
	b.up(1)
	b.store.setDown(true)
	b.until("it says so", func() bool {
		return strings.Contains(strings.Join(nodes[0].Status().Problems, " "), "the store is away")
	})
	if _, err := nodes[0].Rotate(t.Context()); !errors.Is(err, errStoreDown) {
		t.Errorf("rotate: %v", err)
	}
	if !b.nodes["b"].Status().Epochs[0].Readable {
		t.Error("the known epoch was forgotten")
	}
	b.store.setDown(false)
	b.until("it works again",
		func() bool { b.clock.skip(100 * time.Millisecond); return len(nodes[0].Status().Problems) == 0 })
	b.rotate(nodes[0])
	b.up(2)
	b.sound()
}

func TestEpochsRemovedByHand(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b")
	b.up(1)
	b.rotate(nodes[0])
	b.up(2)
	if err := b.store.DeleteEpoch(2); err != nil {
		t.Fatal(err)
	}
	b.up(3)
	list, _ := b.store.Epochs()
	for _, e := range list {
		if err := b.store.DeleteEpoch(e.Number); err != nil {
			t.Fatal(err)
		}
	}
	b.up(4)
	b.sound()
}

func TestPeersLeaveAndComeBack(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b", "c")
	b.up(1)
	a, c := nodes[0], nodes[2]
	a.SetPeers([]Peer{nodes[1].info()})
	if got := b.peer(a, "c").State; got != StateLeaving {
		t.Errorf("state %q: want leaving", got)
	}
	a.SetPeers(b.allPeers())
	b.up(1)
	b.sound()

	b.fabric.forgive("a", "c", true)
	a.SetPeers([]Peer{nodes[1].info()})
	b.until("its keys are gone",
		func() bool { return len(a.Status().Peers) == 1 && b.fabric.try("a", "c") == "no_key" })
	c.RequestRekey("a")
	b.until("it is refused, and the error is named",
		func() bool {
			b.clock.skip(10 * time.Millisecond)
			return b.peer(c,
				"a").ErrorKind == "unknown_node"
		})
	b.fabric.forgive("a", "c", false)
	a.SetPeers(b.allPeers())
	c.RequestRekey("a")
	b.until("it is back",
		func() bool { return b.fabric.try("a", "c") == "" && b.fabric.try("c", "a") == "" })
	b.up(1)
	b.sound()
}

// TestLeaderThatCannotWrap gives the leadership to a node that can.
func TestLeaderThatCannotWrap(t *testing.T) {
	b := newFixture(t)
	b.election.closed["b"] = true // a has it
	nodes := b.cluster("a", "b")
	b.up(1)
	nodes[0].kek.refuse(func(epoch uint64) error {
		if epoch > 1 {
			return &kek.Error{Kind: kek.ErrDenied}
		}
		return nil
	})
	b.election.mu.Lock()
	b.election.closed["b"] = false
	b.election.mu.Unlock()
	b.clock.skip(24 * time.Hour)
	b.until("the other makes the epoch", func() bool {
		b.clock.skip(200 * time.Millisecond)
		return nodes[1].Status().Epoch == 2
	})
	if got := nodes[1].Status().Counters.Rotations[epochs.ReasonAge]; got != 1 {
		t.Errorf("b made %d epochs", got)
	}
	b.sound()
}

func TestRekeyRepairs(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b")
	b.up(1)
	// What b receives with is lost, and nobody noticed.
	b.fabric.mu.Lock()
	clear(b.fabric.expect)
	for at := range nodes[1].dp.sas {
		if !at.out {
			delete(nodes[1].dp.sas, at)
		}
	}
	b.fabric.mu.Unlock()
	if got := b.fabric.try("a", "b"); got == "" {
		t.Fatal("packets pass all the same")
	}
	nodes[1].stop()
	nodes[1].start()
	nodes[0].RequestRekey("b")
	b.until("it is repaired", func() bool { return b.fabric.try("a", "b") == "" })
	b.up(1)
	b.sound()
}

func TestNoSecretIsPrinted(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b")
	b.up(1)
	m := nodes[0].Manager
	dek, err := m.epochs.DEK(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprintf("%+v", nodes[0].Status()),
		fmt.Sprintf("%+v", m.History())} {
		if strings.Contains(text, string(dek)) || strings.Contains(text, fmt.Sprint(dek)) {
			t.Errorf("holds the key: %s", text)
		}
	}
}
