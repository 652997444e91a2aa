package keys

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/sadb"
)

// Defaults of Options.
const (
	DefaultMaxAge     = 24 * time.Hour
	DefaultHardTTL    = 72 * time.Hour
	DefaultDrain      = 30 * time.Second
	DefaultMaxPackets = 1 << 48
	// DefaultParallel is how many exchanges a node has under way at once.
	DefaultParallel = 16
	// DefaultSpread is over how long nodes spread what they all do for a new epoch.
	DefaultSpread = 2 * time.Second
	// DefaultVersionEvery is how often the leader asks for the KEK's version.
	DefaultVersionEvery = time.Hour
)

// Options are what a Manager needs. Those without a default must be given.
type Options struct {
	// Node is this node's name, as its certificate says.
	Node string
	// TrustDomain is that of all nodes' certificates.
	TrustDomain string
	// Cluster binds wrapped keys to the cluster.
	Cluster string
	// Identity gives the node's certificate.
	Identity nodeid.Source
	// Listen opens the handshake's port. It is called again after a failure.
	Listen func(ctx context.Context) (net.Listener, error)
	// Filter keeps addresses that no peer has away from that port. Without it, or where it lets
	// somebody pass, the agent turns them away itself. Optional.
	Filter AddressFilter
	// Unfiltered says why the port that Listen opened has no filter, nil if it has. Optional.
	Unfiltered func() error
	// Addresses are this node's own, as its Node object says: peers take connections from no other.
	// Optional.
	Addresses []netip.Addr
	// Port is where peers listen that say nothing else. Default: handshake.DefaultPort.
	Port uint16

	KEK      epochs.KEK
	Store    epochs.Store
	Leader   epochs.Leader
	Datapath sadb.Datapath

	// MaxAge is how old an epoch may become before the leader makes the next one.
	MaxAge time.Duration
	// HardTTL is how long an epoch made by this node may be used at all.
	HardTTL time.Duration
	// ExtendTTL is how long beyond an epoch's hard TTL, at most, its keys may stay in use when
	// there is no way on; 0: not at all.
	ExtendTTL time.Duration
	// Drain is how long receive keys are kept after the peer has left them. Send keys are kept
	// for half of it, at most sendDrain, after the switch to newer ones.
	Drain time.Duration
	// MaxPackets is how many packets a lane may seal before the next epoch is made.
	MaxPackets uint64
	// Parallel bounds the exchanges under way at once.
	Parallel int
	// Spread is over how long unwrapping and dialling after a new epoch are spread at most; few
	// nodes take less. Negative: not at all.
	Spread time.Duration
	// SeenFile remembers when this node first saw each epoch, over its restarts; "" only while it
	// runs.
	SeenFile string
	// RequirePostQuantum refuses peers without X25519MLKEM768.
	RequirePostQuantum bool

	// ClockAhead is told when the wall clock has jumped ahead, which is what a virtual machine sees
	// that was resumed from a snapshot and has no other sign of it. Optional.
	ClockAhead func()

	// Clock is the real one by default.
	Clock clock.Clock
	// VersionEvery is how often, more or less, the leader asks for the KEK's version; negative:
	// never.
	VersionEvery time.Duration
	// Audit is told of every event; it must not block. Optional.
	Audit func(audit.Record)
	// AuditErr is why the audit log cannot be written, nil if it can. Optional.
	AuditErr func() error
	// KMS is what the KEK's own calls are counted with. Optional.
	KMS *kek.Meter
	// Log is optional.
	Log *slog.Logger

	// newExchanger is what the tests replace.
	newExchanger func(handshake.Config) (client, server, error)
}

// AddressFilter drops in the kernel what would open connections from an address that is not
// allowed.
type AddressFilter interface {
	// Allow replaces the allowed addresses.
	Allow(addrs map[netip.Addr]bool) error
	// Refused is how many packets were dropped, and where the last came from.
	Refused() (packets uint64, last netip.Addr, err error)
}

// client and server are the two roles of package handshake.
type client interface {
	Exchange(ctx context.Context, peer handshake.Peer, epoch uint64) (handshake.Result, error)
}

type server interface {
	Serve(ctx context.Context, listener net.Listener) error
	Turned() handshake.Turned
	Abort()
}

func (o *Options) complete() error {
	missing := map[string]bool{
		"Node": o.Node == "", "Cluster": o.Cluster == "", "TrustDomain": o.TrustDomain == "",
		"Identity": o.Identity == nil,
		"KEK":      o.KEK == nil, "Store": o.Store == nil, "Leader": o.Leader == nil,
		"Datapath": o.Datapath == nil,
	}
	var errs []error
	for field, is := range missing {
		if is {
			errs = append(errs, fmt.Errorf("option %s is missing", field))
		}
	}
	setDefault(&o.MaxAge, DefaultMaxAge)
	setDefault(&o.HardTTL, DefaultHardTTL)
	setDefault(&o.Drain, DefaultDrain)
	setDefault(&o.MaxPackets, DefaultMaxPackets)
	setDefault(&o.Parallel, DefaultParallel)
	setDefault(&o.Spread, DefaultSpread)
	setDefault(&o.VersionEvery, DefaultVersionEvery)
	setDefault(&o.Port, handshake.DefaultPort)
	if o.Spread < 0 {
		o.Spread = 0
	}
	if o.HardTTL <= o.MaxAge {
		errs = append(errs,
			fmt.Errorf("keys.hardTTL %s is not longer than keys.maxAge %s: every epoch would end before the next is there", o.HardTTL, o.MaxAge))
	}
	if o.ExtendTTL < 0 {
		errs = append(errs,
			fmt.Errorf("keys.extendTTL %s is negative: want 0s for never, or a time", o.ExtendTTL))
	}
	if o.Clock == nil {
		o.Clock = clock.New()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.newExchanger == nil {
		o.newExchanger = realExchanger
	}
	return errors.Join(errs...)
}

func setDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}
