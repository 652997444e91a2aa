package demo

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/bench"
	"weft.dev/weft/internal/connectivity"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab/traffic"
)

func TestStoryText(t *testing.T) {
	var out bytes.Buffer
	s := newStory(&out)
	s.section("One")
	s.say("Hello.")
	s.show("weft version", "v1\n")
	s.showTable(&table{Header: []string{"NAME", "COUNT"},
		Rows: [][]string{{"ä", "7"}, {"longer", "1234567"}}, Left: 1})
	s.check("it-works", true, "%d of %d", 2, 2)
	s.section("Two")
	s.check("it-fails", false, "why")
	want := `
1. One

   Hello.

   $ weft version
   v1

   NAME      COUNT
   ä             7
   longer  1234567

   ok     it-works                   2 of 2

2. Two

   FAILED it-fails                   why
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	if len(s.checks) != 2 || len(s.sections) != 2 || len(s.sections[0].Blocks) != 4 {
		t.Errorf("kept %d checks, %d sections", len(s.checks), len(s.sections))
	}
}

func TestMapText(t *testing.T) {
	m := &labMap{
		Nodes: []mapNode{
			{"a", []string{"192.0.2.1"},
				[]mapPod{{"x/one", "10.0.0.1", "fd00::1"}, {"x/two", "10.0.0.2", "fd00::2"}}},
			{"b", []string{"192.0.2.2"}, []mapPod{{"x/three", "10.0.1.1", "fd01::1"}}},
		},
		Wires: []string{"wire w0, MTU 1500"},
	}
	lines := strings.Split(strings.TrimRight(m.text(), "\n"), "\n")
	if len(lines) != 7 {
		t.Fatalf("%d lines:\n%s", len(lines), m.text())
	}
	// Both ends of the wire meet a box's lower edge.
	edge, wire := []rune(lines[5]), []rune(lines[6])
	for i, r := range wire {
		if (r == '└' || r == '┘') && edge[i] != '┬' {
			t.Errorf("the wire's end at %d meets %q:\n%s", i, edge[i], m.text())
		}
	}
	if strings.Count(string(edge), "┬") != 2 || !strings.HasSuffix(lines[6], "┘") {
		t.Errorf("the wire does not join the boxes:\n%s", m.text())
	}
}

func TestWrap(t *testing.T) {
	if got, want := wrap("one two  three four", 9), "one two\nthree\nfour"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestQuote(t *testing.T) {
	if got, want := quote([]string{"--to", "[fd00::1]:53/udp",
		"it's"}), `--to '[fd00::1]:53/udp' 'it'\''s'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMatrix(t *testing.T) {
	report := &connectivity.Report{Results: []connectivity.Result{
		{From: "a", To: "b", OK: true}, {From: "a", To: "b", OK: true},
		{From: "b", To: "a", OK: true}, {From: "b", To: "a"},
	}}
	want := [][]string{{"a", "·", "ok 2/2"}, {"b", "FAILED 1/2", "·"}}
	if diff := cmp.Diff(want, matrix(report).Rows); diff != "" {
		t.Error(diff)
	}
}

func TestJudge(t *testing.T) {
	good := traffic.TCPReport{Sent: 10, Received: 10}
	for _, test := range []struct {
		name     string
		tcp      traffic.TCPReport
		udp      traffic.UDPReport
		okU, okT bool
	}{
		{"nothing lost", good, traffic.UDPReport{Sent: 1000, Received: 1000}, true, true},
		{"one lost", good, traffic.UDPReport{Sent: 1000, Received: 999, Lost: 1}, false, true},
		{"one refused", good, traffic.UDPReport{Sent: 1000, Received: 1000, SendErrors: 1}, false,
			true},
		{"too few to tell", good, traffic.UDPReport{Sent: 400, Received: 400}, false, true},
		{"bytes missing", traffic.TCPReport{Sent: 10, Received: 9},
			traffic.UDPReport{Sent: 1000, Received: 1000}, true, false},
		{"reset", traffic.TCPReport{Sent: 10, Received: 10, Resets: 1},
			traffic.UDPReport{Sent: 1000, Received: 1000}, true, false},
		{"silence", traffic.TCPReport{}, traffic.UDPReport{Sent: 1000, Received: 1000}, true,
			false},
	} {
		d := &demo{story: newStory(&bytes.Buffer{})}
		d.judge("kill9", []*stream{{family: "v4"}}, []traffic.TCPReport{test.tcp},
			[]traffic.UDPReport{test.udp}, 1)
		if len(d.checks) != 2 || d.checks[0].OK != test.okU || d.checks[1].OK != test.okT {
			t.Errorf("%s: %+v", test.name, d.checks)
		}
	}
}

func TestRouteChecks(t *testing.T) {
	for _, test := range []struct {
		name     string
		variants []string
		err      error
		failed   []string
	}{
		{"all measured and faster", routeVariants, nil, nil},
		{"a part failed", routeVariants, fmt.Errorf("broken"), []string{"route-measured"}},
		{"no xdp", []string{bench.VariantIPTables, bench.VariantAuto}, nil,
			[]string{"route-measured", "route-xdp"}},
		{"slower",
			[]string{bench.VariantXDP, bench.VariantIPTables, bench.VariantStack, bench.VariantTC,
				bench.VariantXDPGeneric, bench.VariantAutoXDP, bench.VariantAuto}, nil,
			[]string{"route-xdp"}},
	} {
		d := &demo{story: newStory(&bytes.Buffer{}), measured: *measured(test.variants...)}
		d.routeChecks(test.err, nil)
		var failed []string
		for _, c := range d.checks {
			if !c.OK {
				failed = append(failed, c.Name)
			}
		}
		if diff := cmp.Diff(test.failed, failed); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

func TestRateTable(t *testing.T) {
	rows := rateTable(measured(bench.VariantIPTables, bench.VariantXDP)).Rows
	want := [][]string{
		{"iptables", "0.50", "0.40–0.60", "1.00", "2000", "1601", "1.00"},
		{"xdp", "1.00", "0.40–1.20", "2.00", "1000", "800", "2.00"},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
}

func TestFrames(t *testing.T) {
	src, dst := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	for _, test := range []struct {
		name  string
		frame []byte
		want  string
	}{
		// The IPv4 header's checksum was computed by hand.
		{"IPv4",
			udpFrame(src, dst, netip.MustParseAddr("10.0.0.1"),
				netip.MustParseAddrPort("10.0.0.2:53"), []byte("hi!")),
			"020000000002" + "020000000001" + "0800" + "4500001f00004000401126cc" +
				"0a0000010a000002" + "9c400035000b" + "????" + "686921"},
		{"IPv6",
			udpFrame(src, dst, netip.MustParseAddr("fd00::1"),
				netip.MustParseAddrPort("[fd00::2]:53"), []byte("hi!")),
			"020000000002" + "020000000001" + "86dd" + "60000000000b1140" +
				"fd000000000000000000000000000001" + "fd000000000000000000000000000002" +
				"9c400035000b" + "????" + "686921"},
		{"ARP",
			inet.ARPRequest(src, netip.MustParseAddr("10.0.0.9"),
				netip.MustParseAddr("169.254.1.1")),
			"ffffffffffff" + "020000000001" + "0806" + "0001080006040001" + "020000000001" +
				"0a000009" + "000000000000" + "a9fe0101"},
	} {
		got := hex.EncodeToString(test.frame)
		if at := strings.Index(test.want, "????"); at >= 0 && len(got) == len(test.want) {
			got = got[:at] + "????" + got[at+4:]
		}
		if got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
	}
}
