package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/test/k8s"
)

// Environment variables by which a process of the test's binary knows what it is: role is "" for
// the first, then one of these; prefix begins the names of the run's control groups.
const (
	role   = "WEFT_TEST_K8S_ROLE"
	prefix = "WEFT_TEST_K8S_PREFIX"

	roleTests = "tests"
	roleNode  = "node"
)

// Main is what TestMain of a package with clusters calls; it does not return. The tests run in a
// process that is the first of a PID namespace, with network and mounts of its own: when it ends,
// by whatever cause, the kernel ends all that a cluster has started, and nothing of it has been in
// the machine's namespaces. What is left then are empty control groups and one directory, which
// this process removes.
func Main(m *testing.M) {
	switch {
	case os.Getenv(role) == roleNode:
		fail(beNode())
		os.Exit(0)
	case os.Getenv(role) == roleTests:
		fail(enter())
		os.Exit(m.Run())
	case os.Getenv(k8s.Wanted) == "" || os.Geteuid() != 0:
		os.Exit(m.Run()) // they skip, and say why
	}
	code, err := apart()
	fail(err)
	os.Exit(code)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// apart runs this binary once more in namespaces of its own, and cleans up behind it.
func apart() (code int, err error) {
	name := fmt.Sprintf("wt-k8s-%d-", os.Getpid())
	scratch, err := os.MkdirTemp("", name)
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, removeGroups(name), os.RemoveAll(scratch))
	}()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), role+"="+roleTests, prefix+"="+name, "TMPDIR="+scratch)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	// Its end closes with this process, however that ends, and ends the tests.
	alive, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	defer alive.Close()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("run the tests in namespaces of their own: %w", err)
	}
	go func() {
		<-ended
		cmd.Process.Kill() //nolint:errcheck // it may have ended
	}()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		// The code of who was killed is -1.
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// enter makes the namespaces that the tests are in fit for them.
func enter() error {
	go func() {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // what counts is that it ends
		os.Exit(1)
	}()
	// Private, so that no mount goes back to the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := mount("proc", "/proc", "proc", ""); err != nil {
		return err
	}
	return mount("tmpfs", "/run", "tmpfs", "mode=755")
}

// mount mounts a file system at a directory, which it makes if it is not there.
func mount(source, at, kind, options string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, at, kind, 0, options); err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, at, err)
	}
	return nil
}

// bind makes what is at one path appear at another, too.
func bind(source, at string) error {
	if err := unix.Mount(source, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, at, err)
	}
	return nil
}

// scratchOf is a directory of a node or of the control plane.
func scratchOf(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
