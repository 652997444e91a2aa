// Package handshake gives two nodes the same keys: one TLS 1.3 session per pair and epoch, in which
// nothing secret is sent. Both ends take the session's exporter, and with the epoch's
// data-encryption key that becomes the keys of both directions (package schedule).
//
// After the TLS handshake both ends talk length-prefixed JSON frames. Each sends, in this order:
//
//	HELLO        who I am, which epoch, how many lanes I send with, which keys I send with and hold for receiving,
//	             and the fingerprint of the keys that this session would give for receiving
//	AGREE        only who dialled: I have seen your HELLO, and mine still holds
//	RX_READY     the receiver of a direction that is not in order has its keys
//	TX_SWITCHED  the sender of that direction seals with them
//	DONE
//
// A direction A→B is in order if A sends with the very keys that B holds for receiving. Only a
// direction that is not gets new keys; one that is in order is never touched, because packets on
// their way could not be opened any more. An end that breaks off at any point leaves the old epoch
// working and at most directions that are out of order, which the next session finds and repairs.
//
// Either end may dial. When both do, the node with the smaller name wins: it answers BUSY, the
// other gives way. An end that breaks off on purpose says REFUSE and why.
package handshake

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/schedule"
)

// Limits of the protocol.
const (
	// ALPN is the protocol's name in TLS.
	ALPN = "weft-keys/1"
	// DefaultPort is where agents listen.
	DefaultPort = 4551
	// Version is what HELLO says.
	Version = 1
	// MaxFrame bounds a frame's JSON.
	MaxFrame = 64 << 10
	// DefaultTimeout bounds every read and write, and the TLS handshake as a whole.
	DefaultTimeout = 10 * time.Second
	// DefaultSessions is how many sessions are served at once.
	DefaultSessions = 64
)

// Kinds of errors; test with errors.Is. Kinds of certificate errors are nodeid's.
var (
	// ErrBusy: another exchange with that peer is running, or it dialled at the same time and has
	// precedence. Nothing is wrong; try again in a moment, or see whether its exchange was enough.
	ErrBusy = errors.New("another exchange with this peer is running")
	// ErrNoEpoch: this node or the peer cannot use the epoch's data-encryption key (it has not
	// heard of the epoch, or may not unwrap it). The error's text says which of the two.
	ErrNoEpoch = errors.New("the epoch's key is not available")
	// ErrKeyMismatch: both have a data-encryption key for that epoch, but not the same. Nothing was
	// installed.
	ErrKeyMismatch = errors.New("the two nodes have different data-encryption keys for this epoch")
	// ErrUnknownNode: the peer's certificate is good, but it is not one of the nodes that are known
	// here.
	ErrUnknownNode = errors.New("not a known node")
	// ErrRefused: the peer refused this node; the error's text says why, as far as the peer tells.
	ErrRefused = errors.New("the peer refused")
	// ErrProtocol: the peer sent something that this protocol does not have at that point.
	ErrProtocol = errors.New("the peer broke the protocol")
	// ErrNotPostQuantum: the peer, whose certificate is good, cannot do X25519MLKEM768, which this
	// node requires.
	ErrNotPostQuantum = errors.New("the peer cannot agree on keys with X25519MLKEM768, which this node requires")
	// ErrInstall: this node or the peer could not put keys into its datapath.
	ErrInstall = errors.New("keys could not be installed")
	// ErrAborted: this node gave up all sessions that it served, by Server.Abort.
	ErrAborted = errors.New("this node gave up the exchange")
	// ErrUnreachable: no address of the peer answered.
	ErrUnreachable = errors.New("the peer cannot be reached")
)

// State is what this node has towards a peer in an epoch, as its datapath tells.
type State struct {
	// TX is the ID of the keys that this node sends with. It is 0 unless the keys of all its lanes
	// are installed under that one ID and it has switched to that epoch (or to a newer one, after
	// having switched to that).
	TX uint64
	// RX is the ID of the keys that it holds for receiving: 0 unless all that it holds in that
	// epoch have one ID.
	RX uint64
	// Lanes is how many lanes this node sends with, 1 to schedule.MaxLanes.
	Lanes int
}

// Installer puts keys into the datapath. Calls about one peer never overlap; calls about several
// peers do. A call must have happened for good when it returns, since the peer acts on it. Between
// State and the end of an exchange nobody else may change that peer's keys of that epoch.
type Installer interface {
	// State tells what is there now.
	State(peer string, epoch uint64) (State, error)
	// InstallRX installs keys.Lanes for receiving from peer (keys.From) in epoch keys.Number,
	// instead of what it holds there.
	InstallRX(peer string, keys *schedule.Direction) error
	// InstallTX installs keys.Lanes for sending to peer (keys.To) and then switches to that epoch,
	// unless the node sends with a newer one already.
	InstallTX(peer string, keys *schedule.Direction) error
}

// Config is what both roles of a node need.
type Config struct {
	// Node is this node's name; its certificate must say the same.
	Node string
	// TrustDomain is that of all nodes.
	TrustDomain string
	// Identity gives certificate and roots; it is asked anew for every session.
	Identity nodeid.Source
	// Known says whether a Node object of that name exists.
	Known func(name string) bool
	// Admit says whether a connection may come from an address: another one is closed at once. nil:
	// from any.
	Admit func(netip.Addr) bool
	// Addresses are this node's own, as its peers know them: it dials from the one of the right
	// family. Optional.
	Addresses []netip.Addr
	// DEK gives an epoch's data-encryption key (schedule.DEKSize bytes): a copy, which is zeroed
	// after use. An error means that this node cannot take part in that epoch; its text stays on
	// this node.
	DEK func(ctx context.Context, epoch uint64) ([]byte, error)
	// Installer is the datapath. Neither it nor its callers may keep the keys that it is given:
	// they are zeroed on return.
	Installer Installer
	// VMGeneration tells how often this virtual machine was forked (resumed from a snapshot, or
	// copied). It is asked before a session makes any secret, and goes with the keys as
	// Direction.VMGeneration: the datapath refuses those of before a fork. May be nil.
	VMGeneration func() (uint64, error)
	// Served is told how each session that this node served ended, once the peer has shown its
	// certificate (else Result.PeerNode is empty). May be nil.
	Served func(Result, error)
	// RequirePostQuantum refuses peers that cannot do X25519MLKEM768, by name, before anything of
	// an epoch is said; else X25519 is the fallback.
	RequirePostQuantum bool
	// Timeout bounds every read and write; 0 means DefaultTimeout.
	Timeout time.Duration
	// Sessions bounds how many sessions are served at once; 0 means DefaultSessions.
	Sessions int
	// Now is the clock for certificates; nil means time.Now.
	Now func() time.Time
	// Log may be nil.
	Log *slog.Logger
}

// Peer is whom to dial.
type Peer struct {
	Name string
	// Addresses are HOST:PORT, tried in turn: each but the last for a few seconds only.
	Addresses []string
}

// Result is how an exchange ended. After an error it holds what was known until then.
type Result struct {
	// PeerNode is the name in the peer's certificate.
	PeerNode string
	Epoch    uint64
	// Dialled: this node was the one that dialled.
	Dialled bool
	// PostQuantum and Group say how the session's keys were agreed, e.g. true and "X25519MLKEM768".
	PostQuantum bool
	Group       string
	// TX and RX are the IDs of both directions' keys at the end: sending to the peer, receiving
	// from it.
	TX, RX uint64
	// RekeyedTX and RekeyedRX: that direction was out of order and got new keys.
	RekeyedTX, RekeyedRX bool
	// PeerLanes is how many lanes the peer sends with.
	PeerLanes int
}

// The two roles of one node; New makes them together, because they keep each other from talking to
// the same peer twice:
//
//	func New(cfg Config) (*Client, *Server, error)
//	func (c *Client) Exchange(ctx context.Context, peer Peer, epoch uint64) (Result, error)
//	func (s *Server) Serve(ctx context.Context, listener net.Listener) error
//
// Exchange is safe to call from many goroutines; while one exchange with a peer runs, dialled or
// served, another one with the same peer returns ErrBusy at once. Serve returns nil once ctx is
// done and the sessions have ended; it closes the listener.
