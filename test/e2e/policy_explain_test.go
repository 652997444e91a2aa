package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/policy"
)

// allowWeb lets web into db by its IPv4 address and one port of TCP, and everything of whoever has
// other's IPv6 address.
const allowWeb = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow-web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
    - from: [{ipBlock: {cidr: 10.77.1.0/24, except: [10.77.1.10/32]}}]
      ports: [{port: 7007}]
    - from: [{ipBlock: {cidr: "fd77:2::10/128"}}]
`

const otherPort = echoPort + 1

// TestPolicyExplain: what agents say of a packet is what becomes of it, for every pair of pods,
// both families and four kinds of packets; and who is refused reads why.
func TestPolicyExplain(t *testing.T) {
	l := newLab(t, "explain", parseSpec(t, policyNodes, "strict"))
	for _, n := range agents(l) {
		keyed(t, l, n)
	}
	serveEcho(t, l.Pods()...)
	for _, p := range l.Pods() {
		e, err := traffic.StartEcho(p.NetNS, otherPort)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
	}
	putObject(t, l, "policies.yaml",
		strings.Join([]string{denyShop, frontNamespace, allowFront, isolateWeb, allowWeb}, "---\n"))
	explainSettled(t, l, 4)
	t.Run("packets", func(t *testing.T) { explainedPackets(t, l) })
	t.Run("words", func(t *testing.T) { explainedWords(t, l) })
	t.Run("maps that differ", func(t *testing.T) { explainedDifference(t, l) })
}

// explainedDifference: entries that are gone from the map are noticed, and packets go by the map.
func explainedDifference(t *testing.T, l *lab.Lab) {
	a := l.Node("a")
	pins, err := filepath.Glob("/sys/fs/bpf/weft/" + a.Instance + "/maps-weft_policy-*")
	if err != nil || len(pins) != 1 {
		t.Fatal(pins, err)
	}
	entries, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer entries.Close()
	gone := map[bpf.PolicyKey]bpf.PolicyEntry{}
	var key bpf.PolicyKey
	var value bpf.PolicyEntry
	for all := entries.Iterate(); all.Next(&key, &value); {
		if key.Direction == bpf.DirIngress && key.Protocol == policy.TCP &&
			key.Port == bpf.Ntohs(echoPort) {
			gone[key] = value
		}
	}
	if len(gone) == 0 {
		t.Fatal("no entry lets client into web")
	}
	for key := range gone {
		if err := entries.Delete(&key); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"policy", "explain", "--from", "front/client", "--to",
		fmt.Sprintf("shop/web:%d/tcp", echoPort), "--instance", a.Instance}
	if out, _, code := weft(t, args...); code != 9 ||
		!strings.Contains(out, "the verdict is allow as compiled, and deny in the maps") {
		t.Errorf("code %d, want 9:\n%s", code, out)
	}
	if err := sendExplained(t.Context(), l.Pod("client"), l.Pod("web").IPv4, "tcp", echoPort,
		policy.Deny); err == nil {
		t.Error("a packet passed that no entry of the map allows")
	}
	for key, value := range gone {
		if err := entries.Put(&key, &value); err != nil {
			t.Fatal(err)
		}
	}
	if out, _, code := weft(t, args...); code != 0 {
		t.Errorf("put back, code %d:\n%s", code, out)
	}
}

// explainSettled waits until every node has that many policies, and its maps say so.
func explainSettled(t *testing.T, l *lab.Lab, policies int) {
	t.Helper()
	for _, n := range agents(l) {
		eventually(t, "the policies of "+n.Name, func() error {
			list, err := admin.NewClient(n.Socket).Policies(t.Context())
			if err != nil {
				return err
			}
			if len(list.Policies) != policies || len(list.Problems) > 0 {
				return fmt.Errorf("%d policies, problems %q", len(list.Policies), list.Problems)
			}
			for _, p := range l.Pods() {
				if _, err := explained(t.Context(), n, l.Pod("client"), p, 4, "tcp",
					echoPort); err != nil && p.Name != "client" {
					return err
				}
			}
			return nil
		})
	}
}

// explained asks a node about a packet. An error is also that its maps say something else.
func explained(ctx context.Context, n *lab.Node, from, to *lab.Pod, family int, protocol string,
	port uint16) (*admin.PolicyExplanation, error) {
	if from.Node != n.Name && to.Node != n.Name {
		return nil, nil
	}
	request := admin.PolicyRequest{From: from.Key(), To: to.Addr(family).String(),
		Protocol: protocol}
	if port != 0 {
		request.Port = fmt.Sprint(port)
	}
	e, err := admin.NewClient(n.Socket).ExplainPolicy(ctx, request)
	if err != nil {
		return nil, err
	}
	if len(e.Disagreements) > 0 {
		return nil, fmt.Errorf("the maps of %s differ: %q", n.Name, e.Disagreements)
	}
	if here := from.Node == to.Node; here != (len(e.Elsewhere) == 0) {
		return nil, fmt.Errorf("node %s says of %s and %s that elsewhere is %q", n.Name, from.Name,
			to.Name, e.Elsewhere)
	}
	return e, nil
}

func explainedPackets(t *testing.T, l *lab.Lab) {
	seen := map[policy.Verdict]int{}
	for _, from := range l.Pods() {
		for _, to := range l.Pods() {
			if from.Name == to.Name {
				continue
			}
			for _, family := range []int{4, 6} {
				for _, packet := range []struct {
					protocol string
					port     uint16
				}{{"tcp", echoPort}, {"tcp", otherPort}, {"udp", echoPort}, {"icmp", 0}} {
					want := policy.Allow
					for _, n := range agents(l) {
						e, err := explained(t.Context(), n, from, to, family, packet.protocol,
							packet.port)
						if err != nil {
							t.Fatal(err)
						}
						if e != nil && e.Verdict == policy.Deny {
							want = policy.Deny
						}
					}
					seen[want]++
					if err := sendExplained(t.Context(), from, to.Addr(family), packet.protocol,
						packet.port, want); (err == nil) != (want == policy.Allow) {
						t.Errorf("%s to %s IPv%d %s %d is explained as %s, and became %v",
							from.Name, to.Name, family, packet.protocol, packet.port, want, err)
					}
				}
			}
		}
	}
	if seen[policy.Allow] < 20 || seen[policy.Deny] < 20 {
		t.Errorf("a table that shows little: %v", seen)
	}
}

// sendExplained expects an answer. Who is to be refused has a moment only.
func sendExplained(ctx context.Context, from *lab.Pod, to netip.Addr, protocol string, port uint16,
	want policy.Verdict) error {
	limit := callTime
	if want == policy.Deny {
		limit = 100 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var err error
	switch protocol {
	case "tcp":
		_, err = traffic.EchoTCP(ctx, from.NetNS, netip.Addr{}, netip.AddrPortFrom(to, port), 1000)
	case "udp":
		_, err = traffic.EchoUDP(ctx, from.NetNS, netip.Addr{}, netip.AddrPortFrom(to, port), 1000)
	default:
		var report traffic.PingReport
		if report, err = traffic.Ping(ctx, from.NetNS,
			traffic.PingOptions{Dst: to, Timeout: limit}); err == nil && !report.OK() {
			err = fmt.Errorf("%+v", report)
		}
	}
	return err
}

// explainedWords holds what the command line says against each other, and against the flow log.
func explainedWords(t *testing.T, l *lab.Lab) {
	a, b := l.Node("a"), l.Node("b")
	const (
		isolated = "isolated by NetworkPolicy shop/isolate: no rule of egress allows it"
		denied   = "isolated by NetworkPolicy shop/allow-web, NetworkPolicy shop/deny: no rule of ingress allows it"
	)
	client := l.Pod("client").IPv4.String() + ":7007/tcp"
	for _, tt := range []struct {
		name, args string
		node       *lab.Node
		code       int
		want       []string
	}{
		{"denied by egress", "policy explain --from shop/web --to " + client, a, 8,
			[]string{isolated, "to allow it: NetworkPolicy shop/isolate, spec.egress[0] (",
				"say the same"}},
		{"the same, traced", "trace --from shop/web --to " + client, a, 4,
			[]string{"deny: egress of shop/web to front/default role=client: " + isolated}},
		{"allowed", "policy explain --from front/client --to shop/web:7007/tcp", a, 0,
			[]string{"allow  NetworkPolicy shop/allow-front, spec.ingress[0] ("}},
		{"denied at the other node", "policy explain --from front/client --to shop/db:7007/tcp", b,
			8, []string{denied, "egress of front/client is judged by node a"}},
		{"of which this one knows half", "policy explain --from front/client --to shop/db:7007/tcp",
			a, 0, []string{"ingress of shop/db is judged by node b"}},
		{"neither end here", "policy explain --from front/other --to shop/db:7007/tcp", a, 1,
			[]string{"neither is a pod of node a: front/other is on node b, shop/db is on node b: ask there"}},
		{"its own node", "policy explain --from 192.0.2.1 --to shop/web:9/tcp", a, 0,
			[]string{"the pod's own node"}},
		{"the world", "policy explain --from 203.0.113.1 --to shop/web:7007/tcp", a, 8,
			[]string{"add 203.0.113.1 (outside the cluster) there"}},
		{"list", "policy list -o wide", a, 0,
			[]string{"shop/isolate", "policies.yaml", "all allowed"}},
		{"get", "policy get shop/allow-web", b, 0,
			[]string{"Pods here: shop/db", "10.77.1.0/24", "7007/tcp"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, errOut, code := weft(t,
				append(strings.Fields(tt.args), "--instance", tt.node.Instance)...)
			for _, want := range tt.want {
				if code != tt.code || !strings.Contains(out+errOut, want) {
					t.Errorf("code %d, want %d and %q:\n%s%s", code, tt.code, want, out, errOut)
				}
			}
		})
	}
	t.Run("flows", func(t *testing.T) {
		text := "policy_denied: ingress of shop/db from front/default role=client: " + denied
		eventually(t, "a record of who refused it", func() error {
			_ = sendExplained(t.Context(), l.Pod("client"), l.Pod("db").IPv4, "tcp", echoPort,
				policy.Deny)
			out, _, _ := weft(t, "flows", "--instance", b.Instance, "--reason", "policy_denied",
				"--from", "front/client")
			if !strings.Contains(out, text) {
				return fmt.Errorf("no %q in:\n%s", text, out)
			}
			return nil
		})
	})
}
