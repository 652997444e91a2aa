// Package cmdutil is what the command lines of weft and weft-lab share: flags, formats, exit codes,
// and what counts as a wrong call.
package cmdutil

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
	"weft.dev/weft/internal/lab/labdir"
)

// Exit codes, as `weft help exit-codes` documents them.
const (
	ExitOK      = 0
	ExitFailed  = 1
	ExitUsage   = 2
	ExitNoAgent = 3
)

// ExitError ends the program with a code. A nil cause prints nothing.
type ExitError struct {
	Code  int
	Cause error
}

func (e *ExitError) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Cause.Error()
}

func (e *ExitError) Unwrap() error { return e.Cause }

// UsageError marks a wrong call.
func UsageError(format string, values ...any) error {
	return &ExitError{ExitUsage, fmt.Errorf(format, values...)}
}

// App is what all verbs share.
type App struct {
	Instance string
	Socket   string
	Format   string
	Out      io.Writer
	ErrOut   io.Writer
}

// Root completes a program's root command: the flags of every verb, the verbs, and wrong arguments
// as usage errors.
func (a *App) Root(root *cobra.Command, verbs ...*cobra.Command) *cobra.Command {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Args = cobra.NoArgs
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	flags := root.PersistentFlags()
	flags.StringVar(&a.Instance, "instance", os.Getenv("WEFT_INSTANCE"),
		"the agent's instance name (environment: WEFT_INSTANCE)")
	flags.StringVar(&a.Socket, "socket", os.Getenv("WEFT_SOCKET"),
		"the agent's socket (environment: WEFT_SOCKET)")
	flags.StringVarP(&a.Format, "output", "o", string(output.Table),
		"output format: "+strings.Join(output.Formats, ", "))
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return a.CheckFormat() }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &ExitError{ExitUsage, fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
	})
	_ = root.RegisterFlagCompletionFunc("output", Fixed(output.Formats...))
	root.AddCommand(verbs...)
	strictArgs(root)
	return root
}

// CheckFormat refuses an output format that there is not.
func (a *App) CheckFormat() error {
	if _, err := output.Parse(a.Format); err != nil {
		return &ExitError{ExitUsage, err}
	}
	return nil
}

// Execute runs the command line of this process until it ends or is told to, and returns its exit
// code.
func Execute(run func(ctx context.Context, args []string, out, errOut io.Writer) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// After the first signal the default is back: a second one ends a verb that hangs.
	context.AfterFunc(ctx, stop)
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// Run runs one command line.
func (a *App) Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	root.SetOut(a.Out)
	root.SetErr(a.ErrOut)
	return a.ExitCode(root.ExecuteContext(ctx))
}

// ExitCode prints an error as a sentence and returns the code for it.
func (a *App) ExitCode(err error) int {
	if err == nil || errors.Is(err, syscall.EPIPE) {
		return ExitOK
	}
	code := ExitFailed
	var exit *ExitError
	var noAgent *admin.NoAgentError
	switch {
	case errors.As(err, &exit):
		code = exit.Code
		if exit.Cause == nil {
			return code
		}
	case errors.As(err, &noAgent):
		code = ExitNoAgent
	case strings.HasPrefix(err.Error(), "unknown command"),
		strings.HasPrefix(err.Error(), "required flag"),
		strings.HasPrefix(err.Error(), "if any flags in the group"),
		strings.HasPrefix(err.Error(), "invalid argument"):
		code = ExitUsage
	}
	// cobra's own suggestions come on further lines, with blanks around them.
	text := strings.TrimSpace(err.Error())
	fmt.Fprintf(a.ErrOut, "weft: %s\n", text)
	if code == ExitUsage {
		fmt.Fprintln(a.ErrOut, "Run it with --help for how to call it.")
	}
	return code
}

// strictArgs makes wrong arguments usage errors, and a group of verbs refuse a verb that it does
// not have.
func strictArgs(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		strictArgs(child)
	}
	if !cmd.Runnable() && cmd.HasSubCommands() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return UsageError("unknown command %q for %q: see `%s --help`", args[0],
					cmd.CommandPath(), cmd.CommandPath())
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
			return UsageError("%s: %w", cmd.CommandPath(), err)
		}
		return nil
	}
}

// Print writes a result in the format asked for.
func (a *App) Print(value any, table func(w io.Writer, wide bool) error) error {
	return output.Print(a.Out, output.Format(a.Format), value, table)
}

// Fixed completes from a list.
func Fixed(values ...string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteLabs completes the name of a lab.
func CompleteLabs(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := labdir.List()
	return names, cobra.ShellCompDirectiveNoFileComp
}
