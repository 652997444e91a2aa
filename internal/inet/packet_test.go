package inet

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

var (
	macA, macB = net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	a4, b4     = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	a6, b6     = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
)

func between(src, dst netip.Addr) Packet {
	return Packet{
		SrcMAC: macA, DstMAC: macB, Src: src, Dst: dst, TOS: 3, TTL: 7, ID: 9,
		Fragment: DontFragment,
	}
}

// theirs is what gopacket, which knows nothing of this package, builds of layers.
func theirs(t *testing.T, kind layers.EthernetType, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	eth := &layers.Ethernet{SrcMAC: macA, DstMAC: macB, EthernetType: kind}
	stack := append([]gopacket.SerializableLayer{eth}, l...)
	if err := gopacket.SerializeLayers(buf, options, stack...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestFrames compares frames with those that gopacket builds.
func TestFrames(t *testing.T) {
	data := []byte("an odd number of bytes, so that the last counts alone, and enough of them")
	ip4 := func(p layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{
			Version: 4, TOS: 3, TTL: 7, Id: 9, Flags: layers.IPv4DontFragment, Protocol: p,
			SrcIP: a4.AsSlice(), DstIP: b4.AsSlice(),
		}
	}
	ip6 := func(p layers.IPProtocol) *layers.IPv6 {
		return &layers.IPv6{
			Version: 6, TrafficClass: 3, HopLimit: 7, NextHeader: p,
			SrcIP: a6.AsSlice(), DstIP: b6.AsSlice(),
		}
	}
	udp4, udp6 := &layers.UDP{SrcPort: 1000, DstPort: 53}, &layers.UDP{SrcPort: 1000, DstPort: 53}
	tcp := &layers.TCP{SrcPort: 1000, DstPort: 80, Seq: 1 << 30, SYN: true, ACK: true, Window: 4096}
	icmp6 := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(EchoRequest6, 0)}
	_ = udp4.SetNetworkLayerForChecksum(ip4(17))
	_ = udp6.SetNetworkLayerForChecksum(ip6(17))
	_ = tcp.SetNetworkLayerForChecksum(ip6(6))
	_ = icmp6.SetNetworkLayerForChecksum(ip6(58))
	options := ip4(17)
	nop := layers.IPv4Option{OptionType: 1}
	options.Options = []layers.IPv4Option{nop, nop, nop, nop}
	withOptions, tagged, extended := between(a4, b4), between(a4, b4), between(a6, b6)
	withOptions.Options = []byte{1, 1, 1, 1}
	tagged.Tags = []VLANTag{{unix.ETH_P_8021AD, 5}, {unix.ETH_P_8021Q, 7}}
	extended.Extensions = []Extension{{unix.IPPROTO_DSTOPTS, []byte{0, 0, 1, 4, 0, 0, 0, 0}}}
	for name, c := range map[string]struct {
		got  Packet
		want []byte
	}{
		"UDP over IPv4": {between(a4, b4).UDP(1000, 53, data),
			theirs(t, layers.EthernetTypeIPv4, ip4(17), udp4, gopacket.Payload(data))},
		"UDP over IPv6": {between(a6, b6).UDP(1000, 53, data),
			theirs(t, layers.EthernetTypeIPv6, ip6(17), udp6, gopacket.Payload(data))},
		"TCP": {between(a6, b6).TCP(TCPHeader{1000, 80, 1 << 30, SYN | ACK, 4096}, data),
			theirs(t, layers.EthernetTypeIPv6, ip6(6), tcp, gopacket.Payload(data))},
		"echo": {between(a4, b4).Echo(5, 6, data), theirs(t, layers.EthernetTypeIPv4, ip4(1),
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(EchoRequest4, 0), Id: 5, Seq: 6},
			gopacket.Payload(data))},
		"echo over IPv6": {between(a6, b6).Echo(5, 6, data), theirs(t, layers.EthernetTypeIPv6,
			ip6(58), icmp6, &layers.ICMPv6Echo{Identifier: 5, SeqNumber: 6},
			gopacket.Payload(data))},
		"options": {withOptions.UDP(1000, 53, data),
			theirs(t, layers.EthernetTypeIPv4, options, udp4, gopacket.Payload(data))},
		"tags": {tagged.UDP(1000, 53, data), theirs(t, layers.EthernetTypeQinQ,
			&layers.Dot1Q{VLANIdentifier: 5, Type: layers.EthernetTypeDot1Q},
			&layers.Dot1Q{VLANIdentifier: 7, Type: layers.EthernetTypeIPv4},
			ip4(17), udp4, gopacket.Payload(data))},
		"extension header": {extended.UDP(1000, 53, data),
			theirs(t, layers.EthernetTypeIPv6, ip6(60),
				gopacket.Payload([]byte{17, 0, 1, 4, 0, 0, 0, 0}), udp6, gopacket.Payload(data))},
	} {
		got := c.got.Frame()
		if !bytes.Equal(got, c.want) {
			t.Errorf("%s:\n got %x\nwant %x", name, got, c.want)
		}
		h, err := Parse(got)
		if err != nil || h.Src != c.got.Src || h.Dst != c.got.Dst || h.Protocol != c.got.Protocol ||
			!bytes.HasSuffix(h.Payload, data) || h.Fragment {
			t.Errorf("%s: read as %+v, %v", name, h, err)
		}
	}
}

// TestARPRequest reads one with gopacket.
func TestARPRequest(t *testing.T) {
	p := gopacket.NewPacket(ARPRequest(macA, a4, b4), layers.LayerTypeEthernet, gopacket.Default)
	arp, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP)
	if !ok || arp.Operation != layers.ARPRequest || !bytes.Equal(arp.SourceHwAddress, macA) ||
		!bytes.Equal(arp.SourceProtAddress, a4.AsSlice()) ||
		!bytes.Equal(arp.DstProtAddress, b4.AsSlice()) {
		t.Errorf("%v", p)
	}
}

// TestNoChecksum: a datagram whose checksum comes out as 0 says 0xffff, for 0 would say that it
// has none.
func TestNoChecksum(t *testing.T) {
	p := between(a6, b6).UDP(0, 0, []byte{0, 0})
	rest := TransportChecksum(a6, b6, unix.IPPROTO_UDP, UDP(0, 0, []byte{0, 0}))
	p = p.UDP(0, 0, []byte{byte(rest >> 8), byte(rest)})
	if p.Payload[6] != 0xff || p.Payload[7] != 0xff {
		t.Errorf("%x", p.Payload)
	}
}

// FuzzParse looks for frames that break the parser, or of which it takes more than there is.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Add(between(a4, b4).UDP(1, 2, []byte("data")).Frame())
	f.Add(between(a6, b6).TCP(TCPHeader{}, nil).Frame())
	f.Fuzz(func(t *testing.T, frame []byte) {
		if h, err := Parse(frame); err == nil && !bytes.Contains(frame, h.Payload) {
			t.Errorf("%+v", h)
		}
	})
}
