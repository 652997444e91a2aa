package model

import (
	"fmt"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// claim is an address that a forged frame says it is from.
type claim struct {
	what string
	addr netip.Addr
}

// inject sends one in share of the forged frames to every node; the caller holds the lock.
func (p *prober) inject(share int) {
	for port, h := range p.hosts {
		if h.mac == nil {
			continue // no cable
		}
		for i, family := range families {
			var claims []claim
			for _, o := range p.pods {
				if !p.plain(o) {
					claims = append(claims, claim{"pod " + o.Name, o.Addr(family)})
				}
			}
			for _, other := range p.hosts {
				claims = append(claims, claim{"nobody in the range of " + other.Name, other.spare[i]})
			}
			if h.guarded {
				p.forge(port, h, claims, h.Addresses[i], "node "+h.Name, share)
			}
			for _, other := range p.hosts {
				claims = append(claims, claim{"node " + other.Name, other.Addresses[i]})
			}
			for _, to := range p.pods {
				if to.Node == h.Name && !p.plain(to) {
					p.forge(port, h, claims, to.Addr(family), "pod "+to.Name, share)
				}
			}
		}
	}
}

// forge sends frames of all who are claimed to one address, bare and in a priority tag.
func (p *prober) forge(port int, h *host, claims []claim, dst netip.Addr, whom string, share int) {
	for _, c := range claims {
		for _, tagged := range []bool{false, true} {
			if p.rand.IntN(share) != 0 {
				continue
			}
			text := fmt.Sprintf("%sevil step %d round %d: from %s to %s, tagged %t", magic, p.step, p.rounds, c.what, whom, tagged)
			if p.watch.send(port, forged(h, c.addr, dst, tagged, text)) {
				p.sent++
			}
		}
	}
}

// forged is a datagram to a node's interface.
func forged(h *host, src, dst netip.Addr, tagged bool, text string) []byte {
	udp := &layers.UDP{SrcPort: goodPort, DstPort: evilPort}
	kind, ip := layers.EthernetTypeIPv4, gopacket.SerializableLayer(nil)
	if src.Is4() {
		v4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		_ = udp.SetNetworkLayerForChecksum(v4)
		ip = v4
	} else {
		v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		_ = udp.SetNetworkLayerForChecksum(v6)
		ip, kind = v6, layers.EthernetTypeIPv6
	}
	stack := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: evilMAC, DstMAC: h.mac, EthernetType: kind}, ip, udp, gopacket.Payload(text)}
	if tagged {
		stack = append([]gopacket.SerializableLayer{
			&layers.Ethernet{SrcMAC: evilMAC, DstMAC: h.mac, EthernetType: layers.EthernetTypeDot1Q}, &layers.Dot1Q{Type: kind},
		}, stack[1:]...)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, stack...); err != nil {
		panic(err)
	}
	return buf.Bytes()
}
