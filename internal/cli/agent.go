package cli

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/logfile"
	"weft.dev/weft/internal/sdnotify"
	"weft.dev/weft/internal/version"
)

func newAgent(a *app) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the node's agent",
		Long: `Run the node's agent in the foreground, in the network namespace that it is started in.

It ends on SIGTERM or SIGINT. Whatever it has pinned stays, and traffic goes on; start it
again and it carries on from there. To take everything away, stop it and run
"weft agent cleanup".`,
		Example: "  weft config example > /etc/weft/agent.yaml\n  weft agent --config /etc/weft/agent.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(path)
			if err != nil {
				return err
			}
			tail := &logfile.Tail{}
			log, err := newLog(cfg.Log, io.MultiWriter(a.ErrOut, tail))
			if err != nil {
				return err
			}
			return agent.Run(cmd.Context(), cfg,
				agent.Options{Log: log, Version: version.Version, LogTail: tail,
					Notify: sdnotify.Send})
		},
	}
	cmd.PersistentFlags().StringVarP(&path, "config", "c", config.DefaultPath,
		"the agent's configuration file")
	cmd.AddCommand(newCleanup(a, &path))
	return cmd
}

func newCleanup(a *app, path *string) *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Take away everything that the agent made",
		Long: `Take away everything that the agent of this configuration made: pods' interfaces, pinned
maps and links, host settings that it changed, state and run directories.

The agent must be stopped. Run it in the agent's network namespace. Doing it again is no error.`,
		Example: "  weft agent cleanup --config /etc/weft/agent.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(*path)
			if err != nil {
				return err
			}
			log, err := newLog(cfg.Log, a.ErrOut)
			if err != nil {
				return err
			}
			return agent.Cleanup(cmd.Context(), cfg, log)
		},
	}
}

// newLog makes the agent's logger.
func newLog(cfg config.Log, out io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(strings.ToUpper(cfg.Level))); err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	options := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(out, options)), nil
	}
	return slog.New(slog.NewTextHandler(out, options)), nil
}
