package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// testTime bounds one run of a test; a fault may well be an endless loop.
const testTime = 4 * time.Minute

// Why a mutation counts as failed.
var (
	errSurvived = errors.New("NOT CAUGHT")
	errInvalid  = errors.New("is no mutation to judge by")
	errBaseline = errors.New("its test does not pass without it")
)

// runner puts faults in and runs tests.
type runner struct {
	root, scratch string

	mu       sync.Mutex
	baseline map[string]*baseline
}

// baseline is how a test goes without a fault. It is run once, before the first mutation that names it.
type baseline struct {
	once sync.Once
	err  error
}

// judge returns nil if the test noticed.
func (r *runner) judge(ctx context.Context, m mutation) error {
	if err := r.passes(ctx, m); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(r.scratch, "one-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	replace, err := r.replacement(ctx, m, dir)
	if err != nil {
		return err
	}
	overlay := filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return err
	}
	out, err := r.test(ctx, m, "-overlay", overlay)
	return verdict(out, err)
}

// refusedByKernel is what a test says when the verifier did not take a program: then nothing was tested.
var refusedByKernel = regexp.MustCompile(`load program: |verifier error|processed \d+ insns`)

// verdict judges a run of a test with a fault in the tree.
func verdict(out string, err error) error {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return errSurvived
	case !errors.As(err, &exit):
		return err
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return fmt.Errorf("%w, it does not compile:\n%s", errInvalid, tail(out))
	case refusedByKernel.MatchString(out):
		return fmt.Errorf("%w, the verifier refuses the program:\n%s", errInvalid, tail(out))
	}
	return nil
}

// replacement makes the files that take the tree's places. The tree itself stays as it is.
func (r *runner) replacement(ctx context.Context, m mutation, dir string) (map[string]string, error) {
	text, err := m.mutated(r.root)
	if err != nil {
		return nil, err
	}
	if !m.datapath() {
		file := filepath.Join(dir, filepath.Base(m.File))
		return map[string]string{filepath.Join(r.root, m.File): file}, os.WriteFile(file, text, 0o600)
	}
	if err := os.CopyFS(filepath.Join(dir, "bpf"), os.DirFS(filepath.Join(r.root, "bpf"))); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, m.File), text, 0o600); err != nil {
		return nil, err
	}
	const objects = "internal/datapath/obj"
	args := []string{"-f", filepath.Join(r.root, "Makefile")}
	for _, file := range r.objects(m) {
		args = append(args, filepath.Join(objects, file))
	}
	if out, err := r.run(ctx, dir, "make", args...); err != nil {
		return nil, fmt.Errorf("%w, it does not compile: %w\n%s", errInvalid, err, tail(out))
	}
	replace := map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, objects, "*.o"))
	for _, file := range files {
		replace[filepath.Join(r.root, objects, filepath.Base(file))] = file
	}
	return replace, err
}

// objects are the files of a mutation's objects.
func (r *runner) objects(m mutation) []string {
	var out []string
	files, _ := filepath.Glob(filepath.Join(r.root, "internal/datapath/obj/*.o"))
	for _, file := range files {
		base := filepath.Base(file)
		name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(base, ".o"), "_xdp"), "_tc")
		if name != "abi" && (len(m.Objects) == 0 || slices.Contains(m.Objects, name)) {
			out = append(out, base)
		}
	}
	return out
}

// passes runs a mutation's test without it.
func (r *runner) passes(ctx context.Context, m mutation) error {
	r.mu.Lock()
	b := r.baseline[m.Package+" "+m.Run]
	if b == nil {
		b = &baseline{}
		r.baseline[m.Package+" "+m.Run] = b
	}
	r.mu.Unlock()
	b.once.Do(func() { b.err = r.sound(ctx, m) })
	return b.err
}

// sound holds a test to run and to pass in the tree as it is.
func (r *runner) sound(ctx context.Context, m mutation) error {
	out, err := r.test(ctx, m)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w\n%s", errBaseline, err, tail(out))
	case strings.Contains(out, "[no tests to run]") || !strings.Contains(out, "\n--- PASS"):
		return fmt.Errorf("%w: none of %s ran:\n%s", errBaseline, m.Run, tail(out))
	}
	return nil
}

func (r *runner) test(ctx context.Context, m mutation, more ...string) (string, error) {
	args := append([]string{"test", "-vet=off", "-count=1", "-v", "-timeout", testTime.String(), "-run", m.Run}, more...)
	return r.run(ctx, r.root, "go", append(args, m.Package)...)
}

// run runs a command in a process group of its own, which ends as a whole when ctx does.
func (r *runner) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return "\n" + out.String(), err
}

// tail is what a person wants of a long output.
func tail(out string) string {
	const most = 1500
	out = strings.TrimSpace(out)
	if len(out) > most {
		out = "… " + strings.ToValidUTF8(out[len(out)-most:], "")
	}
	return out
}
