package datapath

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestPolicyLocal: what the stack delivers to this host is judged as sent to the host, by whatever
// address: here one that Weft knows nothing of, as the host may have translated the destination to
// any of its own.
func TestPolicyLocal(t *testing.T) {
	for _, f := range policyFamilies {
		t.Run(f.name, func(t *testing.T) { testPolicyLocal(t, f) })
	}
}

func testPolicyLocal(t *testing.T, f policyFamily) {
	b := newExitHarness(t)
	local := addr("198.18.0.1")
	if f.own.Is6() {
		local = addr("2001:db8:18::1")
	}
	heard := listenLocal(t, b, local, f.own)
	toHost := func(port uint16) packet { return fromA(local).udp(1000, port, 20) }
	padding := []byte{0, 0, 1, 4, 0, 0, 0, 0} // PadN
	const fromPod = bpf.TagEndpoint | 1
	host := []PolicyEntry{allow(bpf.IdentityHost, 0)}
	port := func(n uint16) []PolicyEntry { return []PolicyEntry{at(allow(bpf.IdentityHost, udp), n, 16)} }
	for _, c := range []struct {
		name   string
		out    []PolicyEntry
		tag    int64
		in     packet
		only   uint8 // family
		reason bpf.Reason
	}{
		{name: "nothing is allowed", out: nothing, tag: fromPod, in: toHost(localPort),
			reason: denied},
		{name: "the host is", out: host, tag: fromPod, in: toHost(localPort)},
		{name: "the world is, which the host is not", tag: fromPod, in: toHost(localPort),
			out: []PolicyEntry{allow(bpf.IdentityWorld, 0)}, reason: denied},
		{name: "a port is", out: port(localPort), tag: fromPod, in: toHost(localPort)},
		{name: "another port is", out: port(localPort + 1), tag: fromPod, in: toHost(localPort),
			reason: denied},
		{name: "a reply", out: nothing, tag: fromPod | bpf.TagReply, in: toHost(localPort)},
		{name: "another endpoint's tag is not believed", out: nothing,
			tag: bpf.TagEndpoint | bpf.TagReply | 2, in: toHost(localPort), reason: denied},
		{name: "no tag", out: nothing, in: toHost(localPort), reason: denied},
		{name: "no policy", tag: fromPod, in: toHost(localPort)},
		{name: "a port behind an extension header", only: 6, out: port(localPort), tag: fromPod,
			in: toHost(localPort).ext(unix.IPPROTO_DSTOPTS, padding)},
		{name: "another port behind an extension header", only: 6, out: port(localPort + 1),
			tag: fromPod, in: toHost(localPort).ext(unix.IPPROTO_DSTOPTS, padding), reason: denied},
		{name: "a later fragment, its first one's port is not known", only: 6, tag: fromPod,
			out: port(localPort), in: toHost(localPort).fragment(16, 28, false), reason: denied},
	} {
		if c.only == 6 && !local.Is6() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			must(t, emptyMap(b.maps.Drops))
			policies{aOut: c.out}.enter(t, b.harness)
			must(t, b.inside(func() error { return exit{via: "wta", tag: c.tag, in: c.in}.send(b) }))
			var got []string
			arrived := false
			for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && !arrived &&
				got == nil; time.Sleep(time.Millisecond) {
				arrived, got = heard(), reasonsIn(b.counted(t))
			}
			if arrived == (c.reason != bpf.ReasonNone) ||
				c.reason != bpf.ReasonNone && strings.Join(got, ",") != c.reason.String() {
				t.Errorf("it arrived: %t, refused as %v; want %s", arrived, got, c.reason)
			}
		})
	}
	t.Run("in fragments, to an address that from_pod has judged", func(t *testing.T) {
		must(t, emptyMap(b.maps.Drops))
		policies{aOut: port(localPort)}.enter(t, b.harness)
		whole := fromA(f.own).udp(1000, localPort, 200)
		for _, part := range []packet{whole.fragment(0, 104, true), whole.fragment(104, 208, false)} {
			must(t, b.inside(func() error { return exit{via: "wta", tag: fromPod, in: part}.send(b) }))
		}
		for end := time.Now().Add(30 * time.Second); !heard(); time.Sleep(time.Millisecond) {
			if got := b.counted(t); got != nil || time.Now().After(end) {
				t.Fatalf("not heard: %v", got)
			}
		}
	})
}

const localPort = 7053

// listenLocal gives the host addresses and listens there; heard says whether something has come.
func listenLocal(t *testing.T, b *exitHarness, addrs ...netip.Addr) (heard func() bool) {
	t.Helper()
	var fd int
	must(t, b.inside(func() error {
		l, err := netlink.LinkByName("wtx")
		if err != nil {
			return err
		}
		for _, local := range addrs {
			a := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(local, local.BitLen())),
				Flags: unix.IFA_F_NODAD}
			if err := netlink.AddrReplace(l, a); err != nil {
				return err
			}
			t.Cleanup(func() { must(t, b.inside(func() error { return netlink.AddrDel(l, a) })) })
		}
		domain, at := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: localPort})
		if addrs[0].Is6() {
			domain, at = unix.AF_INET6, &unix.SockaddrInet6{Port: localPort}
		}
		if fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return unix.Bind(fd, at)
	}))
	t.Cleanup(func() { unix.Close(fd) })
	return func() bool {
		n, _, err := unix.Recvfrom(fd, make([]byte, 2048), 0)
		return err == nil && n > 0
	}
}
