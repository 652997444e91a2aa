package endpoint

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

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
	if res := b.add("a", nsA); res.IPv4.String() != "10.77.0.50" || res.IPv6.String() != "fd77::50" {
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
		{[]string{"10.77.0.51", "10.77.0.52"}, nil, "at most one IPv4"},
	} {
		b.pods["shop/b"] = pod(tc.addrs...)
		_, err := b.Add(context.Background(), b.request("b", nsB))
		if err == nil || !strings.Contains(err.Error(), tc.text) || tc.want != nil && !errors.As(err, tc.want) {
			t.Errorf("%v: got %v", tc.addrs, err)
		}
	}
	b.pods["shop/b"] = pod("10.77.0.60")
	if res := b.add("b", nsB); res.IPv4.String() != "10.77.0.60" || !res.IPv6.IsValid() {
		t.Errorf("got %v", res.Addresses())
	}
}

// TestAddressReusedAtOnce gives a freed address to another pod while the calls that
// remove its old owner come again, late.
func TestAddressReusedAtOnce(t *testing.T) {
	b := newHarness(t)
	nsA, _ := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	req := b.request("a", nsA)
	req.Pod, req.Addresses = "db", []netip.Addr{netip.MustParseAddr("10.77.0.9"), netip.MustParseAddr("fd77::9")}
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
	if err := b.Del(context.Background(), DelRequest{Attachment: Attachment{"a", "eth0"}}); err == nil {
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
	if _, err := b.Add(context.Background(), req); err == nil || !strings.Contains(err.Error(), "IPv6 is disabled") {
		t.Errorf("got %v", err)
	}
}

// TestPodWithoutIPv6 is a namespace as some runtimes make it, with IPv6 off until a plugin wants it.
func TestPodWithoutIPv6(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	inPod(t, ns, func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0) })
	b.add("c1", ns)
	if err := b.check("c1"); err != nil {
		t.Error(err)
	}
}
