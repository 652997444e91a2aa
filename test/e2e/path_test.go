package e2e

import (
	"fmt"
	"strings"
	"testing"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// TestSmallPath has pods of 1500 on a wire of 1400, in every mode: what is too large and must not
// be cut is answered with the path's MTU, from the node's address; TCP finds its way; what may be
// cut arrives.
func TestSmallPath(t *testing.T) {
	spec := parseSpec(t, twoNodes, 1400)
	spec.Agent = map[string]any{"mtu": 1500}
	l := newLab(t, "path", spec)
	client, server := l.Pod("client"), l.Pod("server")
	serveEcho(t, server, client)
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			for family, headers := range map[int]int{4: 28, 6: 48} {
				t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
					forgetPath(t, client)
					tooBig(t, l, family, 1500-headers)
					fits, err := traffic.Ping(t.Context(), client.NetNS,
						traffic.PingOptions{Dst: server.Addr(family), DF: true,
							Size: 1400 - headers})
					if err != nil || !fits.OK() {
						t.Errorf("a ping of exactly the path's MTU: %+v %v", fits, err)
					}
				})
			}
			forgetPath(t, client)
			for _, pair := range []path{{client, server}, {server, client}} {
				if err := reach(t.Context(), pair.from, pair.to); err != nil {
					t.Error(err)
				}
			}
			mayBeCut(t, l)
		})
	}
}

func tooBig(t *testing.T, l *lab.Lab, family, size int) {
	t.Helper()
	client, server, node := l.Pod("client"), l.Pod("server"), l.Node("a").Addresses[family/6]
	report, err := traffic.Ping(t.Context(), client.NetNS,
		traffic.PingOptions{Dst: server.Addr(family), DF: true, Size: size})
	if err != nil {
		t.Fatal(err)
	}
	if report.TooBig != 1 || report.MTU != 1400 || report.Received != 0 {
		t.Errorf("DF ping of 1500 on a path of 1400: %+v; drops: %s", report,
			dropText(t, l.Node("a")))
	}
	if from := fmt.Sprintf("from %s: packet too big", node); len(report.Errors) != 1 ||
		!strings.HasPrefix(report.Errors[0], from) {
		t.Errorf("the error is %q, not %q", report.Errors, from)
	}
}

// mayBeCut sends an IPv4 packet of 1500 without DF over the path of 1400. RFC 1812 has routers cut
// it; the design makes no fragments, but then somebody must say so: silence is the one wrong
// answer.
func mayBeCut(t *testing.T, l *lab.Lab) {
	t.Helper()
	client, server := l.Pod("client"), l.Pod("server")
	forgetPath(t, client)
	report, err := traffic.Ping(t.Context(), client.NetNS,
		traffic.PingOptions{Dst: server.IPv4, Size: 1500 - 28})
	if err != nil {
		t.Fatal(err)
	}
	if report.Received+report.TooBig+len(report.Errors) == 0 {
		t.Errorf("a packet of 1500 without DF on a path of 1400 vanished: %+v", report)
	}
}

// forgetPath drops path MTUs that were learnt before.
func forgetPath(t *testing.T, p *lab.Pod) {
	t.Helper()
	for _, family := range []string{"-4", "-6"} {
		must(t, p.NetNS, "ip", family, "route", "flush", "cache")
	}
}

// TestTTL has packets die on their way: the node says so, from its own address.
func TestTTL(t *testing.T) {
	l := useShared(t)
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			for _, to := range []string{"server", "db"} {
				for _, family := range []int{4, 6} {
					dst, node := l.Pod(to).Addr(family), l.Node("a").Addresses[family/6]
					report, err := traffic.Ping(t.Context(), l.Pod("client").NetNS,
						traffic.PingOptions{Dst: dst, TTL: 1})
					if err != nil {
						t.Fatal(err)
					}
					if want := fmt.Sprintf("from %s: time exceeded",
						node); report.TimeExceeded != 1 || report.Errors[0] != want {
						t.Errorf("TTL 1 to %s: %+v, want %q", dst, report, want)
					}
					// Two nodes on the way, three hops: the second node is the next to answer.
					if to == "db" {
						continue
					}
					report, err = traffic.Ping(t.Context(), l.Pod("client").NetNS,
						traffic.PingOptions{Dst: dst, TTL: 2})
					if err != nil {
						t.Fatal(err)
					}
					if want := fmt.Sprintf("from %s: time exceeded",
						l.Node("b").Addresses[family/6]); report.TimeExceeded != 1 ||
						report.Errors[0] != want {
						t.Errorf("TTL 2 to %s: %+v, want %q", dst, report, want)
					}
				}
			}
		})
	}
}

// TestFragments sends datagrams that take several packets, across nodes and inside one, in every
// mode.
func TestFragments(t *testing.T) {
	l := useShared(t)
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			for _, pair := range [][2]string{{"client", "server"}, {"server", "client"},
				{"client", "db"}} {
				from, to := l.Pod(pair[0]), l.Pod(pair[1])
				for _, family := range []int{4, 6} {
					for _, size := range []int{1473, 4000, 20000} {
						report, err := traffic.Ping(t.Context(), from.NetNS,
							traffic.PingOptions{Dst: to.Addr(family), Size: size})
						if err != nil || !report.OK() {
							t.Errorf("ping of %d bytes %s to %s IPv%d: %+v %v; drops at a: %s; at b: %s", size, from.Name, to.Name, family, report, err,
								dropText(t, l.Node("a")), dropText(t, l.Node("b")))
						}
					}
				}
			}
		})
	}
}
