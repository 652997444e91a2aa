// Package cli is the weft command line: thin verbs over the agent's admin API and
// over the packages that do the work.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/front/admin"
)

// Exit codes, as `weft help exit-codes` documents them.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitNoAgent = 3
	exitDropped = 4
	// exitReadable and exitInconclusive are `encrypt verify`'s.
	exitReadable     = 5
	exitInconclusive = 6
)

// exitError ends the program with a code. A nil cause prints nothing.
type exitError struct {
	code  int
	cause error
}

func (e *exitError) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.cause.Error()
}

func (e *exitError) Unwrap() error { return e.cause }

// usageError marks a wrong call.
func usageError(format string, values ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, values...)}
}

// app is what all verbs share.
type app struct {
	instance string
	socket   string
	format   string
	// runDir is where agents' sockets are looked for.
	runDir string
	out    io.Writer
	errOut io.Writer
}

// Execute runs the command line of this process and returns its exit code.
func Execute() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// After the first signal the default is back: a second one ends a verb that hangs.
	context.AfterFunc(ctx, stop)
	return run(ctx, os.Args[1:], admin.DefaultRunDir, os.Stdout, os.Stderr)
}

// run runs one command line.
func run(ctx context.Context, args []string, runDir string, out, errOut io.Writer) int {
	app := &app{runDir: runDir, out: out, errOut: errOut}
	root := newRoot(app)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	return exitCode(root.ExecuteContext(ctx), errOut)
}

// exitCode prints an error as a sentence and returns the code for it.
func exitCode(err error, errOut io.Writer) int {
	if err == nil || errors.Is(err, syscall.EPIPE) {
		return exitOK
	}
	code := exitFailed
	var exit *exitError
	var noAgent *admin.NoAgentError
	switch {
	case errors.As(err, &exit):
		code = exit.code
		if exit.cause == nil {
			return code
		}
	case errors.As(err, &noAgent):
		code = exitNoAgent
	case strings.HasPrefix(err.Error(), "unknown command"), strings.HasPrefix(err.Error(), "required flag"),
		strings.HasPrefix(err.Error(), "if any flags in the group"), strings.HasPrefix(err.Error(), "invalid argument"):
		code = exitUsage
	}
	// cobra's own suggestions come on further lines, with blanks around them.
	text := strings.TrimSpace(err.Error())
	fmt.Fprintf(errOut, "weft: %s\n", text)
	if code == exitUsage {
		fmt.Fprintln(errOut, "Run it with --help for how to call it.")
	}
	return code
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "weft",
		Short: "An eBPF network for containers",
		Long: `weft joins containers, pods and hosts into one network, routed by eBPF.

The verbs talk to the agent of this machine over its unix socket. Where several agents
run, each in its own network namespace, name one with --instance or --socket.`,
		Example:       "  weft lab up                     # a playground of two nodes\n  weft status --instance lab-a    # how its first node is\n  weft connectivity test          # who reaches whom",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.instance, "instance", os.Getenv("WEFT_INSTANCE"), "the agent's instance name (environment: WEFT_INSTANCE)")
	flags.StringVar(&a.socket, "socket", os.Getenv("WEFT_SOCKET"), "the agent's socket (environment: WEFT_SOCKET)")
	flags.StringVarP(&a.format, "output", "o", string(output.Table), "output format: "+strings.Join(output.Formats, ", "))
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if _, err := output.Parse(a.format); err != nil {
			return &exitError{exitUsage, err}
		}
		return nil
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &exitError{exitUsage, fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
	})
	_ = root.RegisterFlagCompletionFunc("output", fixed(output.Formats...))
	_ = root.RegisterFlagCompletionFunc("instance", a.completeInstances)
	root.AddCommand(
		newAgent(a), newCA(a), newConfig(a), newStatus(a), newEndpoint(a), newNode(a), newFlows(a), newDrops(a),
		newTrace(a), newEncrypt(a), newKeys(a), newConnectivity(a), newBench(a), newDemo(a), newLab(a), newSysdump(a), newVersion(a), newExitCodes(),
	)
	strictArgs(root)
	return root
}

// strictArgs makes wrong arguments usage errors, and a group of verbs refuse a verb that it does not have.
func strictArgs(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		strictArgs(child)
	}
	if !cmd.Runnable() && cmd.HasSubCommands() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError("unknown command %q for %q: see `%s --help`", args[0], cmd.CommandPath(), cmd.CommandPath())
			}
			return cmd.Help()
		}
		return
	}
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError("%s: %w", cmd.CommandPath(), err)
		}
		return nil
	}
}

// print writes a result in the format asked for.
func (a *app) print(value any, table func(w io.Writer, wide bool) error) error {
	return output.Print(a.out, output.Format(a.format), value, table)
}

// fixed completes from a list.
func fixed(values ...string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}
