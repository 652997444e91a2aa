package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// job is one `go test`.
type job struct {
	packages []string
	part     string // of the package, if that is cut
	flags    []string
	nice     bool
}

func (j job) path() string { return strings.TrimPrefix(j.packages[0], module) }

// named is a package as it is told of.
func (j job) named(pkg string) string {
	if j.part == "" {
		return pkg
	}
	return pkg + " [" + j.part + "]"
}

// announce tells of all packages of a job before it begins: one that never does has not ended
// either, which is a failure.
func (j job) announce(out *lines) {
	for _, pkg := range j.packages {
		out.event(event{Action: "start", Package: j.named(pkg)})
	}
}

func (j job) command() []string {
	argv := []string{"go", "test", "-race", "-vet=off", "-timeout", "45m", "-json"}
	if j.nice {
		argv = append([]string{"nice", "-n", "5"}, argv...)
	}
	return append(append(argv, j.flags...), j.packages...)
}

// run passes on what the tests tell. A command that ends in failure without a word of one, since
// it was killed for instance, is told of as a failed package.
func (j job) run(out *lines) {
	argv := j.command()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	var told bool
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		told = j.copy(stdout, out)
		err = cmd.Wait()
	}
	if err != nil && !told {
		out.failure(j.named(j.packages[0]), fmt.Sprintf("%s: %v", cmd, err))
	}
}

// copy passes lines on, with the part in the package's name, and says whether one was a failure.
func (j job) copy(in io.Reader, out *lines) (failure bool) {
	r := bufio.NewReader(in)
	name := []byte(`"Package":"` + j.packages[0] + `"`)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil && len(line) > 0 {
			line = append(line, '\n') // it was killed in the middle of one
		}
		if j.part != "" {
			with := `"Package":"` + j.named(j.packages[0]) + `"`
			line = bytes.Replace(line, name, []byte(with), 1)
		}
		failure = failure || bytes.Contains(line, []byte(`"Action":"fail"`))
		out.write(line)
		if err != nil {
			return failure
		}
	}
}

// event is a line of `go test -json`.
type event struct {
	Action, Package string
	Output          string `json:",omitempty"`
}

// lines keeps whole the lines of lanes that write side by side.
type lines struct {
	mu sync.Mutex
	to io.Writer
}

func (l *lines) write(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.to.Write(line)
}

// failure tells of a package that fails.
func (l *lines) failure(pkg, why string) {
	l.event(event{Action: "output", Package: pkg, Output: why + "\n"})
	l.event(event{Action: "fail", Package: pkg})
}

func (l *lines) event(e event) {
	text, _ := json.Marshal(e)
	l.write(append(text, '\n'))
}
