// Command weft-sealer seals and opens what comes in bulk, for the agent, which starts it.
package main

import (
	"fmt"
	"os"

	"weft.dev/weft/internal/sealer"
	"weft.dev/weft/internal/sealer/control"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintf(os.Stderr, "weft-sealer %s takes no arguments: weft agent starts it\n",
			control.Build())
		os.Exit(2)
	}
	os.Exit(sealer.Run())
}
