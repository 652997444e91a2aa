package endpoint

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/endpoint/endpointtest"
)

func TestAddMakesWhatCheckWants(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	b.pods["shop/web"] = &v1alpha1.Pod{
		Metadata: v1alpha1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:     v1alpha1.PodSpec{ServiceAccount: "seller"},
	}
	req := b.request("c1", ns)
	req.Pod, req.PodUID, req.Labels = "web", "u-1", map[string]string{"extra": "1"}
	res, err := b.Add(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	if res.IPv4.String() != "10.77.0.2" || res.IPv6.String() != "fd77::1" || res.Slot != 1 || res.MTU != 1450 {
		t.Errorf("got %+v", res.Info)
	}
	if err := b.check("c1"); err != nil {
		t.Errorf("check: %v", err)
	}
	if diff := cmp.Diff(res.Info.Datapath(), b.dp.Attached()[1], cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("attached (-want +got):\n%s", diff)
	}
	object := b.dir.Objects()["shop/web"]
	if object.Spec.ServiceAccount != "seller" || object.Spec.NodeName != "n1" || object.Status.Phase != v1alpha1.EndpointReady ||
		!maps.Equal(object.Metadata.Labels, map[string]string{"app": "web", "extra": "1"}) || !slices.Equal(object.Spec.Addresses, res.Addresses()) {
		t.Errorf("published %+v", object)
	}
	for _, name := range []string{res.ID, "shop/web", "web", "c1", res.HostIf} {
		if got, ok := b.Get(name); !ok || got.ID != res.ID {
			t.Errorf("Get(%q) = %v, %v", name, got.ID, ok)
		}
	}
	if got, ok := b.ByIP(0, res.IPv6); !ok || got.ID != res.ID {
		t.Error("ByIP does not find it")
	}
	if got, ok := b.BySlot(1); !ok || got.ID != res.ID {
		t.Error("BySlot does not find it")
	}
	if _, ok := b.Get("nobody"); ok {
		t.Error("Get finds nobody")
	}
	b.del("c1")
	b.nothingLeft()
}

func TestHostSideSettings(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	res := b.add("c1", ns)
	link := b.link(res)
	if link.Attrs().HardwareAddr.String() != GatewayMAC.String() || link.Attrs().MTU != 1450 {
		t.Errorf("MAC %s, MTU %d", link.Attrs().HardwareAddr, link.Attrs().MTU)
	}
	if addrs, _ := netlink.AddrList(link, netlink.FAMILY_ALL); len(addrs) > 0 {
		t.Errorf("host side has addresses: %v", addrs)
	}
	for path, want := range map[string]string{
		"ipv4/conf/%s/rp_filter": "0", "ipv4/conf/%s/forwarding": "1", "ipv4/conf/%s/proxy_arp": "0",
		"ipv6/conf/%s/accept_ra": "0", "ipv6/conf/%s/forwarding": "1", "ipv6/conf/%s/disable_ipv6": "0",
	} {
		data, err := os.ReadFile("/proc/sys/net/" + strings.Replace(path, "%s", res.HostIf, 1))
		if got := strings.TrimSpace(string(data)); err != nil || got != want {
			t.Errorf("%s = %q (%v), want %s", path, got, err, want)
		}
	}
}

// TestTrafficThroughTheStack shows that addresses, routes and neighbours are enough for
// the node's stack to forward between pods once somebody answers for the gateway.
func TestTrafficThroughTheStack(t *testing.T) {
	b := newHarness(t)
	for _, path := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile(path, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	nsA, _ := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	resA, resB := b.add("a", nsA), b.add("b", nsB)
	for _, ns := range []string{nsA, nsB} {
		inPod(t, ns, setGatewayNeighbours)
	}
	for _, pair := range [][2]netip.Addr{{resA.IPv4, resB.IPv4}, {resA.IPv6, resB.IPv6}} {
		exchange(t, nsA, pair[0], nsB, pair[1])
	}
}

// setGatewayNeighbours stands in for the hook that answers ARP and neighbour solicitations.
func setGatewayNeighbours() error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	var errs []error
	for _, gw := range []netip.Addr{GatewayIPv4, GatewayIPv6} {
		errs = append(errs, netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, Family: family(gw), State: netlink.NUD_PERMANENT, IP: gw.AsSlice(), HardwareAddr: GatewayMAC,
		}))
	}
	return errors.Join(errs...)
}

func exchange(t *testing.T, nsA string, a netip.Addr, nsB string, z netip.Addr) {
	t.Helper()
	var server, client *net.UDPConn
	inPod(t, nsB, func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(z, 7000)))
		return err
	})
	defer server.Close()
	inPod(t, nsA, func() (err error) {
		client, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(z, 7000)))
		return err
	})
	defer client.Close()
	buf := make([]byte, 64)
	deadline := time.Now().Add(time.Minute)
	server.SetReadDeadline(deadline)
	client.SetReadDeadline(deadline)
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	_, from, err := server.ReadFromUDPAddrPort(buf)
	if err != nil || from.Addr().Unmap() != a {
		t.Fatalf("server heard %v: %v", from, err)
	}
	server.WriteToUDPAddrPort([]byte("hello back"), from)
	if n, err := client.Read(buf); err != nil || string(buf[:n]) != "hello back" {
		t.Fatalf("client heard %q: %v", buf[:n], err)
	}
}

func TestAddTwiceIsOne(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	first := b.add("c1", ns)
	second := b.add("c1", ns)
	if diff := cmp.Diff(first, second, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("second ADD differs:\n%s", diff)
	}
	if b.dp.Attaches() != 1 {
		t.Errorf("attached %d times", b.dp.Attaches())
	}
	inPod(t, ns, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
	third := b.add("c1", ns)
	if third.IPv4 != first.IPv4 || third.IPv6 != first.IPv6 {
		t.Errorf("made anew with %v instead of %v", third.Addresses(), first.Addresses())
	}
	if err := b.check("c1"); err != nil {
		t.Error(err)
	}
}

func TestParallelAddsAreDistinct(t *testing.T) {
	b := newHarness(t)
	const n = 50
	results := make([]*AddResult, n)
	var wg sync.WaitGroup
	for i, c := range containers(n) {
		ns, _ := endpointtest.NewPod(t)
		wg.Go(func() {
			res, err := b.Add(context.Background(), b.request(c, ns))
			if err != nil {
				t.Error(err)
				return
			}
			results[i] = res
		})
	}
	wg.Wait()
	seen := map[any]string{}
	for _, r := range results {
		if r == nil {
			continue
		}
		for _, v := range []any{r.IPv4, r.IPv6, r.Slot, r.MAC, r.HostIf} {
			if other, dup := seen[v]; dup {
				t.Errorf("%v given to %s and %s", v, other, r.Pod)
			}
			seen[v] = r.Pod
		}
	}
	if len(b.List()) != n || len(b.dir.Objects()) != n || len(b.dp.Attached()) != n {
		t.Errorf("%d listed, %d published, %d attached", len(b.List()), len(b.dir.Objects()), len(b.dp.Attached()))
	}
	for _, c := range containers(n) {
		wg.Go(func() {
			if err := b.Del(context.Background(), DelRequest{Attachment: Attachment{c, "eth0"}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b.nothingLeft()
}

func TestSameEndpointFromManySides(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := b.Add(context.Background(), b.request("c1", ns)); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := b.Del(context.Background(), DelRequest{Attachment: Attachment{"c1", "eth0"}}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := b.Sync(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b.del("c1")
	b.nothingLeft()
}

func TestSecondInterfaceOfAPod(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	b.add("c1", ns)
	req := b.request("c1", ns)
	req.IfName = "net1"
	if _, err := b.Add(context.Background(), req); err == nil || !strings.Contains(err.Error(), "already has a route") {
		t.Fatalf("got %v", err)
	}
	if err := b.check("c1"); err != nil {
		t.Errorf("the first interface was hurt: %v", err)
	}
	if len(b.List()) != 1 || len(b.devices()) != 1 {
		t.Errorf("left: %v %v", b.List(), b.devices())
	}
}

func TestInterfaceNameTaken(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	inPod(t, ns, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1"})
	})
	if _, err := b.Add(context.Background(), b.request("c1", ns)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "already has an interface eth0") {
		t.Fatalf("got %v", err)
	}
	b.nothingLeft()
}

func TestStatus(t *testing.T) {
	b := newHarness(t)
	if err := b.Status(); err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(b.opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Status(); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("before Restore: %v", err)
	}
}

func TestBadRequests(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		kind       error
		change     func(*AddRequest)
	}{
		{"no container", "containerID", ErrInvalid, func(r *AddRequest) { r.ContainerID = "" }},
		{"container path", "containerID", ErrInvalid, func(r *AddRequest) { r.ContainerID = "../../etc" }},
		{"long name", "1-15 bytes", ErrInvalid, func(r *AddRequest) { r.IfName = "interface-too-long" }},
		{"slash", "'/'", ErrInvalid, func(r *AddRequest) { r.IfName = "a/b" }},
		{"dots", "means something else", ErrInvalid, func(r *AddRequest) { r.IfName = ".." }},
		{"loopback", "means something else", ErrInvalid, func(r *AddRequest) { r.IfName = "lo" }},
		{"pod path", "pod:", ErrInvalid, func(r *AddRequest) { r.Pod = "../x" }},
		{"namespace", "namespace:", ErrInvalid, func(r *AddRequest) { r.Namespace = "A" }},
		{"relative netns", "absolute", ErrInvalid, func(r *AddRequest) { r.NetNS = "ns" }},
		{"no netns", "absolute", ErrInvalid, func(r *AddRequest) { r.NetNS = "" }},
		{"missing netns", "does not exist", ErrNetNS, func(r *AddRequest) { r.NetNS = "/run/netns/wt-cni-none" }},
		{"file as netns", "is not a network namespace", ErrNetNS, func(r *AddRequest) { r.NetNS = file }},
		{"another kind of namespace", "is not a network namespace", ErrNetNS, func(r *AddRequest) { r.NetNS = "/proc/self/ns/uts" }},
		{"own netns", "the node's own", ErrNetNS, func(r *AddRequest) { r.NetNS = "/proc/self/ns/net" }},
		{"seventeen addresses", "10.77.0.116 is one too many", ErrInvalid, func(r *AddRequest) { r.Addresses = parsed(addrsFrom("10.77.0.100", 17)...) }},
		{"an address twice", "10.77.0.5 is there twice", ErrInvalid, func(r *AddRequest) { r.Addresses = parsed("10.77.0.5", "10.77.0.5") }},
		{"network out of range", "at most 16777215", ErrInvalid, func(r *AddRequest) { r.NetworkID = 1 << 24 }},
		{"network of a chained one", "remove networkID", ErrInvalid, func(r *AddRequest) { r.NetworkID, r.Chained, r.Addresses = 7, true, parsed("10.1.0.5") }},
		{"network with the XDP datapath", "cannot have the XDP datapath", ErrInvalid, func(r *AddRequest) { r.NetworkID, r.PodDatapath = 7, "xdp" }},
		{"nothing to chain after", "put weft-cni after", ErrInvalid, func(r *AddRequest) {
			r.Chained, r.Addresses = true, []netip.Addr{netip.MustParseAddr("10.1.0.5")}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := b.request("c1", ns)
			tc.change(&req)
			_, err := b.Add(context.Background(), req)
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	b.nothingLeft()
}

// TestLinkIsUpWhenAddReturns takes fresh nodes, where both ends get the same interface
// index. The kernel then takes its time to see that the carrier is there.
func TestLinkIsUpWhenAddReturns(t *testing.T) {
	b := newHarness(t)
	for _, c := range containers(3) {
		node, _ := endpointtest.NewPod(t)
		pod, _ := endpointtest.NewPod(t)
		inPod(t, node, func() error {
			res := b.add(c, pod)
			defer b.del(c)
			host := lastLink(t)
			var inner netlink.Link
			inPod(t, pod, func() error { inner = lastLink(t); return nil })
			if host.Attrs().Name != res.HostIf || host.Attrs().Index != inner.Attrs().Index {
				t.Errorf("indexes %d and %d differ: nothing shown", host.Attrs().Index, inner.Attrs().Index)
			}
			for _, l := range []netlink.Link{host, inner} {
				if l.Attrs().OperState != netlink.OperUp {
					t.Errorf("%s is %s", l.Attrs().Name, l.Attrs().OperState)
				}
			}
			return nil
		})
	}
}

// lastLink returns the youngest interface by a dump: looking at one by name would have
// the kernel bring its state up to date.
func lastLink(t *testing.T) netlink.Link {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	return links[len(links)-1]
}
