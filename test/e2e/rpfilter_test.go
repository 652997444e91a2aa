package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// xdpRouter is a pod that asks for the XDP datapath.
var xdpRouter = lab.PodSpec{
	Name: "router", Node: "a", Namespace: "shop", PodDatapath: "xdp",
	Addresses: []netip.Addr{netip.MustParseAddr("10.77.1.50"), netip.MustParseAddr("fd77:1::50")},
}

func addRouter(t *testing.T, l *lab.Lab) *lab.Pod {
	t.Helper()
	p, err := l.AddPod(t.Context(), xdpRouter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.DelPod(context.Background(), xdpRouter.Name); err != nil {
			t.Error(err)
		}
	})
	return p
}

// setReversePath sets a node's rp_filter for all interfaces together, for new ones and for each
// that is there, as udev does when systemd has been told so.
func setReversePath(t *testing.T, n *lab.Node, all, each int) {
	t.Helper()
	err := n.Do(func() error {
		paths, err := filepath.Glob("/proc/sys/net/ipv4/conf/*/rp_filter")
		for _, path := range paths {
			value := each
			if filepath.Base(filepath.Dir(path)) == "all" {
				value = all
			}
			err = errors.Join(err, os.WriteFile(path, []byte(fmt.Sprint(value)), 0o644))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// talk exchanges a little by TCP and UDP. The far machine has several addresses, so its echo
// server's UDP answers come from another one than was asked: it is pinged.
func talk(ctx context.Context, ns, to string, far bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	dst := netip.MustParseAddrPort(to)
	_, errTCP := traffic.EchoTCP(ctx, ns, netip.Addr{}, dst, 20_000)
	var other error
	if !far {
		other = askByUDP(ctx, ns, dst)
	} else if r, err := traffic.Ping(ctx, ns, traffic.PingOptions{Dst: dst.Addr()}); err != nil ||
		!r.OK() {
		other = errors.Join(fmt.Errorf("ping: %+v", r), err)
	}
	if err := errors.Join(errTCP, other); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	return nil
}

// askByUDP asks by a few sockets: one whose port has talked with the same pod directly a moment ago
// gets no answer through a Service (docs/modes.md, "Traps"), and ports are drawn here.
func askByUDP(ctx context.Context, ns string, dst netip.AddrPort) (err error) {
	for range 3 {
		one, cancel := context.WithTimeout(ctx, callTime/4)
		_, err = traffic.EchoUDP(one, ns, netip.Addr{}, dst, 1000)
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}

// TestReversePathFilter has pods of every mode and datapath talk with their node, another, pods,
// Services and the world, under every setting of the kernel's reverse path filter, with encryption.
func TestReversePathFilter(t *testing.T) {
	l := useSealed(t)
	a, b, out := l.Node("a"), l.Node("b"), l.Node("out")
	serve(t, l)
	far := []string{"198.51.100.9", "2001:db8:ffff::9"}
	for i, addr := range far {
		must(t, out.NetNS, "ip", "addr", "add", addr, "dev", "lo")
		t.Cleanup(func() { must(t, out.NetNS, "ip", "addr", "del", addr, "dev", "lo") })
		must(t, a.NetNS, "ip", "route", "add", addr, "via", out.Addresses[i].String())
		t.Cleanup(func() { must(t, a.NetNS, "ip", "route", "del", addr) })
	}
	serveEcho(t, &lab.Pod{NetNS: out.NetNS})
	router := addRouter(t, l)
	serveEcho(t, router)
	t.Cleanup(func() { setReversePath(t, a, 2, 2); setReversePath(t, b, 2, 2) })
	before := writeKeys(t, a, map[string]any{"masquerade": map[string]any{"enabled": true}})
	t.Cleanup(func() {
		if err := errors.Join(os.WriteFile(a.ConfigFile, before, 0o644),
			a.RestartAgent(context.Background())); err != nil {
			t.Error(err)
		}
	})
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			writeKeys(t, a, map[string]any{"mode": mode})
			if err := a.RestartAgent(t.Context()); err != nil {
				t.Fatal(err)
			}
			keyed(t, l, a)
			keyed(t, l, b)
			for row := range 9 {
				all, each := row/3, row%3
				for _, n := range []*lab.Node{a, b} {
					setReversePath(t, n, all, each)
				}
				for _, pod := range []*lab.Pod{l.Pod("client"), router} {
					for _, to := range []string{
						"192.0.2.1:7007", "192.0.2.2:7007", "198.51.100.9:7007", "10.96.0.1:7007",
						"10.96.0.2:7007", "10.77.2.100:7007", "10.77.1.100:7007",
						"[2001:db8::1]:7007", "[2001:db8:ffff::9]:7007", "[fd96::1]:7007",
						"[fd96::2]:7007",
					} {
						if err := talk(t.Context(), pod.NetNS, to,
							slices.Contains(far,
								netip.MustParseAddrPort(to).Addr().String())); err != nil {
							t.Errorf("all %d, each %d: %s to %v; drops at a: %s", all, each,
								pod.Name, err, dropText(t, a))
						}
					}
				}
				for _, ns := range []string{a.NetNS, b.NetNS, l.Pod("server").NetNS} {
					if err := talk(t.Context(), ns, "10.77.1.50:7007", false); err != nil {
						t.Errorf("all %d, each %d: from %s to router: %v", all, each,
							filepath.Base(ns), err)
					}
					if err := talk(t.Context(), ns, "10.77.1.10:7007", false); err != nil {
						t.Errorf("all %d, each %d: from %s to client: %v", all, each,
							filepath.Base(ns), err)
					}
				}
				if t.Failed() {
					return // each further row would only wait
				}
			}
		})
	}
}
