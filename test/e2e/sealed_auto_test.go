package e2e

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netns"
)

// autoLab leaves the engine to the agents.
const autoLab = `
name: set-later
nodes:
  - {name: a, addresses: [192.0.2.1/24, "2001:db8::1/64"], podCIDRs: [10.77.1.0/24, "fd77:1::/64"]}
  - {name: b, addresses: [192.0.2.2/24, "2001:db8::2/64"], podCIDRs: [10.77.2.0/24, "fd77:2::/64"]}
  - {name: c, mode: xdp, addresses: [192.0.2.3/24, "2001:db8::3/64"], podCIDRs: [10.77.3.0/24, "fd77:3::/64"]}
wires:
  - {name: w0, nodes: [a, b, c], offload: true}
pods:
  - {name: client, node: a, namespace: shop, addresses: [10.77.1.10, "fd77:1::10"]}
  - {name: noisy, node: a, namespace: shop, addresses: [10.77.1.20, "fd77:1::20"]}
  - {name: server, node: b, namespace: shop, addresses: [10.77.2.100, "fd77:2::100"]}
  - {name: old, node: c, namespace: shop, addresses: [10.77.3.30, "fd77:3::30"]}
`

// TestSealerAuto: with engine auto bulk goes by sealers where these pay, and by the hooks of a node
// in mode xdp, which says so.
func TestSealerAuto(t *testing.T) {
	l := newLab(t, "auto", parseSpec(t, autoLab))
	for _, n := range agents(l) {
		keyed(t, l, n)
	}
	a, b, c := l.Node("a"), l.Node("b"), l.Node("c")
	sealerRuns(t, a, 0)
	sealerRuns(t, b, 0)
	watch := watchWire(t, l, podRules(l), nil)
	client, server, old := l.Pod("client"), l.Pod("server"), l.Pod("old")
	load := startBulk(t, path{client, server}, path{server, client}, path{client, old})
	for _, n := range []*lab.Node{a, b} {
		sealsAgain(t, load, n)
	}
	if e, err := encryption(t.Context(), c); err != nil || e.Sealer != nil ||
		!strings.Contains(e.Engine.NoSealer, "mode xdp") {
		t.Errorf("node c: %+v, engine %+v, %v", e.Sealer, e.Engine, err)
	}
	load.tcpWhole(t)
	watch.allSealed(t, l)
}

// TestSealerShare: a pod that floods the sealer loses what exceeds its share of the queue, and only
// its own: of a neighbour's bulk nothing is dropped for its share, and it goes on.
func TestSealerShare(t *testing.T) {
	l := newLab(t, "share", parseSpec(t, autoLab))
	for _, n := range agents(l) {
		keyed(t, l, n)
	}
	a := l.Node("a")
	sealerRuns(t, a, 0)
	client, noisy, server := l.Pod("client"), l.Pod("noisy"), l.Pod("server")
	load := startBulk(t, path{client, server}, path{server, client})
	seals(t, a, 1000)
	flood, err := traffic.StartFlood(traffic.FloodOptions{
		NetNS: noisy.NetNS, IfName: noisy.IfName, SrcMAC: mac(noisy.MAC), DstMAC: gatewayMAC,
		Src: noisy.IPv4, Dst: server.IPv4, OneFlow: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = flood.Stop() })
	eventually(t, "the flood's losses", func() error {
		if dropped(t, a, noisy.Key(), "sealer_share") < 10000 {
			return fmt.Errorf("%s: %s", flood.Report(), dropText(t, a))
		}
		return nil
	})
	sealsAgain(t, load, a)
	if n := dropped(t, a, client.Key(), "sealer_share"); n > 0 {
		t.Errorf("of the neighbour's bulk %d were dropped: %s", n, dropText(t, a))
	}
	if _, err := flood.Stop(); err != nil {
		t.Error(err)
	}
	load.tcpWhole(t)
}

// TestSealerOff: the engine is changed away from user, which leaves no sealer, no tap and traffic
// whole, and to auto, with a sealer that has bulk once there is an epoch with keys for it.
func TestSealerOff(t *testing.T) {
	l := newLab(t, "useroff", parseSpec(t, userLab))
	a := l.Node("a")
	keyed(t, l, a)
	pid := sealerRuns(t, a, 0)
	client, server := l.Pod("client"), l.Pod("server")
	load := startBulk(t, path{client, server}, path{server, client})
	for _, engine := range []string{"bpf", "auto"} {
		writeKeys(t, a, map[string]any{"encryption": map[string]any{"engine": engine}})
		if err := a.RestartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		keyed(t, l, a)
		load.flowing(t, "with engine "+engine)
		if engine == "auto" {
			sealerRuns(t, a, pid)
			rotate(t, l, a)
			sealsAgain(t, load, a)
			continue
		}
		eventually(t, "the sealer's end", func() error {
			if unix.Kill(pid, 0) == nil {
				return fmt.Errorf("process %d is still there", pid)
			}
			return nil
		})
		err := netns.Do(a.NetNS, func() error {
			if _, err := net.InterfaceByName("weft_sealer"); err == nil {
				return errors.New("weft_sealer is still there")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	load.tcpWhole(t)
}
