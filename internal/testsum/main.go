// Command testsum reads `go test -json` and prints what a person wants of it: each package as it
// ends, the output of what failed, a list of everything that was skipped and why, and a last
// line "N passed, N failed, N skipped". It exits 1 if anything failed or nothing ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type key struct{ pkg, test string }

type summary struct {
	out                     io.Writer
	passed, failed, skipped int
	output                  map[key][]string
	skips                   []string
	failures                []string
}

func main() {
	s := &summary{out: os.Stdout, output: map[key][]string{}}
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
	if !s.report() {
		os.Exit(1)
	}
}

func (s *summary) read(in io.Reader) error {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var e event
		if json.Unmarshal(scanner.Bytes(), &e) != nil {
			fmt.Fprintln(s.out, scanner.Text()) // the go command itself, for instance a build error
			continue
		}
		s.add(e)
	}
	return scanner.Err()
}

func (s *summary) add(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output", "build-output":
		s.output[k] = append(s.output[k], e.Output)
		return
	case "build-fail":
		fmt.Fprint(s.out, strings.Join(s.output[k], ""))
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	if e.Test == "" {
		s.endPackage(e)
		return
	}
	switch e.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		s.failures = append(s.failures, fmt.Sprintf("--- %s %s\n%s", e.Package, e.Test, strings.Join(s.output[k], "")))
	case "skip":
		s.skipped++
		s.skips = append(s.skips, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason(s.output[k])))
	}
	delete(s.output, k)
}

// endPackage prints a package's line. A package that fails without a failing test (it did not
// build, or crashed) counts as one failure.
func (s *summary) endPackage(e event) {
	if e.Action == "skip" {
		return // no test files
	}
	fmt.Fprintf(s.out, "%-4s %s (%.1fs)\n", map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], e.Package, e.Elapsed)
	inTest := slices.ContainsFunc(s.failures, func(f string) bool { return strings.HasPrefix(f, "--- "+e.Package+" ") })
	if e.Action == "fail" && !inTest {
		s.failed++
		var all []string
		for k, lines := range s.output {
			if k.pkg == e.Package {
				all = append(all, lines...)
			}
		}
		s.failures = append(s.failures, fmt.Sprintf("--- %s\n%s", e.Package, strings.Join(all, "")))
	}
}

// reason is the message of a skipped test: its output without the test framework's own lines.
func reason(lines []string) string {
	var words []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if _, message, found := strings.Cut(line, ".go:"); found {
			if _, text, ok := strings.Cut(message, ": "); ok {
				line = text
			}
		}
		words = append(words, line)
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

func (s *summary) report() bool {
	for _, f := range s.failures {
		fmt.Fprintf(s.out, "\n%s", f)
	}
	if len(s.skips) > 0 {
		fmt.Fprintln(s.out, "\nNot run on this machine:")
		slices.Sort(s.skips)
		for _, line := range s.skips {
			fmt.Fprintln(s.out, "  "+line)
		}
	}
	fmt.Fprintf(s.out, "\n%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
	return s.failed == 0 && s.passed > 0
}
