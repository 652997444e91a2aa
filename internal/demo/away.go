package demo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// takeAway removes the lab and looks whether anything of the demo is left.
func (d *demo) takeAway(ctx context.Context) {
	began := time.Now()
	var err error
	if d.lab != nil {
		err = d.lab.Down(ctx)
		d.lab = nil
	}
	took := time.Since(began)
	t := &table{Header: []string{"KIND", "LEFT"}, Left: 2}
	clean := true
	for _, kind := range leftKinds(d.opts.Lab) {
		left := kind.left()
		clean = clean && len(left) == 0
		t.Rows = append(t.Rows, []string{kind.name, orNone(left)})
	}
	d.say("The lab is taken down as `weft lab down %s` does it. What is left on this machine of the lab and of the benchmark's:", d.opts.Lab)
	d.showTable(t)
	detail := fmt.Sprintf("network namespaces, pins, sockets, state and processes are gone, in %.1f s", took.Seconds())
	if err != nil || !clean {
		detail = "something is left" + because(err)
	}
	d.check("nothing-left", err == nil && clean, "%s", detail)
}

func orNone(left []string) string {
	if len(left) == 0 {
		return "none"
	}
	return strings.Join(left, ", ")
}

// leftKind is one kind of thing that the demo makes.
type leftKind struct {
	name string
	left func() []string
}

// leftKinds look for what the demo's lab and this process's benchmarks may leave.
func leftKinds(lab string) []leftKind {
	bench := "bench-" + strconv.Itoa(os.Getpid()) + "-"
	globs := func(patterns ...string) func() []string {
		return func() []string {
			var found []string
			for _, p := range patterns {
				paths, _ := filepath.Glob(p)
				found = append(found, paths...)
			}
			return found
		}
	}
	return []leftKind{
		{"network namespaces",
			globs("/run/netns/weft-"+lab+"-*", "/run/netns/weft-"+bench+"*",
				"/run/netns/wt-"+bench+"*")},
		{"pinned eBPF objects", globs("/sys/fs/bpf/weft/"+lab+"-*", "/sys/fs/bpf/weft/"+bench+"*")},
		{"sockets and locks", globs("/run/weft/"+lab+"-*", "/run/weft/"+bench+"*")},
		{"state", globs("/run/weft-lab/"+lab, "/run/weft-lab/"+bench+"*")},
		{"processes",
			func() []string {
				return processesOf("/run/weft-lab/"+lab+"/",
					"/run/weft-lab/"+bench)
			}},
	}
}

// processesOf lists the processes whose command line names a file below one of the paths.
func processesOf(paths ...string) []string {
	var found []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		named := func(path string) bool { return bytes.Contains(data, []byte(path)) }
		if slices.ContainsFunc(paths, named) {
			found = append(found, filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}

// closing writes the verdict.
func (d *demo) closing(report *Report, took time.Duration) {
	failed := report.Failed()
	fmt.Fprintf(d.out, "\n%d of %d checks are ok, in %.0f s.\n", len(report.Checks)-len(failed),
		len(report.Checks), took.Seconds())
	for _, c := range failed {
		fmt.Fprintln(d.out, c.line())
	}
	if d.opts.Dir != "" {
		fmt.Fprintf(d.out, "Report: %s and %s\n", filepath.Join(d.opts.Dir, htmlFile),
			filepath.Join(d.opts.Dir, jsonFile))
	}
}
