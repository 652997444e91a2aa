package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// TestSealed walks through the modes with encryption on. In each, pods and nodes reach each other,
// sizes are right, and agents killed with -9 under load lose nothing; while the mode changes, TCP
// goes on, also between nodes of different modes; and at no moment is anything readable on the
// wire.
func TestSealed(t *testing.T) {
	l := useSealed(t)
	for i, mode := range modes {
		if i > 0 {
			t.Run(modes[i-1]+" to "+mode, func(t *testing.T) { sealedChange(t, l, mode) })
		}
		if i == len(modes)-1 {
			break
		}
		t.Run(mode, func(t *testing.T) {
			t.Run("pods", func(t *testing.T) { sealedPods(t, l) })
			t.Run("nodes", func(t *testing.T) { sealedNodesTalk(t, l) })
			t.Run("sizes", func(t *testing.T) { sealedSizes(t, l) })
			t.Run("datagrams", func(t *testing.T) { sealedDatagrams(t, l) })
			t.Run("bulk", func(t *testing.T) { sealedBulk(t, l) })
			t.Run("hostile", func(t *testing.T) { hostile(t, l) })
			t.Run("unmanaged", func(t *testing.T) { unmanagedHosts(t, l) })
			t.Run("kill", func(t *testing.T) { sealedKill(t, l) })
		})
	}
}

// sealedChange changes the mode of one node after the other, under load.
func sealedChange(t *testing.T, l *lab.Lab, mode string) {
	watch := watchWire(t, l, podRules(l), nil)
	load := startLoad(t, paths(l)...)
	for _, n := range agents(l) {
		writeKeys(t, n, map[string]any{"mode": mode})
		if err := n.RestartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		load.flowing(t, "after the change of mode of node "+n.Name)
		for _, pair := range []path{{l.Pod("db"), l.Pod("web")}, {l.Pod("web"), l.Pod("db")}} {
			if err := reach(t.Context(), pair.from, pair.to); err != nil {
				t.Error(err)
			}
		}
	}
	load.tcpWhole(t)
	t.Logf("UDP while the mode changed:\n%s", load.lost())
	watch.allSealed(t, l)
}

// sealedPods has every pair of pods on different nodes talk, fragments included.
func sealedPods(t *testing.T, l *lab.Lab) {
	watch := watchWire(t, l, podRules(l), nil)
	for _, pair := range crossPairs(l) {
		if err := reach(t.Context(), pair.from, pair.to); err != nil {
			t.Error(err)
		}
		for _, family := range []int{4, 6} {
			report, err := traffic.Ping(t.Context(), pair.from.NetNS,
				traffic.PingOptions{Dst: pair.to.Addr(family), Size: 4000})
			if err != nil || !report.OK() {
				t.Errorf("fragmented ping %s to %s IPv%d: %+v %v; drops at a: %s; at b: %s",
					pair.from.Name, pair.to.Name, family, report, err,
					dropText(t, l.Node("a")), dropText(t, l.Node("b")))
			}
		}
	}
	watch.allSealed(t, l)
}

// sealedNodesTalk has nodes call remote pods and pods call remote nodes: sealed, too.
func sealedNodesTalk(t *testing.T, l *lab.Lab) {
	watch := watchWire(t, l, podRules(l), nil)
	var errs []error
	for _, pod := range l.Pods() {
		for _, node := range agents(l) {
			if node.Name == pod.Node {
				continue
			}
			for family := range map[int]bool{4: true, 6: true} {
				errs = append(errs, callAll(t.Context(), node.NetNS, pod.Addr(family)),
					callAll(t.Context(), pod.NetNS, node.Addresses[family/6]))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Errorf("%v\ndrops at a: %s; at b: %s", err, dropText(t, l.Node("a")),
			dropText(t, l.Node("b")))
	}
	watch.allSealed(t, l)
}

// callAll calls an echo server by TCP and UDP, and pings.
func callAll(ctx context.Context, ns string, to netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, errTCP := traffic.EchoTCP(ctx, ns, netip.Addr{}, addrPort(to, echoPort), 100_000)
	_, errUDP := traffic.EchoUDP(ctx, ns, netip.Addr{}, addrPort(to, echoPort), 1000)
	report, errPing := traffic.Ping(ctx, ns, traffic.PingOptions{Dst: to})
	if errPing == nil && !report.OK() {
		errPing = fmt.Errorf("ping %s: %+v", to, report)
	}
	return errors.Join(errTCP, errUDP, errPing)
}

// sealedSizes pings with DF at exactly the pods' MTU, which must pass, and one more, which must be
// refused with the right size.
func sealedSizes(t *testing.T, l *lab.Lab) {
	client, server := l.Pod("client"), l.Pod("server")
	mtu := status(t, l.Node("a")).MTU
	if mtu >= 1500 || mtu < 1400 {
		t.Errorf("the pods' MTU is %d on a wire of 1500", mtu)
	}
	for family, headers := range map[int]int{4: 28, 6: 48} {
		forgetPath(t, client)
		for _, size := range []int{mtu - headers - 3, mtu - headers - 2, mtu - headers - 1,
			mtu - headers} {
			fits, err := traffic.Ping(t.Context(), client.NetNS,
				traffic.PingOptions{Dst: server.Addr(family), DF: true, Size: size})
			if err != nil || !fits.OK() {
				t.Errorf("IPv%d packet of %d with DF, pods' MTU %d: %+v %v; drops at a: %s; at b: %s", family, size+headers, mtu, fits, err,
					dropText(t, l.Node("a")), dropText(t, l.Node("b")))
			}
		}
		more, err := traffic.Ping(t.Context(), client.NetNS,
			traffic.PingOptions{Dst: server.Addr(family), DF: true, Size: mtu - headers + 1})
		if err != nil || more.Received != 0 || more.TooBig != 1 || more.MTU != mtu {
			t.Errorf("IPv%d packet of %d with DF, pods' MTU %d: %+v %v", family, mtu+1, mtu, more,
				err)
		}
	}
}

// sealedDatagrams has sockets talk in datagrams of every size: their checksums were not finished
// when they left the pod.
func sealedDatagrams(t *testing.T, l *lab.Lab) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, server := l.Pod("client"), l.Pod("server")
	mtu := status(t, l.Node("a")).MTU
	for family, headers := range map[int]int{4: 28, 6: 48} {
		dst := addrPort(server.Addr(family), echoPort)
		for size := 1; size <= mtu-headers; size++ {
			if _, err := traffic.EchoUDP(ctx, client.NetNS, netip.Addr{}, dst, size); err != nil {
				t.Errorf("IPv%d: %v; drops at a: %s; at b: %s", family, err,
					dropText(t, l.Node("a")), dropText(t, l.Node("b")))
				break
			}
		}
	}
}

// sealedBulk sends much by TCP as fast as it goes, both families at once, both ways.
func sealedBulk(t *testing.T, l *lab.Lab) {
	const size = 8 << 20
	watch := watchWire(t, l, podRules(l), nil)
	for _, pair := range []path{{l.Pod("client"), l.Pod("server")}, {l.Pod("web"), l.Pod("db")}} {
		for _, family := range []int{4, 6} {
			dst := addrPort(pair.to.Addr(family), echoPort)
			if _, err := traffic.EchoTCP(t.Context(), pair.from.NetNS, netip.Addr{}, dst,
				size); err != nil {
				t.Errorf("%d bytes there and back, %s to %s IPv%d: %v", size, pair.from.Name,
					pair.to.Name, family, err)
			}
		}
	}
	watch.allSealed(t, l)
}

// sealedKill kills agents under load, and looks at the wire meanwhile.
func sealedKill(t *testing.T, l *lab.Lab) {
	watch := watchWire(t, l, podRules(l), nil)
	killUnderLoad(t, l)
	watch.allSealed(t, l)
}
