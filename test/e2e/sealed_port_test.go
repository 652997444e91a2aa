package e2e

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

// TestPortOfExchanges: on a running node the port of exchanges answers the addresses of Node
// objects, by both families, and nobody else; who is refused is counted by the kernel, and never
// reaches the agent.
func TestPortOfExchanges(t *testing.T) {
	l := useSealed(t)
	b, out := l.Node("b"), l.Node("out")
	for _, addr := range []string{"192.0.2.77/32", "2001:db8::77/128"} {
		argv := []string{"ip", "addr", "add", addr, "dev", "w0"}
		if netip.MustParsePrefix(addr).Addr().Is6() {
			argv = append(argv, "nodad")
		}
		must(t, out.NetNS, argv...)
		t.Cleanup(func() { must(t, out.NetNS, "ip", "addr", "del", addr, "dev", "w0") })
	}
	for name, c := range map[string]struct{ to, known, unknown string }{
		"IPv4": {"192.0.2.2", "192.0.2.9", "192.0.2.77"},
		"IPv6": {"2001:db8::2", "2001:db8::9", "2001:db8::77"},
	} {
		t.Run(name, func(t *testing.T) {
			before := turnedAway(t, b)
			ctx, cancel := context.WithCancel(t.Context())
			var watching sync.WaitGroup
			watching.Go(func() {
				for ; ctx.Err() == nil &&
					turnedAway(t,
						b).Filtered == before.Filtered; time.Sleep(10 * time.Millisecond) {
				}
				cancel()
			})
			if err := dialPort(ctx, out, c.unknown, c.to); !errors.Is(err, context.Canceled) {
				t.Errorf("an unknown address's connection ends with %v", err)
			}
			cancel()
			watching.Wait()
			if err := dialPort(t.Context(), out, c.known, c.to); err != nil {
				t.Errorf("a node's own: %v", err)
			}
			after := turnedAway(t, b)
			if after.Filtered == before.Filtered || after.Unknown != before.Unknown ||
				after.LastUnknown != netip.MustParseAddr(c.unknown) {
				t.Errorf("counted %+v, before %+v", after, before)
			}
		})
	}
}

func dialPort(ctx context.Context, from *lab.Node, source, to string) error {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	return netns.Do(from.NetNS, func() error {
		conn, err := dialer.DialContext(ctx, "tcp",
			netip.AddrPortFrom(netip.MustParseAddr(to), handshakePort).String())
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

func turnedAway(t *testing.T, n *lab.Node) handshake.Turned {
	t.Helper()
	status, err := admin.NewClient(n.Socket).Keys(t.Context())
	if err != nil {
		t.Error(err)
		return handshake.Turned{}
	}
	return status.Counters.Turned
}
