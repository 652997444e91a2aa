package e2e

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// TestSealerToHost sends bulk from a pod to another node itself, which its sealer opens.
func TestSealerToHost(t *testing.T) {
	l := newLab(t, "userhost", parseSpec(t, userLab))
	for _, n := range agents(l) {
		keyed(t, l, n)
	}
	a, b := l.Node("a"), l.Node("b")
	for _, n := range []*lab.Node{a, b} {
		sealerRuns(t, n, 0)
	}
	echo, err := traffic.StartEcho(b.NetNS, echoPort)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { echo.Close() })
	for _, addr := range b.Addresses {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if _, err := traffic.EchoTCP(ctx, l.Pod("client").NetNS, netip.Addr{},
			addrPort(addr, echoPort), 1<<20); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
		cancel()
	}
	eventually(t, "the count of what was opened",
		func() error { return sealerDid(t.Context(), b, 0, 200) })
}
