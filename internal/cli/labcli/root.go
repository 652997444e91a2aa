// Package labcli is the command line of weft-lab: the verbs that build labs, which nodes do
// without.
package labcli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
)

// app is what all verbs share.
type app struct{ cmdutil.App }

// Execute runs the command line of this process and returns its exit code.
func Execute() int { return cmdutil.Execute(run) }

// run runs one command line.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	a := &app{cmdutil.App{Out: out, ErrOut: errOut}}
	return a.Run(ctx, newRoot(a), args)
}

// Root is the command line without a process, for its documentation.
func Root() *cobra.Command {
	return newRoot(&app{cmdutil.App{Out: io.Discard, ErrOut: io.Discard}})
}

// newRoot shows the verbs as weft's, which hands them over.
func newRoot(a *app) *cobra.Command {
	return a.Root(&cobra.Command{
		Use:         "weft-lab",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "weft"},
		Short:       "Weft's labs, demo and benchmarks",
		Long: `weft-lab is labs, demo and benchmarks of Weft: what a node needs none of. weft finds it beside
itself or in PATH, and runs it for these verbs.`,
		Example: "  weft lab up\n  weft demo\n  weft bench route --quick",
	}, newBench(a), newDemo(a), newLab(a))
}
