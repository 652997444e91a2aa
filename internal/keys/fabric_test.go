package keys

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"weft.dev/weft/internal/datapath/esp"
)

// fabric is what joins the fake datapaths: it sends packets between all of them and
// counts those that nobody could open.
type fabric struct {
	clock *testClock
	drain time.Duration

	mu    sync.Mutex
	nodes map[string]*fakeDP
	// expect is which directions have worked once and must not fail any more.
	expect map[[2]string]bool
	// ignore is which directions are meant to fail.
	ignore map[[2]string]bool
	sent   uint64
	idle   bool
	lost   []string
	// sealed is when a direction was last sealed under an ID.
	sealed map[uint64]time.Duration
	// counters is the next counter of every key ever used: a key that comes back with a lower one
	// is a repeated nonce.
	counters map[[32]byte]uint64
	repeated []string
}

func newFabric(clock *testClock, drain time.Duration) *fabric {
	return &fabric{clock: clock, drain: drain, nodes: map[string]*fakeDP{},
		expect: map[[2]string]bool{}, ignore: map[[2]string]bool{},
		sealed: map[uint64]time.Duration{}, counters: map[[32]byte]uint64{}}
}

type slot struct {
	node  string
	out   bool
	epoch uint8
	lane  uint8
}

type fakeSA struct {
	id, number uint64
	generation uint64
	key        [32]byte
	counter    uint64
	installed  time.Time
	expires    time.Time
	deadline   time.Duration
}

// fakeDP is the kernel's part of a node: it outlives managers.
type fakeDP struct {
	fabric  *fabric
	name    string
	lanes   int
	wall    func() time.Time
	sas     map[slot]*fakeSA
	sealing map[string]uint8
	// generation is the virtual machine's; keys of another are void.
	generation uint64
}

func (f *fabric) node(name string, lanes int) *fakeDP {
	d := &fakeDP{fabric: f, name: name, lanes: lanes, wall: f.clock.Wall, sas: map[slot]*fakeSA{},
		sealing: map[string]uint8{}}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name] = d
	return d
}

// reboot empties the maps. Directions from and to the node may fail until they have worked again.
func (d *fakeDP) reboot() {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	d.sas, d.sealing = map[slot]*fakeSA{}, map[string]uint8{}
	for pair := range d.fabric.expect {
		if pair[0] == d.name || pair[1] == d.name {
			delete(d.fabric.expect, pair)
		}
	}
}

// pass sends one packet on every lane; the caller holds mu. The error names the drop reason.
func (f *fabric) pass(from, to *fakeDP) error {
	epoch := from.sealing[to.name]
	if epoch == 0 {
		return errors.New("no_key")
	}
	for lane := range from.lanes {
		sa := from.sas[slot{to.name, true, epoch, uint8(lane)}]
		if sa == nil {
			return errors.New("no_key")
		}
		if sa.generation != from.generation {
			return errors.New("vm_forked")
		}
		now := f.clock.Boot()
		if now >= sa.deadline {
			return errors.New("key_expired")
		}
		sa.counter++
		if sa.counter <= f.counters[sa.key] {
			f.repeated = append(f.repeated,
				fmt.Sprintf("%s to %s epoch %d lane %d counter %d", from.name, to.name, sa.number,
					lane, sa.counter))
		}
		f.counters[sa.key] = sa.counter
		f.sealed[sa.id] = now
		open := to.sas[slot{from.name, false, epoch, uint8(lane)}]
		if open == nil || open.id != sa.id || open.key != sa.key {
			return fmt.Errorf("esp_unknown_sa: epoch %d id %x", sa.number, sa.id)
		}
		if open.generation != to.generation {
			return errors.New("vm_forked")
		}
		if now >= open.deadline {
			return errors.New("key_expired")
		}
		open.counter = max(open.counter, sa.counter)
	}
	return nil
}

// send tries a direction. What has worked once must go on working. The caller holds mu.
func (f *fabric) send(from, to *fakeDP) {
	if f.idle {
		return
	}
	pair := [2]string{from.name, to.name}
	f.sent++
	err := f.pass(from, to)
	switch {
	case f.ignore[pair]:
		delete(f.expect, pair)
	case err == nil:
		f.expect[pair] = true
	case f.expect[pair] && len(f.lost) < 20:
		f.lost = append(f.lost, fmt.Sprintf("%s to %s: %v", from.name, to.name, err))
	}
}

// traffic sends from and to a node; the caller holds mu.
func (f *fabric) traffic(d *fakeDP) {
	for name := range d.sealing {
		if other := f.nodes[name]; other != nil {
			f.send(d, other)
			f.send(other, d)
		}
	}
}

// pump sends between all.
func (f *fabric) pump() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.nodes {
		f.traffic(d)
	}
}

// forgive begins or ends a time in which packets between two nodes may be lost.
func (f *fabric) forgive(a, b string, begin bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		f.ignore[pair] = begin
		delete(f.expect, pair)
	}
}

// try sends one packet and tells why it was dropped, "" if it was not.
func (f *fabric) try(from, to string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.pass(f.nodes[from], f.nodes[to]); err != nil {
		return err.Error()
	}
	return ""
}

// handle is a manager's view of a fake datapath: after a crash nothing it does counts.
type handle struct {
	*fakeDP
	life *life
}

var errCrashed = errors.New("this process is dead")

// change does one operation of the datapath, with packets before and after it.
func (h handle) change(what, peer string, do func() error) error {
	return h.life.step(what, func() error {
		f := h.fabric
		f.mu.Lock()
		defer f.mu.Unlock()
		other := f.nodes[peer]
		f.send(h.fakeDP, other)
		f.send(other, h.fakeDP)
		err := do()
		f.send(h.fakeDP, other)
		f.send(other, h.fakeDP)
		return err
	})
}

func (h handle) InstallSA(sa *esp.SA) error {
	defer func() { clear(sa.Key[:]); clear(sa.Salt[:]) }()
	return h.change("install", sa.Node, func() error {
		at := slot{sa.Node, sa.Out, sa.Epoch, sa.Lane}
		if sa.VMGeneration != h.generation {
			return errors.New("these keys are of before a fork")
		}
		if old := h.sas[at]; old != nil && old.id == sa.ID && old.generation == sa.VMGeneration {
			return nil
		}
		wall := h.wall()
		h.sas[at] = &fakeSA{
			id: sa.ID, number: sa.Number, generation: sa.VMGeneration,
			key: sha256.Sum256(append(sa.Key[:], sa.Salt[:]...)), installed: wall,
			expires:  sa.Expires,
			deadline: h.fabric.clock.Boot() + sa.Expires.Sub(wall),
		}
		return nil
	})
}

func (h handle) RemoveSAs(node string, out bool, epoch uint8) error {
	return h.change("remove", node, func() error {
		f := h.fabric
		for at, sa := range h.sas {
			if at.node != node || at.out != out || at.epoch != epoch {
				continue
			}
			last, used := f.sealed[sa.id]
			if now := f.clock.Boot(); !out && used && now < sa.deadline && now-last < f.drain &&
				f.expect[[2]string{node, h.name}] {
				f.lost = append(f.lost,
					fmt.Sprintf("%s to %s: late packets of epoch %d: removed after %s", node,
						h.name, sa.number, now-last))
			}
			delete(h.sas, at)
		}
		return nil
	})
}

func (h handle) ExtendSAs(node string, out bool, epoch uint8, id uint64, until time.Time) error {
	return h.change("extend", node, func() error {
		found := false
		for at, sa := range h.sas {
			if at.node != node || at.out != out || at.epoch != epoch {
				continue
			}
			now := h.fabric.clock.Boot()
			if sa.id != id || now >= sa.deadline {
				return fmt.Errorf("extend %v: id %x, want %x, ended %t", at, sa.id, id,
					now >= sa.deadline)
			}
			sa.deadline = max(sa.deadline, now+until.Sub(h.wall()))
			found = true
		}
		if !found {
			return errors.New("extend: no such keys")
		}
		return nil
	})
}

func (h handle) SealWith(node string, epoch uint8) error {
	return h.change("seal", node, func() error {
		if epoch == 0 {
			delete(h.sealing, node)
		} else {
			h.sealing[node] = epoch
		}
		return nil
	})
}

func (h handle) SAs() ([]esp.SAStatus, error) {
	f := h.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []esp.SAStatus
	for at, sa := range h.sas {
		out = append(out, esp.SAStatus{
			Node: at.node, Out: at.out, Epoch: at.epoch, Lane: at.lane, ID: sa.id,
			Number: sa.number, Counter: sa.counter, Packets: sa.counter,
			Installed: sa.installed, Expires: h.wall().Add(sa.deadline - f.clock.Boot()),
		})
	}
	return out, nil
}

func (h handle) Sealing() ([]esp.Sealing, error) {
	f := h.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []esp.Sealing
	for node, epoch := range h.sealing {
		out = append(out, esp.Sealing{Node: node, Epoch: epoch})
	}
	return out, nil
}

func (h handle) Lanes() int { return h.lanes }

func (h handle) VMGeneration() (uint64, error) {
	h.fabric.mu.Lock()
	defer h.fabric.mu.Unlock()
	return h.generation, nil
}

// life is one process: it can be told to die before or after one of its steps.
type life struct {
	mu    sync.Mutex
	dead  bool
	die   func()
	count int
	// what and at are the step to die at, counted from 1; 0 for none.
	what  string
	at    int
	after bool
	hit   bool
}

func (l *life) step(what string, do func() error) error {
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return errCrashed
	}
	if what == l.what {
		l.count++
	}
	hit := l.at != 0 && what == l.what && l.count == l.at
	if hit {
		l.dead, l.hit = true, true
	}
	l.mu.Unlock()
	if hit && !l.after {
		l.die()
		return errCrashed
	}
	err := do()
	if hit {
		l.die()
		return errCrashed
	}
	return err
}

// arm makes the process die at its nth step of a kind from now on.
func (l *life) arm(what string, n int, after bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.what, l.count, l.at, l.after, l.hit = what, 0, n, after, false
}

// disarm says whether the process died at that step.
func (l *life) disarm() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = 0
	return l.hit
}
