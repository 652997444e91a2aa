// Command testsum reads `go test -json` and prints what a person wants of it: each package as it
// ends, the output of what failed, what took longest, a list of everything that was skipped and
// why, and a last line "N passed, N failed, N skipped". It exits 1 if anything failed or nothing
// ran.
package main

import (
	"bufio"
	"cmp"
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

// skip is what tests that were skipped can have in common.
type skip struct{ pkg, reason string }

type summary struct {
	out                     io.Writer
	passed, failed, skipped int
	output                  map[key][]string
	skips                   map[skip][]string // tests
	failures                []string
	running                 map[string]bool // packages that have begun and not ended
	times                   map[key]float64 // of packages and of tests that are not part of one
}

func newSummary(out io.Writer) *summary {
	return &summary{
		out: out, output: map[key][]string{}, skips: map[skip][]string{},
		running: map[string]bool{}, times: map[key]float64{},
	}
}

func main() {
	s := newSummary(os.Stdout)
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
	for pkg := range s.running {
		s.note(key{pkg, ""}, "it did not end\n")
		s.endPackage(event{Action: "fail", Package: pkg})
	}
	return scanner.Err()
}

func (s *summary) note(k key, line string) { s.output[k] = append(s.output[k], line) }

func (s *summary) add(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "start":
		s.running[e.Package] = true
	case "output", "build-output":
		s.note(k, e.Output)
	case "build-fail":
		fmt.Fprint(s.out, strings.Join(s.output[k], ""))
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(e, k)
		}
	}
}

func (s *summary) endTest(e event, k key) {
	if !strings.Contains(e.Test, "/") {
		s.times[k] = e.Elapsed
	}
	switch e.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		fmt.Fprintf(s.out, "FAIL %s %s (%.1fs)\n", e.Package, e.Test,
			e.Elapsed) // its output is in the report
		s.failures = append(s.failures,
			fmt.Sprintf("--- %s %s\n%s", e.Package, e.Test, strings.Join(s.output[k], "")))
	case "skip":
		s.skipped++
		why := skip{e.Package, reason(s.output[k])}
		s.skips[why] = append(s.skips[why], e.Test)
	}
	delete(s.output, k)
}

// endPackage prints a package's line. A package that fails without a failing test (it did not
// build, or crashed) counts as one failure.
func (s *summary) endPackage(e event) {
	delete(s.running, e.Package)
	if e.Action == "skip" {
		return // no test files
	}
	s.times[key{e.Package, ""}] = e.Elapsed
	fmt.Fprintf(s.out, "%-4s %s (%.1fs)\n",
		map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], e.Package, e.Elapsed)
	inTest := slices.ContainsFunc(s.failures,
		func(f string) bool { return strings.HasPrefix(f, "--- "+e.Package+" ") })
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
	s.slowest("packages", func(k key) bool { return k.test == "" })
	s.slowest("tests", func(k key) bool { return k.test != "" })
	s.notRun()
	fmt.Fprintf(s.out, "\n%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
	return s.failed == 0 && s.passed > 0
}

func (s *summary) notRun() {
	if len(s.skips) == 0 {
		return
	}
	var list []string
	for why, tests := range s.skips {
		slices.Sort(tests)
		list = append(list,
			fmt.Sprintf("  %s %s: %s\n", why.pkg, strings.Join(tests, ", "), why.reason))
	}
	slices.Sort(list)
	fmt.Fprintf(s.out, "\nNot run on this machine:\n%s", strings.Join(list, ""))
}

// slowestShown is how many packages, and how many tests, are listed as the slowest.
const slowestShown = 10

// slowest lists what took longest. What one machine does side by side is slower for it.
func (s *summary) slowest(what string, include func(key) bool) {
	var keys []key
	var total float64
	for k, seconds := range s.times {
		if include(k) {
			keys = append(keys, k)
			total += seconds
		}
	}
	if len(keys) == 0 {
		return
	}
	slices.SortFunc(keys, func(a, b key) int { return cmp.Compare(s.times[b], s.times[a]) })
	fmt.Fprintf(s.out, "\nThe slowest of %d %s, which took %.0f s:\n", len(keys), what, total)
	for _, k := range keys[:min(len(keys), slowestShown)] {
		fmt.Fprintf(s.out, "  %7.1f s  %s\n", s.times[k], strings.TrimSpace(k.pkg+" "+k.test))
	}
}
