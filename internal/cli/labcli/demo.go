package labcli

import (
	"io"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/demo"
)

func newDemo(a *app) *cobra.Command {
	opt := demo.Options{}
	var verbose bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what Weft does, with checks, in a few minutes",
		Long: `Show what Weft does: build a lab of its own, test who reaches whom, kill and restart an agent
under running streams, forge packets, trace some, measure against iptables, and take everything
away again. With --out it also writes report.json and report.html.

The exit code is 1 when any check failed. With -o json or yaml the report goes to standard
output and the story to standard error.`,
		Example: "  weft demo --out build/demo\n  weft demo --skip-bench\n  weft demo -o json 2>/dev/null",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opt.Out = a.Out
			if format := output.Format(a.Format); format == output.JSON || format == output.YAML {
				opt.Out = a.ErrOut
			}
			if verbose {
				opt.Progress = a.ErrOut
			}
			report, err := demo.Run(cmd.Context(), opt)
			if err != nil {
				return err
			}
			// The story has told people everything already.
			if err := a.Print(report, func(io.Writer, bool) error { return nil }); err != nil {
				return err
			}
			if !report.OK() {
				return &cmdutil.ExitError{Code: cmdutil.ExitFailed}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opt.Dir, "out", "",
		"also write report.json and report.html into this directory")
	flags.StringVar(&opt.Lab, "lab", demo.DefaultLab,
		"the name of the lab that is built and taken away")
	flags.BoolVar(&opt.SkipBench, "skip-bench", false,
		"leave the benchmark out, which takes most of the time")
	flags.BoolVarP(&verbose, "verbose", "v", false, "also show each run of the benchmark")
	_ = cmd.MarkFlagDirname("out")
	return cmd
}
