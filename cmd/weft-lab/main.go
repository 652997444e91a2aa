// Command weft-lab has the verbs of weft that build labs: lab, demo and bench.
package main

import (
	"os"

	"weft.dev/weft/internal/cli/labcli"
)

func main() { os.Exit(labcli.Execute()) }
