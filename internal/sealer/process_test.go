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
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

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

func start(t testing.TB) *started {
	t.Helper()
	s := &started{ns: nettest.New(t, "sealer"), path: filepath.Join(t.TempDir(), "sealer.sock"),
		log: &text{}}
	s.tap = testTap(t, s.ns)
	s.hooks = newHooks(t, s.ns, tapName)
	s.Process = s.start(t, s.path, s.tap)
	return s
}

// start starts a process on a tap.
func (s *started) start(t testing.TB, path string, tap *os.File) *control.Process {
	t.Helper()
	program, err := built()
	if err != nil {
		t.Fatal(err)
	}
	p, err := control.Start(t.Context(), control.Options{
		Binary: program, Tap: tap, SocketPath: path, Log: slog.New(slog.NewTextHandler(s.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill() //nolint:errcheck // it may have ended
		p.Wait() //nolint:errcheck // as it was killed
		p.Close()
	})
	if err := p.Publish(); err != nil {
		t.Fatal(err)
	}
	return p
}

// ready has keys and reads the tap.
func (s *started) ready(t testing.TB, ids ...uint32) {
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
	v, ip := gso(segment(podPacket(false), tcp{seq: 9, ack: 7, flags: tcpACK, window: 500}, data),
		1000)
	return frame(v,
		meta{kind: kindSeal4, count: uint8(n), sa: testSA, identity: testIdentity, seq: seq}, ip)
}

// TestProcess: what is sealed by a process on a tap is opened by it again, both as packets that
// stand for many.
func TestProcess(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	if info, err := os.Stat(s.path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket: %v %v", info.Mode(), err)
	}
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
	want := control.Stats{
		Seal: control.Direction{FramesIn: 1, FramesOut: 1, Packets: 40, Bytes: 40 * 1040},
		Open: control.Direction{FramesIn: 1, FramesOut: 1, Packets: 40, Bytes: 40 * 1040},
	}
	// A frame is counted once it was written, and is received before that.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		stats, err := s.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if stats == want {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("stats:\n got %+v\nwant %+v", stats, want)
		}
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
			"Seccomp": "2", "NoNewPrivs": "1", "CapEff": none, "CapPrm": none, "CapAmb": none,
			"Uid": uid, "Gid": uid, "Groups": "",
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
	if err != nil || string(maps) != "GOTRACEBACK=none\x00"+control.Godebug+"\x00" {
		t.Errorf("environment: %q %v", maps, err)
	}
}

// traffic sends frames of 4 packets, some hundred at most at a time, and says the last one's
// number.
func traffic(h *hooks, stop <-chan bool, done chan<- uint64) {
	seq := uint64(1)
	for {
		h.send(bulk(4, seq))
		select {
		case <-stop:
			done <- seq
			return
		case <-time.After(50 * time.Microsecond):
		}
		seq += 4
	}
}

// TestKeys: by whose fingerprint keys come and go.
func TestKeys(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	if err := s.Begin(ctx); !errors.Is(err, control.ErrRefused) {
		t.Errorf("begin before configure: %v", err)
	}
	s.ready(t, testSA)
	key := testKey(true, testSA)
	other := key
	other.Fingerprint++
	flip(&other.Key[0])
	expect := func(what string, want ...control.Held) {
		t.Helper()
		held, err := s.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(held,
			func(a,
				b control.Held) int {
				return strings.Compare(fmt.Sprint(a.Out), fmt.Sprint(b.Out))
			})
		if !slices.Equal(held, want) {
			t.Errorf("%s: %v, want %v", what, held, want)
		}
	}
	in := testKey(false, testSA)
	expect("at first", in.Held(), key.Held())
	s.hooks.send(bulk(2, 100))
	if _, m, _ := split(s.hooks.receive()); m.kind != kindSealed {
		t.Errorf("%+v", m)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Install(ctx, key))
	s.hooks.send(bulk(2, 100))
	if _, m, _ := split(s.hooks.receive()); m.kind != kindRefused {
		t.Errorf("the same key forgets its numbers: %+v", m)
	}
	must(s.Remove(ctx, other.Held()))
	expect("another fingerprint removed", in.Held(), key.Held())
	must(s.Install(ctx, other))
	expect("replaced", in.Held(), other.Held())
	// Refused until the worker has seen that nothing for the key before is left.
	for deadline := time.Now().Add(time.Minute); ; {
		s.hooks.send(bulk(2, 100))
		_, m, _ := split(s.hooks.receive())
		if m.kind == kindSealed {
			break
		}
		if control.Reason(m.identity) != control.ReasonNoKey || time.Now().After(deadline) {
			t.Fatalf("another key has no numbers of its own: %+v", m)
		}
	}
	must(s.Remove(ctx, key.Held()))
	expect("the old fingerprint removed", in.Held(), other.Held())
	must(s.Remove(ctx, other.Held(), in.Held()))
	expect("removed")
	s.hooks.send(bulk(2, 200))
	if _, m, _ := split(s.hooks.receive()); m.kind != kindRefused ||
		control.Reason(m.identity) != control.ReasonNoKey {
		t.Errorf("sealed without a key: %+v", m)
	}
	hello, err := s.Hello(ctx)
	if err != nil || hello.Protocol != control.Protocol || hello.PID != s.PID() || !hello.Begun ||
		!strings.HasPrefix(hello.Build, "dev") {
		t.Errorf("%+v, %v", hello, err)
	}
}

// TestManyAtOnce: many clients, keys that come and go under traffic, threads and garbage: the
// filter lets the runtime do all that it needs.
func TestManyAtOnce(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	stop, done := make(chan bool), make(chan uint64)
	go traffic(s.hooks, stop, done)
	failed := make(chan error)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	const clients = 12
	for i := range clients {
		go func() {
			c, err := control.Dial(ctx, s.path)
			if err != nil {
				failed <- err
				return
			}
			defer c.Close()
			for n := range 30 {
				var keys []control.Key
				for k := range 50 {
					key := testKey(true, uint32(i<<10|k))
					key.Fingerprint = uint64(n)
					keys = append(keys, key)
				}
				err = errors.Join(err, c.Install(ctx, keys...), c.Remove(ctx, keys[0].Held()))
				_, e := c.List(ctx)
				err = errors.Join(err, e)
			}
			failed <- err
		}()
	}
	for range clients {
		if err := <-failed; err != nil {
			t.Error(err, s.log)
		}
	}
	close(stop)
	<-done
	if _, err := s.Stats(t.Context()); err != nil {
		t.Error(err, s.log)
	}
}

// TestTapGone: without its device the process ends, and says why.
func TestTapGone(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	nettest.Do(t, s.ns, func() error {
		link, err := netlink.LinkByName(tapName)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
	<-s.Done()
	var exit *exec.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(s.log.String(), "read from the tap") {
		if time.Now().After(deadline) {
			t.Fatalf("it says %q", s.log)
		}
		time.Sleep(time.Millisecond)
	}
}
