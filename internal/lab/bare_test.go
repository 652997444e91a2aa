package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netns"
)

// needsRoot skips what cannot be done without root, and says so.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
}

// testName is a lab's name that no other test process has.
func testName(suffix string) string { return fmt.Sprintf("wt%d%s", os.Getpid(), suffix) }

// bareSpec is a lab without agents: nodes n0… on one wire, a pod on each.
func bareSpec(name string, nodes int) *Spec {
	off := false
	s := &Spec{Name: name, Wires: []WireSpec{{Name: "w0", MTU: 1500}}}
	for i := range nodes {
		node := fmt.Sprintf("n%d", i)
		s.Nodes = append(s.Nodes, NodeSpec{
			Name: node, Agent: &off,
			Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1)),
				netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i+1))},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.77.%d.0/24", i+1)),
				netip.MustParsePrefix(fmt.Sprintf("fd77:%d::/64", i+1))},
		})
		s.Wires[0].Nodes = append(s.Wires[0].Nodes, node)
		s.Pods = append(s.Pods, PodSpec{Name: "p" + node, Node: node})
	}
	return s
}

// up builds a lab of bare nodes and takes it down when the test ends.
func up(t *testing.T, spec *Spec) *Lab {
	t.Helper()
	needsRoot(t)
	l, err := Up(t.Context(), spec, Options{Binary: "/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil && !errors.Is(err, labdir.ErrNoLab) {
			t.Error(err)
		}
	})
	return l
}

func TestBareLab(t *testing.T) {
	for _, nodes := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			spec := bareSpec(testName(fmt.Sprintf("n%d", nodes)), nodes)
			l := up(t, spec)
			from, to := l.Pod("pn0"), l.Pod(fmt.Sprintf("pn%d", nodes-1))
			for _, family := range []int{4, 6} {
				reach(t, from, to, family)
			}
			st, err := l.Status(t.Context())
			if err != nil || st.Phase != PhaseUp || st.Pods[0].State != PodAttached ||
				st.Nodes[0].Agent != AgentNone {
				t.Errorf("status %+v, %v", st, err)
			}
			if err := l.Down(t.Context()); err != nil {
				t.Fatal(err)
			}
			if left := leftovers(spec); len(left) > 0 || exists(l.Dir()) {
				t.Errorf("left after down: %v", left)
			}
		})
	}
}

// reach sends every kind of traffic from one pod to another and back.
func reach(t *testing.T, from, to *Pod, family int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ping, err := traffic.Ping(ctx, from.NetNS,
		traffic.PingOptions{Dst: to.Addr(family), Src: from.Addr(family)})
	if err != nil || !ping.OK() {
		t.Errorf("IPv%d ping: %+v, %v", family, ping, err)
	}
	echo, err := traffic.StartEcho(to.NetNS, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	dst := netip.AddrPortFrom(to.Addr(family), echo.Port())
	if _, err := traffic.EchoTCP(ctx, from.NetNS, from.Addr(family), dst, 300_000); err != nil {
		t.Error(err)
	}
	if _, err := traffic.EchoUDP(ctx, from.NetNS, netip.Addr{}, dst, 4000); err != nil {
		t.Error(err)
	}
	udp, err := traffic.StartUDP(ctx,
		traffic.UDPOptions{From: from.NetNS, To: to.NetNS,
			Dst: netip.AddrPortFrom(to.Addr(family), 0)})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := traffic.StartTCP(ctx,
		traffic.TCPOptions{From: from.NetNS, To: to.NetNS,
			Dst: netip.AddrPortFrom(to.Addr(family), 0), BytesPerSecond: 10 << 20})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	if r := udp.Stop(); r.Received == 0 || r.Lost != 0 || r.SendErrors != 0 || r.Corrupt != 0 {
		t.Errorf("IPv%d UDP stream: %s", family, r)
	}
	if r := tcp.Stop(); r.Received == 0 || r.Received != r.Sent || r.Corrupt || r.Resets != 0 {
		t.Errorf("IPv%d TCP stream: %s", family, r)
	}
}

func TestPingSizes(t *testing.T) {
	spec := bareSpec(testName("mtu"), 2)
	spec.Wires[0].MTU = 1400
	spec.Nodes = append(spec.Nodes, spec.Nodes[0]) // a third node behind a wide wire
	third := &spec.Nodes[2]
	third.Name, third.Addresses, third.PodCIDRs = "n2", []netip.Prefix{netip.MustParsePrefix("198.51.100.3/24")}, nil
	wide := WireSpec{Name: "w1", MTU: 9000, Nodes: []string{"n1", "n2"},
		Addresses: map[string][]netip.Prefix{"n1": {netip.MustParsePrefix("198.51.100.2/24")}}}
	spec.Wires = append(spec.Wires, wide)
	l := up(t, spec)
	for node, route := range map[string]string{"n2": "10.77.1.0/24 via 198.51.100.2",
		"n0": "198.51.100.0/24 via 192.0.2.2"} {
		if _, err := l.Output(t.Context(), node,
			append([]string{"ip", "route", "replace"}, strings.Fields(route)...)...); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name string
		o    traffic.PingOptions
		ok   bool
		mtu  int
	}{
		{"fits", traffic.PingOptions{Size: 1400 - 28, DF: true}, true, 0},
		{"too big for the far wire", traffic.PingOptions{Size: 1401 - 28, DF: true}, false, 1400},
		{"too big for our own wire", traffic.PingOptions{Size: 9001 - 28, DF: true}, false, 9000},
		{"fragments", traffic.PingOptions{Size: 5000}, true, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.o.Dst = l.Pod("pn0").IPv4
			r, err := traffic.Ping(t.Context(), l.Node("n2").NetNS, tt.o)
			if err != nil || r.OK() != tt.ok || r.MTU != tt.mtu || (r.TooBig > 0) == tt.ok {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	r, err := traffic.Ping(t.Context(), l.Node("n2").NetNS,
		traffic.PingOptions{Dst: l.Pod("pn0").IPv4, TTL: 1})
	if err != nil || r.TimeExceeded != 1 {
		t.Errorf("TTL 1: %+v, %v", r, err)
	}
}

func TestWireFeatures(t *testing.T) {
	off := false
	spec := bareSpec(testName("off"), 2)
	spec.Wires[0].Offload = &off
	l := up(t, spec)
	for _, n := range []string{"n0", "n1"} {
		out, err := l.Output(t.Context(), n, "ethtool", "-k", "w0")
		if err != nil {
			t.Skipf("needs ethtool to look: %v", err)
		}
		for _, want := range []string{"generic-receive-offload: on",
			"tcp-segmentation-offload: off", "generic-segmentation-offload: off",
			"tx-checksum-ip-generic: off"} {
			if !strings.Contains(out, want) {
				t.Errorf("node %s: no %q in\n%s", n, want, out)
			}
		}
	}
}

func TestPodsComeAndGo(t *testing.T) {
	l := up(t, bareSpec(testName("pods"), 2))
	added, err := l.AddPod(t.Context(),
		PodSpec{Name: "late", Node: "n1", Namespace: "x",
			Addresses: []netip.Addr{netip.MustParseAddr("10.77.2.50")}})
	if err != nil {
		t.Fatal(err)
	}
	if added.Key() != "x/late" || added.IPv4.String() != "10.77.2.50" || !added.IPv6.IsValid() {
		t.Errorf("added %+v", added)
	}
	reach(t, l.Pod("pn0"), added, 4)
	again := PodSpec{Name: "late", Node: "n0"}
	if _, err := l.AddPod(t.Context(), again); err == nil ||
		!strings.Contains(err.Error(), `"late" names two pods`) {
		t.Errorf("a second pod of one name: %v", err)
	}
	if err := l.DelPod(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	if l.Pod("late") != nil || exists(added.NetNS) {
		t.Error("the pod is still there")
	}
	if _, err := l.AddPod(t.Context(), again); err != nil {
		t.Errorf("the name again on another node: %v", err)
	}
}

func TestExec(t *testing.T) {
	l := up(t, bareSpec(testName("exec"), 1))
	tests := []struct {
		target string
		argv   []string
		code   int
		fails  bool
	}{
		{"n0", []string{"true"}, 0, false},
		{"pn0", []string{"sh", "-c", "exit 7"}, 7, false},
		{"pn0", []string{"sh", "-c", "kill -9 $$"}, 137, false},
		{"pn0", []string{"/no/such/command"}, 127, true},
		{"nobody", []string{"true"}, 127, true},
		{"n0", nil, 127, true},
	}
	for _, tt := range tests {
		code, err := l.Exec(t.Context(), tt.target, tt.argv, Stdio{})
		if code != tt.code || (err != nil) != tt.fails {
			t.Errorf("exec %s %q: code %d, %v", tt.target, tt.argv, code, err)
		}
	}
	out, err := l.Output(t.Context(), "pn0", "cat", "/proc/net/dev")
	if err != nil || !strings.Contains(out, PodIfName) {
		t.Errorf("output %q, %v", out, err)
	}
}

func TestUpTwice(t *testing.T) {
	spec := bareSpec(testName("twice"), 1)
	l := up(t, spec)
	if _, err := Up(t.Context(), spec, Options{Binary: "/bin/true"}); !errors.Is(err, ErrUp) {
		t.Errorf("second up: %v", err)
	}
	if l.Pod("pn0") == nil {
		t.Error("the refused up harmed the lab")
	}
	names, err := labdir.List()
	if err != nil || !strings.Contains(strings.Join(names, " "), spec.Name) {
		t.Errorf("list %v, %v", names, err)
	}
	if _, err := Open(testName("none")); !errors.Is(err, labdir.ErrNoLab) {
		t.Errorf("open of no lab: %v", err)
	}
}

func TestNameTakenByOthers(t *testing.T) {
	needsRoot(t)
	spec := bareSpec(testName("taken"), 1)
	foreign := nodeNS(spec.Name, "n0")
	if _, err := netns.Create(foreign); err != nil {
		t.Fatal(err)
	}
	defer netns.Delete(foreign)
	_, err := Up(t.Context(), spec, Options{Binary: "/bin/true"})
	if err == nil || !strings.Contains(err.Error(), foreign) {
		t.Errorf("up: %v", err)
	}
	if !exists(netns.Path(foreign)) {
		t.Error("up removed a namespace that was not its own")
	}
	if exists(labdir.Dir(spec.Name)) {
		t.Error("up left its directory")
	}
}

// TestUpAfterCrash leaves a lab as a builder that was killed leaves it.
func TestUpAfterCrash(t *testing.T) {
	spec := bareSpec(testName("crash"), 2)
	l := up(t, spec)
	if err := l.st.update(func(st *state) error { st.Phase = PhaseBuilding; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := netns.Delete(podNS(spec.Name, "n1", "pn1")); err != nil {
		t.Fatal(err)
	}
	stale := l.Dir() + "/objects/stale.yaml"
	if err := os.WriteFile(stale, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := Up(t.Context(), spec, Options{Binary: "/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	if exists(stale) {
		t.Error("the crashed lab's objects are still there")
	}
	reach(t, again.Pod("pn0"), again.Pod("pn1"), 6)
}

func TestDownEndsWhatRunsInside(t *testing.T) {
	l := up(t, bareSpec(testName("left"), 1))
	done := make(chan int, 1)
	go func() {
		code, _ := l.Exec(context.Background(), "pn0", []string{"sleep", "300"}, Stdio{})
		done <- code
	}()
	inside := func() int { return len(processesIn([]string{podNS(l.Name(), "n0", "pn0")})) }
	for range 250 {
		if inside() == 1 {
			break
		}
		time.Sleep(pollEvery)
	}
	if inside() != 1 {
		t.Fatal("the command is not seen in the pod")
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != 128+15 {
		t.Errorf("the command ended with %d", code)
	}
}

func TestProcessIdentity(t *testing.T) {
	own, err := identify(os.Getpid())
	if err != nil || !own.alive() {
		t.Fatalf("%+v %v", own, err)
	}
	other := process{PID: own.PID, Start: own.Start + 1}
	if other.alive() {
		t.Error("a pid with another start time passes for alive")
	}
	if err := other.signal(9); err != nil {
		t.Errorf("signal to a process that is gone: %v", err)
	}
	if (process{}).alive() {
		t.Error("no process is alive")
	}
}

func TestEndOfADeafProcess(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil { // the trap is set
		t.Fatal(err)
	}
	p, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	// Not reaped before the end: a process that only waits for its parent is gone, too.
	defer cmd.Wait()
	if err := p.end(t.Context(), 50*time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "was killed") || p.alive() {
		t.Errorf("end: %v", err)
	}
	if err := p.end(t.Context(), time.Second); err != nil {
		t.Errorf("end of what is gone: %v", err)
	}
}
