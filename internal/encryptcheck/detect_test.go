package encryptcheck

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weft.dev/weft/internal/inet"
)

var (
	nodeA, nodeB   = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	nodeA6, nodeB6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	podA, podB     = netip.MustParseAddr("10.77.1.10"), netip.MustParseAddr("10.77.2.100")
	podA6, podB6   = netip.MustParseAddr("fd77:1::10"), netip.MustParseAddr("fd77:2::100")
	plainPod       = netip.MustParseAddr("10.77.2.200")
	world          = netip.MustParseAddr("198.51.100.7")
	testMarker     = []byte("weft-marker-0123456789abcdef.")
)

func testRules() Rules {
	return Rules{
		Pods: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16"),
			netip.MustParsePrefix("fd77::/16")},
		Nodes:   []netip.Addr{nodeA, nodeB, nodeA6, nodeB6},
		Allowed: []netip.Prefix{netip.MustParsePrefix("10.77.2.200/32")},
		Marker:  testMarker,
	}
}

// craft serializes layers behind an Ethernet header, with lengths and checksums right.
func craft(t *testing.T, kind layers.EthernetType, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: kind}
	buf := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, options,
		append([]gopacket.SerializableLayer{eth}, l...)...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func ip4(src, dst netip.Addr, protocol layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: src.AsSlice(),
		DstIP: dst.AsSlice()}
}

func ip6(src, dst netip.Addr, next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: next, SrcIP: src.AsSlice(),
		DstIP: dst.AsSlice()}
}

// udp is a UDP packet of either family.
func udp(t *testing.T, src, dst netip.Addr, port uint16, payload []byte,
	tags ...layers.EthernetType) []byte {
	t.Helper()
	l4 := &layers.UDP{SrcPort: 40000, DstPort: layers.UDPPort(port)}
	kind := layers.EthernetTypeIPv4
	var ip gopacket.SerializableLayer
	if src.Is4() {
		v4 := ip4(src, dst, layers.IPProtocolUDP)
		_ = l4.SetNetworkLayerForChecksum(v4)
		ip = v4
	} else {
		v6 := ip6(src, dst, layers.IPProtocolUDP)
		_ = l4.SetNetworkLayerForChecksum(v6)
		ip, kind = v6, layers.EthernetTypeIPv6
	}
	stack := []gopacket.SerializableLayer{ip, l4, gopacket.Payload(payload)}
	for i := len(tags) - 1; i >= 0; i-- {
		stack = append([]gopacket.SerializableLayer{&layers.Dot1Q{VLANIdentifier: 7, Type: kind}},
			stack...)
		kind = tags[i]
	}
	return craft(t, kind, stack...)
}

// sealed is the payload of an ESP packet.
func sealed(spi, seq uint32, iv uint64, size int) []byte {
	b := binary.BigEndian.AppendUint32(nil, spi)
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint64(b, iv)
	return append(b, make([]byte, size)...)
}

// fragments cuts the payload of an IPv4 frame without options in two.
func fragments(t *testing.T, src, dst netip.Addr, payload []byte) (first, second []byte) {
	t.Helper()
	whole := udp(t, src, dst, 5000, payload)[inet.EthernetLen+inet.IPv4Len:]
	a := ip4(src, dst, layers.IPProtocolUDP)
	a.Flags = layers.IPv4MoreFragments
	b := ip4(src, dst, layers.IPProtocolUDP)
	b.FragOffset = 2
	return craft(t, layers.EthernetTypeIPv4, a, gopacket.Payload(whole[:16])),
		craft(t, layers.EthernetTypeIPv4, b, gopacket.Payload(whole[16:]))
}

// icmpError is an error about the packet of a frame: host unreachable or, of IPv6, address
// unreachable.
func icmpError(t *testing.T, src, dst netip.Addr, about []byte) []byte {
	if src.Is4() {
		return icmp(t, src, dst, []byte{3, 1}, make([]byte, 4), about[inet.EthernetLen:])
	}
	return icmp(t, src, dst, []byte{1, 3}, make([]byte, 4), about[inet.EthernetLen:])
}

// redirect is an IPv6 redirect with a target's link-layer address ahead of the quote.
func redirect(t *testing.T, src, dst netip.Addr, about []byte) []byte {
	option := []byte{2, 1, 2, 0, 0, 0, 0, 1}
	quote := []byte{4, byte((8 + len(about) - inet.EthernetLen) / 8), 0, 0, 0, 0, 0, 0}
	return icmp(t, src, dst, []byte{137, 0}, make([]byte, 36), option, quote,
		about[inet.EthernetLen:])
}

func echo(t *testing.T, src, dst netip.Addr, carried []byte) []byte {
	return icmp(t, src, dst, []byte{8, 0}, make([]byte, 4), carried[inet.EthernetLen:])
}

// icmp is a message of type and code, and what follows its checksum.
func icmp(t *testing.T, src, dst netip.Addr, kind []byte, rest ...[]byte) []byte {
	t.Helper()
	message := append(bytes.Clone(kind), 0, 0)
	payload := gopacket.Payload(append(message, bytes.Join(rest, nil)...))
	if src.Is4() {
		return craft(t, layers.EthernetTypeIPv4, ip4(src, dst, layers.IPProtocolICMPv4), payload)
	}
	return craft(t, layers.EthernetTypeIPv6, ip6(src, dst, layers.IPProtocolICMPv6), payload)
}

func fragment6(t *testing.T, src, dst netip.Addr, offset uint16, more bool, payload []byte) []byte {
	t.Helper()
	header := make([]byte, 8)
	header[0] = byte(layers.IPProtocolUDP)
	where := offset << 3
	if more {
		where |= 1
	}
	binary.BigEndian.PutUint16(header[2:], where)
	return craft(t, layers.EthernetTypeIPv6, ip6(src, dst, layers.IPProtocolIPv6Fragment),
		gopacket.Payload(append(header, payload...)))
}

func TestDetector(t *testing.T) {
	tags := []layers.EthernetType{layers.EthernetTypeDot1Q}
	double := []layers.EthernetType{layers.EthernetTypeQinQ, layers.EthernetTypeDot1Q}
	first, second := fragments(t, podA, podB, make([]byte, 64))
	tcp := &layers.TCP{SrcPort: 1, DstPort: 2, SYN: true}
	header := ip4(podA, podB, layers.IPProtocolTCP)
	_ = tcp.SetNetworkLayerForChecksum(header)
	arp := craft(t, layers.EthernetTypeARP,
		&layers.ARP{AddrType: 1, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6,
			ProtAddressSize: 4, Operation: 1,
			SourceHwAddress: make([]byte, 6), SourceProtAddress: podA.AsSlice(),
			DstHwAddress: make([]byte, 6), DstProtAddress: podB.AsSlice()})
	cut := udp(t, podA, podB, 9, nil)[:inet.EthernetLen+10]
	for _, c := range []struct {
		name   string
		frame  []byte
		want   Kind
		marked bool
	}{
		{"sealed IPv4", udp(t, nodeA, nodeB, 4500, sealed(0x10000100, 1, 1, 64)), Sealed, false},
		{"sealed IPv6", udp(t, nodeA6, nodeB6, 4500, sealed(0x10000100, 1, 1, 64)), Sealed, false},
		{"sealed in a VLAN", udp(t, nodeA, nodeB, 4500, sealed(0x10000100, 1, 1, 64), tags...),
			Sealed, false},
		{"sealed in two VLANs", udp(t, nodeA, nodeB, 4500, sealed(0x10000100, 1, 1, 64), double...),
			Sealed, false},
		{"SPI 0 is not ESP", udp(t, nodeA, nodeB, 4500, sealed(0, 1, 1, 64)), Other, false},
		{"too short for ESP", udp(t, nodeA, nodeB, 4500, sealed(0x10000100, 1, 1, 0)[:12]), Other,
			false},
		{"another port", udp(t, nodeA, nodeB, 4501, sealed(0x10000100, 1, 1, 64)), Other, false},
		{"plain pod to pod", udp(t, podA, podB, 9, []byte("x")), Plain, false},
		{"plain pod to pod IPv6", udp(t, podA6, podB6, 9, []byte("x")), Plain, false},
		{"plain pod to pod in a VLAN", udp(t, podA, podB, 9, []byte("x"), tags...), Plain, false},
		{"plain pod to pod on the ESP port", udp(t, podA, podB, 4500, sealed(0x10000100, 1, 1, 64)),
			Plain, false},
		{"plain TCP", craft(t, layers.EthernetTypeIPv4, header, tcp), Plain, false},
		{"plain pod to node", udp(t, podA, nodeB, 9, nil), Plain, false},
		{"plain node to pod", udp(t, nodeA6, podB6, 9, nil), Plain, false},
		{"first fragment", first, Plain, false},
		{"later fragment", second, Plain, false},
		{"later IPv6 fragment", fragment6(t, podA6, podB6, 10, false, make([]byte, 32)), Plain,
			false},
		{"later fragment between nodes",
			fragment6(t, nodeA6, nodeB6, 10, false, sealed(0x10000100, 1, 1, 64)), Other, false},
		{"pod to the world", udp(t, podA, world, 53, nil), Outside, false},
		{"the world to a pod", udp(t, world, podA, 53, nil), Outside, false},
		{"what a policy allows", udp(t, podA, plainPod, 53, nil), Allowed, false},
		{"node to node", udp(t, nodeA, nodeB, 53, nil), Other, false},
		{"error that quotes what a policy allows",
			icmpError(t, nodeB, nodeA, udp(t, podA, plainPod, 53, nil)), Allowed, false},
		{"error that quotes a pod's packet", icmpError(t, nodeB, nodeA, udp(t, podA, podB, 9, nil)),
			Plain, false},
		{"IPv6 error that quotes a pod's packet",
			icmpError(t, nodeB6, nodeA6, udp(t, podA6, podB6, 9, nil)), Plain, false},
		{"IPv6 redirect that quotes a pod's packet",
			redirect(t, nodeB6, nodeA6, udp(t, podA6, podB6, 9, nil)), Plain, false},
		{"error about a pod and the world",
			icmpError(t, nodeB, nodeA, udp(t, podA, world, 53, nil)), Other, false},
		{"error about a sealed packet",
			icmpError(t, nodeB, nodeA, udp(t, nodeA, nodeB, 4500, sealed(0x10000100, 1, 1, 64))),
			Other, false},
		{"error without a quote", icmpError(t, nodeB, nodeA, make([]byte, inet.EthernetLen+3)),
			Other, false},
		{"echo that carries a pod's packet", echo(t, nodeB, nodeA, udp(t, podA, podB, 9, nil)),
			Other, false},
		{"ARP for a pod", arp, NotIP, false},
		{"cut short", cut, Broken, false},
		{"nothing", nil, Broken, false},
		{"marker in cleartext", udp(t, podA, podB, 9, Fill(testMarker, 100)), Plain, true},
		{"marker between nodes", udp(t, nodeA, nodeB, 53, append([]byte("tunnel"), testMarker...)),
			Other, true},
		{"marker in a sealed packet",
			udp(t, nodeA, nodeB, 4500, append(sealed(0x10000100, 1, 1, 0), testMarker...)), Sealed,
			true},
		{"half a marker", udp(t, nodeA, nodeB, 53, testMarker[:20]), Other, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewDetector(testRules())
			if got := d.Frame(Frame{Data: c.frame}); got != c.want {
				t.Errorf("it is %s, not %s", got, c.want)
			}
			r := d.Report()
			if (r.Markers == 1) != c.marked {
				t.Errorf("markers: %d", r.Markers)
			}
			if bad := c.want == Plain || c.marked; r.Clean() == bad || (len(r.Finds) > 0) != bad {
				t.Errorf("clean %t with finds %+v", r.Clean(), r.Finds)
			}
			sum := r.Sealed + r.Plain + r.Allowed + r.Outside + r.Other + r.NotIP + r.Broken
			if r.Frames != 1 || sum != 1 {
				t.Errorf("one frame was counted %d times: %+v", sum, r)
			}
		})
	}
}

// TestDetectorCounts adds up over frames, by destination, and keeps no more finds than it should.
func TestDetectorCounts(t *testing.T) {
	d := NewDetector(testRules())
	for range 3 {
		d.Frame(Frame{Data: udp(t, nodeA, nodeB, 4500, sealed(0x10000100, 1, 1, 64))})
	}
	d.Frame(Frame{Data: udp(t, nodeB, nodeA, 4500, sealed(0x10000100, 1, 1, 64))})
	for range 40 {
		d.Frame(Frame{Interface: "w0", Data: udp(t, podA, podB, 9, nil)})
	}
	r := d.Report()
	if r.Frames != 44 || r.Sealed != 4 || r.SealedTo[nodeB] != 3 || r.SealedTo[nodeA] != 1 ||
		r.Plain != 40 || len(r.Finds) != maxFinds {
		t.Errorf("report %+v", r)
	}
	want := Find{Interface: "w0", What: "plain", Src: podA, Dst: podB, Protocol: "udp",
		Length: 60} // padded to Ethernet's shortest frame
	if r.Finds[0] != want {
		t.Errorf("find %+v, want %+v", r.Finds[0], want)
	}
}

func TestESP(t *testing.T) {
	p, err := inet.Parse(udp(t, nodeA, nodeB, 4500, sealed(3<<28|5<<22|300, 7, 1<<33|7, 32)))
	if err != nil {
		t.Fatal(err)
	}
	e, ok := ParseESP(p, 4500)
	if !ok || e.Epoch() != 3 || e.Lane() != 5 || e.Identity() != 300 || e.Seq != 7 ||
		e.IV != 1<<33|7 {
		t.Errorf("%+v %t: epoch %d lane %d identity %d", e, ok, e.Epoch(), e.Lane(), e.Identity())
	}
}

// TestSegments cuts a stream of markers anywhere: each piece of twice a marker's length holds one
// whole.
func TestSegments(t *testing.T) {
	marker := NewMarker()
	stream := Fill(marker, 4000)
	for at := 0; at+2*len(marker) <= len(stream); at += 7 {
		d := NewDetector(Rules{Marker: marker})
		d.Frame(Frame{Data: udp(t, nodeA, nodeB, 53, stream[at:at+2*len(marker)])})
		if d.Report().Markers != 1 {
			t.Fatalf("the piece at %d shows no marker", at)
		}
	}
}

// FuzzParse looks for frames that break the parser or the detector.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(make([]byte, 12), 8, 0, 0x45, 0, 0, 20))
	f.Add(append(make([]byte, 12), 0x86, 0xdd, 0x60))
	f.Fuzz(func(_ *testing.T, data []byte) { NewDetector(Rules{Marker: testMarker}).Frame(Frame{Data: data}) })
}
