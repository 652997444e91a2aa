package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/test/labtest"
)

// patience bounds every wait. Nothing here takes a hundredth of it on a machine with time.
const patience = 3 * time.Minute

// echoPort is where every pod of a lab that has echo servers answers.
const echoPort = 7007

const threeNodes = `
name: set-later
encryption: off
agent:
  log: {level: debug}
` + labtest.ABOut + `pods:
  - {name: client, node: a, namespace: shop, addresses: [10.77.1.10, "fd77:1::10"]}
  - {name: db, node: a, namespace: shop, addresses: [10.77.1.100, "fd77:1::100"]}
  - {name: server, node: b, namespace: shop, addresses: [10.77.2.100, "fd77:2::100"]}
`

const twoNodes = `
name: set-later
encryption: off
nodes:
  - {name: a, addresses: [192.0.2.1/24, "2001:db8::1/64"], podCIDRs: [10.77.1.0/24, "fd77:1::/64"]}
  - {name: b, addresses: [192.0.2.2/24, "2001:db8::2/64"], podCIDRs: [10.77.2.0/24, "fd77:2::/64"]}
wires:
  - {name: w0, nodes: [a, b], mtu: %d}
pods:
  - {name: client, node: a, namespace: shop, addresses: [10.77.1.10, "fd77:1::10"]}
  - {name: server, node: b, namespace: shop, addresses: [10.77.2.100, "fd77:2::100"]}
`

func parseSpec(t *testing.T, text string, args ...any) *lab.Spec {
	t.Helper()
	if len(args) > 0 {
		text = fmt.Sprintf(text, args...)
	}
	spec, err := lab.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// sharedLab is the lab that most tests use one after another; each leaves it as it found it.
type sharedLab struct {
	once  sync.Once
	lab   *lab.Lab
	echos []*traffic.EchoServer
	err   error
}

var shared sharedLab

// useShared gives the shared lab, whole: agents running with the tree's binary and their first
// configuration.
func useShared(t *testing.T) *lab.Lab {
	t.Helper()
	shared.once.Do(func() { shared.up(t) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	t.Cleanup(func() { quoteLogs(t, shared.lab) })
	return shared.lab
}

func (s *sharedLab) up(t *testing.T) {
	spec := parseSpec(t, threeNodes)
	spec.Name = labPrefix + "-main"
	if s.lab, s.err = lab.Up(context.Background(), spec,
		lab.Options{Binary: weftBinary, ReadyTimeout: labtest.ReadyTimeout}); s.err != nil {
		return
	}
	for _, p := range s.lab.Pods() {
		e, err := traffic.StartEcho(p.NetNS, echoPort)
		if err != nil {
			s.err = err
			return
		}
		s.echos = append(s.echos, e)
	}
}

func (s *sharedLab) down() {
	for _, e := range s.echos {
		e.Close()
	}
	if s.lab == nil {
		return
	}
	if err := s.lab.Down(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "take the shared lab down:", err)
	}
}

// serveEcho answers on echoPort in pods, until the test ends.
func serveEcho(t *testing.T, pods ...*lab.Pod) {
	t.Helper()
	for _, p := range pods {
		e, err := traffic.StartEcho(p.NetNS, echoPort)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
	}
}

// eventually polls until ok returns nil, and fails with its last answer.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	labtest.Eventually(t, patience, what, ok)
}

// reconfigure lays keys, merged however deep, over the agents' configuration and restarts them. The
// first configuration comes back when the test ends.
func reconfigure(t *testing.T, keys map[string]any, nodes ...*lab.Node) {
	t.Helper()
	for _, n := range nodes {
		before := writeKeys(t, n, keys)
		t.Cleanup(func() {
			if err := os.WriteFile(n.ConfigFile, before, 0o644); err != nil {
				t.Error(err)
			}
			ensureStarted(t, n, true)
		})
		if err := n.RestartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// writeKeys lays keys, merged however deep, over a node's configuration file and returns what was
// in it.
func writeKeys(t *testing.T, n *lab.Node, keys map[string]any) []byte {
	t.Helper()
	before, err := os.ReadFile(n.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	config := map[string]any{}
	if err := yaml.Unmarshal(before, &config); err != nil {
		t.Fatal(err)
	}
	mergeKeys(config, keys)
	after, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.ConfigFile, after, 0o644); err != nil {
		t.Fatal(err)
	}
	return before
}

func mergeKeys(into, from map[string]any) {
	for k, v := range from {
		below, okBelow := into[k].(map[string]any)
		above, okAbove := v.(map[string]any)
		if okBelow && okAbove {
			mergeKeys(below, above)
			continue
		}
		into[k] = v
	}
}

// ensureStarted has an agent running at a test's end, whatever happened in it.
func ensureStarted(t *testing.T, n *lab.Node, again bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if n.PID() != 0 && again {
		if err := n.StopAgent(ctx); err != nil {
			t.Error(err)
		}
	}
	if n.PID() == 0 {
		if err := n.StartAgent(ctx); err != nil {
			t.Error(err)
		}
	}
}

func agents(l *lab.Lab) []*lab.Node {
	var out []*lab.Node
	for _, n := range l.Nodes() {
		if !n.Bare {
			out = append(out, n)
		}
	}
	return out
}

func status(t *testing.T, n *lab.Node) *admin.Status {
	t.Helper()
	s, err := admin.NewClient(n.Socket).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// dropped is how many packets of an endpoint a node has refused for a reason; an empty endpoint is
// any.
func dropped(t *testing.T, n *lab.Node, endpoint, reason string) uint64 {
	t.Helper()
	drops, err := admin.NewClient(n.Socket).Drops(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	var sum uint64
	for _, d := range drops {
		if d.Reason == reason && (endpoint == "" || d.Endpoint == endpoint) {
			sum += d.Packets
		}
	}
	return sum
}

func dropText(t *testing.T, n *lab.Node) string {
	t.Helper()
	drops, err := admin.NewClient(n.Socket).Drops(t.Context(), false)
	if err != nil {
		return err.Error()
	}
	var parts []string
	for _, d := range drops {
		parts = append(parts,
			fmt.Sprintf("%s %s %s: %d", d.Endpoint, d.Direction, d.Reason, d.Packets))
	}
	return strings.Join(parts, "; ")
}

// callTime is how long a few calls may take where they are to succeed: a hundred times what they
// take on a machine with time. Where they may fail at first, the next ones are then begun.
const callTime = 30 * time.Second

// reach has one pod talk to the echo server of another, by every protocol and both families.
func reach(ctx context.Context, from, to *lab.Pod) error {
	var errs []error
	for _, family := range []int{4, 6} {
		dst := to.Addr(family)
		ctx, cancel := context.WithTimeout(ctx, callTime)
		_, tcpErr := traffic.EchoTCP(ctx, from.NetNS, netip.Addr{},
			netip.AddrPortFrom(dst, echoPort), 200_000)
		_, udpErr := traffic.EchoUDP(ctx, from.NetNS, netip.Addr{},
			netip.AddrPortFrom(dst, echoPort), 1000)
		ping, pingErr := traffic.Ping(ctx, from.NetNS, traffic.PingOptions{Dst: dst})
		cancel()
		if pingErr == nil && !ping.OK() {
			pingErr = fmt.Errorf("ping %s: %+v", dst, ping)
		}
		for _, err := range []error{tcpErr, udpErr, pingErr} {
			if err != nil {
				errs = append(errs,
					fmt.Errorf("%s to %s IPv%d: %w", from.Name, to.Name, family, err))
			}
		}
	}
	return errors.Join(errs...)
}

// connected holds every ordered pair of pods against reach, and fragments besides.
func connected(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, from := range l.Pods() {
		for _, to := range l.Pods() {
			if from.Name == to.Name {
				continue
			}
			if err := reach(t.Context(), from, to); err != nil {
				t.Error(err)
			}
			for _, family := range []int{4, 6} {
				report, err := traffic.Ping(t.Context(), from.NetNS,
					traffic.PingOptions{Dst: to.Addr(family), Size: 4000})
				if err != nil || !report.OK() {
					t.Errorf("fragmented ping %s to %s IPv%d: %+v %v", from.Name, to.Name, family,
						report, err)
				}
			}
		}
	}
}

// weft runs the command line against an instance and returns its outputs and exit code.
func weft(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = runCommand(t, command(weftBinary, args...), &out, &errOut)
	return out.String(), errOut.String(), code
}
