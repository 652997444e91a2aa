package deb

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/internal/netns/nettest"
	"weft.dev/weft/test/labtest"
)

// patience is how long a step may take where much else runs.
const patience = 3 * time.Minute

// machine is a Debian with systemd in a container, with a network namespace, a bpffs and files of
// its own.
type machine struct {
	name, netns string
	// leader is the pid of its systemd.
	leader int
}

// boot boots a machine whose /peers and /etc/weft/objects are directories of the test.
func boot(t *testing.T, name, netns, peers, objects string) *machine {
	t.Helper()
	var console bytes.Buffer
	cmd := exec.Command("unshare", "--mount", "./boot", name, netns, t.TempDir(),
		"--bind="+peers+":/peers", "--bind="+objects+":/etc/weft/objects")
	cmd.Stdout, cmd.Stderr = &console, &console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m := &machine{name: name, netns: netns}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }() //nolint:errcheck // killed
	t.Cleanup(func() {
		if m.leader != 0 {
			syscall.Kill(m.leader,
				syscall.SIGKILL) //nolint:errcheck // it may have ended; all in it ends with it
		}
		cmd.Process.Kill() //nolint:errcheck // likewise
		<-ended
		if t.Failed() {
			t.Logf("the console of %s:\n%s", name, console.Bytes())
		}
	})
	labtest.Eventually(t, patience, name+" boots", func() error {
		select {
		case <-ended:
			t.Fatalf("%s ended", name)
		default:
		}
		return m.find(cmd.Process.Pid)
	})
	labtest.Eventually(t, patience, name+" is up", func() error {
		out, _ := m.try("systemctl is-system-running")
		if state := strings.TrimSpace(out); state != "running" && state != "degraded" {
			return fmt.Errorf("it is %q", state)
		}
		return nil
	})
	return m
}

// find learns which process is the machine's first: nspawn's only child, once that is systemd.
func (m *machine) find(nspawn int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", nspawn, nspawn))
	if err != nil {
		return err
	}
	for field := range strings.FieldsSeq(string(text)) {
		comm, err := os.ReadFile("/proc/" + field + "/comm")
		if err == nil && strings.TrimSpace(string(comm)) == "systemd" {
			m.leader, err = strconv.Atoi(field)
			return err
		}
	}
	return fmt.Errorf("systemd is not there yet")
}

// command is one in the machine, typed by root.
func (m *machine) command(script string) *exec.Cmd {
	cmd := exec.Command("nsenter", "--target", fmt.Sprint(m.leader), "--mount", "--uts", "--ipc",
		"--net", "--pid", "--root",
		"bash", "-euo", "pipefail", "-c", "cd /deb; "+script)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}
	return cmd
}

func (m *machine) try(script string) (string, error) {
	out, err := m.command(script).CombinedOutput()
	return string(out), err
}

func (m *machine) run(t *testing.T, script string) string {
	t.Helper()
	out, err := m.try(script)
	if err != nil {
		t.Fatalf("%s: %v\n$ %s\n%s", m.name, err, script, out)
	}
	return out
}

// path is where a file of the machine is seen from outside.
func (m *machine) path(file string) string {
	return filepath.Join("/proc", fmt.Sprint(m.leader), "root", file)
}

// installed is where the package and the agent put things.
var installed = []string{
	"/etc/weft", "/etc/systemd/system", "/opt", "/usr/bin", "/usr/lib/cni", "/usr/lib/systemd",
	"/usr/libexec",
	"/usr/share/doc/weft", "/usr/share/man/man8", "/run/weft", "/var/lib/weft", "/sys/fs/bpf",
}

// state is all that an installation could leave on the machine.
func (m *machine) state(t *testing.T) []string {
	t.Helper()
	dirs := make([]string, len(installed))
	for i, dir := range installed {
		dirs[i] = m.path(dir)
	}
	return nettest.State(t, m.netns, dirs...)
}
