package handshake

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
)

// Server answers peers.
type Server struct {
	cfg   *Config
	peers *peers
	limit *connLimit
}

// Turned counts the connections that were closed before a certificate was seen.
func (s *Server) Turned() Turned { return s.limit.stats() }

// Abort ends all sessions that are served at this moment, with ErrAborted. Those that begin later
// are served.
func (s *Server) Abort() { s.limit.abort() }

// acceptPause is how long to wait after a failed accept: mostly the process has no file descriptor
// left.
const acceptPause = 100 * time.Millisecond

// sessionTimeouts is how many times the timeout of one step a whole session may take, however small
// its steps.
const sessionTimeouts = 6

// Serve answers peers until ctx is done, and returns when the last session has ended.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	defer listener.Close()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			if conn != nil {
				_ = conn.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept peers: %w", err)
		}
		if err != nil {
			s.cfg.Log.Warn("accept of a peer's connection failed", "err", err)
			time.Sleep(acceptPause)
			continue
		}
		addr := addressOf(conn)
		if !s.cfg.Admit(addr) {
			s.limit.refuse(conn, addr)
			continue
		}
		session, cancel := context.WithCancelCause(ctx)
		entry := s.limit.enter(conn, addr, cancel)
		running.Go(func() {
			defer cancel(nil)
			defer entry.leave()
			s.serve(session, conn, entry)
		})
	}
}

// serve answers one connection and tells how that went.
func (s *Server) serve(ctx context.Context, raw net.Conn, entry *entry) {
	defer raw.Close()
	ctx, cancel := context.WithTimeout(ctx, sessionTimeouts*s.cfg.Timeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	conn, err := awaitFirst(raw, min(firstByte, s.cfg.Timeout))
	if err != nil {
		entry.quiet()
		return
	}
	entry.spoke()
	result, err := s.answer(ctx, conn, entry)
	if err != nil && errors.Is(context.Cause(ctx), ErrAborted) {
		err = ErrAborted // not whatever error of the network that ends in
	}
	if err != nil {
		err = fmt.Errorf("keys with %s at %s: %w", peerName(result.PeerNode), raw.RemoteAddr(), err)
	}
	if s.cfg.Served != nil {
		s.cfg.Served(result, err)
	}
}

func peerName(name string) string {
	if name == "" {
		return "an unknown peer"
	}
	return name
}

func (s *Server) answer(ctx context.Context, raw net.Conn, entry *entry) (Result, error) {
	var peer string
	generation, err := s.cfg.VMGeneration()
	if err != nil {
		return Result{}, fmt.Errorf("%w on this node: %w", ErrInstall, err)
	}
	conn := tls.Server(raw, &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Who sends no complete ClientHello has nothing worked out for it.
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			entry.greeted()
			return s.cfg.tlsConfig(ctx, nodeid.Server, "", func(name string) { peer = name })
		},
	})
	if err := shakeHands(ctx, conn, s.cfg.Timeout); err != nil {
		if errors.Is(err, ErrNotPostQuantum) {
			return Result{PeerNode: peer}, err // its certificate was good
		}
		return Result{}, err
	}
	if err := entry.named(ctx, peer); err != nil {
		return Result{PeerNode: peer}, err
	}
	session := newSession(s.cfg, conn, peer, false)
	session.generation = generation
	defer session.close()
	err = s.talk(ctx, session)
	if err != nil {
		session.refuse(err)
	}
	return session.result, err
}

// talk is the server's half before both ends do the same.
func (s *Server) talk(ctx context.Context, session *session) error {
	peer := session.result.PeerNode
	if peer == s.cfg.Node || !s.cfg.Known(peer) {
		return fmt.Errorf("%w: %q", ErrUnknownNode, peer)
	}
	first, err := session.expect(typeHello, 0)
	if err != nil {
		return err
	}
	session.result.Epoch = first.Hello.Epoch
	if err := session.introduced(first.Hello); err != nil {
		return err
	}
	// Who has a node's certificate but not the epoch's key is refused before it can get into the
	// way of the real one.
	if err := session.derive(ctx, first.Hello.Epoch); err != nil {
		return err
	}
	if err := session.compare(); err != nil {
		return err
	}
	activity, err := s.peers.serve(ctx, peer)
	if err != nil {
		return err
	}
	defer s.peers.end(peer, activity)
	if err := session.look(); err != nil {
		return err
	}
	hello, err := session.hello()
	if err != nil {
		return err
	}
	if err := session.write(hello); err != nil {
		return err
	}
	// The client's HELLO may have lain here while the client gave way to a session of this node's,
	// which made new keys. Only who still stands by it may have anything replaced.
	if _, err := session.expect(typeAgree, 0); err != nil {
		return err
	}
	return session.settle()
}
