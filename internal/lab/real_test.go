package lab

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"weft.dev/weft/internal/lab/traffic"
)

// binary is the built weft, with which the tests here run; WEFT_BINARY names another.
var binary = cmp.Or(os.Getenv("WEFT_BINARY"), "../../build/weft")

// upReal builds the default lab, under another name and in cleartext, with real agents.
func upReal(t *testing.T, suffix string) *Lab {
	t.Helper()
	return upRealAs(t, suffix, EncryptionOff)
}

func upRealAs(t *testing.T, suffix, encryption string) *Lab {
	t.Helper()
	needsRoot(t)
	if _, err := os.Stat(binary); err != nil {
		t.Skip("needs build/weft: run `make build`")
	}
	spec := Default()
	spec.Name, spec.Encryption = testName(suffix), encryption
	l, err := Up(t.Context(), spec, Options{Binary: binary})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range l.Nodes() {
				t.Logf("node %s%s", n.Name, n.logTail())
			}
		}
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
		if left := leftovers(spec); len(left) > 0 || exists(l.Dir()) {
			t.Errorf("left after down: %v", left)
		}
	})
	return l
}

func TestRealPodsReachEachOther(t *testing.T) {
	l := upReal(t, "real")
	for _, want := range Default().Pods {
		got := l.Pod(want.Name)
		for _, a := range want.Addresses {
			if a != got.IPv4 && a != got.IPv6 {
				t.Errorf("pod %s has %s and %s, not %s", want.Name, got.IPv4, got.IPv6, a)
			}
		}
	}
	for _, to := range []string{"db", "server", "probe"} {
		for _, family := range []int{4, 6} {
			reach(t, l.Pod("client"), l.Pod(to), family)
		}
	}
	late, err := l.AddPod(t.Context(),
		PodSpec{Name: "late", Node: "b",
			Addresses: []netip.Addr{netip.MustParseAddr("10.77.2.222")}})
	if err != nil {
		t.Fatal(err)
	}
	reach(t, l.Pod("client"), late, 4)
	if err := l.DelPod(t.Context(), "late"); err != nil {
		t.Error(err)
	}
}

func TestRealAgentKilledUnderLoad(t *testing.T) {
	l := upReal(t, "kill")
	from, to := l.Pod("client"), l.Pod("server")
	var streams []*traffic.UDPStream
	for _, family := range []int{4, 6} {
		s, err := traffic.StartUDP(t.Context(),
			traffic.UDPOptions{From: from.NetNS, To: to.NetNS,
				Dst: netip.AddrPortFrom(to.Addr(family), 0)})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	tcp, err := traffic.StartTCP(t.Context(),
		traffic.TCPOptions{From: from.NetNS, To: to.NetNS, Dst: netip.AddrPortFrom(to.IPv4, 0),
			BytesPerSecond: 20 << 20})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	for _, n := range l.Nodes() {
		if err := n.KillAgent(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(200 * time.Millisecond)
		if err := n.StartAgent(t.Context()); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	for _, s := range streams {
		if r := s.Stop(); r.Received == 0 || r.Lost != 0 || r.SendErrors != 0 || r.Corrupt != 0 {
			t.Errorf("UDP: %s", r)
		}
	}
	if r := tcp.Stop(); r.Received == 0 || r.Received != r.Sent || r.Resets != 0 || r.Corrupt {
		t.Errorf("TCP: %s", r)
	}
}
