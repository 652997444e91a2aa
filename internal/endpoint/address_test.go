package endpoint

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint/endpointtest"
	"weft.dev/weft/internal/ipam"
)

func TestPoolExhausted(t *testing.T) {
	b := newHarness(t, "10.77.0.0/30") // .1 is the node's
	nsA, _ := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	b.add("a", nsA)
	_, err := b.Add(context.Background(), b.request("b", nsB))
	var full *ipam.ExhaustedError
	if !errors.As(err, &full) {
		t.Fatalf("want ExhaustedError, got %v", err)
	}
	if len(b.List()) != 1 {
		t.Errorf("the failed ADD left %v", b.List())
	}
	b.del("a")
	if res := b.add("b", nsB); res.IPv4.String() != "10.77.0.2" || res.IPv6.IsValid() {
		t.Errorf("got %v", res.Addresses())
	}
}

func TestFixedAddresses(t *testing.T) {
	b := newHarness(t)
	nsA, _ := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	pod := func(addrs ...string) *v1alpha1.Pod {
		p := &v1alpha1.Pod{}
		for _, a := range addrs {
			p.Spec.Addresses = append(p.Spec.Addresses, netip.MustParseAddr(a))
		}
		return p
	}
	b.pods["shop/a"] = pod("10.77.0.50", "fd77::50")
	if res := b.add("a", nsA); res.IPv4.String() != "10.77.0.50" ||
		res.IPv6.String() != "fd77::50" {
		t.Errorf("got %v", res.Addresses())
	}
	for _, tc := range []struct {
		addrs []string
		want  any
		text  string
	}{
		{[]string{"10.77.0.50"}, new(*ipam.TakenError), "pod shop/a (container a)"},
		{[]string{"fd77::60", "10.77.0.50"}, new(*ipam.TakenError), "pod shop/a"},
		{[]string{"10.77.0.1"}, new(*ipam.TakenError), "the node itself"},
		{[]string{"10.99.0.1"}, new(*ipam.OutsideError), "10.77.0.0/24"},
		{[]string{"10.77.0.51", "10.77.0.51"}, nil, "10.77.0.51 is there twice"},
		{[]string{"10.77.0.51", "10.77.0.50"}, new(*ipam.TakenError), "pod shop/a"},
		{addrsFrom("10.77.0.100", 17), nil, "10.77.0.116 is one too many"},
	} {
		b.pods["shop/b"] = pod(tc.addrs...)
		_, err := b.Add(context.Background(), b.request("b", nsB))
		if err == nil || !strings.Contains(err.Error(), tc.text) || tc.want != nil &&
			!errors.As(err, tc.want) {
			t.Errorf("%v: got %v", tc.addrs, err)
		}
	}
	b.pods["shop/b"] = pod("10.77.0.60")
	if res := b.add("b", nsB); res.IPv4.String() != "10.77.0.60" || !res.IPv6.IsValid() {
		t.Errorf("got %v", res.Addresses())
	}
}

// addrsFrom are so many addresses, one after another.
func addrsFrom(first string, count int) (out []string) {
	for a := netip.MustParseAddr(first); len(out) < count; a = a.Next() {
		out = append(out, a.String())
	}
	return out
}

func parsed(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// TestManyAddresses: an endpoint has all addresses that are asked for, on its interface, in the
// datapath and where it is published, keeps them over a restart, and gives all of them back.
func TestManyAddresses(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	asked := parsed(append(addrsFrom("10.77.0.100", 8), addrsFrom("fd77::50", 8)...)...)
	req := b.request("a", ns)
	req.Addresses = asked
	res, err := b.Add(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	sortAddrs := func(list []netip.Addr) []netip.Addr {
		return slices.SortedFunc(slices.Values(list), netip.Addr.Compare)
	}
	has := func(when string) {
		t.Helper()
		if err := b.check("a"); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		for what, got := range map[string][]netip.Addr{
			"endpoint": res.Addresses(), "datapath": b.dp.Attached()[res.Slot].Addresses(),
			"object": b.dir.Objects()["shop/a"].Spec.Addresses,
		} {
			if !slices.Equal(sortAddrs(got), sortAddrs(asked)) {
				t.Errorf("%s: the %s has %v, want %v", when, what, got, asked)
			}
		}
	}
	has("made")
	b.restart()
	has("restarted")
	if _, taken := b.ByIP(0, asked[15]); !taken {
		t.Error("the last address is nobody's")
	}
	req.Addresses = asked[:3]
	if res, err = b.Add(context.Background(), req); err != nil ||
		slices.Contains(res.Addresses(), asked[3]) {
		t.Errorf("asked for fewer: %v, %v", res, err)
	}
	b.del("a")
	for _, a := range asked {
		if got, taken := b.ByIP(0, a); taken {
			t.Errorf("%s is %s's still", a, got.ID)
		}
	}
}

// TestNetworksOfEndpoints: two networks have the same address on one node. The node's own routes,
// and what is published, are the cluster's alone, and over a restart each stays in its own.
func TestNetworksOfEndpoints(t *testing.T) {
	b := newHarness(t)
	shared := parsed("10.77.0.50", "fd77::50")
	add := func(id string, network uint32, addrs []netip.Addr) *AddResult {
		t.Helper()
		ns, _ := endpointtest.NewPod(t)
		req := b.request(id, ns)
		req.NetworkID, req.Addresses = network, addrs
		res, err := b.Add(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	cluster, blue := add("a", 0, shared), add("b", 7, shared)
	outside := add("c", 7, parsed("10.1.2.3"))
	given, first := add("d", 7, nil), add("e", 8, nil)
	for round := range 2 {
		for _, res := range []*AddResult{cluster, blue, outside, given, first} {
			if got := b.dp.Attached()[res.Slot]; got.Network != res.NetworkID ||
				!slices.Equal(got.Addresses(), res.Addresses()) {
				t.Errorf("round %d: %s is attached as %+v", round, res.ContainerID, got)
			}
			if err := b.check(res.ContainerID); err != nil {
				t.Error(err)
			}
		}
		for network, want := range map[uint32]string{0: cluster.ID, 7: blue.ID, 8: ""} {
			if got, _ := b.ByIP(network, shared[0]); got.ID != want {
				t.Errorf("round %d: %s in network %d is %s's, want %s's", round, shared[0], network,
					got.ID, want)
			}
		}
		b.restart()
	}
	for id, want := range map[string]float64{cluster.ID: 1,
		blue.ID: 2} { // an older agent would take it for the cluster's
		b.rewrite(id, func(rec map[string]any) {
			if rec["version"] != want {
				t.Errorf("record of version %v, want %v", rec["version"], want)
			}
		})
	}
	if given.IPv4 != first.IPv4 {
		t.Errorf("two networks give %s and %s first", given.IPv4, first.IPv4)
	}
	if got := b.dir.Objects(); len(got) != 1 || got["shop/a"].Spec.Addresses == nil {
		t.Errorf("published: %v", got)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL,
		&netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		t.Fatal(err)
	}
	if len(routes) != 2 {
		t.Errorf("the node's routes: %v", routes)
	}
	ns, _ := endpointtest.NewPod(t)
	req := b.request("f", ns)
	req.NetworkID, req.Addresses = 7, shared[:1]
	if _, err := b.Add(context.Background(), req); err == nil ||
		!strings.Contains(err.Error(), "pod shop/b") {
		t.Errorf("the same address in the same network: %v", err)
	}
}

// TestAddressReusedAtOnce gives a freed address to another pod while the calls that
// remove its old owner come again, late.
func TestAddressReusedAtOnce(t *testing.T) {
	b := newHarness(t)
	nsA, _ := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	req := b.request("a", nsA)
	req.Pod, req.Addresses = "db", []netip.Addr{netip.MustParseAddr("10.77.0.9"),
		netip.MustParseAddr("fd77::9")}
	if _, err := b.Add(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	b.del("a")
	req.ContainerID, req.NetNS = "b", nsB
	res, err := b.Add(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	b.del("a") // the runtime repeats itself
	if err := b.check("b"); err != nil {
		t.Error(err)
	}
	if got := b.dir.Objects()["shop/db"]; got.Spec.MAC != res.MAC {
		t.Errorf("published %+v", got)
	}
	if got := b.dp.Attached()[res.Slot]; got.HostIf != res.HostIf {
		t.Errorf("attached %+v", got)
	}
}

// TestSuccessorOfTheSameName adds a pod's new container before the old one is removed.
func TestSuccessorOfTheSameName(t *testing.T) {
	b := newHarness(t)
	nsA, _ := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	req := b.request("old", nsA)
	req.Pod = "db"
	if _, err := b.Add(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	req.ContainerID, req.NetNS = "new", nsB
	res, err := b.Add(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	b.del("old")
	if got := b.dir.Objects()["shop/db"]; got.Spec.MAC != res.MAC {
		t.Errorf("published %+v, want that of the new container", got)
	}
}

func TestFailedDetachKeepsTheAddress(t *testing.T) {
	b := newHarness(t, "10.77.0.0/30")
	nsA, _ := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	b.add("a", nsA)
	b.dp.Fail = func(op string, _ datapath.Endpoint) error {
		if op == "detach" {
			return errors.New("stuck")
		}
		return nil
	}
	if err := b.Del(context.Background(),
		DelRequest{Attachment: Attachment{"a", "eth0"}}); err == nil {
		t.Fatal("DEL succeeded")
	}
	var full *ipam.ExhaustedError
	if _, err := b.Add(context.Background(), b.request("b", nsB)); !errors.As(err, &full) {
		t.Fatalf("the address was given away: %v", err)
	}
	b.dp.Fail = nil
	b.del("a")
	b.add("b", nsB)
}

// TestNodeWithoutIPv6 gives IPv4 only, and says so when a fixed address asks for more.
func TestNodeWithoutIPv6(t *testing.T) {
	b := newHarness(t)
	const path = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
	if err := os.WriteFile(path, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile(path, []byte("0"), 0) })
	ns, _ := endpointtest.NewPod(t)
	if res := b.add("c1", ns); res.IPv6.IsValid() || len(res.Routes) != 2 {
		t.Errorf("got %v, routes %v", res.Addresses(), res.Routes)
	}
	if err := b.check("c1"); err != nil {
		t.Error(err)
	}
	req := b.request("c2", ns)
	req.Addresses = []netip.Addr{netip.MustParseAddr("fd77::9")}
	if _, err := b.Add(context.Background(), req); err == nil ||
		!strings.Contains(err.Error(), "IPv6 is disabled") {
		t.Errorf("got %v", err)
	}
}

// TestPodWithoutIPv6 is a namespace as some runtimes make it, with IPv6 off until a plugin wants
// it.
func TestPodWithoutIPv6(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	inPod(t, ns,
		func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"),
				0)
		})
	b.add("c1", ns)
	if err := b.check("c1"); err != nil {
		t.Error(err)
	}
}
