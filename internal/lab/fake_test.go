package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"go.yaml.in/yaml/v3"
	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/netns"
)

// fakeMode makes the fake agent misbehave; empty is a good one.
const fakeMode = "WEFT_LAB_TEST_FAKE"

// TestMain lets the test binary stand in for weft: as agent, as its cleanup and as CNI
// plugin. So the lab's own work is tested without BPF and with agents that misbehave.
func TestMain(m *testing.M) {
	switch {
	case filepath.Base(os.Args[0]) == cniPlugin:
		exitOn(fakePlugin())
	case len(os.Args) == 4 && os.Args[1] == "agent" && os.Args[2] == "--config":
		exitOn(fakeAgent(os.Args[3]))
	case len(os.Args) == 5 && os.Args[1] == "agent" && os.Args[2] == "cleanup":
		exitOn(fakeCleanup(os.Args[4]))
	}
	// A race-enabled binary sleeps a second when it ends; the fakes end often.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Exit(m.Run())
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake weft:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func fakeInstance(config string) (string, error) {
	data, err := os.ReadFile(config)
	if err != nil {
		return "", err
	}
	var c struct{ Instance string }
	return c.Instance, yaml.Unmarshal(data, &c)
}

func fakeAgent(config string) error {
	name, err := fakeInstance(config)
	if err != nil {
		return err
	}
	mode := os.Getenv(fakeMode)
	if mode == "dies" {
		return fmt.Errorf("no BPF in this kernel")
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	dir := filepath.Join(agentRunDir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	socket := filepath.Join(dir, "agent.sock")
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/readyz" || mode == "never-ready" {
			http.Error(w, "waiting for objects", http.StatusServiceUnavailable)
		}
	}))
	fmt.Println("fake agent runs")
	<-stop
	return nil
}

func fakeCleanup(config string) error {
	name, err := fakeInstance(config)
	if err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(agentRunDir, name))
}

// fakePlugin makes a veth pair inside the pod and answers with the last byte of the pod's
// name as address; it refuses pods named "bad".
func fakePlugin() error {
	if os.Getenv("CNI_COMMAND") != "ADD" {
		return nil
	}
	if strings.Contains(os.Getenv("CNI_ARGS"), "K8S_POD_NAME=bad") {
		fmt.Println(`{"code":11,"msg":"try again","details":"no address left"}`)
		os.Exit(1)
	}
	if link, err := netlink.LinkByName("w0"); err != nil || link == nil {
		return fmt.Errorf("the plugin does not run in the node's namespace: %v", err)
	}
	path := os.Getenv("CNI_NETNS")
	err := netns.Do(path, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: os.Getenv("CNI_IFNAME")}, PeerName: "other"})
	})
	if err != nil {
		return err
	}
	args := os.Getenv("CNI_ARGS")
	_, after, _ := strings.Cut(args, "K8S_POD_NAME=")
	name, _, _ := strings.Cut(after, ";")
	zero := 0
	result := types100.Result{
		CNIVersion: cniVersion,
		Interfaces: []*types100.Interface{{Name: "eth0", Mac: "02:00:00:00:00:01", Sandbox: path},
			{Name: "weft0123456789"}},
		IPs: []*types100.IPConfig{{Interface: &zero,
			Address: net.IPNet{IP: net.IPv4(10, 77, 1, name[len(name)-1]),
				Mask: net.CIDRMask(32, 32)}}},
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// agentSpec is two nodes with agents and a pod on the first.
func agentSpec(suffix string) *Spec {
	s := bareSpec(testName(suffix), 2)
	for i := range s.Nodes {
		s.Nodes[i].Agent = nil
	}
	s.Pods = s.Pods[:1]
	return s
}

// upAgents builds a lab whose weft is this test binary.
func upAgents(t *testing.T, spec *Spec) *Lab {
	t.Helper()
	needsRoot(t)
	l, err := Up(t.Context(), spec, Options{Binary: os.Args[0], ReadyTimeout: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Down(context.Background()) })
	return l
}

func TestAgentLife(t *testing.T) {
	spec := agentSpec("life")
	l := upAgents(t, spec)
	n := l.Node("n0")
	first := n.PID()
	if first == 0 {
		t.Fatal("no agent runs")
	}
	if err := n.StartAgent(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "runs already") {
		t.Errorf("start of a running agent: %v", err)
	}
	if err := n.KillAgent(t.Context()); err != nil || n.PID() != 0 {
		t.Errorf("kill: %v, pid %d", err, n.PID())
	}
	if st, err := l.Status(t.Context()); err != nil || st.Nodes[0].Agent != AgentStopped ||
		st.Nodes[1].Agent != AgentReady {
		t.Errorf("status after kill: %+v, %v", st, err)
	}
	if err := n.KillAgent(t.Context()); err == nil {
		t.Error("kill of no agent succeeded")
	}
	if err := n.StartAgent(t.Context()); err != nil || n.PID() == 0 || n.PID() == first {
		t.Errorf("start: %v, pid %d, before %d", err, n.PID(), first)
	}
	if err := n.RestartAgent(t.Context()); err != nil {
		t.Error(err)
	}
	// Another process opens the lab by name and sees the same.
	other, err := Open(spec.Name)
	if err != nil || other.Node("n0").PID() != n.PID() {
		t.Fatalf("open: %v", err)
	}
	pids := []int{n.PID(), l.Node("n1").PID()}
	if err := other.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if _, err := identify(pid); err == nil {
			t.Errorf("agent %d still runs", pid)
		}
	}
	if left := leftovers(spec); len(left) > 0 || exists(l.Dir()) {
		t.Errorf("left: %v", left)
	}
}

func TestPodByPlugin(t *testing.T) {
	l := upAgents(t, agentSpec("cni"))
	p := l.Pod("default/pn0")
	if p == nil || p.IPv4.String() != fmt.Sprintf("10.77.1.%d", '0') ||
		p.HostIf != "weft0123456789" || p.MAC == "" {
		t.Errorf("pod %+v", p)
	}
	_, err := l.AddPod(t.Context(), PodSpec{Name: "bad", Node: "n0"})
	if err == nil || !strings.Contains(err.Error(), "no address left") {
		t.Errorf("a refused ADD: %v", err)
	}
	if l.Pod("bad") != nil || exists(netns.Path(podNS(l.Name(), "n0", "bad"))) {
		t.Error("the refused pod is still there")
	}
}

func TestAgentsThatMisbehave(t *testing.T) {
	needsRoot(t)
	tests := []struct{ mode, want string }{
		{"dies", "ended before it was ready; the end of /run/weft-lab/"},
		{"never-ready",
			"is not ready (context deadline exceeded): readiness: 503 Service Unavailable: waiting for objects"},
	}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			t.Setenv(fakeMode, tt.mode)
			spec := agentSpec(tt.mode)
			_, err := Up(t.Context(), spec, Options{Binary: os.Args[0], ReadyTimeout: time.Second})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("up: %v", err)
			}
			if tt.mode == "dies" && !strings.Contains(err.Error(), "no BPF in this kernel") {
				t.Errorf("the agent's last words are missing: %v", err)
			}
			if left := leftovers(spec); len(left) > 0 || exists(labdir.Dir(spec.Name)) {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestUnrecordedAgent stands for a crash between an agent's start and its record.
func TestUnrecordedAgent(t *testing.T) {
	l := upAgents(t, agentSpec("lost"))
	pid := l.Node("n0").PID()
	if err := l.st.update(func(st *state) error { delete(st.Agents, "n0"); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := identify(pid); err == nil {
		t.Errorf("agent %d still runs", pid)
	}
}

func TestUpCancelled(t *testing.T) {
	needsRoot(t)
	t.Setenv(fakeMode, "never-ready")
	spec := agentSpec("ctx")
	ctx, cancel := contextAfter(t, 300*time.Millisecond)
	defer cancel()
	if _, err := Up(ctx, spec, Options{Binary: os.Args[0]}); err == nil {
		t.Fatal("up succeeded")
	}
	if left := leftovers(spec); len(left) > 0 || exists(labdir.Dir(spec.Name)) {
		t.Errorf("left: %v", left)
	}
}

func contextAfter(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
