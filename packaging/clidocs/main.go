// Command clidocs writes the man pages and shell completions of the weft command line, for
// packages.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft.dev/weft/internal/cli"
)

func main() {
	out := flag.String("out", "", "the directory that becomes /usr/share")
	seconds := flag.Int64("epoch", 0, "the date of the pages, in seconds since 1970")
	release := flag.String("version", "", "the version on the pages")
	flag.Parse()
	if *out == "" || *release == "" {
		fmt.Fprintln(os.Stderr, "clidocs: -out and -version are needed")
		os.Exit(2)
	}
	foot := fmt.Sprintf("%s\" \"Weft %s", time.Unix(*seconds, 0).UTC().Format(time.DateOnly),
		*release)
	if err := write(*out, foot); err != nil {
		fmt.Fprintf(os.Stderr, "clidocs: %v\n", err)
		os.Exit(1)
	}
}

func write(out, foot string) error {
	root := cli.Root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	if err := manPages(root, filepath.Join(out, "man/man8"), foot); err != nil {
		return err
	}
	return errors.Join(
		put(filepath.Join(out, "bash-completion/completions/weft"), func(path string) error {
			return root.GenBashCompletionFileV2(path, true)
		}),
		put(filepath.Join(out, "zsh/vendor-completions/_weft"), root.GenZshCompletionFile),
		put(filepath.Join(out, "fish/vendor_completions.d/weft.fish"), func(path string) error {
			return root.GenFishCompletionFile(path, true)
		}),
	)
}

func put(path string, write func(string) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return write(path)
}

// manPages writes a page for cmd and for each verb below it.
func manPages(cmd *cobra.Command, dir, foot string) error {
	err := put(filepath.Join(dir, pageName(cmd)+".8"), func(path string) error {
		return os.WriteFile(path, []byte(manPage(cmd, foot)), 0o644)
	})
	for _, child := range documented(cmd) {
		err = errors.Join(err, manPages(child, dir, foot))
	}
	return err
}

func documented(cmd *cobra.Command) []*cobra.Command {
	var out []*cobra.Command
	for _, child := range cmd.Commands() {
		if !child.Hidden {
			out = append(out, child)
		}
	}
	return out
}

// pageName is weft-encrypt-verify for `weft encrypt verify`.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func manPage(cmd *cobra.Command, foot string) string {
	var page strings.Builder
	fmt.Fprintf(&page, ".TH \"%s\" 8 \"%s\"\n", strings.ToUpper(pageName(cmd)), foot)
	fmt.Fprintf(&page, ".SH NAME\n%s \\- %s\n", escape(pageName(cmd)), escape(cmd.Short))
	fmt.Fprintf(&page, ".SH SYNOPSIS\n.B %s\n", escape(cmd.UseLine()))
	// Help texts are laid out for terminals, with columns: they stay as they are.
	section(&page, "DESCRIPTION", cmd.Long)
	options(&page, "OPTIONS", cmd.NonInheritedFlags())
	options(&page, "OPTIONS OF EVERY VERB", cmd.InheritedFlags())
	section(&page, "EXAMPLES", cmd.Example)
	var also []string
	if cmd.HasParent() {
		also = append(also, pageName(cmd.Parent()))
	} else {
		section(&page, "FILES", "/etc/weft/agent.yaml   the agent's configuration\n"+
			"/etc/weft/objects      nodes, pods and policies\n/usr/share/doc/weft    documentation")
	}
	for _, child := range documented(cmd) {
		also = append(also, pageName(child))
	}
	page.WriteString(".SH SEE ALSO\n")
	for i, name := range also {
		comma := ","
		if i == len(also)-1 {
			comma = ""
		}
		fmt.Fprintf(&page, ".BR %s (8)%s\n", escape(name), comma)
	}
	return page.String()
}

func section(page *strings.Builder, title, text string) {
	if text = strings.Trim(text, "\n"); text != "" {
		fmt.Fprintf(page, ".SH %s\n.nf\n%s\n.fi\n", title, escape(text))
	}
}

func options(page *strings.Builder, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(page, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name, usage := pflag.UnquoteUsage(f)
		call := "--" + f.Name
		if f.Shorthand != "" {
			call = "-" + f.Shorthand + ", " + call
		}
		if name != "" {
			call += " " + name
		}
		fmt.Fprintf(page, ".TP\n.B %s\n%s", escape(call), escape(usage))
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" {
			fmt.Fprintf(page, " (default %s)", escape(f.DefValue))
		}
		page.WriteString("\n")
	})
}

// escape makes text roff: no line is taken for a request, and hyphens can be copied as such.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, `-`, `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
