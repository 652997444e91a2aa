package model

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
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
				claims = append(claims,
					claim{"nobody in the range of " + other.Name, other.spare[i]})
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
			text := fmt.Sprintf("%sevil step %d round %d: from %s to %s, tagged %t", magic, p.step,
				p.rounds, c.what, whom, tagged)
			if p.watch.send(port, forged(h, c.addr, dst, tagged, text)) {
				p.sent++
			}
		}
	}
}

// forged is a datagram to a node's interface.
func forged(h *host, src, dst netip.Addr, tagged bool, text string) []byte {
	p := inet.Packet{SrcMAC: evilMAC, DstMAC: h.mac, Src: src, Dst: dst, TTL: inet.DefaultTTL}
	if tagged {
		p.Tags = []inet.VLANTag{{TPID: unix.ETH_P_8021Q}}
	}
	return p.UDP(goodPort, evilPort, []byte(text)).Frame()
}
