package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// keysEnd waits for the end of all keys that an agent knows of, with their extension, while there
// are no new ones for the nodes of two pods, a's and b's. From then on nothing passes between the
// pods, either way and in either family: each packet is refused where it is sent, for want of a key
// in force, and counted; none is on the wire.
func keysEnd(t *testing.T, l *lab.Lab, knows *lab.Node, one, other *lab.Pod) {
	t.Helper()
	s, err := keysOf(t.Context(), knows)
	if err != nil {
		t.Fatal(err)
	}
	var end time.Time
	for _, e := range s.Epochs {
		for _, last := range []time.Time{e.Expires, e.ExtendedMost} {
			if last.After(end) {
				end = last
			}
		}
	}
	if end.IsZero() {
		t.Fatalf("no epoch has an end: %+v", s.Epochs)
	}
	time.Sleep(time.Until(end.Add(time.Second))) // it is told in whole seconds
	watch := watchWire(t, l, podRules(l), nil)
	for _, p := range []path{{one, other}, {other, one}} {
		for _, family := range []int{4, 6} {
			what := fmt.Sprintf("after the keys' end, %s to %s IPv%d", p.from.Name, p.to.Name,
				family)
			eventually(t, what, func() error {
				err := refusedKeyless(t, l, p, family)
				if errors.Is(err, errAnswered) {
					t.Fatalf("%s: %v", what, err)
				}
				return err
			})
		}
	}
	report := watch.stop(t)
	for to, packets := range watch.sealedTo(l) {
		if packets > 0 {
			t.Errorf("after the keys' end, %d sealed packets went to node %s: %+v", packets, to,
				report)
		}
	}
	if !report.Clean() {
		t.Errorf("after the keys' end, readable on the wire: %+v", report)
	}
}

var errAnswered = errors.New("a ping is answered")

// refusedKeyless pings once. The answer alone does not tell that the ping was refused: on a busy
// machine it may be late.
func refusedKeyless(t *testing.T, l *lab.Lab, p path, family int) error {
	t.Helper()
	n := l.Node(p.from.Node)
	before := keyless(t, l, n)
	r, err := traffic.Ping(t.Context(), p.from.NetNS,
		traffic.PingOptions{Dst: p.to.Addr(family), Timeout: 200 * time.Millisecond})
	switch now := keyless(t, l, n); {
	case err != nil:
		return err
	case r.Received > 0:
		return fmt.Errorf("%w: %+v", errAnswered, r)
	case now == before:
		return fmt.Errorf("node %s has refused %d packets for want of a key in force, and no more for this ping: %+v", n.Name, now, r)
	}
	return nil
}

// keyless is how many packets a node has refused for want of a key in force, also while its agent
// is away.
func keyless(t *testing.T, l *lab.Lab, n *lab.Node) (packets uint64) {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(lab.BPFFS, "weft", l.Name()+"-"+n.Name,
		"maps-weft_drops-*"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("the pinned map of drops: %v %v", pins, err)
	}
	drops, err := ebpf.LoadPinnedMap(pins[0], &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer drops.Close()
	var key bpf.DropKey
	var counts []bpf.Counter // one for each CPU
	entries := drops.Iterate()
	for entries.Next(&key, &counts) {
		if reason := bpf.Reason(key.Reason); reason == bpf.ReasonKeyExpired ||
			reason == bpf.ReasonNoKey {
			for _, c := range counts {
				packets += c.Packets
			}
		}
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return packets
}
