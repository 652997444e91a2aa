package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// handshakePort is where agents agree on keys.
const handshakePort = 4551

// rotate makes a new epoch through one node and waits until every agent uses it both ways.
func rotate(t *testing.T, l *lab.Lab, through *lab.Node) uint64 {
	t.Helper()
	epoch, err := admin.NewClient(through.Socket).RotateKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, fmt.Sprintf("epoch %d in use", epoch.Number),
		func() error { return onEpoch(t.Context(), l, epoch.Number) })
	return epoch.Number
}

// TestRotation changes keys 50 times in a row under load: UDP, rate-limited TCP and a bulk TCP
// stream lose nothing, nothing is readable, and no key is used twice with the same IV.
func TestRotation(t *testing.T) {
	const rotations = 50
	l := useSealed(t)
	record := newNonces(l)
	watch := watchWire(t, l, podRules(l), record.frame)
	before := kernelLosses(t, l)
	client, server := l.Pod("client"), l.Pod("server")
	load := startLoad(t, path{client, server})
	bulk, err := traffic.StartTCP(t.Context(),
		traffic.TCPOptions{From: l.Pod("web").NetNS, To: l.Pod("db").NetNS,
			Dst: addrPort(l.Pod("db").IPv4, 0), BytesPerSecond: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	load.tcp["bulk"] = bulk
	first := epochNow(t, l)
	began := time.Now()
	for i := range rotations {
		through := agents(l)[i%2]
		if i == rotations/2 { // the verb does the same
			if out, errOut, code := weft(t, "keys", "rotate", "--instance",
				through.Instance); code != 0 {
				t.Fatalf("weft keys rotate: exit code %d: %s%s", code, out, errOut)
			}
			continue
		}
		rotate(t, l, through)
	}
	took := time.Since(began)
	if last := epochNow(t, l); last != first+rotations {
		t.Errorf("epoch %d, then %d after %d rotations", first, last, rotations)
	}
	load.flowing(t, "after the rotations")
	load.nothingLost(t)
	watch.allSealed(t, l)
	record.unique(t)
	t.Logf("%d rotations in %s", rotations, took.Round(time.Millisecond))
	if t.Failed() {
		tellLosses(t, l, before)
	}
}

func epochNow(t *testing.T, l *lab.Lab) uint64 {
	t.Helper()
	number, err := newestEpoch(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// killer kills an agent when a chosen packet of an exchange of keys passes the wire.
type killer struct {
	victim atomic.Int64 // pid, 0 for nobody
	at     atomic.Int64 // packets with content yet to pass
	killed chan struct{}
}

// frame counts the exchange's packets that carry something.
func (k *killer) frame(f encryptcheck.Frame) {
	p, err := inet.Parse(f.Data)
	if err != nil || p.Protocol != unix.IPPROTO_TCP || p.SrcPort != handshakePort &&
		p.DstPort != handshakePort || len(p.Payload) < 20 {
		return
	}
	if header := int(p.Payload[12]>>4) * 4; len(p.Payload) <= header {
		return // an acknowledgement alone
	}
	if k.at.Add(-1) != 0 {
		return
	}
	if pid := k.victim.Swap(0); pid != 0 {
		_ = unix.Kill(int(pid), unix.SIGKILL)
		k.killed <- struct{}{}
	}
}

// TestRotationKilled kills agents with -9 while keys change, at every packet of the exchange in
// turn and at random moments, under load: nothing is lost, no key and IV are used twice, and the
// new epoch comes into use.
func TestRotationKilled(t *testing.T) {
	l := useSealed(t)
	record, k := newNonces(l), &killer{killed: make(chan struct{}, 1)}
	watch := watchWire(t, l, podRules(l),
		func(f encryptcheck.Frame) { record.frame(f); k.frame(f) })
	before := kernelLosses(t, l)
	load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
	nodes := agents(l)
	t.Cleanup(func() {
		for _, n := range nodes {
			ensureStarted(t, n, false)
		}
	})
	for step := 1; step <= 10; step++ {
		victim := nodes[step%2]
		t.Run(fmt.Sprintf("packet %d of the exchange, node %s", step, victim.Name),
			func(t *testing.T) {
				rotateAndDie(t, l, nodes[(step+1)%2], victim, func(pid int) deadly {
					k.at.Store(int64(step))
					k.victim.Store(int64(pid))
					return deadly{killed: k.killed,
						spare: func() bool { return k.victim.Swap(0) != 0 }}
				})
			})
	}
	for i := range 4 {
		victim, delay := nodes[i%2], time.Duration(rand.IntN(120))*time.Millisecond
		t.Run(fmt.Sprintf("after %s, node %s", delay, victim.Name), func(t *testing.T) {
			// Through the victim itself every other time: then the one that makes the epoch dies.
			rotateAndDie(t, l, nodes[(i+i/2)%2], victim, func(pid int) deadly {
				killed := make(chan struct{}, 1)
				time.AfterFunc(delay,
					func() { _ = unix.Kill(pid, unix.SIGKILL); killed <- struct{}{} })
				return deadly{killed: killed, spare: func() bool { return false }}
			})
		})
	}
	load.flowing(t, "at the end")
	load.nothingLost(t)
	watch.allSealed(t, l)
	record.unique(t)
	if t.Failed() {
		tellLosses(t, l, before)
	}
}

// running is the process of an agent that must run.
func running(t *testing.T, n *lab.Node) int {
	t.Helper()
	pid := n.PID()
	if pid <= 0 { // 0 would be this very process's group
		t.Fatalf("the agent of node %s does not run", n.Name)
	}
	return pid
}

// deadly is a danger that an agent is in.
type deadly struct {
	// killed tells, once, that the agent was killed.
	killed <-chan struct{}
	// spare takes the danger away. It returns false if that comes too late, or cannot be.
	spare func() bool
}

// rotateAndDie asks for a new epoch while somebody is about to kill the victim, starts the victim
// again and waits for the epoch to be in use. endanger begins the danger: until then the victim can
// be talked to.
func rotateAndDie(t *testing.T, l *lab.Lab, through, victim *lab.Node,
	endanger func(pid int) deadly) {
	t.Helper()
	// However this ends: the next row is not to fail for it.
	defer ensureStarted(t, victim, false)
	first, pid := epochNow(t, l), running(t, victim)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	danger := endanger(pid)
	_, err := admin.NewClient(through.Socket).RotateKeys(ctx)
	if err != nil && through != victim {
		t.Error(err)
	}
	want := first + 1
	if err != nil { // it died before the epoch was made, perhaps
		want = first
	}
	if !diesOf(t, l, danger, want) {
		t.Log("nobody was killed")
		return
	}
	// Its first thread may have ended while others still hold the lock.
	eventually(t, "the victim's end", func() error {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			return fmt.Errorf("process %d is still there", pid)
		}
		return nil
	})
	if err := victim.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, fmt.Sprintf("epoch %d in use", want),
		func() error { return onEpoch(t.Context(), l, want) })
}

// diesOf waits for the end of the victim, or for the epoch to be in use without: then the exchange
// had fewer packets than the one that was to be deadly.
func diesOf(t *testing.T, l *lab.Lab, danger deadly, want uint64) (died bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("a death, or epoch %d in use", want), func() error {
		select {
		case <-danger.killed:
			died = true
			return nil
		default:
		}
		// The agent that is asked here may die of it.
		if err := onEpoch(t.Context(), l, want); err != nil {
			return err
		}
		if !danger.spare() {
			return errors.New("the epoch is in use, and somebody is about to be killed")
		}
		return nil
	})
	return died
}
