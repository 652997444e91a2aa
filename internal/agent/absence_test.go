package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/store"
	"weft.dev/weft/internal/store/dir"
)

// nodesNow is what the datapath was told last: known nodes by name, and what is nobody's.
func (w *world) nodesNow() (known []string, missing []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.nodes {
		if !n.Missing {
			known = append(known, n.Name)
			continue
		}
		for _, a := range n.Addresses {
			missing = append(missing, a.String())
		}
		for _, p := range n.PodCIDRs {
			missing = append(missing, p.String())
		}
	}
	return known, missing
}

// TestMissingNodeIsRemembered: a node whose object goes is nobody's from then on, over restarts
// too, until it is back or is forgotten.
func TestMissingNodeIsRemembered(t *testing.T) {
	cfg, ctx := strictConfig(t), context.Background()
	cfg.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	w := sealedWorld()
	client, stop := w.start(t, cfg)
	eventually(t, "ready", func() bool { return ready(client) })
	if known, missing := w.nodesNow(); !slices.Equal(known, []string{"b"}) ||
		!slices.Equal(missing, []string{"10.0.0.0/8"}) {
		t.Errorf("at first: %v, missing %v", known, missing)
	}
	w.put(func(s *store.Snapshot) { delete(s.Nodes, "b") })
	lost := []string{"192.0.2.2", "10.0.0.0/8", "10.2.0.0/24"}
	gone := func() bool {
		known, missing := w.nodesNow()
		return len(known) == 0 && slices.Equal(missing, lost)
	}
	eventually(t, "b to be missing", gone)
	if _, err := client.ForgetNode(ctx, "a"); err == nil ||
		!strings.Contains(err.Error(), "remove its Node object first") {
		t.Errorf("this node was forgotten: %v", err)
	}
	stop()
	w = sealedWorld()
	delete(w.snapshot.Nodes, "b") // half a directory
	client, stop = w.start(t, cfg)
	eventually(t, "ready again", func() bool { return ready(client) })
	if !gone() {
		known, missing := w.nodesNow()
		t.Errorf("after a restart: %v, missing %v", known, missing)
	}
	status, err := client.Status(ctx)
	text := strings.Join(status.Problems, "\n")
	if err != nil ||
		!strings.Contains(text, "no_node: 10.2.0.0/24 (node b, object missing since 2") ||
		!strings.Contains(text, "`weft node forget b`") || len(status.NoNode) != 2 {
		t.Errorf("status: %s, %v, %v", text, status.NoNode, err)
	}
	// This node's own object goes too: what it runs with stays its own.
	w.put(func(s *store.Snapshot) { clear(s.Nodes) })
	eventually(t, "the word about the own object", func() bool {
		status, err := client.Status(ctx)
		return err == nil &&
			strings.Contains(strings.Join(status.Problems, "\n"), "the Node object a is gone")
	})
	if !gone() {
		_, missing := w.nodesNow()
		t.Errorf("without the own object: missing %v", missing)
	}
	forgotten, err := client.ForgetNode(ctx, "b")
	if err != nil || len(forgotten) != 2 {
		t.Errorf("forgotten %v, %v", forgotten, err)
	}
	eventually(t, "b to be forgotten",
		func() bool {
			_,
				missing := w.nodesNow()
			return slices.Equal(missing, []string{"10.0.0.0/8"})
		})
	stop()
	w = sealedWorld()
	delete(w.snapshot.Nodes, "b")
	delete(w.snapshot.Endpoints, "demo/db")
	client, _ = w.start(t, cfg)
	eventually(t, "ready a third time", func() bool { return ready(client) })
	if _, missing := w.nodesNow(); !slices.Equal(missing, []string{"10.0.0.0/8"}) {
		t.Errorf("after a restart, forgotten: missing %v", missing)
	}
}

// TestMemoryIsAdopted: an agent whose memory is gone takes over what the datapath's maps know,
// before it tells the datapath anything.
func TestMemoryIsAdopted(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		cfg := strictConfig(t)
		if damaged {
			if err := os.WriteFile(filepath.Join(cfg.StateDir(), "ranges.json"), []byte("{"),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		w := sealedWorld()
		w.inherited = []datapath.Inherited{{Prefix: netip.MustParsePrefix("10.2.0.0/24")},
			{Prefix: netip.MustParsePrefix("10.3.0.0/24")},
			{Prefix: netip.MustParsePrefix("192.0.2.3/32"), Host: true}}
		client, stop := w.start(t, cfg)
		eventually(t, "ready", func() bool { return ready(client) })
		if known, missing := w.nodesNow(); !slices.Equal(known, []string{"b"}) ||
			!slices.Equal(missing, []string{"192.0.2.3", "10.3.0.0/24"}) {
			t.Errorf("%v, missing %v", known, missing)
		}
		status, err := client.Status(context.Background())
		if named := strings.Contains(strings.Join(status.Problems, "\n"),
			"memory of the cluster's ranges cannot be read"); err != nil || named != damaged {
			t.Errorf("problems %v, %v", status.Problems, err)
		}
		stop()
	}
}

// TestAddressOfAnotherFamily: the datapath knows a peer's address also where this node has none of
// its family, or it would be the world's.
func TestAddressOfAnotherFamily(t *testing.T) {
	w := sealedWorld()
	both := []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
	w.snapshot.Nodes["b"].Spec.Addresses = both
	client, _ := w.start(t, strictConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.nodes) != 1 || !slices.Equal(w.nodes[0].Addresses, both) {
		t.Errorf("nodes %+v, want b with both of its addresses", w.nodes)
	}
}

// TestUnreachableNodeHoldsNothingUp: neither a node that cannot be reached nor a failure to enter
// the nodes keeps policies and keys back, and the first does not keep this node from being ready.
func TestUnreachableNodeHoldsNothingUp(t *testing.T) {
	for _, fails := range []bool{false, true} {
		w := sealedWorld()
		w.nodeProblems = []datapath.NodeProblem{{Node: "b",
			Text: "192.0.2.2: no route: network is unreachable"}}
		if fails {
			w.nodesErr = errors.New("the map is full")
		}
		w.snapshot.EncryptionPolicies["p"] = &v1alpha1.EncryptionPolicy{Spec: v1alpha1.EncryptionPolicySpec{CIDRs: prefixes("10.9.0.0/16")}}
		client, _ := w.start(t, strictConfig(t))
		eventually(t, "the policy", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Equal(w.sealing.plain, prefixes("10.9.0.0/16"))
		})
		eventually(t, "the keys' peers", func() bool {
			w.sealing.ring.mu.Lock()
			defer w.sealing.ring.mu.Unlock()
			return len(w.sealing.ring.peers) == 1
		})
		w.put(func(s *store.Snapshot) {})
		eventually(t, "the policy's end", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.sealing.plain) == 0
		})
		if fails {
			waitsFor(t, client, "the map is full")
			continue
		}
		eventually(t, "ready", func() bool { return ready(client) })
		status, err := client.Status(context.Background())
		if err != nil ||
			!slices.Contains(status.Problems,
				"node b cannot be reached, and nothing goes to its pods: 192.0.2.2: no route: network is unreachable") {
			t.Errorf("problems %v, %v", status.Problems, err)
		}
	}
}

// TestPublishedOutsideRanges: a pod's address outside its node's ranges is the node's for the
// datapath; ranges that other nodes cannot know are named.
func TestPublishedOutsideRanges(t *testing.T) {
	w, cfg := sealedWorld(), strictConfig(t)
	w.snapshot.Endpoints["demo/db"].Spec.Addresses = []netip.Addr{netip.MustParseAddr("10.2.0.2"),
		netip.MustParseAddr("fd99::7")}
	w.snapshot.Endpoints["demo/thief"] = &v1alpha1.Endpoint{
		Metadata: v1alpha1.ObjectMeta{Namespace: "demo", Name: "thief"},
		Spec: v1alpha1.EndpointSpec{NodeName: "b",
			Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.9")}},
	}
	cfg.IPAM.Ranges = prefixes("172.16.0.0/24")
	client, _ := w.start(t, cfg)
	eventually(t, "ready", func() bool { return ready(client) })
	w.mu.Lock()
	if n := w.nodes[0]; n.Name != "b" ||
		!slices.Equal(n.PodCIDRs, prefixes("10.2.0.0/24", "fd99::7/128")) || len(w.nodes) != 1 {
		t.Errorf("nodes %+v", w.nodes)
	}
	w.mu.Unlock()
	status, err := client.Status(context.Background())
	text := strings.Join(status.Problems, "\n")
	if err != nil ||
		!strings.Contains(text,
			"endpoint demo/thief of node b has the address 10.1.0.9, which is in 10.1.0.0/24 of node a") ||
		!strings.Contains(text, "ipam.ranges: 172.16.0.0/24 is outside this node's podCIDRs") {
		t.Errorf("problems %s, %v", text, err)
	}
}

// objectText is an object as people write it.
func objectText(kind, meta, spec string) string {
	return fmt.Sprintf("apiVersion: weft.dev/v1alpha1\nkind: %s\nmetadata: {%s}\nspec: {%s}\n",
		kind, meta, spec)
}

// TestAbsenceWidensNothing: whatever becomes of the file of any object, by whatever accident, while
// the agent runs or at its start: no address that was sealed is plain then.
func TestAbsenceWidensNothing(t *testing.T) {
	const asks, allows = `annotations: {ebpf.xdp/encrypt: "true"}`, `annotations: {ebpf.xdp/encrypt: "false"}`
	good := map[string]string{
		"a.yaml": objectText("Node", "name: a",
			"addresses: [192.0.2.1], podCIDRs: [10.1.0.0/24]"),
		"b.yaml": objectText("Node", "name: b",
			"addresses: [192.0.2.2], podCIDRs: [10.2.0.0/24]"),
		"range.yaml": objectText("EncryptionPolicy", "name: range",
			"cidrs: [10.2.0.0/28]"),
		"selector.yaml": objectText("EncryptionPolicy", "name: open, namespace: shop",
			"selector: {matchLabels: {open: y}}"),
		"pods/fixed.yaml": objectText("Pod", "name: fixed, namespace: shop, "+asks,
			"addresses: [10.2.0.3]"),
		"pods/db.yaml": objectText("Pod",
			"name: db, namespace: shop, labels: {open: y}, "+asks, ""),
		"pods/web.yaml": objectText("Pod", "name: web, namespace: shop, "+allows, ""),
		"endpoints/db.yaml": objectText("Endpoint",
			"name: db, namespace: shop, labels: {open: y}, "+asks,
			"nodeName: b, addresses: [10.2.0.2]"),
		"endpoints/web.yaml": objectText("Endpoint", "name: web, namespace: shop",
			"nodeName: b, addresses: [10.2.0.100]"),
		"endpoints/open.yaml": objectText("Endpoint",
			"name: open, namespace: shop, labels: {open: y}",
			"nodeName: b, addresses: [10.2.0.101]"),
		"endpoints/shut.yaml": objectText("Endpoint", "name: shut, namespace: shop",
			"nodeName: b, addresses: [10.2.0.102]"),
		"identities/300.yaml": objectText("Identity", `name: "300"`,
			`spiffeID: "spiffe://weft.local/ns/shop/sa/default"`),
	}
	var probes []netip.Addr
	for i := range 256 {
		probes = append(probes, netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}))
	}
	accidents := map[string]func(path, text string) error{
		"broken":  func(path, text string) error { return os.WriteFile(path, []byte(text+"oops: 1\n"), 0o644) },
		"no YAML": func(path, _ string) error { return os.WriteFile(path, []byte("kind: ["), 0o644) },
		"missing": func(path, _ string) error { return os.Remove(path) },
		"empty":   func(path, _ string) error { return os.WriteFile(path, nil, 0o644) },
		"half":    func(path, text string) error { return os.WriteFile(path, []byte(text[:len(text)/2]), 0o644) },
		"head only": func(path, text string) error {
			return os.WriteFile(path, []byte(text[:strings.Index(text, "spec:")]), 0o644)
		},
		"doubled": func(path, text string) error {
			// What asked to be sealed does not in the second version.
			other := strings.NewReplacer(asks, "labels: {x: y}", "10.1.", "10.8.",
				"cidrs: [10.2.0.0/28", "cidrs: [10.2.0.0/27").Replace(text)
			return os.WriteFile(strings.TrimSuffix(path, ".yaml")+"-2.yaml", []byte(other), 0o644)
		},
	}
	for _, restart := range []bool{false, true} {
		for name, spoil := range accidents {
			for _, file := range slices.Sorted(maps.Keys(good)) {
				t.Run(fmt.Sprintf("%s, %s, restart %v", file, name, restart), func(t *testing.T) {
					a := absenceAgent(t, good)
					before := a.plainNow(t)
					if !before(netip.MustParseAddr("10.2.0.5")) ||
						!before(netip.MustParseAddr("10.2.0.101")) ||
						before(netip.MustParseAddr("10.2.0.2")) ||
						before(netip.MustParseAddr("10.2.0.3")) {
						t.Fatal("the world is not as it should be")
					}
					if err := spoil(filepath.Join(a.cfg.Store.Dir, file), good[file]); err != nil {
						t.Fatal(err)
					}
					if restart {
						a = a.again(t)
					}
					after := a.plainNow(t)
					for _, p := range probes {
						if after(p) && !before(p) {
							t.Errorf("%s was sealed and is plain now", p)
						}
					}
				})
			}
		}
	}
}

// absence is the part of an agent that says what is plain.
type absence struct{ *Agent }

func absenceAgent(t *testing.T, files map[string]string) *absence {
	t.Helper()
	cfg := strictConfig(t)
	cfg.Store.Dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(cfg.Store.Dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return (&absence{&Agent{cfg: cfg}}).again(t)
}

// again is the agent after a restart.
func (a *absence) again(t *testing.T) *absence {
	t.Helper()
	d, err := dir.Open(a.cfg.Store.Dir)
	if err != nil {
		t.Fatal(err)
	}
	next := &absence{newAgent(a.cfg, Options{}, seams{})}
	next.store = d
	next.openMemory()
	next.adopt(fakeDatapath{world: newWorld()})
	return next
}

// plainNow reads the objects and says what may be plain.
func (a *absence) plainNow(t *testing.T) func(netip.Addr) bool {
	t.Helper()
	s, err := a.store.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	a.see(s)
	ix := a.index.Load()
	plain := identity.Plain(ix.snapshot, ix.remembered())
	return func(addr netip.Addr) bool {
		return slices.ContainsFunc(plain, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
}
