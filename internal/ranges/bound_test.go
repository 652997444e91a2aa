package ranges

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
)

// TestForeignAddresses: who may publish endpoints does not thereby get the traffic for any address
// of the world.
func TestForeignAddresses(t *testing.T) {
	a, b := node("a", "192.0.2.1", "10.77.1.0/24"), node("b", "192.0.2.2", "10.77.2.0/24",
		"198.51.100.0/24")
	unused := node("c", "10.0.0.3", "10.77.3.0/24")
	for _, tt := range []struct {
		addr    string
		cluster string
		want    string // in the refusal, "" for none
	}{
		{"1.1.1.1", "", "public"}, {"203.0.113.10", "", "public"}, {"2001:db8::7", "", "public"},
		{"169.254.169.254", "", "link-local"}, {"fe80::7", "", "link-local"},
		{"224.0.0.5", "", "multicast"}, {"ff02::1", "", "multicast"},
		{"255.255.255.255", "", "broadcast"},
		{"127.0.0.1", "", "loopback"}, {"::1", "", "loopback"}, {"0.0.0.0", "", "unspecified"},
		{"::", "", "unspecified"},
		{"192.0.2.1", "", "of node a"}, {"192.0.2.2", "", "of node b"},
		{"10.0.0.3", "", "that of node c"},
		{"10.0.0.3", "10.0.0.0/8", "that of node c"},
		{"169.254.1.1", "169.254.0.0/16", "link-local"},
		{"172.16.0.9", "10.0.0.0/8", "outside clusterCIDRs"},
		{"1.1.1.1", "10.0.0.0/8", "outside clusterCIDRs"},
		{"10.200.0.9", "", ""}, {"172.31.0.9", "", ""}, {"192.168.0.9", "", ""},
		{"100.64.0.9", "", ""}, {"100.127.255.9", "", ""}, {"fd99::7", "", ""},
		{"100.128.0.9", "", "public"}, {"172.32.0.9", "", "public"},
		{"10.200.0.9", "10.0.0.0/8", ""}, {"203.0.113.10", "203.0.113.0/24", ""},
		{"198.51.100.9", "10.0.0.0/8", ""},
	} {
		t.Run(tt.addr+" "+tt.cluster, func(t *testing.T) {
			s := snapshot(a, b, endpoint("x", "b", tt.addr))
			s.Unused = append(s.Unused, unused)
			in := Input{Self: "a", Snapshot: s}
			if tt.cluster != "" {
				in.Cluster = []netip.Prefix{netip.MustParsePrefix(tt.cluster)}
			}
			m := open(t, t.TempDir())
			v, err := m.Learn(in)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(v.Refused, "\n")
			if !strings.Contains(text, tt.want) || (tt.want == "") != (text == "") {
				t.Errorf("refused %q, want %q", text, tt.want)
			}
			if tt.want != "" &&
				(len(v.Published["b"]) != 0 ||
					!strings.Contains(text, "endpoint shop/x of node b has the address "+tt.addr)) {
				t.Errorf("published %v, refused %q", v.Published, text)
			}
		})
	}
}

// TestAnnexedBefore: an address that was taken for a pod's by an earlier version is the world's
// again.
func TestAnnexedBefore(t *testing.T) {
	m := open(t, t.TempDir())
	p := netip.MustParsePrefix("1.1.1.1/32")
	m.entries[p] = Entry{Prefix: p, Kind: Endpoint, Node: "b"}
	v, err := m.Learn(Input{Self: "a",
		Snapshot: snapshot(node("b", "192.0.2.2", "10.77.2.0/24"), endpoint("x", "b", "1.1.1.1"))})
	if err != nil || told(v) != "1 refused" {
		t.Errorf("%s, %v", told(v), err)
	}
}

// TestLostIsBounded: what nodes leave behind neither grows without end nor opens: neighbouring
// ranges become one, single addresses go before ranges, and a node that changes its ranges again
// and again pushes out none of another's.
func TestLostIsBounded(t *testing.T) {
	m := open(t, t.TempDir())
	clock := time.Unix(0, 0)
	m.now = func() time.Time { clock = clock.Add(time.Second); return clock }
	learn := func(objects ...v1alpha1.Object) *View {
		t.Helper()
		v, err := m.Learn(Input{Self: "a", Snapshot: snapshot(objects...)})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	learn(node("old", "192.0.2.9", "172.20.0.0/24"))
	adopt := func(kind Kind, node string, count int, at func(i int) netip.Prefix) {
		clock = clock.Add(time.Second)
		for i := range count {
			m.entries[at(i)] = Entry{Prefix: at(i), Kind: kind, Node: node, Lost: clock,
				Why: "gone"}
		}
	}
	v4 := func(first byte, i, bits int) netip.Prefix {
		n := uint32(first)<<24 | uint32(i)<<(32-bits)
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8),
			byte(n)}), bits)
	}
	// 65536 neighbours are one range.
	adopt(Range, "b", 1<<16, func(i int) netip.Prefix { return v4(10, i, 24) })
	v := learn()
	if got := told(v); got != "-10.0.0.0/8=b -172.20.0.0/24=old -192.0.2.9/32=old" {
		t.Errorf("neighbours: %.300s", got)
	}
	// Ranges with gaps, and addresses that are gone longer and shorter.
	adopt(Address, "c", 100, func(i int) netip.Prefix { return v4(100, i, 32) })
	adopt(Address, "c", 100, func(i int) netip.Prefix { return v4(101, i, 32) })
	adopt(Range, "churn", maxLost-50, func(i int) netip.Prefix { return v4(11, 2*i, 25) })
	for range 2 {
		v = learn()
		if len(v.Lost) != maxLost || len(v.Refused) != 1 ||
			!strings.Contains(v.Refused[0], fmt.Sprint(maxLost)) {
			t.Errorf("%d lost, refused %v", len(v.Lost), v.Refused)
		}
	}
	count := map[string]int{}
	for _, e := range v.Lost {
		count[fmt.Sprintf("%d %s", e.Prefix.Addr().As4()[0], e.Node)]++
	}
	if count["11 churn"] != maxLost-50 || count["172 old"] != 1 || count["10 b"] != 1 ||
		count["100 c"] != 0 || count["101 c"] == 0 {
		t.Errorf("single addresses did not go first: %v", count)
	}
	adopt(Range, "churn", maxLost+50, func(i int) netip.Prefix { return v4(12, 2*i, 25) })
	v = learn()
	if got := told(v); len(v.Lost) != maxLost || !strings.Contains(got, "-10.0.0.0/8=b ") ||
		!strings.Contains(got, "-172.20.0.0/24=old") {
		t.Errorf("%d lost; the ranges of others were pushed out", len(v.Lost))
	}
}
