package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/auditlog"
	"weft.dev/weft/internal/keys/ca"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/secmem"
	"weft.dev/weft/internal/store"
)

// Keys is what the agent needs of *keys.Manager.
type Keys interface {
	Run(ctx context.Context) error
	SetPeers(peers []keys.Peer)
	RequestRekey(node string)
	StoreChanged()
	Rotate(ctx context.Context) (epochs.Epoch, error)
	Status() keys.Status
	History() []audit.Record
	Forked()
}

// keyring is what the agent holds for its keys: the manager, and what it stands on.
type keyring struct {
	Keys
	// kms counts the calls to the KMS.
	kms *kek.Meter
	// certificate reads this node's own certificate and judges it.
	certificate func(ctx context.Context) (*x509.Certificate, error)
	// renew keeps the certificate fresh until ctx ends; nil where somebody else does.
	renew func(ctx context.Context, done func(error))
	close func() error
}

// keyParts are what a keyring is opened with.
type keyParts struct {
	cfg   *config.Config
	store store.Store
	sas   Associations
	log   *slog.Logger
	// addresses are this node's own.
	addresses []netip.Addr
}

// records are what is noted of everything done with keys: the audit log, if there is one, and the
// KMS's meter.
type records struct {
	log   *auditlog.Log
	meter *kek.Meter
}

func openRecords(parts keyParts) *records {
	r := &records{meter: kek.NewMeter()}
	if path := parts.cfg.AuditFile(); path != "" {
		a := parts.cfg.Keys.Audit
		r.log = auditlog.Open(auditlog.Options{Path: path, Node: parts.cfg.Node,
			MaxSize: int64(a.MaxSize) << 20, Keep: a.Keep, Log: parts.log})
	}
	return r
}

// kek takes over what the KEK tells of itself.
func (r *records) kek(rec audit.Record) {
	r.meter.Audit(rec)
	r.add(rec)
}

func (r *records) add(rec audit.Record) {
	if r.log != nil {
		r.log.Add(rec)
	}
}

func (r *records) err() error {
	if r.log == nil {
		return nil
	}
	return r.log.Err()
}

func (r *records) close() error {
	if r.log == nil {
		return nil
	}
	return r.log.Close()
}

// openKeys opens the certificate's source and the key-encryption key, and makes the manager.
func openKeys(ctx context.Context, parts keyParts) (*keyring, error) {
	cfg := parts.cfg.Keys
	if err := secmem.ProtectProcess(); err != nil {
		parts.log.Warn("keys: this process's memory is less protected than it could be", "err", err)
	}
	objects, ok := parts.store.(store.EpochStore)
	leader := leadership(parts.store, parts.cfg.Node)
	if !ok || leader == nil {
		return nil, errors.New("this store cannot keep epochs: use store.dir, store.etcd or store.kubernetes")
	}
	source, err := openIdentity(parts.cfg, parts.log)
	if err != nil {
		return nil, err
	}
	records := openRecords(parts)
	key, err := kek.Open(ctx, cfg.KEK,
		kek.Options{Node: parts.cfg.Node, Observe: records.meter.Observe, Audit: records.kek})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the key-encryption key: %w", err), source.Close(),
			records.close())
	}
	port, err := listenPort(cfg.Listen)
	if err != nil {
		return nil, errors.Join(err, source.Close(), key.Close(), records.close())
	}
	entrance := openKeyPort(cfg.Listen, loadSourceFilter)
	var manager *keys.Manager
	manager, err = keys.New(keys.Options{
		Node: parts.cfg.Node, TrustDomain: cfg.TrustDomain, Cluster: cfg.Cluster, Identity: source,
		Listen: entrance.listen, Filter: entrance.addressFilter(), Unfiltered: entrance.unfiltered,
		Addresses: parts.addresses, RequirePostQuantum: cfg.RequirePostQuantum,
		Port: port, KEK: key, Store: epochs.NewStore(objects), Leader: leader, Datapath: parts.sas,
		MaxAge: time.Duration(cfg.MaxAge), HardTTL: time.Duration(cfg.HardTTL),
		ExtendTTL: time.Duration(cfg.ExtendTTL), Drain: time.Duration(cfg.Drain),
		SeenFile:   filepath.Join(parts.cfg.StateDir(), seenFile),
		MaxPackets: uint64(cfg.MaxPackets), Log: parts.log, KMS: records.meter, Audit: records.add,
		AuditErr:   records.err,
		ClockAhead: func() { clockAhead(parts, manager.Forked) },
	})
	if err != nil {
		return nil, errors.Join(err, source.Close(), key.Close(), records.close(), entrance.close())
	}
	return &keyring{
		Keys: manager, kms: records.meter, renew: renewer(parts.cfg.Keys.Certificates, parts.log),
		certificate: func(ctx context.Context) (*x509.Certificate, error) { return ownCertificate(ctx, parts.cfg, source) },
		close:       func() error { return errors.Join(source.Close(), key.Close(), records.close(), entrance.close()) },
	}, nil
}

// clockAhead takes a jump ahead of the wall clock for a resumption from a snapshot where nothing
// else would tell of one.
func clockAhead(parts keyParts, forked func()) {
	if parts.sas.VMForkStatus().Detection != esp.VMForkClock {
		return
	}
	parts.log.Error("the wall clock jumped ahead, and this virtual machine has no other sign of having been resumed from a snapshot: new keys are made")
	if err := parts.sas.DeclareVMFork(); err != nil {
		parts.log.Error("keys of before the jump could not be destroyed", "err", err)
		return
	}
	forked()
}

// seenFile in the state directory remembers when this node first saw each epoch.
const seenFile = "epochs-seen.json"

// renewer renews a certificate that came from `weft ca join`; SPIRE renews its own.
func renewer(c config.Certificates, log *slog.Logger) func(context.Context, func(error)) {
	if c.Source != config.CertificatesFiles {
		return nil
	}
	return func(ctx context.Context, done func(error)) {
		r := ca.Renewer{Paths: nodeid.Paths{Cert: c.Cert, Key: c.Key, Bundle: c.Bundle}, Log: log,
			Renewed: done}
		r.Run(ctx)
	}
}

func openIdentity(cfg *config.Config, log *slog.Logger) (nodeid.Source, error) {
	c := cfg.Keys.Certificates
	source, err := nodeid.Open(nodeid.Settings{
		Source: c.Source, Paths: nodeid.Paths{Cert: c.Cert, Key: c.Key, Bundle: c.Bundle},
		Socket:      c.SPIRESocket,
		TrustDomain: cfg.Keys.TrustDomain, Node: cfg.Node, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("open the node's certificate: %w", err)
	}
	return source, nil
}

// CheckCertificate is why this node's peers would refuse its certificate now.
func CheckCertificate(ctx context.Context, cfg *config.Config) error {
	source, err := openIdentity(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // only read from
	_, err = ownCertificate(ctx, cfg, source)
	return err
}

// ownCertificate holds this node's certificate to what its peers will hold it to.
func ownCertificate(ctx context.Context, cfg *config.Config,
	source nodeid.Source) (*x509.Certificate, error) {
	cert, err := source.Certificate(ctx)
	if err != nil {
		return nil, err
	}
	roots, err := source.Roots(ctx)
	if err != nil {
		return nil, err
	}
	chain, err := parseChain(cert)
	if err != nil {
		return nil, err
	}
	for _, role := range []nodeid.Role{nodeid.Server, nodeid.Client} {
		check := nodeid.Check{Roots: roots, TrustDomain: cfg.Keys.TrustDomain, Role: role,
			Node: cfg.Node, Now: time.Now()}
		if _, err := check.Verify(chain); err != nil {
			return chain[0], fmt.Errorf("this node's certificate: %w", err)
		}
	}
	return chain[0], nil
}

func parseChain(cert *tls.Certificate) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for _, raw := range cert.Certificate {
		parsed, err := x509.ParseCertificate(raw)
		if err != nil {
			return nil, fmt.Errorf("this node's certificate: %w", err)
		}
		chain = append(chain, parsed)
	}
	if len(chain) == 0 {
		return nil, nodeid.ErrNoCertificate
	}
	return chain, nil
}

// listenPort is where this node listens, and so do its peers.
func listenPort(listen string) (uint16, error) {
	_, text, err := net.SplitHostPort(listen)
	if err != nil {
		return 0, fmt.Errorf("keys.listen: %w", err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("keys.listen: %q is no port", text)
	}
	return uint16(port), nil
}

// keyPeers are the other nodes as the manager wants them. Addresses of a family that this
// node has not are left out: they cannot be dialled.
func keyPeers(peers []datapath.Node, own []netip.Addr) []keys.Peer {
	has := map[bool]bool{}
	for _, a := range own {
		has[a.Is4()] = true
	}
	out := make([]keys.Peer, len(peers))
	for i, peer := range peers {
		out[i].Name = peer.Name
		for _, a := range peer.Addresses {
			if has[a.Is4()] {
				out[i].Addresses = append(out[i].Addresses, a)
			}
		}
	}
	return out
}
