package connectivity

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns/nettest"
)

func TestPairs(t *testing.T) {
	targets := []Target{{Name: "p1", Kind: KindPod}, {Name: "p2", Kind: KindPod},
		{Name: "n1", Kind: KindNode}, {Name: "n2", Kind: KindNode}}
	if got := len(choosePairs(targets, Options{})); got != 2+8 {
		t.Errorf("%d pairs", got)
	}
	if got := choosePairs(targets,
		Options{From: []string{"p1"}, To: []string{"n2"}}); len(got) != 1 ||
		got[0].to.Name != "n2" {
		t.Errorf("selected %v", got)
	}
}

func TestPathMTU(t *testing.T) {
	for _, test := range []struct {
		from, to Target
		want     int
	}{
		{Target{Node: "a", MTU: 1500}, Target{Node: "a", MTU: 1400, WireMTU: 1300}, 1400},
		{Target{Node: "a", MTU: 9000, WireMTU: 1500}, Target{Node: "b", MTU: 9000, WireMTU: 2000},
			1500},
		{Target{Node: "a"}, Target{Node: "b"}, 0},
	} {
		if got := (pair{test.from, test.to}).pathMTU(); got != test.want {
			t.Errorf("%+v %+v: %d", test.from, test.to, got)
		}
	}
}

func TestRefuses(t *testing.T) {
	for _, opt := range []Options{{Protocols: []string{"sctp"}}, {Families: []string{"v5"}},
		{Tries: -1}} {
		if _, err := Test(context.Background(), nil, opt); err == nil {
			t.Errorf("%+v was taken", opt)
		}
	}
	if _, err := Test(context.Background(), []Target{{Name: "alone", Kind: KindPod}},
		Options{}); err == nil || !strings.Contains(err.Error(), "no pair") {
		t.Errorf("error %v", err)
	}
}

func TestMessage(t *testing.T) {
	for _, family := range Families {
		p := probe{family: family, protocol: "icmp"}
		m := p.message(57)
		if family == "v4" && inet.Checksum(m.wire) != 0 {
			t.Error("bad checksum")
		}
		var header []byte
		if family == "v4" {
			header = append([]byte{0x46}, make([]byte, 23)...) // with options
		}
		reply := append(header, m.wire...)
		if m.answeredBy(reply) {
			t.Error("a request is taken for an answer")
		}
		reply[len(header)] = m.reply
		if !m.answeredBy(reply) || m.answeredBy(reply[:60]) || m.answeredBy(nil) ||
			p.message(57).answeredBy(reply) {
			t.Errorf("%s answers are told apart wrongly", family)
		}
	}
}

// harness is two pods on two nodes, joined by a router whose way to b takes smaller packets.
type harness struct {
	a, b Target
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newHarness(t *testing.T) harness {
	a, router, b := nettest.New(t, "conn-a"), nettest.New(t, "conn-r"), nettest.New(t, "conn-b")
	nettest.Wire(t,
		nettest.End{NetNS: a, Name: "eth0", MTU: 1500,
			Addrs: []string{"10.1.0.2/24", "fd01::2/64"}},
		nettest.End{NetNS: router, Name: "ra", MTU: 1500,
			Addrs: []string{"10.1.0.1/24", "fd01::1/64"}})
	nettest.Wire(t,
		nettest.End{NetNS: b, Name: "eth0", MTU: 1400,
			Addrs: []string{"10.2.0.2/24", "fd02::2/64"}},
		nettest.End{NetNS: router, Name: "rb", MTU: 1400,
			Addrs: []string{"10.2.0.1/24", "fd02::1/64"}})
	nettest.Do(t, router, nettest.Forward)
	nettest.Do(t, a, func() error { return nettest.DefaultRoutes("10.1.0.1", "fd01::1") })
	nettest.Do(t, b, func() error { return nettest.DefaultRoutes("10.2.0.1", "fd02::1") })
	return harness{
		a: Target{Name: "demo/a", Kind: KindPod, Node: "a", NetNS: a,
			IPv4: netip.MustParseAddr("10.1.0.2"), IPv6: netip.MustParseAddr("fd01::2"), MTU: 1500},
		b: Target{Name: "demo/b", Kind: KindPod, Node: "b", NetNS: b,
			IPv4: netip.MustParseAddr("10.2.0.2"), IPv6: netip.MustParseAddr("fd02::2"), MTU: 1400},
	}
}

func TestOverRouter(t *testing.T) {
	harness := newHarness(t)
	report, err := Test(context.Background(), []Target{harness.a, harness.b},
		Options{Timeout: 30 * time.Second})
	must(t, err)
	// Two directions, two families, three ICMP and three UDP tests and one transfer.
	if !report.OK || report.Passed != 2*2*7 {
		t.Errorf("passed %d failed %d", report.Passed, report.Failed)
	}
	for _, result := range report.Results {
		if !result.OK {
			t.Errorf("%+v", result)
		}
	}
}

func TestBlackholeIsNamed(t *testing.T) {
	harness := newHarness(t)
	// The test believes in a larger path than there is, and in one that is too small.
	harness.b.MTU = 1500
	report, err := Test(context.Background(), []Target{harness.a, harness.b},
		Options{Timeout: 2 * time.Second, Tries: 1, Protocols: []string{"udp"},
			Families: []string{"v4"}, From: []string{"demo/a"}})
	must(t, err)
	if report.OK || report.Results[1].OK || report.Results[2].OK {
		t.Errorf("%+v", report.Results)
	}
	harness.b.MTU = 1300
	report, err = Test(context.Background(), []Target{harness.a, harness.b},
		Options{Timeout: time.Second, Protocols: []string{"icmp"}, From: []string{"demo/b"}})
	must(t, err)
	for _, result := range report.Results {
		if result.Test == "over" &&
			(result.OK || !strings.Contains(result.Detail, "was delivered")) {
			t.Errorf("%+v", result)
		}
	}
	harness.b.IPv4 = netip.MustParseAddr("10.9.9.9")
	if _, err := Test(context.Background(), []Target{harness.a, harness.b},
		Options{}); err == nil || !strings.Contains(err.Error(), "answer on 10.9.9.9 of demo/b") {
		t.Errorf("error %v", err)
	}
}
