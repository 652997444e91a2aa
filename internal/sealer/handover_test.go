package sealer

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/netns/nettest"
	"weft.dev/weft/internal/sealer/control"
)

// TestExport: an agent that starts anew takes copies of all keys, or has another process go on with
// them and the tap, under traffic.
func TestExport(t *testing.T) {
	s := start(t)
	var want []control.Key
	for id := range uint32(1500) {
		want = append(want, testKey(id%2 == 0, id))
	}
	want = append(want, testKey(true, testSA), testKey(false, testSA))
	if err := s.Install(t.Context(), want...); err != nil {
		t.Fatal(err)
	}
	s.ready(t)
	heir, err := control.Dial(t.Context(), s.path) // as an agent that finds the process running
	if err != nil {
		t.Fatal(err)
	}
	defer heir.Close()
	stop, done := make(chan bool), make(chan uint64)
	go traffic(s.hooks, stop, done)
	keys, tap, err := heir.Export(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer control.Wipe(keys)
	defer tap.Close()
	compareKeys(t, keys, want)
	path := filepath.Join(t.TempDir(), "second.sock")
	next := s.start(t, path, tap)
	if err := errors.Join(next.Configure(t.Context(), control.Config{ESPPort: testPort}),
		next.Install(t.Context(), keys...)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(heir.Quit(t.Context()), next.Begin(t.Context())); err != nil {
		t.Fatal(err)
	}
	<-heir.Done()
	for deadline := time.Now().Add(time.Minute); ; { // until it has done something
		stats, err := next.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if stats.Seal.Packets > 100 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it has done %+v", stats)
		}
		time.Sleep(time.Millisecond)
	}
	close(stop)
	sent := <-done
	seen, last := map[uint64]bool{}, false
	for f := s.hooks.receive(); f != nil; f = s.hooks.receive() {
		_, m, _ := split(f)
		if m.kind != kindSealed || seen[m.seq] {
			t.Fatalf("%+v, seen: %v", m, seen[m.seq])
		}
		seen[m.seq] = true
		if last = m.seq+uint64(m.count) > sent; last { // perhaps with those before, in one frame
			break
		}
	}
	if !last {
		t.Errorf("%d frames, not the last one", len(seen))
	}
}

func compareKeys(t *testing.T, got, want []control.Key) {
	t.Helper()
	sorted := func(keys []control.Key) []control.Key {
		keys = slices.Clone(keys)
		slices.SortFunc(keys, func(a, b control.Key) int {
			if a.SA != b.SA {
				return int(a.SA) - int(b.SA)
			}
			return int(b.Key[0]) - int(a.Key[0]) + strings.Compare(fmt.Sprint(a.Out),
				fmt.Sprint(b.Out))
		})
		return keys
	}
	if !slices.Equal(sorted(got), sorted(want)) {
		t.Errorf("%d keys, not the %d that were installed", len(got), len(want))
	}
}

const startSocket = "WEFT_TEST_START_SOCKET"

// TestStartAndLeave is TestOutlives' agent: it starts a process and ends.
func TestStartAndLeave(t *testing.T) {
	path := os.Getenv(startSocket)
	if path == "" {
		t.Skip("runs within TestOutlives")
	}
	program := os.Getenv(startSocket + "_PROGRAM")
	p, err := control.Start(t.Context(), control.Options{
		Binary: program, Tap: os.NewFile(3, tapName), SocketPath: path, Log: slog.Default(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Configure(t.Context(), control.Config{ESPPort: testPort}); err != nil {
		t.Fatal(err)
	}
	if err := p.Install(t.Context(), testKey(true, testSA)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Publish(), p.Begin(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// TestOutlives: the agent ends, the process goes on, and the next agent finds it.
func TestOutlives(t *testing.T) {
	program, err := built()
	if err != nil {
		t.Fatal(err)
	}
	ns := nettest.New(t, "sealer")
	tap, path := testTap(t, ns), filepath.Join(t.TempDir(), "sealer.sock")
	agent := exec.Command(os.Args[0], "-test.run", "^TestStartAndLeave$")
	agent.Env = append(os.Environ(), startSocket+"="+path, startSocket+"_PROGRAM="+program)
	agent.ExtraFiles = []*os.File{tap}
	if out, err := agent.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	c, err := control.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer c.Kill() //nolint:errcheck // it may have ended
	hooks := newHooks(t, ns, tapName)
	hooks.send(bulk(2, 100))
	if _, m, _ := split(hooks.receive()); m.kind != kindSealed {
		t.Errorf("%+v", m)
	}
	hello, err := c.Hello(t.Context())
	if err != nil || hello.PID != c.PID() || !hello.Begun {
		t.Errorf("%+v, %v", hello, err)
	}
	if err := c.Quit(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
}
