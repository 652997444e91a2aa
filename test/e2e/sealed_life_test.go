package e2e

import (
	"fmt"
	"strings"
	"testing"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
)

// shortLived has keys that change every few seconds. They live for much longer: agents on a busy
// machine take seconds to start, to stop and to change keys.
const shortLived = `
name: set-later
agent:
  keys: {maxAge: 6s, hardTTL: 45s, drain: 300ms}
nodes:
  - {name: a, addresses: [192.0.2.1/24, "2001:db8::1/64"], podCIDRs: [10.77.1.0/24, "fd77:1::/64"]}
  - {name: b, addresses: [192.0.2.2/24, "2001:db8::2/64"], podCIDRs: [10.77.2.0/24, "fd77:2::/64"]}
wires:
  - {name: w0, nodes: [a, b, switch], offload: false}
pods:
  - {name: client, node: a, namespace: shop, addresses: [10.77.1.10, "fd77:1::10"]}
  - {name: server, node: b, namespace: shop, addresses: [10.77.2.100, "fd77:2::100"]}
`

// withSwitch puts a third machine on the wire, which makes it a bridge that can be watched.
func withSwitch(text string) string {
	return strings.Replace(text, "wires:",
		`  - {name: switch, addresses: ["2001:db8::9/64"], agent: false}`+"\nwires:", 1)
}

// TestKeyLife has keys change by age under load; then an agent stays away until the keys' end:
// packets are refused with a drop reason of their own, never plain, and its restart mends all. Then
// a node is set up anew, as after a reboot.
func TestKeyLife(t *testing.T) {
	spec := parseSpec(t, withSwitch(shortLived))
	l := newLab(t, "life", spec)
	client, server := l.Pod("client"), l.Pod("server")
	serveEcho(t, server, client)
	a, b := l.Node("a"), l.Node("b")
	keyed(t, l, a)
	t.Run("by age", func(t *testing.T) {
		load := startLoad(t, path{client, server})
		first := epochNow(t, l)
		for _, want := range []uint64{first + 1, first + 2} {
			eventually(t, fmt.Sprintf("epoch %d by age", want),
				func() error { return onEpoch(t.Context(), l, want) })
		}
		load.nothingLost(t)
	})
	watch := watchWire(t, l, podRules(l), nil)
	t.Run("agent away", func(t *testing.T) { expires(t, l, a, b) })
	t.Run("reboot", func(t *testing.T) { reboot(t, l, b) })
	watch.allSealed(t, l)
}

// expires stops an agent and waits for the end of its keys.
func expires(t *testing.T, l *lab.Lab, a, b *lab.Node) {
	client, server := l.Pod("client"), l.Pod("server")
	before := dropped(t, a, "", "key_expired")
	if err := a.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ensureStarted(t, a, false) })
	if err := reach(t.Context(), client, server); err != nil {
		t.Errorf("without an agent, before the keys' end: %v", err)
	}
	keysEnd(t, l, b, client, server)
	if err := a.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	keyed(t, l, a)
	eventually(t, "traffic after the agent's return",
		func() error { return reach(t.Context(), client, server) })
	if n := dropped(t, a, "", "key_expired") - before; n == 0 {
		t.Errorf("nothing was refused as key_expired at a: %s", dropText(t, a))
	}
}

// reboot takes everything of a node away and sets it up anew: it gets new keys by itself.
func reboot(t *testing.T, l *lab.Lab, b *lab.Node) {
	spec := podSpecOf(t, l, "server")
	ids := keyIDs(t, b)
	if err := b.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ensureStarted(t, b, false) })
	if out, errOut, code := runIn(t, b.NetNS,
		command(weftBinary, "agent", "cleanup", "--config", b.ConfigFile)); code != 0 {
		t.Fatalf("cleanup: exit code %d: %s%s", code, out, errOut)
	}
	if err := b.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.DelPod(t.Context(), "server"); err != nil {
		t.Fatal(err)
	}
	server, err := l.AddPod(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	serveEcho(t, server)
	keyed(t, l, b)
	eventually(t, "traffic after the reboot", func() error {
		if err := reach(t.Context(), l.Pod("client"), server); err != nil {
			return fmt.Errorf("%w; drops at a: %s; at b: %s", err, dropText(t, l.Node("a")),
				dropText(t, b))
		}
		return nil
	})
	if now := keyIDs(t, b); now == ids {
		t.Errorf("the keys were installed at %s before the reboot and are the same", ids)
	}
}

// keyIDs tells a node's keys from later ones.
func keyIDs(t *testing.T, n *lab.Node) string {
	t.Helper()
	e, err := encryption(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, p := range e.Peers {
		text += fmt.Sprintln(p.Node, p.Installed)
	}
	return text
}

func podSpecOf(t *testing.T, l *lab.Lab, name string) lab.PodSpec {
	t.Helper()
	for _, p := range l.Spec().Pods {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no pod %s", name)
	return lab.PodSpec{}
}

// outerIPv6 has nodes without IPv4.
const outerIPv6 = `
name: set-later
nodes:
  - {name: a, addresses: ["2001:db8::1/64"], podCIDRs: [10.77.1.0/24, "fd77:1::/64"]}
  - {name: b, addresses: ["2001:db8::2/64"], podCIDRs: [10.77.2.0/24, "fd77:2::/64"]}
wires:
  - {name: w0, nodes: [a, b, switch], offload: false}
pods:
  - {name: client, node: a, namespace: shop, addresses: ["fd77:1::10", 10.77.1.10]}
  - {name: server, node: b, namespace: shop, addresses: ["fd77:2::100", 10.77.2.100]}
`

// TestSealedOverIPv6 seals packets of both families for nodes that have IPv6 only.
func TestSealedOverIPv6(t *testing.T) {
	l := newLab(t, "outer6", parseSpec(t, withSwitch(outerIPv6)))
	serveEcho(t, l.Pods()...)
	keyed(t, l, l.Node("a"))
	for _, mode := range []string{"auto", "xdp"} {
		t.Run(mode, func(t *testing.T) {
			if mode != "auto" {
				setMode(t, l, mode)
			}
			sealedPods(t, l)
			sealedSizes(t, l)
			sealedDatagrams(t, l)
		})
	}
	e, err := admin.NewClient(l.Node("a").Socket).Encrypt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range e.Peers {
		if p.Node == "b" && (p.Sent.Packets == 0 || p.Address.Is4()) {
			t.Errorf("peer %+v", p)
		}
	}
}
