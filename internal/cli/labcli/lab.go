package labcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/labdir"
)

func newLab(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Build a playground of nodes and pods from network namespaces",
		Long: `Build a playground on this machine: nodes and pods as network namespaces, a real agent on
every node, pods attached by the CNI plugin. Nothing outside these namespaces is touched.`,
		Example: "  weft lab up\n  weft lab status\n  weft lab exec client -- ping -c 1 10.77.2.100\n  weft lab down",
	}
	cmd.AddCommand(newLabUp(a), newLabDown(a), newLabStatus(a), newLabExec(a), newLabRun(a),
		newLabExample(a))
	return cmd
}

// spec reads the lab file; none means the default lab.
func (f *labUpFlags) spec() (*lab.Spec, error) {
	spec, err := lab.Default(), error(nil)
	if f.file != "" {
		spec, err = lab.Load(f.file)
	}
	if err == nil && f.sysctls != "" {
		spec.Sysctls = f.sysctls
	}
	return spec, err
}

// labLog shows the progress of a lab on standard error.
func (a *app) labLog(quiet bool) *slog.Logger {
	if quiet {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(a.ErrOut, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, attr slog.Attr) slog.Attr {
			if len(groups) == 0 && (attr.Key == slog.TimeKey || attr.Key == slog.LevelKey) {
				return slog.Attr{}
			}
			return attr
		},
	}))
}

// labUpFlags are what `lab up` and `lab run` share.
type labUpFlags struct {
	file    string
	sysctls string
	timeout time.Duration
	quiet   bool
	keep    bool
}

func (f *labUpFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.file, "file", "f", "",
		"the lab's description (default: examples/lab.yaml, built in)")
	cmd.Flags().StringVar(&f.sysctls, "sysctls", "",
		"network settings that nodes and pods start with: distribution or kernel (default: the file's, else distribution)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 30*time.Second,
		"how long an agent may take to be ready")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "no progress")
	cmd.Flags().BoolVar(&f.keep, "keep", false,
		"leave a half-built lab standing when building fails")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml")
	_ = cmd.RegisterFlagCompletionFunc("sysctls",
		cmdutil.Fixed(lab.SysctlsDistribution, lab.SysctlsKernel))
}

func (f *labUpFlags) options(a *app) lab.Options {
	return lab.Options{Log: a.labLog(f.quiet), ReadyTimeout: f.timeout, Keep: f.keep}
}

func newLabUp(a *app) *cobra.Command {
	var flags labUpFlags
	cmd := &cobra.Command{
		Use:     "up",
		Short:   "Build a lab and wait until its agents are ready",
		Example: "  weft lab up\n  weft lab up -f examples/lab.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec, err := flags.spec()
			if err != nil {
				return err
			}
			built, err := lab.Up(cmd.Context(), spec, flags.options(a))
			if err != nil {
				return err
			}
			return a.labStatus(cmd.Context(), built)
		},
	}
	flags.register(cmd)
	return cmd
}

// openLab opens a lab by name, or the only one there is.
func openLab(name string, opts lab.Options) (*lab.Lab, error) {
	if name != "" {
		return lab.OpenWith(name, opts)
	}
	names, err := labdir.List()
	if err != nil {
		return nil, err
	}
	switch len(names) {
	case 0:
		return nil, errors.New("there is no lab: build one with `weft lab up`")
	case 1:
		return lab.OpenWith(names[0], opts)
	}
	return nil, cmdutil.UsageError("there are several labs: name one of %s",
		strings.Join(names, ", "))
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func newLabDown(a *app) *cobra.Command {
	var all, quiet bool
	cmd := &cobra.Command{
		Use:               "down [LAB]",
		Short:             "Take a lab down, also one that a crash left half-built",
		Example:           "  weft lab down\n  weft lab down --all",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cmdutil.CompleteLabs,
		RunE: func(cmd *cobra.Command, args []string) error {
			names := args
			if all {
				if len(args) > 0 {
					return cmdutil.UsageError("--all takes every lab down: name none with it")
				}
				var err error
				if names, err = labdir.List(); err != nil {
					return err
				}
			}
			if !all && len(names) == 0 {
				names = []string{""}
			}
			var errs []error
			for _, name := range names {
				opened, err := openLab(name, lab.Options{Log: a.labLog(quiet)})
				if err == nil {
					err = opened.Down(cmd.Context())
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every lab on this machine; none is no error")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}

func newLabStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "status [LAB]",
		Short:             "Show a lab's nodes, wires and pods",
		Example:           "  weft lab status\n  weft lab status demo -o json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cmdutil.CompleteLabs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opened, err := openLab(first(args), lab.Options{})
			if err != nil {
				return err
			}
			return a.labStatus(cmd.Context(), opened)
		},
	}
}

func (a *app) labStatus(ctx context.Context, opened *lab.Lab) error {
	status, err := opened.Status(ctx)
	if err != nil {
		return err
	}
	return a.Print(status, func(w io.Writer, wide bool) error { return writeLab(w, status, wide) })
}

func writeLab(w io.Writer, s *lab.Status, wide bool) error {
	fmt.Fprintf(w, "lab %s is %s\n\n", s.Name, s.Phase)
	nodes := output.Rows{Header: []string{"NODE", "ADDRESSES", "POD RANGES", "AGENT", "PID",
		"NETNS", "SOCKET", "LOG"}, WideFrom: 5}
	for _, n := range s.Nodes {
		nodes.Add(n.Name, output.Join(n.Addresses), output.Join(n.PodCIDRs), n.Agent,
			fmt.Sprint(n.PID), n.NetNS, n.Socket, n.Log)
	}
	if err := nodes.Write(w, wide); err != nil {
		return err
	}
	fmt.Fprintln(w)
	wires := output.Rows{Header: []string{"WIRE", "NODES", "MTU", "OFFLOAD"}}
	for _, wire := range s.Wires {
		wires.Add(wire.Name, strings.Join(wire.Nodes, ", "), fmt.Sprint(wire.MTU),
			fmt.Sprint(wire.Offload))
	}
	if err := wires.Write(w, wide); err != nil {
		return err
	}
	fmt.Fprintln(w)
	pods := output.Rows{Header: []string{"POD", "NODE", "IPV4", "IPV6", "STATE", "SERVICE ACCOUNT",
		"NETNS", "INTERFACE", "MAC", "LABELS"}, WideFrom: 5, Empty: "no pods"}
	for _, p := range s.Pods {
		pods.Add(p.Namespace+"/"+p.Name, p.Node, p.IPv4, p.IPv6, p.State, p.ServiceAccount, p.NetNS,
			p.HostIf, p.MAC, output.Labels(p.Labels))
	}
	return pods.Write(w, wide)
}

func newLabExec(a *app) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "exec NODE|POD -- COMMAND...",
		Short:   "Run a command inside a node's or pod's network namespace",
		Long:    "Run a command inside a node's or pod's network namespace. The exit code is the command's.",
		Example: "  weft lab exec client -- ping -c 1 10.77.2.100\n  weft lab exec a -- weft status",
		Args:    cobra.MinimumNArgs(2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return labTargets(name), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			argv := args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return cmdutil.UsageError("name a command after %q", args[0])
			}
			opened, err := openLab(name, lab.Options{})
			if err != nil {
				return err
			}
			code, err := opened.Exec(cmd.Context(), args[0], argv,
				lab.Stdio{In: os.Stdin, Out: a.Out, Err: a.ErrOut})
			if err != nil {
				return &cmdutil.ExitError{Code: max(code, cmdutil.ExitFailed), Cause: err}
			}
			if code != 0 {
				return &cmdutil.ExitError{Code: code}
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&name, "lab", os.Getenv("WEFT_LAB"),
		"the lab's name (default: the only one; environment: WEFT_LAB)")
	_ = cmd.RegisterFlagCompletionFunc("lab", cmdutil.CompleteLabs)
	return cmd
}

func labTargets(name string) []string {
	opened, err := openLab(name, lab.Options{})
	if err != nil {
		return nil
	}
	var names []string
	for _, node := range opened.Nodes() {
		names = append(names, node.Name)
	}
	for _, pod := range opened.Pods() {
		names = append(names, pod.Name)
	}
	return names
}

func newLabRun(a *app) *cobra.Command {
	var flags labUpFlags
	cmd := &cobra.Command{
		Use:   "run [-f FILE] -- COMMAND...",
		Short: "Build a lab, run a command, take the lab down",
		Long: `Build a lab, run a command on this machine with WEFT_LAB set to the lab's name, and take the
lab down whatever happened. The exit code is the command's.`,
		Example: "  weft lab run -- weft connectivity test\n  weft lab run -f examples/lab.yaml -- sh -c 'weft lab exec client -- ping -c 1 10.77.2.100'",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := flags.spec()
			if err != nil {
				return err
			}
			code := 0
			err = lab.Run(cmd.Context(), spec, flags.options(a), func(built *lab.Lab) error {
				code, err = a.runCommand(cmd.Context(), args, "WEFT_LAB="+built.Name())
				return err
			})
			if err != nil {
				return err
			}
			if code != 0 {
				return &cmdutil.ExitError{Code: code}
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false)
	flags.register(cmd)
	return cmd
}

// runCommand runs a command with our own input and output and returns its exit code.
func (a *app) runCommand(ctx context.Context, argv []string, env ...string) (int, error) {
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 10 * time.Second
	command.Env = append(os.Environ(), env...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, a.Out, a.ErrOut
	err := command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if exit.ExitCode() < 0 {
			return cmdutil.ExitFailed, nil
		}
		return exit.ExitCode(), nil
	}
	if err != nil {
		return cmdutil.ExitFailed, fmt.Errorf("run %s: %w", argv[0], err)
	}
	return cmdutil.ExitOK, nil
}

func newLabExample(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "example",
		Short:   "Print the description of the default lab",
		Example: "  weft lab example > lab.yaml",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := a.Out.Write(lab.DefaultYAML())
			return err
		},
	}
}
