package cli

import (
	"io"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/preflight"
)

func newPreflight(a *app) *cobra.Command {
	path := config.DefaultPath
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Look whether this host is fit for the agent",
		Long: `Look whether this host is fit for an agent of this configuration: kernel, BPF, interfaces,
packet filter, ports, clock, keys, runtime. Each line says what was found and what to do about it.

Nothing is changed: BPF programs are loaded and let go, none is attached. Where the kernel has
ciphers in modules, it loads those, as it does for the agent. Run it as root, in the network
namespace that the agent is to run in, before the agent or beside it.

The exit code is 1 when a check failed: then the agent would not start or not become ready. With
warnings only it is 0.`,
		Example: "  weft preflight\n  weft preflight -o json\n  weft preflight --config /etc/weft/agent.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, broken := config.Load(path)
			if broken != nil {
				cfg = config.Default()
			}
			host := preflight.System{
				CheckCertificate: agent.CheckCertificate, PodMTUOf: agent.PodMTU,
				ReadObjects: agent.ReadObjects,
			}
			report := preflight.Run(cmd.Context(), cfg, broken, host)
			err := a.Print(report,
				func(w io.Writer, _ bool) error { return writePreflight(w, report) })
			if err == nil && !report.OK {
				err = &cmdutil.ExitError{Code: cmdutil.ExitFailed}
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", config.DefaultPath,
		"the agent's configuration file")
	return cmd
}

func writePreflight(w io.Writer, report *preflight.Report) error {
	rows := output.Rows{Header: []string{"CHECK", "STATE", "FOUND"}}
	for _, c := range report.Checks {
		rows.Add(c.Name, string(c.State), c.Found)
		if c.Do != "" {
			rows.Add("", "", "-> "+c.Do)
		}
	}
	return rows.Write(w, true)
}
