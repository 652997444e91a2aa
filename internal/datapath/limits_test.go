package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/inet"
)

// icmpWant is what an ICMP error that the datapath made must say.
type icmpWant struct {
	typ, code uint8
	mtu       uint32
	from      netip.Addr
}

// check decodes the error with an independent decoder and recomputes every checksum in it.
func (w icmpWant) check(in, out []byte) error {
	if !bytes.Equal(out[0:6], in[6:12]) || !bytes.Equal(out[6:12], in[0:6]) {
		return fmt.Errorf("MACs %x < %x, want those of the refused frame swapped", out[0:6],
			out[6:12])
	}
	decoded := gopacket.NewPacket(out, layers.LayerTypeEthernet, gopacket.Default)
	if failed := decoded.ErrorLayer(); failed != nil {
		return fmt.Errorf("decode: %w", failed.Error())
	}
	if decoded.Metadata().Truncated {
		return errors.New("decoder calls it truncated")
	}
	if ip, ok := decoded.NetworkLayer().(*layers.IPv4); ok {
		return w.check4(in, out, ip, decoded)
	}
	if ip, ok := decoded.NetworkLayer().(*layers.IPv6); ok {
		return w.check6(in, out, ip, decoded)
	}
	return errors.New("not an IP packet")
}

func (w icmpWant) check4(in, out []byte, ip *layers.IPv4, decoded gopacket.Packet) error {
	icmp, ok := decoded.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	if !ok {
		return errors.New("no ICMP layer")
	}
	if inet.Checksum(out[atIP:atL4]) != 0 {
		return errors.New("wrong IPv4 header checksum")
	}
	if inet.Checksum(out[atL4:atIP+int(ip.Length)]) != 0 {
		return errors.New("wrong ICMP checksum")
	}
	if int(ip.Length) != len(out)-14 {
		return fmt.Errorf("total length %d in a frame of %d", ip.Length, len(out))
	}
	if icmp.TypeCode != layers.CreateICMPv4TypeCode(w.typ, w.code) || uint32(icmp.Seq) != w.mtu ||
		icmp.Id != 0 {
		return fmt.Errorf("%s, MTU %d", icmp.TypeCode, icmp.Seq)
	}
	if !ip.SrcIP.Equal(w.from.AsSlice()) || !ip.DstIP.Equal(net.IP(in[26:30])) || ip.TTL < 32 ||
		ip.FragOffset != 0 {
		return fmt.Errorf("from %s to %s, TTL %d", ip.SrcIP, ip.DstIP, ip.TTL)
	}
	// RFC 1812 section 4.3.2.3: at least the header and 8 bytes, unchanged.
	least := int(in[14]&15)*4 + 8
	if quote := out[42:]; len(quote) < least || !bytes.Equal(quote, in[14:14+len(quote)]) {
		return fmt.Errorf("quotes %x of %x", quote, in[14:])
	}
	return nil
}

func (w icmpWant) check6(in, out []byte, ip *layers.IPv6, decoded gopacket.Packet) error {
	icmp, ok := decoded.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
	if !ok {
		return errors.New("no ICMPv6 layer")
	}
	src, dst := netip.AddrFrom16([16]byte(out[22:38])), netip.AddrFrom16([16]byte(out[38:54]))
	if inet.TransportChecksum(src, dst, unix.IPPROTO_ICMPV6, out[atL46:]) != 0 {
		return errors.New("wrong ICMPv6 checksum")
	}
	if int(ip.Length) != len(out)-54 {
		return fmt.Errorf("payload length %d in a frame of %d", ip.Length, len(out))
	}
	if mtu := binary.BigEndian.Uint32(out[58:62]); icmp.TypeCode != layers.CreateICMPv6TypeCode(w.typ, w.code) || mtu != w.mtu {
		return fmt.Errorf("%s, MTU %d", icmp.TypeCode, mtu)
	}
	if src != w.from || dst != netip.AddrFrom16([16]byte(in[22:38])) || ip.HopLimit < 32 {
		return fmt.Errorf("from %s to %s, hop limit %d", src, dst, ip.HopLimit)
	}
	if len(out)-14 > 1280 {
		return fmt.Errorf("%d bytes: more than the minimum MTU (RFC 4443 section 2.4 c)",
			len(out)-14)
	}
	if quote := out[62:]; len(quote) < 48 || !bytes.Equal(quote, in[14:14+len(quote)]) {
		return fmt.Errorf("quotes %x of %x", quote, in[14:])
	}
	return nil
}

func TestTTL(t *testing.T) {
	exceeded4, exceeded6 := icmpWant{11, 0, 0, node4}.check, icmpWant{3, 0, 0, node6}.check
	u := func(p packet) packet { return p.udp(1000, 53, 200) }
	noNode := func(t *testing.T, b *harness) {
		b.config.NodeIp4, b.config.NodeIp6 = 0, bpf.Addr{}
		must(t, b.changed())
	}
	var rows []row
	for _, n := range []uint8{0, 1} {
		rows = append(rows, []row{
			{name: fmt.Sprintf("IPv4 TTL %d to a remote pod", n), in: u(fromA(peer4)).ttl(n),
				want: "redirect", reason: bpf.ReasonTtlExceeded, out: exceeded4,
				counts: []string{"1 egress ttl_exceeded 1"}},
			{name: fmt.Sprintf("IPv6 hop limit %d to a remote pod", n), in: u(fromA(peer6)).ttl(n),
				want: "redirect", reason: bpf.ReasonTtlExceeded, out: exceeded6},
			{name: fmt.Sprintf("IPv4 TTL %d to a local pod", n), in: u(fromA(podB.IPv4)).ttl(n),
				want: "redirect", reason: bpf.ReasonTtlExceeded, out: exceeded4},
			{name: fmt.Sprintf("IPv6 hop limit %d to a local pod", n),
				in: u(fromA(podB.IPv6)).ttl(n), want: "redirect", reason: bpf.ReasonTtlExceeded,
				out: exceeded6},
			{name: fmt.Sprintf("IPv4 TTL %d from the wire", n), hook: "from_wire",
				in: u(fromPeer(podA.IPv4)).ttl(n), want: "redirect", reason: bpf.ReasonTtlExceeded,
				out: exceeded4, counts: []string{"1 ingress ttl_exceeded 1"}},
			{name: fmt.Sprintf("IPv6 hop limit %d from the wire", n), hook: "from_wire",
				in: u(fromPeer(podA.IPv6)).ttl(n), want: "redirect", reason: bpf.ReasonTtlExceeded,
				out: exceeded6},
			{name: fmt.Sprintf("IPv4 TTL %d to the stack is the stack's", n),
				in: u(fromA(world4)).ttl(n), want: "pass"},
		}...)
	}
	rows = append(rows, []row{
		{name: "IPv4 TTL 2", in: u(fromA(peer4)).ttl(2), want: "redirect", out: toPeer},
		{name: "IPv6 hop limit 2", in: u(fromA(peer6)).ttl(2), want: "redirect", out: toPeer},
		{name: "IPv4 TTL 255", in: u(fromA(peer4)).ttl(255), want: "redirect", out: toPeer},
		{name: "IPv4 with options", in: u(fromA(peer4)).opts(1, 1, 1, 1).ttl(1), want: "redirect",
			reason: bpf.ReasonTtlExceeded, out: exceeded4},
		{name: "IPv4 with 40 bytes of options",
			in: u(fromA(peer4)).opts(bytes.Repeat([]byte{1}, 40)...).ttl(1), want: "redirect",
			reason: bpf.ReasonTtlExceeded, out: exceeded4},
		{name: "IPv6 with extension headers",
			in:   u(fromA(peer6)).ext(unix.IPPROTO_DSTOPTS, optionsHeader(16)).ttl(1),
			want: "redirect", reason: bpf.ReasonTtlExceeded, out: exceeded6},
		{name: "IPv4 echo of 8 bytes", in: fromA(peer4).echo(7, 0).ttl(1), want: "redirect",
			reason: bpf.ReasonTtlExceeded, out: exceeded4},
		{name: "IPv6 echo of 8 bytes", in: fromA(peer6).echo(7, 0).ttl(1), want: "redirect",
			reason: bpf.ReasonTtlExceeded, out: exceeded6},
		{name: "IPv4 TCP SYN", in: fromA(peer4).tcp(1000, 80, syn, 0).ttl(1), want: "redirect",
			reason: bpf.ReasonTtlExceeded, out: exceeded4},
		{name: "IPv6 UDP of 40 bytes payload", in: fromA(peer6).udp(1000, 53, 40).ttl(1),
			want: "redirect", reason: bpf.ReasonTtlExceeded, out: exceeded6},
		{name: "IPv4 payload of less than 8 bytes", in: fromA(peer4).raw(253, pattern(4)).ttl(1),
			want: "drop", reason: bpf.ReasonTtlExceeded},
		{name: "IPv4 first fragment", in: u(fromA(peer4)).fragment(0, 64, true).ttl(1),
			want: "redirect", reason: bpf.ReasonTtlExceeded, out: exceeded4},
		{name: "IPv4 later fragment gets no error",
			setup: after("from_pod", u(fromA(peer4)).fragment(0, 64, true)),
			in:    u(fromA(peer4)).fragment(64, 128, true).ttl(1), want: "drop",
			reason: bpf.ReasonTtlExceeded},
		{name: "IPv4 ICMP error gets no error", setup: after("from_wire", u(fromPeer(podA.IPv4))),
			in: fromA(peer4).icmpError(3, 3, 0, u(fromPeer(podA.IPv4)), 28).ttl(1), want: "drop",
			reason: bpf.ReasonTtlExceeded},
		{name: "IPv6 ICMP error gets no error", setup: after("from_wire", u(fromPeer(podA.IPv6))),
			in: fromA(peer6).icmpError(1, 4, 0, u(fromPeer(podA.IPv6)), 48).ttl(1), want: "drop",
			reason: bpf.ReasonTtlExceeded},
		{name: "IPv4 node without an address answers as the gateway", setup: noNode,
			in: u(fromA(peer4)).ttl(1), want: "redirect", reason: bpf.ReasonTtlExceeded,
			out: icmpWant{11, 0, 0, GatewayIPv4}.check},
		{name: "IPv6 node without an address answers as the gateway", setup: noNode,
			in: u(fromA(peer6)).ttl(1), want: "redirect", reason: bpf.ReasonTtlExceeded,
			out: icmpWant{3, 0, 0, GatewayIPv6}.check},
		{name: "IPv4 source 0.0.0.0 from the wire gets no error", hook: "from_wire",
			in: u(fromPeer(podA.IPv4)).src(addr("0.0.0.0")).ttl(1), want: "drop",
			reason: bpf.ReasonMartian},
		{name: "IPv4 multicast source from the wire gets no error", hook: "from_wire",
			in: u(fromPeer(podA.IPv4)).src(addr("224.0.0.9")).ttl(1), want: "drop",
			reason: bpf.ReasonMartian},
		{name: "IPv6 multicast source from the wire gets no error", hook: "from_wire",
			in: u(fromPeer(podA.IPv6)).src(addr("ff0e::9")).ttl(1), want: "drop",
			reason: bpf.ReasonMartian},
		{name: "IPv4 link-layer broadcast from the wire gets no error", hook: "from_wire",
			in: u(fromPeer(podA.IPv4)).dstMAC(broadcastMAC).ttl(1), want: "drop",
			reason: bpf.ReasonTtlExceeded},
		{name: "IPv6 redirect message gets no error",
			setup: after("from_wire", u(fromPeer(podA.IPv6))), hook: "from_wire",
			in: fromPeer(podA.IPv6).icmp(137, 0, make([]byte, 36)).ttl(1), want: "drop",
			reason: bpf.ReasonTtlExceeded},
	}...)
	runTable(t, rows)
}

// TestMTU: exactly the MTU passes, one byte more is answered with the right limit.
func TestMTU(t *testing.T) {
	sized := func(p packet, total int) packet {
		if p.to.Is6() {
			return p.udp(1000, 53, total-48)
		}
		return p.udp(1000, 53, total-28)
	}
	limit := func(mtu int) func(*testing.T, *harness) {
		return func(t *testing.T, b *harness) {
			b.setPeer(t,
				bpf.Nexthop{Ifindex: uint32(b.index["wtup"]),
					Flags: bpf.NexthopResolved | bpf.NexthopXdpOut, Mtu: uint16(mtu),
					Dmac: bpf.ToMAC(peerMAC), Smac: bpf.ToMAC(uplinkMAC)})
			for _, ep := range []struct {
				ep    Endpoint
				iface string
			}{{podA, "wta"}, {podB, "wtb"}} {
				ep.ep.MTU = mtu
				must(t, b.putEndpoint(ep.ep, []int{b.index[ep.iface]}))
			}
		}
	}
	var rows []row
	for _, mtu := range []int{576, 1280, 1400, 1500, 3000} {
		big4, big6 := icmpWant{3, 4, uint32(mtu), node4}.check, icmpWant{2, 0, uint32(mtu),
			node6}.check
		name := func(s string) string { return fmt.Sprintf("%s, MTU %d", s, mtu) }
		rows = append(rows, []row{
			{name: name("IPv4 remote fits"), setup: limit(mtu), in: sized(fromA(peer4), mtu),
				want: "redirect", out: toPeer},
			{name: name("IPv4 remote too big"), setup: limit(mtu), in: sized(fromA(peer4), mtu+1),
				want: "redirect", reason: bpf.ReasonTooBig, out: big4,
				counts: []string{"1 egress too_big 1"}},
			{name: name("IPv4 local fits"), setup: limit(mtu), in: sized(fromA(podB.IPv4), mtu),
				want: "redirect", out: toB},
			{name: name("IPv4 local too big"), setup: limit(mtu),
				in: sized(fromA(podB.IPv4), mtu+1), want: "redirect", reason: bpf.ReasonTooBig,
				out: big4},
			{name: name("IPv4 from the wire fits"), setup: limit(mtu), hook: "from_wire",
				in: sized(fromPeer(podA.IPv4), mtu), want: "redirect", out: toA},
			{name: name("IPv4 from the wire too big"), setup: limit(mtu), hook: "from_wire",
				in: sized(fromPeer(podA.IPv4), mtu+1), want: "redirect", reason: bpf.ReasonTooBig,
				out: big4},
			{name: name("IPv4 to the stack is the stack's"), setup: limit(mtu),
				in: sized(fromA(world4), mtu+1), want: "pass"},
			{name: name("IPv4 too big in a cached flow"),
				setup: both(limit(mtu),
					after("from_pod", sized(fromA(peer4), mtu), sized(fromA(peer4), mtu))),
				in: sized(fromA(peer4), mtu+1), want: "redirect", reason: bpf.ReasonTooBig,
				out: big4},
			{name: name("IPv4 TTL 1 in a cached flow"),
				setup: both(limit(mtu),
					after("from_pod", sized(fromA(peer4), 200), sized(fromA(peer4), 200))),
				in: sized(fromA(peer4), 200).ttl(1), want: "redirect",
				reason: bpf.ReasonTtlExceeded, out: icmpWant{11, 0, 0, node4}.check},
		}...)
		if mtu < 1280 {
			continue
		}
		rows = append(rows, []row{
			{name: name("IPv6 remote fits"), setup: limit(mtu), in: sized(fromA(peer6), mtu),
				want: "redirect", out: toPeer},
			{name: name("IPv6 remote too big"), setup: limit(mtu), in: sized(fromA(peer6), mtu+1),
				want: "redirect", reason: bpf.ReasonTooBig, out: big6,
				counts: []string{"1 egress too_big 1"}},
			{name: name("IPv6 local too big"), setup: limit(mtu),
				in: sized(fromA(podB.IPv6), mtu+1), want: "redirect", reason: bpf.ReasonTooBig,
				out: big6},
			{name: name("IPv6 from the wire fits"), setup: limit(mtu), hook: "from_wire",
				in: sized(fromPeer(podA.IPv6), mtu), want: "redirect", out: toA},
			{name: name("IPv6 from the wire too big"), setup: limit(mtu), hook: "from_wire",
				in: sized(fromPeer(podA.IPv6), mtu+1), want: "redirect", reason: bpf.ReasonTooBig,
				out: big6},
		}...)
	}
	rows = append(rows, []row{
		{name: "IPv4 without the don't-fragment bit is not fragmented", setup: limit(1400),
			in:   sized(fromA(peer4), 1401).edit(func(f []byte) { f[atFragment] = 0; fixIPv4(f) }),
			want: "redirect", reason: bpf.ReasonTooBig, out: icmpWant{3, 4, 1400, node4}.check},
		{name: "no limit known", setup: limit(0), in: sized(fromA(peer4), 2500), want: "redirect",
			out: toPeer},
	}...)
	runTable(t, rows)
}

// TestICMPErrorRate: the limit keeps a loop of refused packets from being a loop of errors.
func TestICMPErrorRate(t *testing.T) {
	b := newHarness(t)
	frame := fromA(peer4).udp(1000, 53, 64).ttl(1).bytes()
	for _, context := range contexts {
		b.reset(t)
		b.drain(t, sharedBucket(b, bucketErrors))
		if v, _ := b.send(t, context, "from_pod", "wta", frame); v != "redirect" {
			t.Errorf("%s: a token of its own left: %s, want redirect", context, v)
		}
		b.drain(t, ownBucket(podA.Slot, 0, bucketErrors))
		if v, _ := b.send(t, context, "from_pod", "wta", frame); v != "drop" {
			t.Errorf("%s: no token left: %s, want drop", context, v)
		}
		wantReasons(t, b, context, "ttl_exceeded")
		if v, _ := b.send(t, context, "from_pod", "wtb",
			fromB(peer4).udp(1000, 53, 64).ttl(1).bytes()); v != "redirect" {
			t.Errorf("%s: another pod's error is refused for pod A's flood: %s", context, v)
		}
		if rows := b.budgets(t); rows["1 egress"].ErrorsSuppressed != 1 {
			t.Errorf("%s: budgets %+v, want one error suppressed for pod A", context, rows)
		}
	}
}
