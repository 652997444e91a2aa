package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netns"
)

// networkPod is a pod that the test attaches by itself, in a network of its own.
type networkPod struct{ netNS string }

// addNetworkPod runs the CNI plugin on a node, as a runtime does.
func addNetworkPod(t *testing.T, n *lab.Node, name string, network uint32,
	addrs ...netip.Addr) networkPod {
	t.Helper()
	space := fmt.Sprintf("%s-%s-%s", labPrefix, n.Name, name)
	path, err := netns.Create(space)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Delete(space) })
	plugin := filepath.Join(t.TempDir(), "weft-cni")
	if err := os.Symlink(weftBinary, plugin); err != nil {
		t.Fatal(err)
	}
	var ips []string
	for _, a := range addrs {
		ips = append(ips, fmt.Sprintf("%q", a))
	}
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"blue","type":"weft-cni","socket":%q,"networkID":%d,"args":{"cni":{"ips":[%s]}}}`,
		n.Socket, network, strings.Join(ips, ","))
	call := func(verb string) error {
		return netns.Do(n.NetNS, func() error {
			cmd := exec.Command(plugin)
			cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + name,
				"CNI_NETNS=" + path, "CNI_IFNAME=eth0", "CNI_PATH=" + filepath.Dir(plugin)}
			cmd.Stdin = bytes.NewReader([]byte(conf))
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("CNI %s: %w: %s", verb, err, out)
			}
			return nil
		})
	}
	if err := call("ADD"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := call("DEL"); err != nil {
			t.Error(err)
		}
	})
	return networkPod{path}
}

// answered says whether a ping is. One that is to be refused is not waited for long: its drop is
// counted, too.
func answered(t *testing.T, from string, src, to netip.Addr, expected bool) bool {
	t.Helper()
	o := traffic.PingOptions{Src: src, Dst: to, Count: 2}
	if !expected {
		o.Timeout = 500 * time.Millisecond
	}
	report, err := traffic.Ping(t.Context(), from, o)
	if err != nil {
		t.Fatal(err)
	}
	return report.Received == report.Sent
}

// TestNetworks: pods of a network of their own reach each other on their node, by each of several
// addresses, also where these are the addresses of the cluster's pods there; they reach nobody
// else, are reached by nobody else, and the drops have a name.
func TestNetworks(t *testing.T) {
	l := useShared(t)
	client, server := l.Pod("client"), l.Pod("server")
	near := l.Node(client.Node)
	own, twin := netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("fd99::1")
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			first := addNetworkPod(t, near, "blue1", 7, own, twin)
			second := addNetworkPod(t, near, "blue2", 7, client.IPv4, client.IPv6,
				netip.MustParseAddr("10.99.0.2"), netip.MustParseAddr("fd99::2"))
			for _, restarted := range []bool{false, true} {
				if restarted {
					restart(t, near)
				}
				for _, c := range []struct {
					from     string
					src, dst netip.Addr
					want     bool
				}{
					{first.netNS, own, client.IPv4, true},
					{first.netNS, twin, client.IPv6, true},
					{first.netNS, own, netip.MustParseAddr("10.99.0.2"), true},
					{second.netNS, client.IPv4, own, true},
					{second.netNS, netip.MustParseAddr("fd99::2"), twin, true},
					{client.NetNS, client.IPv4, server.IPv4, true},
					{server.NetNS, server.IPv6, client.IPv6, true},
					{near.NetNS, netip.Addr{}, client.IPv4, true},
					{first.netNS, own, server.IPv4, false},
					{second.netNS, client.IPv6, server.IPv6, false},
					{client.NetNS, client.IPv4, own, false},
				} {
					refused := dropped(t, near, "", "other_network")
					if got := answered(t, c.from, c.src, c.dst, c.want); got != c.want {
						t.Errorf("restarted %v, from %s in %s to %s: answered %v, want %v; drops: %s", restarted, c.src, c.from, c.dst, got, c.want, dropText(t, near))
					}
					crosses := c.from == first.netNS || c.from == second.netNS
					if now := dropped(t, near, "", "other_network"); !c.want && crosses &&
						now <= refused {
						t.Errorf("restarted %v, from %s to %s: no drop is called other_network: %s",
							restarted, c.src, c.dst, dropText(t, near))
					}
				}
			}
		})
	}
}
