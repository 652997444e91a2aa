// Command testrun runs the tests of all packages, or of those named, with the race detector and
// in lanes side by side, and writes what `go test -json` writes.
//
//	testrun [PACKAGE…] [-- FLAG…]    flags of go test
//
// Tests on labs wait most of the time, so three lanes run them, the longest first. They also count
// lost packets, so what computes has one lane only, at a lower priority.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// labLanes is how many jobs on labs run at a time.
const labLanes = 3

func main() {
	patterns, flags := os.Args[1:], []string(nil)
	if at := slices.Index(patterns, "--"); at >= 0 {
		patterns, flags = patterns[:at], patterns[at+1:]
	}
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	if err := run(patterns, flags, &lines{to: os.Stdout}); err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
}

func run(patterns, flags []string, out *lines) error {
	packages, err := list(patterns)
	if err != nil {
		out.failure("testrun", err.Error())
		return err
	}
	labs, rest := plan(packages, flags)
	for _, j := range append(labs, rest) {
		j.announce(out)
	}
	compile(packages)
	queue := make(chan job, len(labs))
	for _, j := range labs {
		queue <- j
	}
	close(queue)
	var lanes sync.WaitGroup
	for range labLanes {
		lanes.Go(func() {
			for j := range queue {
				j.run(out)
			}
		})
	}
	if len(rest.packages) > 0 {
		lanes.Go(func() { rest.run(out) })
	}
	lanes.Wait()
	return nil
}

// list gives the packages that have tests.
func list(patterns []string) ([]string, error) {
	const tested = "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}"
	cmd := exec.Command("go", append([]string{"list", "-f", tested}, patterns...)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	return strings.Fields(string(text)), nil
}

// compile fills Go's cache, so that lanes which start with a cold one do not compile the same
// packages at once. It links nothing. The test runs tell what does not compile, so errors are not
// looked at.
func compile(packages []string) {
	args := append([]string{"list", "-race", "-test", "-export", "-e", "-f", "{{/**/}}"},
		packages...)
	cmd := exec.Command("go", args...)
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	_ = cmd.Run()
}
