package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/config"
)

func newConfig(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Write or check the agent's configuration",
		Example: "  weft config example\n  weft config check /etc/weft/agent.yaml",
	}
	cmd.AddCommand(&cobra.Command{
		Use:     "example",
		Short:   "Print a commented configuration with every default",
		Example: "  weft config example > /etc/weft/agent.yaml",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.Format == "json" || a.Format == "yaml" {
				return a.Print(config.Default(), nil)
			}
			_, err := a.Out.Write(config.Example())
			return err
		},
	}, &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file",
		Long: `Check a configuration file and name everything that is wrong in it, with line and field.
With -o json or yaml it prints the whole configuration, defaults included.`,
		Example: "  weft config check /etc/weft/agent.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := config.Load(args[0])
			if err != nil {
				return err
			}
			return a.Print(cfg, func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "%s is a valid configuration for node %s\n", args[0],
					cfg.Node)
				return err
			})
		},
	})
	return cmd
}
