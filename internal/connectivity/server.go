package connectivity

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"weft.dev/weft/internal/echo"
	"weft.dev/weft/internal/netns"
)

// serverLife ends an echo that its client has left.
const serverLife = 15 * time.Second

// servers answer on every target's addresses: UDP and TCP echo. ICMP is the kernel's.
type servers struct {
	ports   map[string]server
	running []*echo.Server
}

// server is where one target answers in one family.
type server struct {
	udp, tcp netip.AddrPort
}

func serverKey(name, family string) string { return name + " " + family }

func (s *servers) at(name, family string) server { return s.ports[serverKey(name, family)] }

func startServers(pairs []pair) (*servers, error) {
	all := &servers{ports: map[string]server{}}
	for _, p := range pairs {
		for _, family := range Families {
			key := serverKey(p.to.Name, family)
			if _, done := all.ports[key]; done || !p.to.addr(family).IsValid() {
				continue
			}
			if err := all.start(key, p.to, p.to.addr(family)); err != nil {
				all.close()
				return nil, fmt.Errorf("answer on %s of %s: %w", p.to.addr(family), p.to.Name, err)
			}
		}
	}
	return all, nil
}

func (s *servers) start(key string, target Target, addr netip.Addr) error {
	return netns.Do(target.NetNS, func() error {
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		if err != nil {
			return err
		}
		tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		if err != nil {
			udp.Close()
			return err
		}
		s.ports[key] = server{
			udp: udp.LocalAddr().(*net.UDPAddr).AddrPort(),
			tcp: tcp.Addr().(*net.TCPAddr).AddrPort(),
		}
		s.running = append(s.running, echo.Serve(tcp, udp, serverLife))
		return nil
	})
}

func (s *servers) close() {
	for _, e := range s.running {
		e.Close()
	}
}
