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
	"strings"
	"sync"
	"syscall"
	"time"
)

// testTime bounds one run of a test; a fault may well be an endless loop.
const testTime = 4 * time.Minute

// The tests that a fault in bpf/ is shown to, and what tells them of a directory with other
// objects.
var datapathPackages = []string{"./internal/datapath", "./internal/datapath/esp"}

const objectsVariable = "WEFT_TEST_OBJECTS"

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
	// compile makes a package's test program, once: other objects need no other program.
	compile map[string]func() (string, error)
}

func newRunner(ctx context.Context, root, scratch string) *runner {
	r := &runner{root: root, scratch: scratch, baseline: map[string]*baseline{},
		compile: map[string]func() (string, error){}}
	for _, name := range datapathPackages {
		r.compile[name] = sync.OnceValues(func() (string, error) {
			program := filepath.Join(scratch, filepath.Base(name)+".test")
			out, err := r.run(ctx, root, nil, "go", "test", "-vet=off", "-c", "-o", program, name)
			if err != nil {
				return "", fmt.Errorf("compile the tests of %s: %w\n%s", name, err, tail(out))
			}
			return program, nil
		})
	}
	return r
}

// baseline is how a test goes without a fault. It is run once, before the first mutation that names
// it.
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
	text, err := m.mutated(r.root)
	if err != nil {
		return err
	}
	var out string
	if m.datapath() {
		if err := r.objects(ctx, m, text, dir); err != nil {
			return err
		}
		out, err = r.testDatapath(ctx, m, objectsVariable+"="+dir)
	} else {
		overlay, failed := r.overlay(m, text, dir)
		if failed != nil {
			return failed
		}
		out, err = r.testGo(ctx, m, "-overlay", overlay)
	}
	return verdict(out, err)
}

// refusedByKernel is what a test says when the verifier did not take a program: then nothing was
// tested.
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

// overlay writes a Go file with the fault in it, and for the go command what it takes the place of.
// The tree itself stays as it is.
func (r *runner) overlay(m mutation, text []byte, dir string) (string, error) {
	file, overlay := filepath.Join(dir, filepath.Base(m.File)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(r.root,
		m.File): file}})
	if err != nil {
		return "", err
	}
	return overlay, errors.Join(os.WriteFile(file, text, 0o600),
		os.WriteFile(overlay, replace, 0o600))
}

// objects makes a directory with an obj/ in it as in the tree, but for the mutation's objects,
// which are compiled with the fault.
func (r *runner) objects(ctx context.Context, m mutation, text []byte, dir string) error {
	const objects = "internal/datapath/bpf/obj"
	build, wanted := filepath.Join(dir, "build"), []string{"-f", filepath.Join(r.root, "Makefile")}
	if err := errors.Join(os.CopyFS(filepath.Join(build, "bpf"),
		os.DirFS(filepath.Join(r.root, "bpf"))),
		os.WriteFile(filepath.Join(build, m.File), text, 0o600),
		os.Mkdir(filepath.Join(dir, "obj"), 0o700)); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(r.root, objects, "*.o"))
	for _, file := range files {
		base := filepath.Base(file)
		if m.changes(base) {
			wanted = append(wanted, filepath.Join(objects, base))
		} else {
			err = errors.Join(err, os.Symlink(file, filepath.Join(dir, "obj", base)))
		}
	}
	if err != nil {
		return err
	}
	if out, err := r.run(ctx, build, nil, "make", wanted...); err != nil {
		return fmt.Errorf("%w, it does not compile: %w\n%s", errInvalid, err, tail(out))
	}
	for _, object := range wanted[2:] {
		err = errors.Join(err,
			os.Rename(filepath.Join(build, object),
				filepath.Join(dir, "obj", filepath.Base(object))))
	}
	return err
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
	case strings.Contains(out, "no tests to run") || !strings.Contains(out, "\n--- PASS"):
		return fmt.Errorf("%w: none of %s ran:\n%s", errBaseline, m.Run, tail(out))
	}
	return nil
}

// test runs a mutation's test in the tree as it is.
func (r *runner) test(ctx context.Context, m mutation) (string, error) {
	if m.datapath() {
		return r.testDatapath(ctx, m)
	}
	return r.testGo(ctx, m)
}

func (r *runner) testGo(ctx context.Context, m mutation, more ...string) (string, error) {
	args := append([]string{"test", "-vet=off", "-count=1", "-failfast", "-v", "-timeout",
		testTime.String(), "-run", m.Run}, more...)
	return r.run(ctx, r.root, nil, "go", append(args, m.Package)...)
}

func (r *runner) testDatapath(ctx context.Context, m mutation, env ...string) (string, error) {
	program, err := r.compile[m.Package]()
	if err != nil {
		return "", err
	}
	return r.run(ctx, filepath.Join(r.root, m.Package), env, program, "-test.failfast", "-test.v",
		"-test.timeout="+testTime.String(), "-test.run="+m.Run)
}

// run runs a command in a process group of its own, which ends as a whole when ctx does.
func (r *runner) run(ctx context.Context, dir string, env []string, name string,
	args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
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
