package cli

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/sibling"
)

// labBinary is the program that has the verbs of newLabVerbs, so that the privileged agent does not
// carry them.
const labBinary = "weft-lab"

// newLabVerbs are weft-lab's verbs as weft lists them.
func newLabVerbs() []*cobra.Command {
	var verbs []*cobra.Command
	for _, verb := range [][2]string{
		{"bench", "Measure the datapath on this machine"},
		{"demo", "Show what Weft does, with checks, in a few minutes"},
		{"lab", "Build a playground of nodes and pods from network namespaces"},
	} {
		verbs = append(verbs, &cobra.Command{
			Use: verb[0], Short: verb[1], Annotations: map[string]string{"binary": labBinary},
			Run: func(*cobra.Command, []string) {}, // or help would not list it; never called, see forLab
		})
	}
	return verbs
}

// forLab says whether a call is for weft-lab: one of its verbs, help for one, or its completion.
func forLab(root *cobra.Command, args []string) bool {
	about := []string{"help", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}
	if len(args) > 0 && slices.Contains(about, args[0]) {
		args = args[1:]
	}
	cmd, _, err := root.Find(args)
	return err == nil && cmd.Annotations["binary"] == labBinary
}

// execLab becomes weft-lab: arguments, environment, signals and exit code need no passing on then.
func execLab(args []string) error {
	path, err := sibling.Find(labBinary)
	if err != nil {
		return err
	}
	if err := unix.Exec(path, append([]string{labBinary}, args...), os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}
