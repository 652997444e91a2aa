package handshake

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"time"

	"weft.dev/weft/internal/keys/schedule"
)

// session is one TLS session with a peer whose certificate is good. Both roles are alike but for
// who says HELLO first.
type session struct {
	cfg    *Config
	conn   *tls.Conn
	secret *schedule.Secret
	mine   State
	theirs *hello
	result Result
	// generation is the virtual machine's from before the TLS handshake.
	generation uint64
	// over: the peer broke off, so it is told nothing more.
	over bool
}

func newSession(cfg *Config, conn *tls.Conn, peer string, dialled bool) *session {
	s := &session{cfg: cfg, conn: conn, result: Result{PeerNode: peer, Dialled: dialled}}
	s.result.Group, s.result.PostQuantum = groupName(conn.ConnectionState().CurveID)
	return s
}

// derive makes this session's secret.
func (s *session) derive(ctx context.Context, epoch uint64) error {
	s.result.Epoch = epoch
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	dek, err := s.cfg.DEK(ctx, epoch)
	if err != nil {
		return fmt.Errorf("%w on this node: epoch %d: %w", ErrNoEpoch, epoch, err)
	}
	defer clear(dek)
	state := s.conn.ConnectionState()
	exporter, err := state.ExportKeyingMaterial(schedule.ExporterLabel,
		schedule.ExporterContext(epoch), schedule.ExporterSize)
	if err != nil {
		return fmt.Errorf("take the session's exporter: %w", err)
	}
	defer clear(exporter)
	if s.secret, err = schedule.New(dek, exporter, epoch); err != nil {
		return fmt.Errorf("epoch %d: %w", epoch, err)
	}
	return nil
}

// look asks the datapath what there is. From here on no other exchange with this peer may change
// it.
func (s *session) look() (err error) {
	if s.mine, err = s.cfg.Installer.State(s.result.PeerNode, s.result.Epoch); err != nil {
		return fmt.Errorf("%w on this node: read what is installed towards %s: %w", ErrInstall,
			s.result.PeerNode, err)
	}
	if s.mine.Lanes < 1 || s.mine.Lanes > schedule.MaxLanes {
		return fmt.Errorf("%w on this node: %d lanes, want 1 to %d", ErrInstall, s.mine.Lanes,
			schedule.MaxLanes)
	}
	s.result.TX, s.result.RX = s.mine.TX, s.mine.RX
	return nil
}

// hello is what this node says of itself.
func (s *session) hello() (*frame, error) {
	offer, err := s.secret.ID(s.result.PeerNode, s.cfg.Node)
	if err != nil {
		return nil, err
	}
	return &frame{Type: typeHello, Hello: &hello{
		Version: Version, Node: s.cfg.Node, Epoch: s.result.Epoch, Lanes: s.mine.Lanes,
		TX: fingerprint(s.mine.TX), RX: fingerprint(s.mine.RX), Offer: fingerprint(offer),
	}}, nil
}

// introduced holds the peer's HELLO to its certificate.
func (s *session) introduced(h *hello) error {
	if h.Node != s.result.PeerNode {
		return fmt.Errorf("%w: it says that it is %.64q, and its certificate is that of %q",
			ErrProtocol, h.Node, s.result.PeerNode)
	}
	s.theirs = h
	s.result.PeerLanes = h.Lanes
	return nil
}

// compare finds out whether both have the same data-encryption key, before anything is installed.
func (s *session) compare() error {
	id, err := s.secret.ID(s.cfg.Node, s.result.PeerNode)
	if err != nil {
		return err
	}
	if uint64(s.theirs.Offer) != id {
		return fmt.Errorf("%w: epoch %d", ErrKeyMismatch, s.result.Epoch)
	}
	return nil
}

// settle puts both directions in order. Both ends run it at once, after each has seen the other's
// HELLO; no step waits for one of the other end's that waits for it.
func (s *session) settle() error {
	receive := !inOrder(uint64(s.theirs.TX), s.mine.RX)
	send := !inOrder(s.mine.TX, uint64(s.theirs.RX))
	var incoming uint64
	if receive {
		var err error
		if incoming, err = s.installRX(); err != nil {
			return err
		}
		if err := s.write(&frame{Type: typeRXReady, ID: fingerprint(incoming)}); err != nil {
			return err
		}
	}
	if send {
		if err := s.switchTX(); err != nil {
			return err
		}
	}
	if receive {
		if _, err := s.expect(typeSwitched, incoming); err != nil {
			return err
		}
	}
	if err := s.write(&frame{Type: typeDone}); err != nil {
		return err
	}
	_, err := s.expect(typeDone, 0)
	return err
}

func inOrder(tx, rx uint64) bool { return tx == rx && tx != 0 }

// installRX makes this node ready to receive from the peer with this session's keys.
func (s *session) installRX() (uint64, error) {
	keys, err := s.secret.Direction(s.result.PeerNode, s.cfg.Node, s.theirs.Lanes)
	if err != nil {
		return 0, err
	}
	defer keys.Zero()
	keys.VMGeneration = s.generation
	if err := s.cfg.Installer.InstallRX(s.result.PeerNode, keys); err != nil {
		return 0, fmt.Errorf("%w on this node: receive from %s: %w", ErrInstall, s.result.PeerNode,
			err)
	}
	s.result.RX, s.result.RekeyedRX = keys.ID, true
	return keys.ID, nil
}

// switchTX waits until the peer can open what this node will seal, and only then seals with it.
func (s *session) switchTX() error {
	id, err := s.secret.ID(s.cfg.Node, s.result.PeerNode)
	if err != nil {
		return err
	}
	if _, err := s.expect(typeRXReady, id); err != nil {
		return err
	}
	keys, err := s.secret.Direction(s.cfg.Node, s.result.PeerNode, s.mine.Lanes)
	if err != nil {
		return err
	}
	defer keys.Zero()
	keys.VMGeneration = s.generation
	if err := s.cfg.Installer.InstallTX(s.result.PeerNode, keys); err != nil {
		return fmt.Errorf("%w on this node: send to %s: %w", ErrInstall, s.result.PeerNode, err)
	}
	s.result.TX, s.result.RekeyedTX = id, true
	return s.write(&frame{Type: typeSwitched, ID: fingerprint(id)})
}

// expect reads a frame that must be of a type, with an ID.
func (s *session) expect(want string, id uint64) (*frame, error) {
	f, err := s.read()
	if err != nil {
		return nil, fmt.Errorf("wait for %s: %w", want, err)
	}
	if f.Type != want {
		return nil, fmt.Errorf("%w: %s came instead of %s", ErrProtocol, f.Type, want)
	}
	if uint64(f.ID) != id {
		return nil, fmt.Errorf("%w: epoch %d, %s", ErrKeyMismatch, s.result.Epoch, want)
	}
	return f, nil
}

// read reads one frame in time. A REFUSE or BUSY of the peer is an error.
func (s *session) read() (*frame, error) {
	if err := s.conn.SetReadDeadline(time.Now().Add(s.cfg.Timeout)); err != nil {
		return nil, err
	}
	f, err := readFrame(s.conn)
	if err != nil {
		return nil, network(err)
	}
	switch f.Type {
	case typeBusy:
		s.over = true
		return nil, fmt.Errorf("%w on %s", ErrBusy, s.result.PeerNode)
	case typeRefuse:
		s.over = true
		return nil, refusal(f)
	}
	return f, nil
}

func (s *session) write(f *frame) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(s.cfg.Timeout)); err != nil {
		return err
	}
	if err := writeFrame(s.conn, f); err != nil {
		return fmt.Errorf("send %s: %w", f.Type, network(err))
	}
	return nil
}

// refuse tells the peer why this end breaks off, as far as it is the peer's business.
func (s *session) refuse(err error) {
	answer := frame{Type: typeBusy}
	if !errors.Is(err, ErrBusy) {
		answer.Type = typeRefuse
		for _, known := range refusals {
			if errors.Is(err, known.kind) {
				answer.Code, answer.Text = known.code, known.text
				break
			}
		}
	}
	if s.over || answer.Type == typeRefuse && answer.Code == "" || s.write(&answer) != nil {
		return
	}
	// A connection closed while something of the peer's is unread would be reset, and the peer
	// would lose the reason.
	_ = s.conn.CloseWrite()
	_ = s.conn.SetReadDeadline(time.Now().Add(min(lingerTime, s.cfg.Timeout)))
	_, _ = io.CopyN(io.Discard, s.conn, MaxFrame)
}

// lingerTime is how long the end that refuses waits for the peer to hang up.
const lingerTime = time.Second

// refusals are what one end tells the other. What is wrong inside a node (paths, KMS answers) stays
// in its own log.
var refusals = []struct {
	code string
	kind error
	text string
}{
	{"no_epoch", ErrNoEpoch, "it cannot use this epoch's key"},
	{"key_mismatch", ErrKeyMismatch, "its data-encryption key for this epoch is another one"},
	{"unknown_node", ErrUnknownNode, "it has no Node object of this node's name"},
	{"install", ErrInstall, "it could not install keys in its datapath"},
	{"protocol", ErrProtocol, "it did not understand this node"},
}

// refusal makes an error of what a peer refuses with.
func refusal(f *frame) error {
	for _, known := range refusals {
		if f.Code == known.code {
			return fmt.Errorf("%w: %s: %w", ErrRefused, known.text, known.kind)
		}
	}
	return fmt.Errorf("%w: %s (%s)", ErrRefused, f.Text, f.Code)
}

// close ends the session and forgets its secret.
func (s *session) close() {
	s.secret.Zero()
	_ = s.conn.Close()
}
