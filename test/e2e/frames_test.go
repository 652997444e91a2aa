package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

var (
	gatewayMAC = mac("02:57:45:46:54:01")
	broadcast  = mac("ff:ff:ff:ff:ff:ff")
	strange    = mac("02:00:00:00:be:ef")
)

func mac(text string) net.HardwareAddr {
	m, err := net.ParseMAC(text)
	if err != nil {
		panic(err)
	}
	return m
}

// ground serializes the layers, with lengths and checksums right.
func ground(l ...gopacket.SerializableLayer) []byte {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf,
		gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, l...); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

func ethernet(src, dst net.HardwareAddr, kind layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: src, DstMAC: dst, EthernetType: kind}
}

// datagram is a whole frame with a UDP datagram.
func datagram(srcMAC net.HardwareAddr, src, dst netip.AddrPort, tag bool) []byte {
	kind, ip := layers.EthernetTypeIPv4, gopacket.SerializableLayer(nil)
	udp := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
	if src.Addr().Is4() {
		v4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP,
			SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		_ = udp.SetNetworkLayerForChecksum(v4)
		ip = v4
	} else {
		v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP,
			SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		_ = udp.SetNetworkLayerForChecksum(v6)
		ip, kind = v6, layers.EthernetTypeIPv6
	}
	payload := gopacket.Payload("forged or not")
	if tag {
		return ground(ethernet(srcMAC, gatewayMAC, layers.EthernetTypeDot1Q),
			&layers.Dot1Q{VLANIdentifier: 7, Type: kind}, ip, udp, payload)
	}
	return ground(ethernet(srcMAC, gatewayMAC, kind), ip, udp, payload)
}

func arp(op uint16, frameSrc, sha net.HardwareAddr, spa netip.Addr, dst, tha net.HardwareAddr,
	tpa netip.Addr) []byte {
	return ground(ethernet(frameSrc, dst, layers.EthernetTypeARP), &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6,
		ProtAddressSize: 4, Operation: op,
		SourceHwAddress: sha, SourceProtAddress: spa.AsSlice(), DstHwAddress: tha,
		DstProtAddress: tpa.AsSlice(),
	})
}

// advertisement is an unsolicited neighbour advertisement for target.
func advertisement(frameSrc net.HardwareAddr, src, target netip.Addr,
	lladdr net.HardwareAddr) []byte {
	ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6,
		SrcIP: src.AsSlice(), DstIP: net.ParseIP("ff02::1")}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborAdvertisement, 0)}
	_ = icmp.SetNetworkLayerForChecksum(ip)
	return ground(ethernet(frameSrc, mac("33:33:00:00:00:01"), layers.EthernetTypeIPv6), ip, icmp,
		&layers.ICMPv6NeighborAdvertisement{
			Flags: 0x20, TargetAddress: target.AsSlice(),
			Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptTargetAddress, Data: lladdr}},
		})
}

// wireEnd sends and receives raw frames on an interface of a namespace.
type wireEnd struct {
	fd, ifindex int
	// leaving has received tell of frames that this end sends instead of those that it gets.
	leaving bool
}

// openEnd opens a packet socket. bypass sends past the interface's own egress hooks.
func openEnd(t *testing.T, ns, ifName string, bypass bool) *wireEnd {
	t.Helper()
	e := &wireEnd{}
	err := netns.Do(ns, func() error {
		iface, err := net.InterfaceByName(ifName)
		if err != nil {
			return err
		}
		e.ifindex = iface.Index
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if e.fd, err = unix.Socket(unix.AF_PACKET,
			unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all)); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		if bypass {
			if err := unix.SetsockoptInt(e.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS,
				1); err != nil {
				return err
			}
		}
		return unix.Bind(e.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: e.ifindex})
	})
	if err != nil {
		t.Fatalf("packet socket on %s: %v", ifName, err)
	}
	t.Cleanup(func() { unix.Close(e.fd) })
	return e
}

func (e *wireEnd) send(t *testing.T, frame []byte) {
	t.Helper()
	if err := unix.Send(e.fd, frame, 0); err != nil {
		t.Fatalf("send frame: %v", err)
	}
}

// received takes what has passed and not yet been read.
func (e *wireEnd) received() [][]byte {
	var frames [][]byte
	buf := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(e.fd, buf, 0)
		if err != nil {
			return frames
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok &&
			(ll.Pkttype == unix.PACKET_OUTGOING) != e.leaving {
			continue
		}
		frames = append(frames, append([]byte(nil), buf[:n]...))
	}
}

// listener is a UDP socket of a pod that counts what it gets, by source address.
type listener struct {
	conn  *net.UDPConn
	got   chan netip.AddrPort // the first ones; all are counted
	total atomic.Int64
}

func listen(t *testing.T, p *lab.Pod, port uint16) *listener {
	t.Helper()
	l := &listener{got: make(chan netip.AddrPort, 4096)}
	err := p.Do(func() (err error) {
		if l.conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: int(port)}); err != nil {
			return err
		}
		raw, err := l.conn.SyscallConn()
		if err != nil {
			return err
		}
		return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) })
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			_, from, err := l.conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			l.total.Add(1)
			select {
			case l.got <- netip.AddrPortFrom(from.Addr().Unmap(), from.Port()):
			default:
			}
		}
	}()
	return l
}

// next waits for one datagram.
func (l *listener) next(t *testing.T, what string) (from netip.AddrPort) {
	t.Helper()
	eventually(t, what, func() error {
		select {
		case from = <-l.got:
			return nil
		default:
			return fmt.Errorf("nothing arrived")
		}
	})
	return from
}
