package agent

import (
	"log/slog"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
)

// openDatapath opens the real datapath.
func openDatapath(cfg *config.Config, object *v1alpha1.Node, links hostLinks, log *slog.Logger) (Datapath, error) {
	dp, err := datapath.Open(datapath.Options{
		BPFDir: cfg.BPFDir(), StateDir: cfg.StateDir(), Mode: datapath.Mode(cfg.Mode), GenericXDP: cfg.XDP.Generic,
		Uplinks: links.Uplinks, HostAddrs: object.Spec.Addresses, PodCIDRs: object.Spec.PodCIDRs,
		FlowEntries: cfg.Flows.MaxEntries, EventsPerSecond: cfg.Flows.EventsPerSecond, Encrypt: encryptOptions(cfg), Log: log,
	})
	if err != nil {
		return nil, err
	}
	return dp, nil
}

// encryptOptions is nil when packets travel in plain.
func encryptOptions(cfg *config.Config) *datapath.EncryptOptions {
	if !cfg.Encryption.On() {
		return nil
	}
	return &datapath.EncryptOptions{Engine: cfg.Encryption.Engine, Port: uint16(cfg.Encryption.Port), Lanes: cfg.Encryption.Lanes}
}

// cleanupDatapath removes what the real datapath has pinned and changed.
func cleanupDatapath(cfg *config.Config, log *slog.Logger) error {
	return datapath.Cleanup(cfg.BPFDir(), cfg.StateDir(), log)
}
