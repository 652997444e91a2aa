// Package cli is the weft command line: thin verbs over the agent's admin API and
// over the packages that do the work.
package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/front/admin"
)

// Exit codes of single verbs, as `weft help exit-codes` documents them.
const (
	exitDropped = 4
	// exitReadable and exitInconclusive are `encrypt verify`'s.
	exitReadable     = 5
	exitInconclusive = 6
	// exitWrongObject and exitDenied are `policy check`'s, exitDenied is also `policy explain`'s,
	// and exitDisagree only that.
	exitWrongObject = 7
	exitDenied      = 8
	exitDisagree    = 9
)

// app is what all verbs share.
type app struct {
	cmdutil.App
	// runDir is where agents' sockets are looked for.
	runDir string
}

// Execute runs the command line of this process and returns its exit code.
func Execute() int {
	return cmdutil.Execute(func(ctx context.Context, args []string, out, errOut io.Writer) int {
		return run(ctx, args, admin.DefaultRunDir, out, errOut)
	})
}

// run runs one command line.
func run(ctx context.Context, args []string, runDir string, out, errOut io.Writer) int {
	a := &app{App: cmdutil.App{Out: out, ErrOut: errOut}, runDir: runDir}
	root := newRoot(a)
	if forLab(root, args) {
		return a.ExitCode(execLab(args))
	}
	return a.Run(ctx, root, args)
}

// Root is the command line without a process, for its documentation.
func Root() *cobra.Command {
	return newRoot(&app{App: cmdutil.App{Out: io.Discard, ErrOut: io.Discard}})
}

func newRoot(a *app) *cobra.Command {
	root := a.Root(&cobra.Command{
		Use:   "weft",
		Short: "An eBPF network for containers",
		Long: `weft joins containers, pods and hosts into one network, routed by eBPF.

The verbs talk to the agent of this machine over its unix socket. Where several agents
run, each in its own network namespace, name one with --instance or --socket.`,
		Example: "  weft lab up                     # a playground of two nodes\n  weft status --instance lab-a    # how its first node is\n  weft connectivity test          # who reaches whom",
	},
		newAgent(a), newCA(a), newConfig(a), newPreflight(a), newStatus(a), newApply(a), newGet(a),
		newDelete(a), newEndpoint(a), newNode(a), newFlows(a), newDrops(a), newTrace(a),
		newPolicy(a), newEncrypt(a), newKeys(a), newConnectivity(a), newSysdump(a), newVersion(a),
		newExitCodes(),
	)
	root.AddCommand(newLabVerbs()...)
	_ = root.RegisterFlagCompletionFunc("instance", a.completeInstances)
	return root
}
