package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/sealer/fit"
	"weft.dev/weft/internal/startup"
	"weft.dev/weft/internal/store"
	"weft.dev/weft/internal/store/dir"
	"weft.dev/weft/internal/store/etcd"
	"weft.dev/weft/internal/store/kube"
)

// OpenStore opens the objects where a configuration has them; node is the one whose endpoints are
// removed, "" for none.
func OpenStore(where config.Store, node string, log *slog.Logger) (store.Editor, error) {
	if where.Etcd.On() {
		return etcd.Open(etcd.Options{
			Endpoints: where.Etcd.Endpoints, Files: etcd.TLSFiles(where.Etcd.TLS),
			Prefix: where.Etcd.Prefix, Node: node, Log: log,
		})
	}
	if where.Kubernetes.Enabled {
		return kube.Open(kube.Options{Kubeconfig: where.Kubernetes.Kubeconfig, Node: node, Log: log})
	}
	opened, err := dir.Open(where.Dir)
	if err != nil {
		return nil, err
	}
	opened.SetOwner(node)
	return opened, nil
}

// ReadObjects reads the objects where a configuration has them, once, and changes nothing there.
// When ctx is done the error says so, or what etcd has not answered.
func ReadObjects(ctx context.Context, where config.Store) (*store.Snapshot, error) {
	if !where.Remote() {
		return dir.Read(where.Dir)
	}
	opened, err := OpenStore(where, "", nil)
	if err != nil {
		return nil, err
	}
	client := opened.(io.Closer)
	defer client.Close()                                      //nolint:errcheck // nothing is written
	defer context.AfterFunc(ctx, func() { client.Close() })() // ends what is asked
	snapshot, err := opened.Snapshot()
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("read %s: %w: %w", where.Where(), ctx.Err(), err)
	}
	return snapshot, err
}

func openStore(cfg *config.Config, log *slog.Logger) (store.Store, error) {
	return OpenStore(cfg.Store, cfg.Node, log)
}

// leadership is the candidacy of a node for the leader of epochs, nil where a store has none.
func leadership(s store.Store, node string) epochs.Leader {
	switch s := s.(type) {
	case *dir.Dir:
		return s.Leader(node)
	case *etcd.Etcd:
		return s.Leader(node)
	case *kube.Kube:
		return s.Leader(node)
	}
	return nil
}

// storeShared says what is wrong with a directory that other hosts may have, too.
func storeShared(where string, s store.Store) error {
	local, ok := s.(interface{ Network() string })
	if !ok || local.Network() == "" {
		return nil
	}
	return fmt.Errorf("store.dir: %s is on %s, a network file system: if another node uses it, identities and epochs may be made twice: use store.etcd for several hosts", where, local.Network())
}

// storeAway is why the store cannot be reached, nil while it can.
func storeAway(s store.Store) error {
	if remote, ok := s.(interface{ Away() error }); ok {
		return remote.Away()
	}
	return nil
}

// openDatapath opens the real datapath.
func openDatapath(cfg *config.Config, object *v1alpha1.Node, links startup.Links,
	log *slog.Logger) (Datapath, error) {
	dp, err := datapath.Open(datapath.Options{
		BPFDir: cfg.BPFDir(), StateDir: cfg.StateDir(), Mode: datapath.Mode(cfg.Mode),
		GenericXDP: cfg.XDP.Generic,
		Uplinks:    links.Uplinks, HostAddrs: object.Spec.Addresses,
		PodCIDRs:    ownRanges(cfg, object),
		FlowEntries: cfg.Flows.MaxEntries, EventsPerSecond: cfg.Flows.EventsPerSecond,
		Encrypt: encryptOptions(cfg), Log: log,
	})
	if err != nil {
		return nil, err
	}
	return opened{dp}, nil
}

// ownRanges are the ranges whose addresses are this node's pods' or nobody's.
func ownRanges(cfg *config.Config, object *v1alpha1.Node) []netip.Prefix {
	out := slices.Clone(object.Spec.PodCIDRs)
	for _, p := range cfg.IPAM.Ranges {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// encryptOptions is nil when packets travel in cleartext.
func encryptOptions(cfg *config.Config) *esp.Options {
	if !cfg.Encryption.On() {
		return nil
	}
	return &esp.Options{Engine: cfg.Encryption.Engine, NoSealer: fit.Reason(cfg, fit.System{}),
		AllowTableAES: cfg.Encryption.AllowTableAES,
		Port:          uint16(cfg.Encryption.Port), Lanes: cfg.Encryption.Lanes}
}

// cleanupDatapath removes what the real datapath has pinned and changed.
func cleanupDatapath(cfg *config.Config, log *slog.Logger) error {
	return datapath.Cleanup(cfg.BPFDir(), cfg.StateDir(), log)
}
