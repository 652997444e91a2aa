package connectivity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"weft.dev/weft/internal/netns"
)

// servers answer on every target's addresses: UDP and TCP echo. ICMP is the kernel's.
type servers struct {
	ports   map[string]server
	closers []io.Closer
	group   sync.WaitGroup
}

// server is where one target answers in one family.
type server struct {
	udp, tcp netip.AddrPort
}

func serverKey(name, family string) string { return name + " " + family }

func (s *servers) at(name, family string) server { return s.ports[serverKey(name, family)] }

func startServers(ctx context.Context, pairs []pair) (*servers, error) {
	all := &servers{ports: map[string]server{}}
	for _, p := range pairs {
		for _, family := range Families {
			key := serverKey(p.to.Name, family)
			if _, done := all.ports[key]; done || !p.to.addr(family).IsValid() {
				continue
			}
			if err := all.start(ctx, key, p.to, p.to.addr(family)); err != nil {
				all.close()
				return nil, fmt.Errorf("answer on %s of %s: %w", p.to.addr(family), p.to.Name, err)
			}
		}
	}
	return all, nil
}

func (s *servers) start(ctx context.Context, key string, target Target, addr netip.Addr) error {
	return netns.Do(target.NetNS, func() error {
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		if err != nil {
			return err
		}
		s.closers = append(s.closers, udp)
		tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		if err != nil {
			return err
		}
		s.closers = append(s.closers, tcp)
		s.ports[key] = server{udp: udp.LocalAddr().(*net.UDPAddr).AddrPort(), tcp: tcp.Addr().(*net.TCPAddr).AddrPort()}
		s.group.Go(func() { echoUDP(udp) })
		s.group.Go(func() { s.echoTCP(ctx, tcp) })
		return nil
	})
}

func echoUDP(socket *net.UDPConn) {
	buffer := make([]byte, 1<<16)
	for {
		count, peer, err := socket.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = socket.WriteToUDPAddrPort(buffer[:count], peer)
		}
	}
}

// serverIdle ends an echo that its client has left.
const serverIdle = 15 * time.Second

func (s *servers) echoTCP(ctx context.Context, listener *net.TCPListener) {
	for {
		connection, err := listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		s.group.Go(func() {
			defer connection.Close()
			defer context.AfterFunc(ctx, func() { connection.Close() })()
			_ = connection.SetDeadline(time.Now().Add(serverIdle))
			_, _ = io.Copy(connection, connection)
		})
	}
}

func (s *servers) close() {
	for _, closer := range s.closers {
		closer.Close()
	}
	s.group.Wait()
}
