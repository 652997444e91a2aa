// Command weft is the agent, the CNI plugin and the command line in one binary.
package main

import (
	"os"
	"path/filepath"

	"weft.dev/weft/internal/cli"
	"weft.dev/weft/internal/front/cni"
)

func main() {
	if filepath.Base(os.Args[0]) == "weft-cni" {
		cni.Main()
		return
	}
	os.Exit(cli.Execute())
}
