package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"sync"
	"testing"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netns"
)

// load is traffic that runs while something is done to the agents.
type load struct {
	udp map[string]*traffic.UDPStream
	tcp map[string]*traffic.TCPStream
}

// path is a pair of pods with traffic between them.
type path struct{ from, to *lab.Pod }

// startLoad sends 1000 packets a second by UDP and a rate-limited TCP stream over each path, in
// both families.
func startLoad(t *testing.T, paths ...path) *load {
	t.Helper()
	l := &load{udp: map[string]*traffic.UDPStream{}, tcp: map[string]*traffic.TCPStream{}}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); l.stop() })
	for _, p := range paths {
		for _, family := range []int{4, 6} {
			name := fmt.Sprintf("%s to %s IPv%d", p.from.Name, p.to.Name, family)
			dst := netip.AddrPortFrom(p.to.Addr(family), 0)
			udp, err := traffic.StartUDP(ctx,
				traffic.UDPOptions{From: p.from.NetNS, To: p.to.NetNS, Dst: dst, PPS: 1000})
			if err != nil {
				t.Fatal(name, err)
			}
			l.udp[name] = udp
			tcp, err := traffic.StartTCP(ctx,
				traffic.TCPOptions{From: p.from.NetNS, To: p.to.NetNS, Dst: dst,
					BytesPerSecond: 1 << 20})
			if err != nil {
				t.Fatal(name, err)
			}
			l.tcp[name] = tcp
		}
	}
	l.flowing(t, "at the start")
	return l
}

// flowing waits until every stream has delivered more, so that what follows happens under load.
func (l *load) flowing(t *testing.T, when string) {
	t.Helper()
	udp, tcp := map[string]uint64{}, map[string]uint64{}
	for name, s := range l.udp {
		udp[name] = s.Report().Received
	}
	for name, s := range l.tcp {
		tcp[name] = s.Report().Received
	}
	eventually(t, "traffic "+when, func() error {
		for name, s := range l.udp {
			if now := s.Report(); now.Received < udp[name]+100 {
				return fmt.Errorf("UDP %s had received %d and now: %s", name, udp[name], now)
			}
		}
		for name, s := range l.tcp {
			if now := s.Report(); now.Received < tcp[name]+100_000 {
				return fmt.Errorf("TCP %s had received %d and now: %s", name, tcp[name], now)
			}
		}
		return nil
	})
}

func (l *load) stop() {
	for _, s := range l.udp {
		s.Stop()
	}
	for _, s := range l.tcp {
		s.Stop()
	}
}

// nothingLost ends the streams and holds them to perfection.
func (l *load) nothingLost(t *testing.T) {
	t.Helper()
	for name, s := range l.udp {
		if r := s.Stop(); r.Received == 0 || r.Lost != 0 || r.SendErrors != 0 || r.Corrupt != 0 ||
			r.Duplicates != 0 {
			t.Errorf("UDP %s: %s %s", name, r, r.SendError)
		}
	}
	l.tcpWhole(t)
}

// tcpWhole ends the TCP streams: each must have delivered every byte, over the one connection.
func (l *load) tcpWhole(t *testing.T) {
	t.Helper()
	for name, s := range l.tcp {
		if r := s.Stop(); r.Received == 0 || r.Received != r.Sent || r.Resets != 0 || r.Corrupt {
			t.Errorf("TCP %s: %s", name, r)
		}
	}
}

// lost is what the UDP streams have lost, for tests that allow it but want it told.
func (l *load) lost() string {
	text := ""
	for name, s := range l.udp {
		r := s.Stop()
		text += fmt.Sprintf("%s: %s\n", name, r)
	}
	return text
}

func command(name string, args ...string) *exec.Cmd { return exec.Command(name, args...) }

// runCommand runs a command and returns its exit code.
func runCommand(t *testing.T, cmd *exec.Cmd, out, errOut *bytes.Buffer) int {
	t.Helper()
	cmd.Stdout, cmd.Stderr = out, errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

// runIn runs a command inside a network namespace.
func runIn(t *testing.T, ns string, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := netns.Do(ns, cmd.Start); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// must runs a command inside a namespace and wants it to succeed.
func must(t *testing.T, ns string, argv ...string) string {
	t.Helper()
	out, errOut, code := runIn(t, ns, command(argv[0], argv[1:]...))
	if code != 0 {
		t.Fatalf("%v: exit code %d: %s%s", argv, code, out, errOut)
	}
	return out
}

// safeBuffer collects what a running command writes.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
