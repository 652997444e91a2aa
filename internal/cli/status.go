package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/version"
)

func newStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show how this node's agent and datapath are",
		Long: `Show how this node's agent and datapath are: the mode and why it was chosen, what the agent
waits for, what does not work. The exit code is 1 while the agent is not ready.`,
		Example: "  weft status\n  weft status -o wide    # with every attached program\n  weft status -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), a, (*admin.Client).Status, writeStatus,
				func(s *admin.Status) bool { return s.Ready })
		},
	}
}

func writeStatus(w io.Writer, s *admin.Status, wide bool) error {
	ready := "ready"
	if !s.Ready {
		ready = "not ready, waiting for " + s.Waiting
	}
	mode := fmt.Sprintf("%s (asked for %s)", s.Mode.Active, s.Mode.Asked)
	if s.Mode.Active == "" {
		mode = fmt.Sprintf("none yet (asked for %s)", s.Mode.Asked)
	} else if s.Mode.Why != "" {
		mode += ": " + s.Mode.Why
	}
	rows := output.Rows{Header: []string{"Node:", s.Node}}
	add := func(name, value string) {
		if value != "" {
			rows.Add(name+":", value)
		}
	}
	add("Instance", s.Instance)
	add("State", ready)
	add("Mode", mode)
	add("Agent",
		fmt.Sprintf("%s, pid %d, up %s", s.Version, s.PID,
			time.Since(s.Started).Round(time.Second)))
	add("Kernel", s.Kernel)
	add("Addresses", output.Join(s.Addresses))
	add("Pod ranges", output.Join(s.PodCIDRs))
	add("Uplinks", strings.Join(s.Uplinks, ", "))
	if s.MTU > 0 {
		add("Pod MTU", fmt.Sprint(s.MTU))
	}
	add("Encryption", s.Encryption)
	endpoints := fmt.Sprint(s.Endpoints)
	if s.XDPDatapaths > 0 {
		endpoints += fmt.Sprintf(", %d of them on the XDP datapath", s.XDPDatapaths)
	}
	add("Endpoints", endpoints)
	add("Nodes", fmt.Sprint(s.Nodes))
	add("Objects", s.Store.Where())
	add("Flow events",
		fmt.Sprintf("%d seen, %d held back by the rate limit, %d lost", s.Events.Seen,
			s.Events.Suppressed, s.Events.Lost))
	for _, over := range s.OverBudget {
		add("Over budget", over)
	}
	add("Socket", s.Paths.Socket)
	add("Pins", s.Paths.BPF)
	for _, problem := range s.Problems {
		add("Problem", problem)
	}
	for _, note := range s.Notes {
		add("Note", note.Time.Local().Format(time.DateTime)+": "+note.Text)
	}
	for _, problem := range s.Store.Errors {
		add("Object ignored", problem.Error())
	}
	if err := rows.Write(w, true); err != nil || !wide {
		return err
	}
	fmt.Fprintln(w)
	links := output.Rows{Header: []string{"HOOK", "INTERFACE", "KIND", "PROGRAM"},
		Empty: "nothing is attached"}
	for _, link := range s.Links {
		links.Add(link.Hook, link.Interface, string(link.Kind), fmt.Sprint(link.ProgramID))
	}
	return links.Write(w, true)
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this binary and of the kernel",
		Example: "  weft version\n  weft version -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			info := version.Get()
			return a.Print(info, func(w io.Writer, _ bool) error {
				commit := cmp.Or(info.Commit, "unknown")
				if info.Modified {
					commit += " (modified)"
				}
				rows := output.Rows{Header: []string{"weft:", info.Version}}
				rows.Add("commit:", commit)
				rows.Add("go:", info.Go+" "+info.Platform)
				rows.Add("kernel:", info.Kernel)
				return rows.Write(w, true)
			})
		},
	}
}
