package keys

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/keys/sadb"
)

// snapshot is what a virtual machine's memory holds of the datapath.
func (d *fakeDP) snapshot() (restore func()) {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	sealing, sas := maps.Clone(d.sealing), map[slot]fakeSA{}
	for at, sa := range d.sas {
		sas[at] = *sa
	}
	return func() {
		d.fabric.mu.Lock()
		defer d.fabric.mu.Unlock()
		d.sealing, d.sas = maps.Clone(sealing), map[slot]*fakeSA{}
		for at, sa := range sas {
			d.sas[at] = &sa
		}
		d.generation++
		for pair := range d.fabric.expect {
			if pair[0] == d.name || pair[1] == d.name {
				delete(d.fabric.expect, pair) // until the peers have met
			}
		}
	}
}

// retire is what esp.VMForks does before it tells.
func (d *fakeDP) retire() {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	for at, sa := range d.sas {
		if sa.generation != d.generation {
			delete(d.sas, at)
			delete(d.sealing, at.node)
		}
	}
}

// TestVMForked takes a node back to a snapshot with memory, again and again: it meets every peer at
// once, in the same epoch, and no counter is used twice under one key.
func TestVMForked(t *testing.T) {
	b := newFixture(t)
	nodes := b.cluster("a", "b", "c")
	b.up(1)
	restore := nodes[0].dp.snapshot()
	for range 100 {
		b.fabric.pump()
	}
	for round := range uint64(3) {
		restore()
		for _, other := range []string{"b", "c"} {
			if why := b.fabric.try("a", other); why != "vm_forked" {
				t.Errorf("before the agent knows, to %s: %q", other, why)
			}
			// Later on, the peers have keys that the snapshot knows nothing of.
			if why := b.fabric.try(other, "a"); why == "" || round == 0 && why != "vm_forked" {
				t.Errorf("before the agent knows, from %s: %q", other, why)
			}
		}
		nodes[0].dp.retire()
		nodes[0].Forked()
		b.until("all have met", func() bool {
			return b.fabric.try("a", "b") == "" && b.fabric.try("b", "a") == "" &&
				b.fabric.try("a", "c") == "" && b.fabric.try("c", "a") == ""
		})
		b.up(1)
		if got := nodes[0].Status().Counters.VMForks; got != round+1 {
			t.Errorf("%d forks counted, want %d", got, round+1)
		}
	}
	b.sound()
}

// TestForkAbortsServed: what a node serves when the machine forks is given up, and does not stand
// in the way of its peer until it times out.
func TestForkAbortsServed(t *testing.T) {
	b := newFixture(t)
	a := b.cluster("a")[0]
	b.until("it has an epoch", func() bool { return a.Status().Epoch == 1 })
	a.SetPeers([]Peer{{Name: "b", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		Port: 1}})
	b.until("what it serves is given up", func() bool {
		a.Forked() // what was dialled in the turns before is served by now, or will be in the next
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", a.port))
		if err != nil {
			return false // it does not listen yet
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = conn.Write([]byte{22}) // it may be given up already
		return a.Status().Counters.Handshakes["served_aborted"] > 0
	})
}

// TestKeysOfBeforeAFork has the machine fork in the middle of every exchange: what was agreed on
// before is never used.
func TestKeysOfBeforeAFork(t *testing.T) {
	b := newFixture(t)
	forks := 0
	b.options = func(o *Options) {
		if o.Node == "a" {
			o.Datapath = &forkingDatapath{Datapath: o.Datapath, dp: b.nodes["a"].dp, left: 3,
				forks: &forks}
		}
	}
	nodes := b.cluster("a", "b")
	b.until("they have met in the end", func() bool {
		return b.fabric.try("a", "b") == "" && b.fabric.try("b", "a") == ""
	})
	b.up(1)
	if forks != 3 || nodes[0].dp.generation != 3 {
		t.Errorf("%d forks, generation %d", forks, nodes[0].dp.generation)
	}
	b.sound()
}

// forkingDatapath forks between the first look at the generation and the installation of what was
// agreed on since.
type forkingDatapath struct {
	sadb.Datapath
	dp    *fakeDP
	left  int
	forks *int
}

func (f *forkingDatapath) InstallSA(sa *esp.SA) error {
	f.dp.fabric.mu.Lock()
	if f.left > 0 {
		f.left--
		*f.forks++
		f.dp.generation++
	}
	f.dp.fabric.mu.Unlock()
	return f.Datapath.InstallSA(sa)
}

// TestClockAhead tells of the wall clock's jumps ahead, and of no others.
func TestClockAhead(t *testing.T) {
	b := newFixture(t)
	ahead := make(chan struct{}, 8)
	b.options = func(o *Options) { o.ClockAhead = func() { ahead <- struct{}{} } }
	nodes := b.cluster("a")
	b.until("it runs", func() bool { return nodes[0].Status().Ready })
	for i, jump := range []int{-1000, 1000, -2000} {
		nodes[0].clock.jump(time.Duration(jump) * time.Hour)
		nodes[0].signal.Poke()
		b.until("it notices",
			func() bool { return nodes[0].Status().Counters.ClockJumps == uint64(i+1) })
	}
	b.until("it is told of", func() bool { return len(ahead) == 1 })
}
