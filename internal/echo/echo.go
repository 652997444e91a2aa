// Package echo answers TCP streams and UDP datagrams with what they carry.
package echo

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Server echoes what comes to a listener and a socket, both of which it owns.
type Server struct {
	tcp  *net.TCPListener
	udp  *net.UDPConn
	life time.Duration
	wg   sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// Serve begins to answer. Connections last as long as life at most; 0 sets no bound.
func Serve(tcp *net.TCPListener, udp *net.UDPConn, life time.Duration) *Server {
	s := &Server{tcp: tcp, udp: udp, life: life, conns: map[net.Conn]struct{}{}}
	s.wg.Go(s.serveTCP)
	s.wg.Go(s.serveUDP)
	return s
}

// Close ends the server and every connection.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	err := errors.Join(s.tcp.Close(), s.udp.Close())
	s.wg.Wait()
	return err
}

func (s *Server) serveTCP() {
	for {
		conn, err := s.tcp.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors, or a connection that was gone already
			continue
		}
		if !s.track(conn) {
			return
		}
		s.wg.Go(func() { s.answer(conn) })
	}
}

func (s *Server) answer(conn net.Conn) {
	if s.life > 0 {
		_ = conn.SetDeadline(time.Now().Add(s.life))
	}
	_, _ = io.Copy(conn, onlyReader{conn})
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
	conn.Close()
}

// onlyReader hides ReadFrom and WriteTo: spliced sockets would keep bytes of the echo in a pipe.
type onlyReader struct{ io.Reader }

func (s *Server) track(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return false
	}
	s.conns[conn] = struct{}{}
	return true
}

func (s *Server) serveUDP() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := s.udp.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			continue
		}
		_, _ = s.udp.WriteToUDPAddrPort(buf[:n], from)
	}
}
