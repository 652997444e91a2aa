package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// TestOutside has pods talk with a machine that knows nothing of Weft, both ways, and with nodes.
func TestOutside(t *testing.T) {
	l := useShared(t)
	for _, target := range []string{"out", "a", "b"} {
		ns, err := l.NetNSOf(target)
		if err != nil {
			t.Fatal(err)
		}
		echo, err := traffic.StartEcho(ns, echoPort)
		if err != nil {
			t.Fatal(err)
		}
		defer echo.Close()
	}
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			var errs []error
			for _, node := range l.Nodes() {
				for _, addr := range node.Addresses {
					errs = append(errs,
						ask(t.Context(), l, "client", netip.AddrPortFrom(addr, echoPort).String()))
				}
				for _, pod := range []string{"client", "server"} {
					for _, family := range []int{4, 6} {
						errs = append(errs,
							ask(t.Context(), l, node.Name,
								netip.AddrPortFrom(l.Pod(pod).Addr(family), echoPort).String()))
					}
				}
			}
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMasquerade hides pods' addresses from the outside and from nobody else. The outside has no
// route to the pods.
func TestMasquerade(t *testing.T) {
	l := useShared(t)
	out, node := l.Node("out"), l.Node("a")
	// Addresses of no node, behind one.
	far := []netip.Addr{netip.MustParseAddr("198.51.100.9"),
		netip.MustParseAddr("2001:db8:ffff::9")}
	for i, ranges := range []string{"10.77.1.0/24", "fd77:1::/64"} {
		must(t, out.NetNS, "ip", "route", "del", ranges)
		t.Cleanup(func() { must(t, out.NetNS, "ip", "route", "replace", ranges, "via", node.Addresses[i].String()) })
		must(t, out.NetNS, "ip", "addr", "add", far[i].String(), "dev", "lo")
		t.Cleanup(func() { must(t, out.NetNS, "ip", "addr", "del", far[i].String(), "dev", "lo") })
		must(t, node.NetNS, "ip", "route", "add", far[i].String(), "via", out.Addresses[i].String())
		t.Cleanup(func() { must(t, node.NetNS, "ip", "route", "del", far[i].String()) })
	}
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			a := l.Node("a")
			reconfigure(t,
				map[string]any{"mode": mode, "masquerade": map[string]any{"enabled": true}}, a)
			outside := listen(t, &lab.Pod{NetNS: out.NetNS}, 9300)
			inside := listen(t, l.Pod("server"), 9300)
			for family := range map[int]bool{4: true, 6: true} {
				seen := sendAndSee(t, l.Pod("client"), far[family/6], outside)
				if seen != a.Addresses[family/6] {
					t.Errorf("the outside sees %s, not the node's %s", seen, a.Addresses[family/6])
				}
				seen = sendAndSee(t, l.Pod("client"), l.Pod("server").Addr(family), inside)
				if seen != l.Pod("client").Addr(family) {
					t.Errorf("a pod of another node sees %s, not the pod's own %s", seen,
						l.Pod("client").Addr(family))
				}
			}
			echo, err := traffic.StartEcho(out.NetNS, echoPort)
			if err != nil {
				t.Fatal(err)
			}
			defer echo.Close()
			for _, addr := range far {
				ns := l.Pod("client").NetNS
				if _, err := traffic.EchoTCP(t.Context(), ns, netip.Addr{},
					netip.AddrPortFrom(addr, echoPort), 200_000); err != nil {
					t.Error(err)
				}
				if r, err := traffic.Ping(t.Context(), ns,
					traffic.PingOptions{Dst: addr}); err != nil || !r.OK() {
					t.Errorf("ping %s: %+v %v", addr, r, err)
				}
			}
		})
	}
	if rules := must(t, l.Node("a").NetNS, "nft", "list", "ruleset"); strings.Contains(rules,
		"masquerade") {
		t.Errorf("masquerading was switched off, and rules are left:\n%s", rules)
	}
}

func sendAndSee(t *testing.T, from *lab.Pod, to netip.Addr, at *listener) netip.Addr {
	t.Helper()
	c, err := startCall(from.NetNS, netip.AddrPortFrom(to, 9300))
	if err != nil {
		t.Fatal(err)
	}
	seen := at.next(t, fmt.Sprintf("a datagram from %s to %s", from.Name, to)).Addr()
	c.close()
	for drained := false; !drained; {
		select {
		case <-at.got:
		default:
			drained = true
		}
	}
	return seen
}

// TestCleanup takes an agent's work away and holds the node against how it was before.
func TestCleanup(t *testing.T) {
	spec := parseSpec(t, twoNodes, 1500)
	spec.Agent = map[string]any{"masquerade": map[string]any{"enabled": true}}
	l := newLab(t, "cleanup", spec)
	a := l.Node("a")
	if got := nodeSettings(t, a); got != "1 1" {
		t.Errorf("forwarding by IPv4 and IPv6 while the agent runs: %s", got)
	}
	if err := a.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // doing it again is no error
		if out, errOut, code := runIn(t, a.NetNS,
			command(weftBinary, "agent", "cleanup", "--config", a.ConfigFile)); code != 0 {
			t.Fatalf("cleanup: exit code %d: %s%s", code, out, errOut)
		}
	}
	if got := nodeSettings(t, a); got != "0 0" {
		t.Errorf("forwarding by IPv4 and IPv6 after cleanup: %s, before Weft it was 0 0", got)
	}
	for what, text := range map[string]string{
		"interfaces": must(t, a.NetNS, "ip", "-o", "link"),
		"rules":      must(t, a.NetNS, "nft", "list", "ruleset"),
		"routes": must(t, a.NetNS, "ip", "route", "show", "table", "all", "proto",
			"77") + must(t, a.NetNS, "ip", "-6", "route", "show", "table", "all", "proto", "77"),
		"neighbours": must(t, a.NetNS, "ip", "neigh"),
		"in the pod": must(t, l.Pod("client").NetNS, "ip", "-o", "link"),
	} {
		for _, word := range []string{": weft", ": wefx", "table inet weft", "proto 77", "xdp",
			"managed", "eth0", "10.77."} {
			if strings.Contains(text, word) {
				t.Errorf("cleanup left %q among the %s:\n%s", word, what, text)
			}
		}
	}
	for _, path := range []string{"/sys/fs/bpf/weft/" + a.Instance, filepath.Dir(a.Socket),
		filepath.Join(l.Dir(), "a", "state", a.Instance)} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("cleanup left %s", path)
		}
	}
	published, _ := filepath.Glob(filepath.Join(l.ObjectsDir(), "endpoints", "*client*"))
	if len(published) != 0 {
		t.Errorf("cleanup left published endpoints %v", published)
	}
}

// nodeSettings reads what the agent must change to forward, and put back.
func nodeSettings(t *testing.T, n *lab.Node) string {
	t.Helper()
	return strings.Join(strings.Fields(must(t, n.NetNS, "sysctl", "-n", "net.ipv4.ip_forward",
		"net.ipv6.conf.all.forwarding")), " ")
}
