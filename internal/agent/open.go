package agent

import (
	"log/slog"
	"net/netip"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/startup"
	"weft.dev/weft/internal/store"
	"weft.dev/weft/internal/store/dir"
)

// openStore opens a directory of objects, in which this node removes only what is its own.
func openStore(path, node string) (store.Store, error) {
	opened, err := dir.Open(path)
	if err != nil {
		return nil, err
	}
	opened.SetOwner(node)
	return opened, nil
}

// openDatapath opens the real datapath.
func openDatapath(cfg *config.Config, object *v1alpha1.Node, links startup.Links, log *slog.Logger) (Datapath, error) {
	dp, err := datapath.Open(datapath.Options{
		BPFDir: cfg.BPFDir(), StateDir: cfg.StateDir(), Mode: datapath.Mode(cfg.Mode), GenericXDP: cfg.XDP.Generic,
		Uplinks: links.Uplinks, HostAddrs: object.Spec.Addresses, PodCIDRs: ownRanges(cfg, object),
		FlowEntries: cfg.Flows.MaxEntries, EventsPerSecond: cfg.Flows.EventsPerSecond, Encrypt: encryptOptions(cfg), Log: log,
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
	return &esp.Options{Engine: cfg.Encryption.Engine, AllowTableAES: cfg.Encryption.AllowTableAES, Port: uint16(cfg.Encryption.Port), Lanes: cfg.Encryption.Lanes}
}

// cleanupDatapath removes what the real datapath has pinned and changed.
func cleanupDatapath(cfg *config.Config, log *slog.Logger) error {
	return datapath.Cleanup(cfg.BPFDir(), cfg.StateDir(), log)
}
