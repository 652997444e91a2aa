package kernels

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
	"weft.dev/weft/test/espref"
)

// The world of these tests: a node whose ESP is the kernel's own (XFRM), and a peer: Go, or Weft.
//
//	inside1 ── inside0 [ XFRM ] wire0 ── wire1 [ peer ]
//
// What the test sends at inside1 is routed, sealed by XFRM and comes out of wire1; what comes in at
// wire1 is opened and comes out of inside1. So both are whole packets, and every byte is compared.
var (
	xfrm4, xfrm6 = netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2") // outside
	peer4, peer6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	near4, near6 = netip.MustParseAddr("10.2.0.20"), netip.MustParseAddr("fd00:2::20") // behind XFRM
	far4, far6   = netip.MustParseAddr("10.1.0.10"), netip.MustParseAddr("fd00:1::10") // behind the peer

	wire0MAC, wire1MAC     = mac(0x20), mac(0x10)
	inside0MAC, inside1MAC = mac(0x30), mac(0x31)
)

const wireMTU = 1500

// xfrmNode is a node with the kernel's ESP.
type xfrmNode struct {
	ns     string
	inside *port
}

// newXFRM makes the node; its wire1 is moved to namespace peer, and up.
func newXFRM(t testing.TB, peer string) *xfrmNode {
	t.Helper()
	needRoot(t)
	x := &xfrmNode{ns: newNS(t, "xfrm")}
	must(t, ip(x.ns,
		"link set lo up",
		fmt.Sprintf("link add wire0 address %s mtu %d type veth peer name wire1 address %s mtu %d",
			wire0MAC, wireMTU, wire1MAC, wireMTU),
		fmt.Sprintf("link add inside0 address %s mtu %d type veth peer name inside1 address %s mtu %d", inside0MAC, 9000, inside1MAC, 9000),
	))
	// Neither rules on source addresses nor packets of the stack's own are wanted here.
	sysctls(t, x.ns, map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
		"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
		"ipv4/conf/wire0/rp_filter": "0", "ipv4/conf/inside0/rp_filter": "0",
		"ipv6/conf/wire0/accept_dad": "0", "ipv6/conf/inside0/accept_dad": "0",
		"ipv4/conf/all/send_redirects": "0",
	})
	must(t, netns.Do(x.ns, func() error { return moveLink("wire1", peer) }))
	must(t, ip(peer, "link set wire1 up"))
	must(t, ip(x.ns,
		"link set wire0 up", "link set inside0 up", "link set inside1 up",
		"addr add "+xfrm4.String()+"/24 dev wire0",
		"addr add "+xfrm6.String()+"/64 dev wire0 nodad",
		fmt.Sprintf("neigh replace %s lladdr %s dev wire0 nud permanent", peer4, wire1MAC),
		fmt.Sprintf("neigh replace %s lladdr %s dev wire0 nud permanent", peer6, wire1MAC),
		"route add 10.2.0.0/16 dev inside0", "route add fd00:2::/64 dev inside0",
		fmt.Sprintf("neigh replace %s lladdr %s dev inside0 nud permanent", near4, inside1MAC),
		fmt.Sprintf("neigh replace %s lladdr %s dev inside0 nud permanent", near6, inside1MAC),
		fmt.Sprintf("route add 10.1.0.0/16 via %s dev wire0", peer4),
		fmt.Sprintf("route add fd00:1::/64 via %s dev wire0", peer6),
	))
	x.inside = newPort(t, x.ns, "inside1")
	x.openPort(t)
	return x
}

// openPort makes the kernel take ESP out of UDP: it does so for sockets that say so, which a key
// daemon would have.
func (x *xfrmNode) openPort(t testing.TB) {
	t.Helper()
	const (
		solUDP        = 17
		udpEncap      = 100
		encapESPInUDP = 2
	)
	for _, address := range []unix.Sockaddr{&unix.SockaddrInet4{Port: espref.Port},
		&unix.SockaddrInet6{Port: espref.Port}} {
		family := unix.AF_INET
		if _, six := address.(*unix.SockaddrInet6); six {
			family = unix.AF_INET6
		}
		var fd int
		must(t, netns.Do(x.ns, func() (err error) {
			fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			return err
		}))
		t.Cleanup(func() { unix.Close(fd) })
		if family == unix.AF_INET6 {
			must(t, unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1))
		}
		if err := unix.SetsockoptInt(fd, solUDP, udpEncap, encapESPInUDP); err != nil {
			missing(t, "ESP in UDP in the kernel: %v", err)
		}
		must(t, unix.Bind(fd, address))
	}
}

// state is what XFRM is told of one direction's key.
type state struct {
	sa   espref.SA
	out  bool
	six  bool   // outer IPv6
	seq  uint64 // the last sequence number that was used, or received
	from uint16 // UDP's source port; 0: ESP's own
}

// set replaces every state and policy.
func (x *xfrmNode) set(t testing.TB, states ...state) {
	t.Helper()
	commands := []string{"xfrm state flush", "xfrm policy flush"}
	for _, s := range states {
		commands = append(commands, s.command())
	}
	six := states[0].six
	from, to := xfrm4, peer4
	if six {
		from, to = xfrm6, peer6
	}
	for _, inside := range []struct{ near, far string }{{"10.2.0.0/16", "10.1.0.0/16"},
		{"fd00:2::/64", "fd00:1::/64"}} {
		commands = append(commands,
			fmt.Sprintf("xfrm policy add src %s dst %s dir out tmpl src %s dst %s proto esp reqid 1 mode tunnel", inside.near, inside.far, from, to),
			fmt.Sprintf("xfrm policy add src %s dst %s dir fwd tmpl src %s dst %s proto esp reqid 1 mode tunnel", inside.far, inside.near, to, from),
			fmt.Sprintf("xfrm policy add src %s dst %s dir in tmpl src %s dst %s proto esp reqid 1 mode tunnel", inside.far, inside.near, to, from),
		)
	}
	if err := ip(x.ns, commands...); err != nil {
		missing(t, "XFRM with ESP, AES-GCM and 64-bit sequence numbers in the kernel: %v", err)
	}
}

func (s state) command() string {
	from, to, any, replay := peer4, xfrm4, "0.0.0.0", "replay-seq %d replay-seq-hi %d"
	if s.six {
		from, to, any = peer6, xfrm6, "::"
	}
	port := s.from
	if port == 0 {
		port = espref.Port
	}
	if s.out {
		from, to, replay = to, from, "replay-oseq %d replay-oseq-hi %d"
	}
	return fmt.Sprintf("xfrm state add src %s dst %s proto esp spi %#x reqid 1 mode tunnel aead rfc4106(gcm(aes)) 0x%x%x 128 "+
		"replay-window 128 flag esn flag af-unspec "+replay+" encap espinudp %d %d %s",
		from, to, s.sa.SPI, s.sa.Key, s.sa.Salt, uint32(s.seq), uint32(s.seq>>32), port,
		espref.Port, any)
}

// errors are the counters of /proc/net/xfrm_stat that are not zero.
func (x *xfrmNode) errors(t testing.TB) string {
	t.Helper()
	var all []byte
	must(t, netns.Do(x.ns, func() (err error) {
		all, err = os.ReadFile("/proc/thread-self/net/xfrm_stat")
		return err
	}))
	var found []string
	for line := range strings.Lines(string(all)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] != "0" {
			found = append(found, f[0]+" "+f[1])
		}
	}
	return strings.Join(found, ", ")
}

// testKey is a key with its salt, told by seed.
func testKey(seed byte) espref.SA {
	sa := espref.SA{Key: make([]byte, 32), Salt: [4]byte{seed, 0xbb, 0xcc, 0xdd}}
	for i := range sa.Key {
		sa.Key[i] = seed + byte(i)
	}
	return sa
}

// families are the four ways in which IPv4 and IPv6 can lie in each other.
var families = []struct {
	name      string
	six       bool // outer
	near, far netip.Addr
}{
	{"IPv4 in IPv4", false, near4, far4},
	{"IPv6 in IPv4", false, near6, far6},
	{"IPv4 in IPv6", true, near4, far4},
	{"IPv6 in IPv6", true, near6, far6},
}

// maxInner is the largest packet that fits the wire when sealed.
func maxInner(six bool) int {
	ipLen := 20
	if six {
		ipLen = 40
	}
	return (wireMTU-ipLen-8-espref.HeaderLen-espref.TagLen)&^3 - 2
}
