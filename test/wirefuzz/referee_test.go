package wirefuzz

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Sizes of a run.
const (
	batch     = 24  // shots between two looks
	heldCount = 48  // packets held back at a time, per node
	mostShown = 40  // kinds of violation that are told in full, per mode and each of matrix and random shots
	mostAlone = 300 // frames that are sent again alone to find their drop, per mode
)

// referee sends shots and judges.
type referee struct {
	*harness
	mode     string
	owners   map[uint32]*sent
	order    []*sent
	problems map[string]*finding // by what is wrong
	vanished map[string]*finding
	looked   map[string]bool // shapes of which a frame was sent alone
	shown    map[bool]int
	alone    int
	refused  int // by the kernel, on sending
	reflect  int
}

// sent is a part with its shot; count is how often it may arrive.
type sent struct {
	*part
	shot *shot
}

func newReferee(b *harness, mode string) *referee {
	return &referee{harness: b, mode: mode, owners: map[uint32]*sent{},
		problems: map[string]*finding{}, vanished: map[string]*finding{}, looked: map[string]bool{},
		shown: map[bool]int{}}
}

// newID numbers a marker; markers are never used again in the same lab.
func (r *referee) newID(s *sent) uint32 {
	r.harness.lastID++
	r.owners[r.harness.lastID] = s
	return r.harness.lastID
}

// fire sends a shot.
func (r *referee) fire(t *testing.T, s *shot) {
	t.Helper()
	for _, p := range s.parts {
		whole := append([]*part{p}, p.pieces...)
		for _, p := range whole {
			if r.owners[p.id] == nil ||
				p.how == genuine { // a held packet's rightful delivery is the one that counts
				r.owners[p.id] = &sent{p, s}
			}
		}
		var err error
		if p.sealAs != nil {
			peer := other(s.at)
			err = r.evil[peer].send(p.data, r.number[peer], *p.sealAs)
		} else {
			err = r.cables[s.at].send(p)
		}
		switch {
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOMEM) ||
			errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS):
			r.refused++ // the kernel knows better than to send this
			for _, p := range whole {
				p.must = ""
			}
			continue
		case err != nil:
			t.Fatalf("send frame %d (%s): %v", s.number, s.shape, err)
		}
		for _, p := range whole {
			r.order = append(r.order, &sent{p, s})
		}
	}
}

// reads is what the specification may know of a part.
func (p *part) reads() packet {
	seen := read(p.data, p.tag)
	if p.inner != nil {
		inner := read(p.inner, nil)
		inner.tags = seen.tags
		return inner
	}
	return seen
}

// judge holds what arrived of a part against the specification.
func (r *referee) judge(t *testing.T, s *sent, arrivals []arrival) {
	seen := s.reads()
	times := map[string]int{}
	for _, a := range arrivals {
		// An answer that quotes the marker is no delivery.
		if a.quotes && !seen.quoted || a.src.IsValid() && seen.ip &&
			(a.src.Unmap() != seen.src.Unmap() || a.dst.Unmap() != seen.dst.Unmap()) {
			r.reflect++
			continue
		}
		ok, why := false, ""
		if a.host {
			ok, why = r.know.mayReachHost(s.how, a.who, seen)
			if a.who != s.shot.at {
				ok = true // routed on by the other host, as for anybody
			}
		} else {
			ok, why = r.know.mayReachPod(s.how, s.shot.at, seen, a.who)
			times[a.who]++
		}
		if !ok {
			r.violation(t, s, "reached a "+kindOf(a), a.who, why)
		}
	}
	for who, n := range times {
		if n > 1 && (s.merge == nil || s.how == genuine) && s.how != inCleartext {
			r.violation(t, s, fmt.Sprintf("reached a pod %d times", n), who,
				"a sealed packet is delivered once")
		}
	}
	if s.must != "" && times[s.must] == 0 {
		r.violation(t, s, "did not reach a pod", s.must, "an honest packet has to")
	}
}

func kindOf(a arrival) string {
	if a.host {
		return "host"
	}
	return "pod"
}

// speak has the honest flow's ends talk, and holds that every word arrives.
func (r *referee) speak(t *testing.T) {
	t.Helper()
	waiting := map[uint32]string{}
	for _, k := range r.honest {
		id := r.newID(nil)
		k.say(r.tap.marker(id))
		waiting[id] = k.to.Name
	}
	r.await(waiting, patience)
	for id, who := range waiting {
		if !r.tap.at(id, who) {
			note(r.problems, "honest sealed traffic was lost to "+who, "")
		}
	}
}

// await waits until markers have reached their pods.
func (r *referee) await(waiting map[uint32]string, most time.Duration) bool {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		all := true
		for id, who := range waiting {
			all = all && r.tap.at(id, who)
		}
		if all || time.Since(begin) > most {
			return all
		}
	}
}

// fence sends an honest packet of the world behind all others and waits until it has arrived.
func (r *referee) fence(t *testing.T) {
	t.Helper()
	for range 5 {
		waiting := map[uint32]string{}
		for node, pod := range map[string]string{"a": "client", "b": "server"} {
			id := r.newID(nil)
			macs := append(append([]byte(nil), r.macs[node]...), 2, 0, 0, 0, 0xbe, 0xef)
			p := &part{data: datagram(macs, far[0], r.lab.Pod(pod).IPv4, 7003, 7004,
				r.tap.marker(id), 64)}
			if err := r.cables[node].send(p); err != nil {
				t.Fatal(err)
			}
			waiting[id] = pod
		}
		if r.await(waiting, 20*time.Second) {
			return
		}
	}
	t.Fatalf("mode %s: honest packets of the world do not arrive any more", r.mode)
}

// settle judges what was sent since the last time, and accounts for what arrived nowhere.
func (r *referee) settle(t *testing.T, before counters) {
	t.Helper()
	r.fence(t)
	missing := r.undelivered()
	dropped := 0
	for range 400 {
		if dropped = r.count(t).since(before); dropped >= len(missing) {
			break
		}
		time.Sleep(5 * time.Millisecond)
		missing = r.undelivered()
	}
	r.findVanished(t, missing, dropped < len(missing))
	waiting := map[uint32]string{}
	for _, s := range r.order {
		if s.must != "" {
			waiting[s.id] = s.must
		}
	}
	r.await(waiting, 10*time.Second)
}

// run fires the matrix and then random shots until the time is up.
func (r *referee) run(t *testing.T) {
	t.Helper()
	r.fence(t)
	before := r.sealerOf(t)
	for _, node := range []string{"a", "b"} {
		r.held[node] = nil
		r.hold(t, node, heldCount)
	}
	r.findNumbers(t)
	if replay {
		r.batch(t, []uint32{only})
		r.judgeAll(t)
		r.tell(t)
		r.report(t, 1)
		return
	}
	var begin time.Time
	number := uint32(0)
	for ; number < matrix || time.Since(begin) < *duration; number += batch {
		if number < matrix {
			begin = time.Now()
		}
		var numbers []uint32
		for i := range uint32(batch) {
			numbers = append(numbers, number+i)
		}
		r.batch(t, numbers)
		if number/batch%64 == 63 {
			r.refill(t)
		}
	}
	r.gro(t)
	r.judgeAll(t)
	r.report(t, int(number))
	r.sealerHadWork(t, before)
}

// refill holds new packets when those that there were have been used.
func (r *referee) refill(t *testing.T) {
	t.Helper()
	for _, node := range []string{"a", "b"} {
		left := 0
		for _, h := range r.held[node] {
			if !h.used {
				left++
			}
		}
		if left < heldCount/4 {
			r.hold(t, node, heldCount)
		}
	}
}

func (r *referee) batch(t *testing.T, numbers []uint32) {
	t.Helper()
	before := r.count(t)
	for _, n := range numbers {
		if s := r.make(n); s != nil {
			r.fire(t, s)
		}
	}
	r.speak(t)
	r.settle(t, before)
	r.order = r.order[:0]
}

// judgeAll judges every marker: also what has arrived late is seen.
func (r *referee) judgeAll(t *testing.T) {
	t.Helper()
	for _, id := range slices.Sorted(maps.Keys(r.owners)) {
		if s := r.owners[id]; s != nil {
			r.judge(t, s, r.tap.of(id))
		}
	}
}

// TestWire sends every frame shape at both nodes in every mode and holds what arrived against the
// specification.
func TestWire(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces and eBPF")
	}
	fmt.Printf("wire fuzzer: WEFT_FUZZ_SEED=%d\n", seed)
	b := newHarness(t, "auto")
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			b.setMode(t, mode)
			newReferee(b, mode).run(t)
		})
	}
}
