// Package e2e tests Weft from outside: real agents and the real CNI plugin in labs of
// network namespaces, under traffic. Each test names what must hold and a clear outcome.
// No test asserts timing; waits are polls with generous deadlines.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/test/labtest"
)

// weftBinary is the weft that the tests run; scratch is theirs.
var weftBinary, scratch string

// labPrefix begins the names of all that this run makes, so that it can tell what is its own.
var labPrefix = fmt.Sprintf("e2e-%d", os.Getpid())

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("SKIP: needs root: network namespaces and eBPF")
		os.Exit(0)
	}
	os.Exit(run(m))
}

// run keeps its deferred calls apart from os.Exit.
func run(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", labPrefix+"-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	// Unprivileged users run the binary, too.
	if err := os.Chmod(scratch, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if weftBinary, err = findBinary(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	shared.down()
	sealed.down()
	if left := leftovers(); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: left on the machine after all labs were taken down:\n  %s\n",
			strings.Join(left, "\n  "))
		return 1
	}
	return code
}

const root = "../.."

// findBinary takes $WEFT_BINARY, or build/weft when it is newer than every source, or builds one.
// weft-lab and weft-sealer are beside it.
func findBinary() (string, error) {
	if given := os.Getenv("WEFT_BINARY"); given != "" {
		return filepath.Abs(given)
	}
	built := filepath.Join(root, "build", "weft")
	if info, err := os.Stat(built); err == nil && newerThanSources(info.ModTime()) {
		return filepath.Abs(built)
	}
	for _, beside := range []string{"weft-lab", "weft-sealer"} {
		if _, err := build(beside, beside, ""); err != nil {
			return "", err
		}
	}
	return build("weft", "weft", "")
}

// build compiles a program, with the files that overlay names in place of the tree's.
func build(program, name, overlay string) (string, error) {
	out := filepath.Join(scratch, name)
	args := []string{"build", "-trimpath", "-tags=grpcnotrace", "-ldflags",
		"-s -w -X weft.dev/weft/internal/version.Version=" + name, "-o", out}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.Command("go", append(args, "./cmd/"+program)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(),
		"CGO_ENABLED=0") // as `make build`, which has compiled most of it
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, text)
	}
	return out, nil
}

func newerThanSources(built time.Time) bool {
	newer := true
	for _, dir := range []string{"bpf", "cmd", "internal", "api", "go.mod"} {
		_ = filepath.WalkDir(filepath.Join(root, dir),
			func(path string, e fs.DirEntry, err error) error {
				if err != nil || e.IsDir() || strings.HasSuffix(path, "_test.go") {
					return err
				}
				if info, err := e.Info(); err == nil && info.ModTime().After(built) {
					newer = false
					return fs.SkipAll
				}
				return nil
			})
	}
	return newer
}

// leftovers lists everything of this run's name that is still on the machine.
func leftovers() []string {
	var left []string
	for _, pattern := range []string{
		"/run/netns/weft-" + labPrefix + "-*", "/run/netns/" + labPrefix + "-*",
		"/sys/fs/bpf/weft/" + labPrefix + "-*",
		"/run/weft/" + labPrefix + "-*", "/run/weft-lab/" + labPrefix + "-*",
		"/var/lib/weft/" + labPrefix + "-*",
	} {
		found, _ := filepath.Glob(pattern)
		left = append(left, found...)
	}
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		text, _ := os.ReadFile(path)
		line := strings.ReplaceAll(string(text), "\x00", " ")
		if strings.Contains(line, "weft") && strings.Contains(line, labPrefix+"-") &&
			!strings.Contains(path, fmt.Sprintf("/%d/", os.Getpid())) {
			left = append(left, "process "+filepath.Base(filepath.Dir(path))+": "+line)
		}
	}
	return left
}

// newLab builds a lab of its own for a test and takes it down afterwards.
func newLab(t *testing.T, suffix string, spec *lab.Spec) *lab.Lab {
	t.Helper()
	spec.Name = labPrefix + "-" + suffix
	l, err := lab.Up(t.Context(), spec,
		lab.Options{Binary: weftBinary, ReadyTimeout: labtest.ReadyTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		quoteLogs(t, l)
		if err := l.Down(context.Background()); err != nil && !errors.Is(err, labdir.ErrNoLab) {
			t.Errorf("take the lab down: %v", err)
		}
	})
	return l
}

// quoteLogs shows what the agents said when a test has failed.
func quoteLogs(t *testing.T, l *lab.Lab) {
	t.Helper()
	if !t.Failed() {
		return
	}
	for _, n := range l.Nodes() {
		if n.Bare {
			continue
		}
		text, _ := os.ReadFile(n.LogFile)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		t.Logf("the last lines of agent %s:\n  %s", n.Name,
			strings.Join(lines[max(0, len(lines)-12):], "\n  "))
	}
}
