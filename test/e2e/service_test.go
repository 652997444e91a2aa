package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// What kube-proxy does: rules of the host's own that translate a Service's address to a pod's, and
// a node port for those outside, whose source is masked when the pod is on another node.
const serviceRules = `
table inet e2e {
  chain prerouting {
    type nat hook prerouting priority dstnat;
    ip daddr 10.96.0.1 meta l4proto { tcp, udp } th dport 7007 dnat ip to 10.77.2.100
    ip6 daddr fd96::1 meta l4proto { tcp, udp } th dport 7007 dnat ip6 to fd77:2::100
    ip daddr 10.96.0.2 meta l4proto { tcp, udp } th dport 7007 dnat ip to 10.77.1.100
    ip6 daddr fd96::2 meta l4proto { tcp, udp } th dport 7007 dnat ip6 to fd77:1::100
    ip daddr 192.0.2.1 meta l4proto { tcp, udp } th dport 30001 mark set 0x4000 dnat ip to 10.77.2.100:7007
    ip6 daddr 2001:db8::1 meta l4proto { tcp, udp } th dport 30001 mark set 0x4000 dnat ip6 to [fd77:2::100]:7007
    ip daddr 192.0.2.1 meta l4proto { tcp, udp } th dport 30002 dnat ip to 10.77.1.100:7007
    ip6 daddr 2001:db8::1 meta l4proto { tcp, udp } th dport 30002 dnat ip6 to [fd77:1::100]:7007
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    mark 0x4000 masquerade
  }
}
`

// serve puts the rules into node a.
func serve(t *testing.T, l *lab.Lab) {
	t.Helper()
	a := l.Node("a")
	must(t, a.NetNS, "nft", serviceRules)
	t.Cleanup(func() { must(t, a.NetNS, "nft", "delete table inet e2e") })
}

// service is an address that is translated, and who asks for it.
type service struct {
	name, from string
	v4, v6     string
}

var services = []service{
	{"VIP to a pod on another node", "client", "10.96.0.1:7007", "[fd96::1]:7007"},
	{"VIP to a pod on the same node", "client", "10.96.0.2:7007", "[fd96::2]:7007"},
	{"node port to a pod on another node", "out", "192.0.2.1:30001", "[2001:db8::1]:30001"},
	{"node port to a pod on the node", "out", "192.0.2.1:30002", "[2001:db8::1]:30002"},
}

// TestService is the kube-proxy case in every mode: requests are translated on their way, so
// replies must come back through the stack, which translates them back.
func TestService(t *testing.T) {
	l := useShared(t)
	serve(t, l)
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			for _, s := range services {
				t.Run(s.name, func(t *testing.T) {
					for _, to := range []string{s.v4, s.v6} {
						if err := ask(t.Context(), l, s.from, to); err != nil {
							t.Errorf("%s: %v; drops at a: %s; at b: %s", to, err,
								dropText(t, l.Node("a")), dropText(t, l.Node("b")))
						}
					}
				})
			}
			// What is not translated goes on beside it, on the same addresses.
			if err := reach(t.Context(), l.Pod("client"), l.Pod("server")); err != nil {
				t.Error(err)
			}
		})
	}
}

// ask sends to an echo server by TCP, small and much, and by UDP, several times from one socket
// each.
func ask(ctx context.Context, l *lab.Lab, from, to string) error {
	ns, err := l.NetNSOf(from)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	dst := netip.MustParseAddrPort(to)
	_, errSmall := traffic.EchoTCP(ctx, ns, netip.Addr{}, dst, 100)
	_, errMuch := traffic.EchoTCP(ctx, ns, netip.Addr{}, dst, 2_000_000)
	return errors.Join(errSmall, errMuch, askUDP(ctx, ns, dst))
}

// askUDP asks up to four times: a busy machine may lose a datagram.
func askUDP(ctx context.Context, ns string, dst netip.AddrPort) (err error) {
	for range 4 {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err = traffic.EchoUDP(once, ns, netip.Addr{}, dst, 1000)
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}

// TestServiceKilled has the agent of the translating node die and come back: translated
// conversations go on.
func TestServiceKilled(t *testing.T) {
	l := useShared(t)
	serve(t, l)
	calls := startCalls(t, l)
	for range 2 {
		if err := l.Node("a").KillAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ensureStarted(t, l.Node("a"), false) })
		calls.answered(t, "without the agent")
		if err := l.Node("a").StartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		calls.answered(t, "with the agent back")
	}
}

// TestServiceAfterLayoutChange loses the flow table in an upgrade: what the flow was is
// forgotten, and the first packet seen again may be a reply.
func TestServiceAfterLayoutChange(t *testing.T) {
	l := useShared(t)
	serve(t, l)
	other := variant(t, "layout", func(tree string) {
		edit(t, tree+"/bpf/lib/flow_structs.h", "	__u64 first_ns; /* CLOCK",
			"	__u64 extra;\n	__u64 first_ns; /* CLOCK")
	})
	calls := startCalls(t, l)
	useBinary(t, l, other)
	if err := l.Node("a").RestartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	calls.answered(t, "after the flow table was lost")
}

// TestServiceServerSpeaksFirst is the same with the server's packet the first one seen. It may be
// taken for a new conversation, but when the client speaks again, the two must be one again.
func TestServiceServerSpeaksFirst(t *testing.T) {
	l := useShared(t)
	serve(t, l)
	other := variant(t, "layout", func(tree string) {
		edit(t, tree+"/bpf/lib/flow_structs.h", "	__u64 first_ns; /* CLOCK",
			"	__u64 extra;\n	__u64 first_ns; /* CLOCK")
	})
	must(t, l.Node("a").NetNS, "nft",
		"add rule inet e2e prerouting ip daddr 10.96.0.3 udp dport 7008 dnat ip to 10.77.2.100")
	server := listen(t, l.Pod("server"), 7008)
	client, err := startCall(l.Pod("client").NetNS, netip.MustParseAddrPort("10.96.0.3:7008"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.close)
	peer := server.next(t, "the client's first datagram")
	client.silent.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			_, _ = server.conn.WriteToUDPAddrPort([]byte("news"),
				netip.AddrPortFrom(netip.AddrFrom16(peer.Addr().As16()), peer.Port()))
			time.Sleep(time.Millisecond)
		}
	}()
	all := &calls{[]*call{client}}
	all.answered(t, "before the upgrade")
	useBinary(t, l, other)
	if err := l.Node("a").RestartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	client.silent.Store(false)
	all.answered(t, "once the client has spoken again after the flow table was lost")
}

// calls are conversations through a Service's address in which the server speaks on its own.
type calls struct{ list []*call }

func startCalls(t *testing.T, l *lab.Lab) *calls {
	t.Helper()
	c := &calls{}
	for _, to := range []string{"10.96.0.1:7007", "[fd96::1]:7007"} {
		one, err := startCall(l.Pod("client").NetNS, netip.MustParseAddrPort(to))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(one.close)
		c.list = append(c.list, one)
	}
	c.answered(t, "at the start")
	return c
}

func (c *calls) answered(t *testing.T, when string) {
	t.Helper()
	for _, one := range c.list {
		was := one.answers.Load()
		eventually(t, fmt.Sprintf("calls to %s %s", one.to, when), func() error {
			if now := one.answers.Load(); now < was+100 {
				return fmt.Errorf("%d answers before and %d now, %d sent", was, now,
					one.sent.Load())
			}
			return nil
		})
	}
}
