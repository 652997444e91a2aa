package sealer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns/nettest"
	"weft.dev/weft/internal/sealer/control"
)

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "weft-sealer")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, control.Program)
	build := exec.Command("go", "build", "-trimpath", "-o", path, "weft.dev/weft/cmd/weft-sealer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := built(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// started is a running process with a namespace and a tap of its own.
type started struct {
	*control.Process
	ns    string
	tap   *os.File
	hooks *hooks
	path  string
	log   *text
}

func start(t *testing.T) *started {
	t.Helper()
	s := &started{ns: nettest.New(t, "sealer"), path: filepath.Join(t.TempDir(), "sealer.sock"), log: &text{}}
	s.tap = testTap(t, s.ns)
	s.hooks = newHooks(t, s.ns, tapName)
	s.Process = s.another(t, s.path)
	return s
}

// another starts a process on the same tap.
func (s *started) another(t *testing.T, path string) *control.Process {
	t.Helper()
	program, err := built()
	if err != nil {
		t.Fatal(err)
	}
	p, err := control.Start(t.Context(), control.Options{
		Binary: program, Tap: s.tap, SocketPath: path, Log: slog.New(slog.NewTextHandler(s.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill() //nolint:errcheck // it may have ended
		<-p.Done()
		p.Close()
	})
	return p
}

// ready has keys and reads the tap.
func (s *started) ready(t *testing.T, ids ...uint32) {
	t.Helper()
	ctx := t.Context()
	if err := s.Configure(ctx, control.Config{ESPPort: testPort}); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if err := s.Install(ctx, testKey(true, id), testKey(false, id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Begin(ctx); err != nil {
		t.Fatal(err)
	}
}

// bulk is a frame of one TCP packet that stands for n.
func bulk(n int, seq uint64) []byte {
	data := pattern(n * 1000)
	v, ip := gso(segment(podPacket(false), tcp{seq: 9, ack: 7, flags: tcpACK, window: 500}, data), 1000)
	return frame(v, meta{kind: kindSeal4, count: uint8(n), sa: testSA, identity: testIdentity, seq: seq}, ip)
}

// TestProcess: what is sealed by a process on a tap is opened by it again, both as packets that
// stand for many.
func TestProcess(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	f := bulk(40, 100)
	s.hooks.send(f)
	sealed := s.hooks.receive()
	v, m, ip := split(sealed)
	if m.kind != kindSealed || m.count != 40 || m.seq != 100 || m.sa != testSA || v.gso != gsoUDP {
		t.Fatalf("sealed: %+v %+v", m, v)
	}
	s.hooks.send(frame(v, meta{kind: kindOpen, count: 1, sa: testSA, seq: 90}, ip))
	_, m, inner := split(s.hooks.receive())
	if m.kind != kindOpened || m.count != 40 || m.seq != 100 || m.identity != testIdentity {
		t.Fatalf("opened: %+v", m)
	}
	if _, _, want := split(f); !bytes.Equal(inner, want) {
		t.Error("what was opened is not what was sealed")
	}
	stats, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := control.Stats{
		Seal: control.Direction{FramesIn: 1, FramesOut: 1, Packets: 40, Bytes: 40 * 1040},
		Open: control.Direction{FramesIn: 1, FramesOut: 1, Packets: 40, Bytes: 40 * 1040},
	}
	if stats != want {
		t.Errorf("stats:\n got %+v\nwant %+v", stats, want)
	}
	if err := s.Quit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		t.Error(err, s.log)
	}
}

func status(t *testing.T, pid int) map[string]string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}

// TestConfined: what the process may not do, by the kernel's word, in every thread.
func TestConfined(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	none := "0000000000000000"
	uid := strings.Repeat(strconv.Itoa(control.UID)+"\t", 3) + strconv.Itoa(control.UID)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", s.PID()))
	if err != nil || len(threads) < 2 {
		t.Fatal(threads, err)
	}
	for _, thread := range threads {
		tid, _ := strconv.Atoi(filepath.Base(thread))
		got := status(t, tid)
		for name, want := range map[string]string{
			"Seccomp": "2", "NoNewPrivs": "1", "CapEff": none, "CapPrm": none, "CapAmb": none, "Uid": uid, "Gid": uid, "Groups": "",
		} {
			if got[name] != want {
				t.Errorf("thread %d: %s is %q, want %q", tid, name, got[name], want)
			}
		}
	}
	if locked := status(t, s.PID())["VmLck"]; locked == "" || strings.HasPrefix(locked, "0 ") {
		t.Errorf("VmLck is %q", locked)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", s.PID()))
	if err != nil || !regexp.MustCompile(`Max core file size +0 +0 `).Match(limits) {
		t.Errorf("core files: %s %v", limits, err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.PID()))
	if err != nil || string(maps) != "GOTRACEBACK=none\x00" {
		t.Errorf("environment: %q %v", maps, err)
	}
}

// asUser runs a shell command as a user.
func asUser(uid uint32, command string) (string, error) {
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestMemoryUnreadable: neither another user nor the process's own can look into it.
func TestMemoryUnreadable(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	for _, uid := range []uint32{65534, control.UID} {
		for _, file := range []string{"mem", "maps", "environ", "fd/3"} {
			// The shell says so even where nothing would be read.
			out, err := asUser(uid, fmt.Sprintf("exec 9< /proc/%d/%s && echo opened", s.PID(), file))
			if err == nil || strings.Contains(out, "opened") || !strings.Contains(out, "ermission denied") {
				t.Errorf("uid %d opens %s: %q %v", uid, file, out, err)
			}
		}
	}
	// As the same user, a process that has not protected itself can be read: the check would notice.
	out, err := asUser(65534, "exec 9< /proc/$$/mem && echo opened")
	if err != nil || !strings.Contains(out, "opened") {
		t.Errorf("a process's own memory: %q %v", out, err)
	}
}

// TestKilled: it is gone at once, without a core, and its clients hear of it.
func TestKilled(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	other, err := control.Dial(t.Context(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Kill(s.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	<-other.Done()
	var exit *exec.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).CoreDump() {
		t.Errorf("ended with %v", err)
	}
	if _, err := other.Stats(t.Context()); !errors.Is(err, control.ErrClosed) {
		t.Errorf("stats of a dead process: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := control.Dial(ctx, s.path); err == nil {
		t.Error("dialled a dead process")
	}
	next := s.another(t, s.path)
	held, err := next.List(t.Context())
	if err != nil || len(held) != 0 {
		t.Errorf("a new process holds %v, %v", held, err)
	}
}

// TestCrashLeavesNothing: a fatal signal makes no core and says nothing of memory.
func TestCrashLeavesNothing(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	if err := unix.Kill(s.PID(), unix.SIGQUIT); err != nil { // at which Go prints all stacks and registers
		t.Fatal(err)
	}
	<-s.Done()
	var exit *exec.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).CoreDump() {
		t.Errorf("ended with %v", err)
	}
	if said := s.log.String(); said != "" {
		t.Errorf("it said: %s", said)
	}
}

// TestTerminated: SIGTERM ends it in order.
func TestTerminated(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	if err := unix.Kill(s.PID(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		t.Error(err, s.log)
	}
}
