package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Reference is docs/cli.md: every verb with its help, from the verbs themselves.
func Reference() string {
	root := newRoot(&app{out: io.Discard, errOut: io.Discard})
	var page strings.Builder
	page.WriteString("# Command line\n\nGenerated from the verbs' own help; do not edit (`go test ./internal/cli -run Docs -update`).\n\n")
	fmt.Fprintf(&page, "%s\n\n", root.Long)
	page.WriteString("Every verb prints a table, or with `-o wide` a wider one, or with `-o json` or `-o yaml` the same facts for programs.\n")
	page.WriteString("Shell completion: `weft completion bash|zsh|fish`; pods and instances are completed by asking the agents.\n\n")
	fmt.Fprintf(&page, "## Flags of every verb\n\n```\n%s```\n\n", root.PersistentFlags().FlagUsages())
	for _, child := range root.Commands() {
		if child.Name() == "exit-codes" {
			fmt.Fprintf(&page, "## Exit codes\n\n```\n%s\n```\n\n", child.Long)
		}
	}
	for _, child := range root.Commands() {
		if child.Name() != "exit-codes" && child.IsAvailableCommand() && child.Name() != "completion" && child.Name() != "help" {
			describeVerb(&page, child)
		}
	}
	return strings.TrimRight(page.String(), "\n") + "\n"
}

func describeVerb(page *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(page, "## %s\n\n", cmd.CommandPath())
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(page, "%s\n\n", text)
	if cmd.Runnable() && cmd.UseLine() != "" && (!cmd.HasSubCommands() || cmd.Args != nil) {
		fmt.Fprintf(page, "```\n%s\n```\n\n", cmd.UseLine())
	}
	if cmd.Example != "" {
		fmt.Fprintf(page, "```sh\n%s\n```\n\n", unindent(cmd.Example))
	}
	cmd.InitDefaultHelpFlag()
	if flags := cmd.LocalFlags(); flags.HasAvailableFlags() {
		fmt.Fprintf(page, "```\n%s```\n\n", flags.FlagUsages())
	}
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			describeVerb(page, child)
		}
	}
}

// unindent takes the two blanks of help's examples away.
func unindent(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "  ")
	}
	return strings.Join(lines, "\n")
}
