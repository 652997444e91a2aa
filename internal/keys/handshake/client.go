package handshake

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/keys/nodeid"
)

// New makes both roles of a node.
func New(cfg Config) (*Client, *Server, error) {
	if _, err := nodeid.URI(cfg.TrustDomain, cfg.Node); err != nil {
		return nil, nil, err
	}
	if cfg.Identity == nil || cfg.Known == nil || cfg.DEK == nil || cfg.Installer == nil {
		return nil, nil, errors.New("handshake: Identity, Known, DEK and Installer must be given")
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Sessions <= 0 {
		cfg.Sessions = DefaultSessions
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Admit == nil {
		cfg.Admit = func(netip.Addr) bool { return true }
	}
	if cfg.VMGeneration == nil {
		cfg.VMGeneration = func() (uint64, error) { return 0, nil }
	}
	shared := newPeers(cfg.Node)
	return &Client{cfg: &cfg, peers: shared}, &Server{cfg: &cfg, peers: shared,
		limit: newConnLimit(cfg.Sessions)}, nil
}

// Client dials peers.
type Client struct {
	cfg   *Config
	peers *peers
}

// Exchange puts both directions between this node and a peer in order for an epoch.
func (c *Client) Exchange(ctx context.Context, peer Peer, epoch uint64) (Result, error) {
	result := Result{PeerNode: peer.Name, Epoch: epoch, Dialled: true}
	if err := c.check(peer, epoch); err != nil {
		return result, fmt.Errorf("keys with %s: %w", peer.Name, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	activity, err := c.peers.dial(peer.Name, cancel)
	if err != nil {
		return result, fmt.Errorf("keys with %s: %w", peer.Name, err)
	}
	defer c.peers.end(peer.Name, activity)
	if err := c.exchange(ctx, peer, epoch, activity, &result); err != nil {
		// A session that was cut off ends in whatever error of the network; why it was cut off says
		// more.
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return result, fmt.Errorf("keys with %s: %w", peer.Name, err)
	}
	return result, nil
}

func (c *Client) check(peer Peer, epoch uint64) error {
	if wrong := v1alpha1.CheckName(peer.Name); wrong != "" {
		return fmt.Errorf("the peer's name %s", wrong)
	}
	switch {
	case peer.Name == c.cfg.Node:
		return errors.New("that is this node itself")
	case epoch == 0:
		return errors.New("epochs count from 1")
	case len(peer.Addresses) == 0:
		return fmt.Errorf("%w: it has no address", ErrUnreachable)
	case !c.cfg.Known(peer.Name):
		return ErrUnknownNode
	}
	return nil
}

func (c *Client) exchange(ctx context.Context, peer Peer, epoch uint64, activity *activity,
	result *Result) error {
	generation, err := c.cfg.VMGeneration()
	if err != nil {
		return fmt.Errorf("%w on this node: %w", ErrInstall, err)
	}
	config, err := c.cfg.tlsConfig(ctx, nodeid.Client, peer.Name, func(string) {})
	if err != nil {
		return err
	}
	raw, err := c.dial(ctx, peer)
	if err != nil {
		return err
	}
	defer raw.Close()
	ctx, cancel := context.WithTimeout(ctx, sessionTimeouts*c.cfg.Timeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	if err := c.peers.reach(ctx, activity, stageConnected); err != nil {
		return err
	}
	conn := tls.Client(raw, config)
	if err := shakeHands(ctx, conn, c.cfg.Timeout); err != nil {
		return err
	}
	s := newSession(c.cfg, conn, peer.Name, true)
	s.generation = generation
	defer s.close()
	err = c.talk(ctx, s, epoch, activity)
	if err != nil {
		s.refuse(err)
	}
	*result = s.result
	return err
}

// talk is the client's half before both ends do the same.
func (c *Client) talk(ctx context.Context, s *session, epoch uint64, activity *activity) error {
	if err := s.derive(ctx, epoch); err != nil {
		return err
	}
	if err := s.look(); err != nil {
		return err
	}
	hello, err := s.hello()
	if err != nil {
		return err
	}
	if err := s.write(hello); err != nil {
		return err
	}
	answer, err := s.expect(typeHello, 0)
	if err != nil {
		return err
	}
	if err := c.peers.reach(ctx, activity, stageGreeted); err != nil {
		return err
	}
	if err := s.introduced(answer.Hello); err != nil {
		return err
	}
	if answer.Hello.Epoch != epoch {
		return fmt.Errorf("%w: it answers for epoch %d, not %d", ErrProtocol, answer.Hello.Epoch,
			epoch)
	}
	if err := s.compare(); err != nil {
		return err
	}
	if err := s.write(&frame{Type: typeAgree}); err != nil {
		return err
	}
	return s.settle()
}

// addressTurn is how long an address is tried while another is left: a peer that does not know this
// node yet answers nothing at all, and neither does a family that leads nowhere. Time enough for
// opening packets to be lost twice.
const addressTurn = 3 * time.Second

// dial tries the peer's addresses in turn.
func (c *Client) dial(ctx context.Context, peer Peer) (net.Conn, error) {
	var failed []error
	for i, address := range peer.Addresses {
		dialer := net.Dialer{Timeout: c.cfg.Timeout, LocalAddr: c.from(address)}
		if i < len(peer.Addresses)-1 {
			dialer.Timeout = min(dialer.Timeout, addressTurn)
		}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			return conn, nil
		}
		failed = append(failed, err)
	}
	return nil, fmt.Errorf("%w: %w", ErrUnreachable, errors.Join(failed...))
}

// from is the address to dial from, which the peer knows this node by; nil for whatever the kernel
// chooses.
func (c *Client) from(to string) net.Addr {
	addr, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(c.cfg.Addresses,
		func(a netip.Addr) bool { return a.Is4() == addr.Addr().Unmap().Is4() })
	if i < 0 {
		return nil
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.cfg.Addresses[i], 0))
}

// shakeHands does the TLS handshake within a time that a slow end cannot stretch.
func shakeHands(ctx context.Context, conn *tls.Conn, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS: %w", network(err))
	}
	return nil
}
