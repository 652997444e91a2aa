package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/masquerade"
	"weft.dev/weft/internal/startup"
	"weft.dev/weft/internal/store"
)

// Cleanup takes everything away that the agent of an instance made: endpoints, pinned
// maps and links, host settings, state and run directories. It refuses while an agent
// runs. Doing it again, or where there was nothing, is no error.
func Cleanup(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("cleanup must run as root: it removes BPF programs and network interfaces")
	}
	held, err := startup.TakeLock(cfg.RunDir())
	if err != nil {
		var locked *startup.LockedError
		if errors.As(err, &locked) {
			return fmt.Errorf("%w: stop it first", err)
		}
		return err
	}
	return cleanup(ctx, cfg, held, log)
}

// cleanup goes on after a failure: what can be taken away is.
func cleanup(ctx context.Context, cfg *config.Config, held *startup.Lock, log *slog.Logger) error {
	errs := []error{
		removeEndpoints(ctx, cfg, log),
		cleanupDatapath(cfg, log),
		masquerade.Remove(cfg.Instance),
	}
	if errors.Join(errs...) == nil {
		// The records name what is left; they stay until nothing is.
		errs = append(errs, removeState(cfg))
	}
	if err := os.Remove(cfg.Socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, held.Remove())...)
}

func removeEndpoints(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	if _, err := os.Stat(cfg.StateDir()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var directory store.Store
	if opened, err := openStore(cfg, log); err == nil {
		directory = opened
	} else {
		log.Warn("published endpoints are not withdrawn", "err", err)
	}
	options := endpoint.Options{StateDir: cfg.StateDir(), NodeName: cfg.Node,
		Ranges: cfg.IPAM.Ranges, MTU: cfg.MTU, Log: log}
	if directory != nil {
		options.Directory = directory
	}
	manager, err := endpoint.NewManager(options)
	if err != nil {
		return fmt.Errorf("open endpoint state: %w", err)
	}
	if err := manager.RemoveAll(ctx); err != nil {
		return fmt.Errorf("remove endpoints: %w", err)
	}
	return nil
}

// stateDirs are the directories that an instance has in its state directory. The
// default instance's also holds the named instances' own directories, which stay.
var stateDirs = []string{"endpoints"}

func removeState(cfg *config.Config) error {
	state := cfg.StateDir()
	if cfg.Instance != "" {
		return os.RemoveAll(state)
	}
	entries, err := os.ReadDir(state)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read state directory: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if !entry.IsDir() {
			errs = append(errs, os.Remove(filepath.Join(state, entry.Name())))
		}
	}
	for _, name := range stateDirs {
		errs = append(errs, os.RemoveAll(filepath.Join(state, name)))
	}
	return errors.Join(append(errs, startup.RemoveEmpty(state))...)
}
