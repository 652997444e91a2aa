package doccheck

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli"
	"weft.dev/weft/internal/cli/labcli"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

func TestDocsAreCurrent(t *testing.T) {
	path, want := filepath.Join(root, "docs/cli.md"), reference()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("docs/cli.md is not what the verbs say (%v): run `go test ./internal/doccheck -run Docs -update`", err)
	}
}

// TestHandedVerbs: what weft says of weft-lab's verbs is what these say of themselves.
func TestHandedVerbs(t *testing.T) {
	weft := cli.Root()
	for _, verb := range labcli.Root().Commands() {
		known, _, err := weft.Find([]string{verb.Name()})
		if err != nil || known.Name() != verb.Name() || known.Short != verb.Short {
			t.Errorf("weft lists %q for %s (%v), weft-lab has %q", known.Short, verb.Name(), err,
				verb.Short)
		}
	}
}

// TestEveryVerb holds every verb to help with an example and no leftovers.
func TestEveryVerb(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Short == "" || (cmd.Example == "" && cmd.Name() != "exit-codes") {
			t.Errorf("%s has no description or example", cmd.CommandPath())
		}
		if strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: the short description is no sentence", cmd.CommandPath())
		}
		for _, child := range cmd.Commands() {
			visit(child)
		}
	}
	visit(commandLine())
}

// commandLine is weft with the verbs that it hands to weft-lab in their places.
func commandLine() *cobra.Command {
	weft, lab := cli.Root(), labcli.Root()
	for _, verb := range lab.Commands() {
		if known, _, err := weft.Find([]string{verb.Name()}); err == nil {
			weft.RemoveCommand(known)
		}
		lab.RemoveCommand(verb)
		weft.AddCommand(verb)
	}
	return weft
}

// reference is docs/cli.md: every verb with its help, from the verbs themselves.
func reference() string {
	root := commandLine()
	var page strings.Builder
	page.WriteString("# Command line\n\nGenerated from the verbs' own help; do not edit (`go test ./internal/doccheck -run Docs -update`).\n\n")
	fmt.Fprintf(&page, "%s\n\n", root.Long)
	page.WriteString("Every verb prints a table, or with `-o wide` a wider one, or with `-o json` or `-o yaml` the same facts for programs.\n")
	page.WriteString("Shell completion: `weft completion bash|zsh|fish`; pods and instances are completed by asking the agents.\n\n")
	fmt.Fprintf(&page, "## Flags of every verb\n\n```\n%s```\n\n",
		root.PersistentFlags().FlagUsages())
	for _, child := range root.Commands() {
		if child.Name() == "exit-codes" {
			fmt.Fprintf(&page, "## Exit codes\n\n```\n%s\n```\n\n", child.Long)
		}
	}
	for _, child := range root.Commands() {
		if child.Name() != "exit-codes" && child.IsAvailableCommand() &&
			child.Name() != "completion" && child.Name() != "help" {
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
