package datapath

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/netns"
)

// expediteSetting is a stand-in for the kernel's setting, which is the whole machine's.
func expediteSetting(t *testing.T, value string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rcu_expedited")
	must(t, os.WriteFile(path, []byte(value+"\n"), 0o644))
	return path
}

func newExpedite(t *testing.T, setting, stateDir string) *expedite {
	t.Helper()
	h := &expedite{}
	must(t, h.open(setting, stateDir))
	return h
}

// holds checks the setting, and whether the note is there.
func (h *expedite) holds(t *testing.T, when, value string, noted bool) {
	t.Helper()
	got, err := os.ReadFile(h.setting)
	must(t, err)
	_, errNote := os.Stat(h.note)
	if strings.TrimSpace(string(got)) != value || (errNote == nil) != noted {
		t.Errorf("%s: setting %q, noted %v; want %q, %v", when, got, errNote == nil, value, noted)
	}
}

func TestExpedite(t *testing.T) {
	h := newExpedite(t, expediteSetting(t, "0"), filepath.Join(t.TempDir(), "state"))
	first := h.begin()
	second := h.begin()
	h.holds(t, "two at once", "1", true)
	first()
	h.holds(t, "one left", "1", true)
	second()
	h.holds(t, "none left", "0", false)

	h = newExpedite(t, expediteSetting(t, "1"), t.TempDir())
	end := h.begin()
	h.holds(t, "an administrator's setting", "1", false)
	end()
	h.holds(t, "an administrator's setting, after", "1", false)
	newExpedite(t, h.setting, filepath.Dir(h.note)).holds(t,
		"an administrator's setting, at the next start", "1", false)

	h = newExpedite(t, "/sys/class/net/lo/addr_assign_type",
		t.TempDir()) // as a setting of a read-only sysfs: 0, and stays
	end = h.begin()
	h.holds(t, "a setting that cannot be changed", "0", false)
	end()
	newExpedite(t, h.setting, filepath.Dir(h.note)).holds(t, "and at the next start", "0", false)

	(&expedite{}).begin()() // never opened: nothing is to be set
	missing := newExpedite(t, filepath.Join(t.TempDir(), "none"), t.TempDir())
	missing.begin()()
	if _, err := os.Stat(missing.note); err == nil {
		t.Error("a kernel without the setting: a note was made")
	}
}

// TestExpediteOfTwoAgents has two agents of a machine expedite grace periods at once, in every
// order of their ends.
func TestExpediteOfTwoAgents(t *testing.T) {
	for _, firstEndsFirst := range []bool{true, false} {
		setting := expediteSetting(t, "0")
		a, b := newExpedite(t, setting, t.TempDir()), newExpedite(t, setting, t.TempDir())
		endA := a.begin()
		endB := b.begin()
		b.holds(t, "it is the other's", "1", false)
		if firstEndsFirst {
			endA()
			endB()
		} else {
			endB()
			a.holds(t, "it is still the first's", "1", true)
			endA()
		}
		a.holds(t, "both have ended", "0", false)
	}
}

// expediteChild names, for a child process of this test, the setting and the state directory.
const expediteChild = "WEFT_TEST_EXPEDITE"

// TestExpediteOfKilledAgent kills a process that has expedited grace periods: another agent's start
// leaves the setting alone, and the same agent's puts it back.
func TestExpediteOfKilledAgent(t *testing.T) {
	if where := os.Getenv(expediteChild); where != "" {
		setting, state, _ := strings.Cut(where, ":")
		newExpedite(t, setting, state).begin()
		os.Stdout.WriteString("with grace periods expedited\n")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the end of this process, or of its parent
	}
	setting, state := expediteSetting(t, "0"), t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestExpediteOfKilledAgent$")
	child.Env = append(os.Environ(), expediteChild+"="+setting+":"+state)
	out, err := child.StdoutPipe()
	must(t, err)
	_, err = child.StdinPipe()
	must(t, err)
	must(t, child.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, child.Process.Kill())
	_ = child.Wait() // tells that it was killed
	if line != "with grace periods expedited\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	other := newExpedite(t, setting, t.TempDir())
	other.begin()()
	other.holds(t, "another agent starts", "1", false)
	newExpedite(t, setting, state).holds(t, "the same agent starts", "0", false)
}

// TestExpeditedEndsAtStart holds the datapath's start, and its end, to look for what a killed one
// has left.
func TestExpeditedEndsAtStart(t *testing.T) {
	bpf, _ := pinHarness(t, 64)
	opts := Options{BPFDir: bpf, StateDir: t.TempDir(), Mode: ModeTC}
	note := filepath.Join(opts.StateDir, expediteNote)
	log := slog.New(slog.DiscardHandler)
	name := fmt.Sprintf("wt-expedite-%d", os.Getpid())
	ns, err := netns.Create(name)
	must(t, err)
	t.Cleanup(func() { must(t, netns.Delete(name)) })
	for what, do := range map[string]func() error{
		"start":   func() error { return (&Datapath{opts: opts, log: log}).prepare() },
		"cleanup": func() error { return Cleanup(t.TempDir(), opts.StateDir, log) },
	} {
		must(t, os.WriteFile(note, nil, 0o600))
		must(t, netns.Do(ns, do))
		if _, err := os.Stat(note); err == nil {
			t.Errorf("%s: the note is there still", what)
		}
	}
}
