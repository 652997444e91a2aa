package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/test/etcd"
	"weft.dev/weft/test/labtest"
)

const etcdNodes = `
name: set-later
nodes:
  - {name: a, addresses: [192.0.2.1/24, "2001:db8::1/64"], podCIDRs: [10.77.1.0/24, "fd77:1::/64"]}
  - {name: b, addresses: [192.0.2.2/24, "2001:db8::2/64"], podCIDRs: [10.77.2.0/24, "fd77:2::/64"]}
  - {name: out, addresses: [192.0.2.9/24], agent: false}
wires:
  - {name: w0, nodes: [a, b, out], offload: false}
pods:
  - {name: client, node: a, namespace: shop, addresses: [10.77.1.10, "fd77:1::10"]}
  - {name: server, node: b, namespace: shop, addresses: [10.77.2.100, "fd77:2::100"]}
`

// TestEtcd: two nodes whose objects are in etcd seal as with a directory. Without etcd nothing
// changes for packets, and no packet is lost; once it is back, a new pod is learned.
func TestEtcd(t *testing.T) {
	cluster := etcd.Start(t, etcd.Options{})
	spec := parseSpec(t, etcdNodes)
	spec.Name, spec.Etcd = labPrefix+"-etcd", cluster.Endpoints()
	l, err := lab.Up(t.Context(), spec,
		lab.Options{Binary: weftBinary, ReadyTimeout: labtest.ReadyTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Down(t.Context()) }) //nolint:errcheck // what is left is seen at the end
	t.Cleanup(func() { quoteLogs(t, l) })
	for _, n := range agents(l) {
		keyed(t, l, n)
	}
	client, server := l.Pod("client"), l.Pod("server")
	serveEcho(t, client, server)
	watch := watchWire(t, l, podRules(l), nil)
	eventually(t, "the pods to reach each other",
		func() error { return reach(t.Context(), client, server) })

	load := startLoad(t, path{client, server})
	cluster.Members[0].Kill()
	for _, n := range agents(l) {
		eventually(t, "the word that etcd is away",
			func() error { return says(t, n, "etcd is away since") })
	}
	load.flowing(t, "without etcd")
	if err := reach(t.Context(), client, server); err != nil {
		t.Errorf("without etcd: %v", err)
	}
	cluster.Members[0].Start()
	for _, n := range agents(l) {
		eventually(t, "etcd to be back", func() error { return says(t, n, "") })
	}
	late, err := l.AddPod(t.Context(),
		lab.PodSpec{Name: "late", Node: "b", Namespace: "shop", ServiceAccount: "late",
			Addresses: []netip.Addr{netip.MustParseAddr("10.77.2.50"),
				netip.MustParseAddr("fd77:2::50")}})
	if err != nil {
		t.Fatal(err)
	}
	serveEcho(t, late)
	eventually(t, "the late pod", func() error { return reach(t.Context(), client, late) })
	load.flowing(t, "with etcd back")
	load.nothingLost(t)
	watch.allSealed(t, l)
	t.Run("verbs", func(t *testing.T) { verbs(t, l, cluster) })
}

// says checks what an agent says of its objects, "" for nothing.
func says(t *testing.T, n *lab.Node, text string) error {
	errs := status(t, n).Store.Errors
	if text == "" && len(errs) == 0 || text != "" && len(errs) == 1 &&
		strings.Contains(errs[0].Error(), text) {
		return nil
	}
	return fmt.Errorf("%v", errs)
}

// verbs edits the objects of a lab as an administrator does.
func verbs(t *testing.T, l *lab.Lab, cluster *etcd.Cluster) {
	dir := t.TempDir()
	cfg, nodes := filepath.Join(dir, "admin.yaml"), filepath.Join(dir, "nodes.yaml")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(cfg,
		fmt.Sprintf("node: admin\nstore:\n  etcd:\n    endpoints: [%q]\n    prefix: /%s-etcd\n",
			cluster.Members[0].Endpoint, labPrefix))
	const good = "apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata: {name: c}\nspec: {addresses: [192.0.2.3], podCIDRs: [10.77.3.0/24]}\n"
	write(nodes, good)
	run := func(want int, expect string, args ...string) {
		t.Helper()
		out, errOut, code := weft(t, append(args, "--config", cfg)...)
		if code != want || !strings.Contains(out+errOut, expect) {
			t.Errorf("weft %s: code %d, want %d with %q:\n%s%s", strings.Join(args, " "), code,
				want, expect, out, errOut)
		}
	}
	known := func(count int) func() error {
		return func() error {
			if got := status(t, l.Node("a")).Nodes; got != count {
				return fmt.Errorf("%d nodes", got)
			}
			return nil
		}
	}
	run(0, "Node c created", "apply", "-f", nodes)
	run(0, "Node c configured", "apply", "-f", nodes)
	eventually(t, "node c", known(3))
	run(0, "c     -       192.0.2.3; 10.77.3.0/24", "get", "node")
	run(0, "server", "get", "endpoint", "shop/server", "-o", "yaml")
	write(nodes, good+"---\n"+strings.ReplaceAll(good, "name: c", "name: d"))
	run(1, nodes+":9: spec.podCIDRs[0]: 10.77.3.0/24 overlaps", "apply", "-f", nodes)
	run(1, "not found", "get", "node", "d")
	run(0, "Node c deleted", "delete", "node", "c")
	run(1, "delete Node c: not found", "delete", "node", "c")
	run(2, `"nodes" is no kind of object`, "get", "nodes")
	eventually(t, "node c gone", known(2))
}
