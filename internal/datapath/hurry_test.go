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

// hurrySetting is a stand-in for the kernel's setting, which is the whole machine's.
func hurrySetting(t *testing.T, value string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rcu_expedited")
	must(t, os.WriteFile(path, []byte(value+"\n"), 0o644))
	return path
}

func newHurry(t *testing.T, setting, stateDir string) *hurry {
	t.Helper()
	h := &hurry{}
	must(t, h.open(setting, stateDir))
	return h
}

// holds checks the setting, and whether the note is there.
func (h *hurry) holds(t *testing.T, when, value string, noted bool) {
	t.Helper()
	got, err := os.ReadFile(h.setting)
	must(t, err)
	_, errNote := os.Stat(h.note)
	if strings.TrimSpace(string(got)) != value || (errNote == nil) != noted {
		t.Errorf("%s: setting %q, noted %v; want %q, %v", when, got, errNote == nil, value, noted)
	}
}

func TestHurry(t *testing.T) {
	h := newHurry(t, hurrySetting(t, "0"), filepath.Join(t.TempDir(), "state"))
	first := h.begin()
	second := h.begin()
	h.holds(t, "two at once", "1", true)
	first()
	h.holds(t, "one left", "1", true)
	second()
	h.holds(t, "none left", "0", false)

	h = newHurry(t, hurrySetting(t, "1"), t.TempDir())
	end := h.begin()
	h.holds(t, "an administrator's setting", "1", false)
	end()
	h.holds(t, "an administrator's setting, after", "1", false)
	newHurry(t, h.setting, filepath.Dir(h.note)).holds(t, "an administrator's setting, at the next start", "1", false)

	(&hurry{}).begin()() // never opened: nothing is to be set
	missing := newHurry(t, filepath.Join(t.TempDir(), "none"), t.TempDir())
	missing.begin()()
	if _, err := os.Stat(missing.note); err == nil {
		t.Error("a kernel without the setting: a note was made")
	}
}

// TestHurryOfTwoAgents has two agents of a machine in a hurry at once, in every order of their ends.
func TestHurryOfTwoAgents(t *testing.T) {
	for _, firstEndsFirst := range []bool{true, false} {
		setting := hurrySetting(t, "0")
		a, b := newHurry(t, setting, t.TempDir()), newHurry(t, setting, t.TempDir())
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

// hurryChild names, for a child process of this test, the setting and the state directory.
const hurryChild = "WEFT_TEST_HURRY"

// TestHurryOfKilledAgent kills a process that is in a hurry: another agent's start leaves the setting alone, and
// the same agent's puts it back.
func TestHurryOfKilledAgent(t *testing.T) {
	if where := os.Getenv(hurryChild); where != "" {
		setting, state, _ := strings.Cut(where, ":")
		newHurry(t, setting, state).begin()
		os.Stdout.WriteString("in a hurry\n")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the end of this process, or of its parent
	}
	setting, state := hurrySetting(t, "0"), t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestHurryOfKilledAgent$")
	child.Env = append(os.Environ(), hurryChild+"="+setting+":"+state)
	out, err := child.StdoutPipe()
	must(t, err)
	_, err = child.StdinPipe()
	must(t, err)
	must(t, child.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, child.Process.Kill())
	_ = child.Wait() // tells that it was killed
	if line != "in a hurry\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	other := newHurry(t, setting, t.TempDir())
	other.begin()()
	other.holds(t, "another agent starts", "1", false)
	newHurry(t, setting, state).holds(t, "the same agent starts", "0", false)
}

// TestHurryIsOverAtStart holds the datapath's start, and its end, to look for what a killed one has left.
func TestHurryIsOverAtStart(t *testing.T) {
	bpf, _ := pinBed(t, 64)
	opts := Options{BPFDir: bpf, StateDir: t.TempDir(), Mode: ModeTC}
	note := filepath.Join(opts.StateDir, hurryNote)
	log := slog.New(slog.DiscardHandler)
	name := fmt.Sprintf("wt-hurry-%d", os.Getpid())
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
