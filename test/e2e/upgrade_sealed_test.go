package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netdev"
)

// TestUpgradeSealed starts agents of a build whose BPF programs differ while everything is sealed,
// from one that pinned a link under a hook's former name: nothing is lost, nothing is readable, and
// the keys go on with their counters.
func TestUpgradeSealed(t *testing.T) {
	changed := changedPrograms(t)
	l := useSealed(t)
	record := newNonces(l)
	watch := watchWire(t, l, podRules(l), record.frame)
	before := kernelLosses(t, l)
	epoch := epochNow(t, l)
	useBinary(t, l, changed)
	load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
	for _, n := range agents(l) {
		former := segmentPin(n, "from_host")
		if err := os.Rename(segmentPin(n, "from_segment"), former); err != nil {
			t.Fatal(err)
		}
		restartAs(t, n, "changed")
		keyed(t, l, n)
		if at, err := hook.PinnedAt(segmentPin(n, "from_segment")); err != nil || at == 0 {
			t.Errorf("node %s: from_segment is at interface %d, %v", n.Name, at, err)
		}
		if _, err := os.Lstat(former); !os.IsNotExist(err) {
			t.Errorf("node %s: %s is still there: %v", n.Name, former, err)
		}
	}
	load.flowing(t, "after the upgrade")
	load.nothingLost(t)
	watch.allSealed(t, l)
	if back := record.unique(t); back != 0 {
		t.Errorf("%d packets have a number below those of before: counters began again", back)
	}
	if now := epochNow(t, l); now != epoch {
		t.Errorf("epoch %d, before the upgrade %d", now, epoch)
	}
	if t.Failed() {
		tellLosses(t, l, before)
	}
}

// segmentPin is where the link of the segmentation veth's hook is pinned.
func segmentPin(n *lab.Node, name string) string {
	return hook.Path("/sys/fs/bpf/weft/"+n.Instance, name, hook.TCIngress, netdev.SegmentationOut)
}

// TestUpgradeKeyLayout starts agents of a build that lays out keys in another way. Keys cannot be
// copied, so packets between the nodes are lost until these have met anew, under a name; nothing is
// ever readable. The new keys have the old ones' epoch and lanes and count from 1, so numbers come
// twice on the wire, but none under the same key.
func TestUpgradeKeyLayout(t *testing.T) {
	other := variant(t, "keylayout", func(tree string) {
		edit(t, filepath.Join(tree, "bpf/lib/sa.h"), "	__u64 limit;   /* last",
			"	__u64 extra;\n	__u64 limit;   /* last")
	})
	l := useSealed(t)
	record := newNonces(l)
	watch := watchWire(t, l, podRules(l), record.frame)
	useBinary(t, l, other)
	client, server := l.Pod("client"), l.Pod("server")
	stream, err := traffic.StartUDP(t.Context(),
		traffic.UDPOptions{From: client.NetNS, To: server.NetNS, Dst: addrPort(server.IPv4, 0),
			PPS: 2000})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "numbers far enough from 1 to see them go back", func() error {
		if got := stream.Report().Received; got < 4*overtaken {
			return fmt.Errorf("%d received", got)
		}
		return nil
	})
	for _, n := range agents(l) {
		restart(t, n)
	}
	for _, n := range agents(l) {
		keyed(t, l, n)
	}
	now := stream.Report().Received
	eventually(t, "packets pass again", func() error {
		if got := stream.Report().Received; got <= now {
			return fmt.Errorf("%d received, as before", got)
		}
		return nil
	})
	connected(t, l) // both ways
	r := stream.Stop()
	t.Logf("lost while the nodes met anew: %s", r)
	if r.Corrupt != 0 || r.Duplicates != 0 {
		t.Errorf("%s", r)
	}
	watch.allSealed(t, l)
	if record.unique(t) == 0 {
		t.Error("no number went back: the nodes did not meet anew within the epoch")
	}
}

// TestUpgradeDecidingLayout starts agents of builds in whose maps of routes or endpoints, where
// absence lets pass, there is one more field: nothing is lost, and nothing is readable at any time,
// neither of pods, whose packets all take the stack, nor of the node.
func TestUpgradeDecidingLayout(t *testing.T) {
	for name, change := range map[string][2]string{
		"routelayout": {"struct weft_route {\n", "struct weft_route {\n	__u64 extra;\n"},
		"endpointlayout": {"struct weft_endpoint {\n",
			"struct weft_endpoint {\n	__u64 extra;\n"},
	} {
		t.Run(name, func(t *testing.T) {
			other := variant(t, name,
				func(tree string) {
					edit(t, filepath.Join(tree, "bpf/lib/structs.h"), change[0],
						change[1])
				})
			l := useSealed(t)
			reconfigure(t, map[string]any{"mode": "stack"}, agents(l)...)
			for _, n := range agents(l) {
				keyed(t, l, n)
			}
			watch := watchWire(t, l, podRules(l), nil)
			before := kernelLosses(t, l)
			useBinary(t, l, other)
			client, server := l.Pod("client"), l.Pod("server")
			load := startLoad(t, path{client, server})
			host, err := traffic.StartUDP(t.Context(),
				traffic.UDPOptions{From: l.Node("a").NetNS, To: server.NetNS,
					Dst: addrPort(server.IPv4, 0), PPS: 300})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range agents(l) {
				mark := logSize(t, n)
				restart(t, n)
				if text := logSince(t, n, mark); !strings.Contains(text,
					"hooks of the agent before stay") {
					t.Errorf("node %s does not say that the hooks of before stay:\n%s", n.Name,
						text)
				}
				keyed(t, l, n)
			}
			load.flowing(t, "after the upgrade")
			load.nothingLost(t)
			if r := host.Stop(); r.Received == 0 || r.Lost != 0 || r.Corrupt != 0 {
				t.Errorf("from the node: %s", r)
			}
			connected(t, l)
			watch.allSealed(t, l)
			if t.Failed() {
				tellLosses(t, l, before)
			}
		})
	}
}
