package ranges

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/statefile"
	"weft.dev/weft/internal/store"
)

func node(name, addr string, cidrs ...string) *v1alpha1.Node {
	n := &v1alpha1.Node{Metadata: v1alpha1.ObjectMeta{Name: name},
		Spec: v1alpha1.NodeSpec{Addresses: []netip.Addr{netip.MustParseAddr(addr)}}}
	for _, c := range cidrs {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, netip.MustParsePrefix(c))
	}
	return n
}

func endpoint(name, node string, addrs ...string) *v1alpha1.Endpoint {
	ep := &v1alpha1.Endpoint{Metadata: v1alpha1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: v1alpha1.EndpointSpec{NodeName: node}}
	for _, a := range addrs {
		ep.Spec.Addresses = append(ep.Spec.Addresses, netip.MustParseAddr(a))
	}
	return ep
}

// snapshot is of Nodes and Endpoints.
func snapshot(objects ...v1alpha1.Object) *store.Snapshot {
	s := store.NewSnapshot()
	for _, o := range objects {
		switch o := o.(type) {
		case *v1alpha1.Node:
			s.Nodes[o.Metadata.Name] = o
		case *v1alpha1.Endpoint:
			s.Endpoints[o.Metadata.Key()] = o
		}
	}
	return s
}

func open(t *testing.T, dir string) *Memory {
	t.Helper()
	m, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if m.Fresh() {
		m.Adopt(nil)
	}
	return m
}

// told is what a view comes to, in one text: published addresses, what is lost and whose it was,
// and how much is refused.
func told(v *View) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v.Published)) {
		parts = append(parts, fmt.Sprintf("%s+%v", name, v.Published[name]))
	}
	for _, e := range v.Lost {
		parts = append(parts, fmt.Sprintf("-%s=%s", e.Prefix, e.Node))
	}
	if len(v.Refused) > 0 {
		parts = append(parts, fmt.Sprintf("%d refused", len(v.Refused)))
	}
	return strings.Join(parts, " ")
}

// TestLearn: a memory that knows nodes a (this one), b and c and a pod of b outside its range sees
// what comes next. Each case runs within one life of the agent and over a restart.
func TestLearn(t *testing.T) {
	a, b, c := node("a", "192.0.2.1", "10.77.1.0/24"), node("b", "192.0.2.2",
		"10.77.2.0/24"), node("c", "192.0.2.3", "10.77.3.0/24")
	web, far := endpoint("web", "b", "10.77.2.7"), endpoint("far", "b", "172.16.0.9")
	first := snapshot(a, b, c, web, far)
	const wasB = "-10.77.2.0/24=b -172.16.0.9/32=b -192.0.2.2/32=b"
	unused := func(s *store.Snapshot, nodes ...*v1alpha1.Node) *store.Snapshot {
		for _, n := range nodes {
			s.Unused = append(s.Unused, n)
		}
		return s
	}
	tests := []struct {
		name string
		next *store.Snapshot
		want string
	}{
		{"nothing changed", first, "b+[172.16.0.9/32]"},
		{"node deleted", snapshot(a, c, web, far), wasB},
		{"node and its endpoints deleted", snapshot(a, c), wasB},
		{"all deleted, this node too", snapshot(),
			"-10.77.2.0/24=b -10.77.3.0/24=c -172.16.0.9/32=b -192.0.2.2/32=b -192.0.2.3/32=c"},
		{"doubled", unused(snapshot(a, c, web, far), b, node("b", "192.0.2.2", "10.78.2.0/24")),
			"-10.77.2.0/24=b -10.78.2.0/24=b -172.16.0.9/32=b -192.0.2.2/32=b"},
		{"its range changed", snapshot(a, node("b", "192.0.2.2", "10.78.2.0/24"), c, web, far),
			"b+[10.77.2.7/32 172.16.0.9/32] -10.77.2.0/24=b"},
		{"its range grew", snapshot(a, node("b", "192.0.2.2", "10.77.2.0/23"), c, far),
			"b+[172.16.0.9/32] "},
		{"its range went to another",
			snapshot(a, node("c", "192.0.2.3", "10.77.2.0/24", "10.77.3.0/24")),
			"-172.16.0.9/32=b -192.0.2.2/32=b"},
		{"a collision inside another's range",
			unused(snapshot(a, b, c, far), node("d", "10.77.2.9", "10.77.3.0/25", "10.79.0.0/24")),
			"b+[172.16.0.9/32] -10.79.0.0/24=d"},
		{"pod gone", snapshot(a, b, c, web), "-172.16.0.9/32=b"},
		{"pod published by another too",
			snapshot(a, b, c, far, endpoint("far2", "c", "172.16.0.9")),
			"b+[172.16.0.9/32] 1 refused"},
		{"pod moved", snapshot(a, b, c, endpoint("far2", "c", "172.16.0.9")), "c+[172.16.0.9/32]"},
		{"two new ones with one address",
			snapshot(a, b, c, far, endpoint("x", "b", "172.16.0.8"),
				endpoint("y", "c", "172.16.0.8")), "b+[172.16.0.9/32] -172.16.0.8/32= 1 refused"},
		{"a pod in another's range", snapshot(a, b, c, far, endpoint("x", "b", "10.77.3.8")),
			"b+[172.16.0.9/32] 1 refused"},
		{"a pod with a node's address",
			snapshot(a, b, c, far, endpoint("x", "b", "192.0.2.3"),
				endpoint("y", "c", "192.0.2.3")), "b+[172.16.0.9/32] 2 refused"},
		{"a pod of a node nobody knows", snapshot(a, b, c, far, endpoint("x", "z", "172.16.5.5")),
			"b+[172.16.0.9/32] -172.16.5.5/32=z"},
		{"this node's object has another's range",
			snapshot(node("a", "192.0.2.1", "10.77.2.0/24"), node("b", "192.0.2.2", "10.77.1.0/24"),
				c, far), "b+[172.16.0.9/32] -10.77.2.0/24=a"},
		{"this node's object has the ranges of a node that is gone",
			snapshot(node("a", "192.0.2.1", "10.77.1.0/24", "10.77.2.0/24"), c),
			"-10.77.2.0/24=a -172.16.0.9/32=b -192.0.2.2/32=b"},
		{"this node's object has grown",
			snapshot(node("a", "192.0.2.1", "10.77.0.0/21"), c, b, far),
			"b+[172.16.0.9/32] -10.77.0.0/21=a"},
		{"this node's object has shrunk",
			snapshot(node("a", "192.0.2.1", "10.77.1.0/25"), c, b, far), "b+[172.16.0.9/32]"},
		{"this node's object has another address",
			snapshot(node("a", "192.0.2.8", "10.77.1.0/24"), c, b, far),
			"b+[172.16.0.9/32] -192.0.2.8/32=a"},
		{"this node's own pod outside", snapshot(a, b, c, far, endpoint("x", "a", "172.16.5.5")),
			"b+[172.16.0.9/32]"},
	}
	for _, tt := range tests {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", tt.name, restart), func(t *testing.T) {
				dir := t.TempDir()
				m := open(t, dir)
				in := Input{Self: "a", Own: a.Spec.PodCIDRs}
				in.Own = append(in.Own[:1:1], netip.MustParsePrefix("192.0.2.1/32"))
				learn := func(s *store.Snapshot) *View {
					in.Snapshot = s
					v, err := m.Learn(in)
					if err != nil {
						t.Fatal(err)
					}
					return v
				}
				if got := told(learn(first)); got != "b+[172.16.0.9/32]" {
					t.Errorf("at first: %s", got)
				}
				if restart {
					m = open(t, dir)
				}
				for range 2 {
					if got := told(learn(tt.next)); strings.TrimSpace(got) != strings.TrimSpace(tt.want) {
						t.Errorf("%s\nwant %s", got, tt.want)
					}
				}
			})
		}
	}
}

// TestForget: what was lost can be forgotten, by node or by range, and nothing else can.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	m := open(t, dir)
	a, b, c := node("a", "192.0.2.1", "10.77.1.0/24"), node("b", "192.0.2.2", "10.77.2.0/24",
		"10.77.4.0/24"), node("c", "192.0.2.3", "10.77.3.0/24")
	learn := func(s *store.Snapshot) string {
		v, err := m.Learn(Input{Self: "a", Snapshot: s})
		if err != nil {
			t.Fatal(err)
		}
		return told(v)
	}
	learn(snapshot(a, b, c))
	if _, err := m.Forget("b"); err == nil ||
		!strings.Contains(err.Error(), "remove its Node object first") {
		t.Errorf("forgot a node in use: %v", err)
	}
	if _, err := m.Forget("10.77.2.0/24"); err == nil {
		t.Error("forgot a range in use")
	}
	for _, what := range []string{"", "nobody", "10.9.0.0/16"} {
		if _, err := m.Forget(what); err == nil || !strings.Contains(err.Error(), "weft status") {
			t.Errorf("forgot %q: %v", what, err)
		}
	}
	learn(snapshot(a, c))
	if gone, err := m.Forget("10.77.4.0/24"); err != nil || len(gone) != 1 {
		t.Errorf("%v %v", gone, err)
	}
	m = open(t, dir)
	if got := learn(snapshot(a, c)); got != "-10.77.2.0/24=b -192.0.2.2/32=b" {
		t.Errorf("after the range: %s", got)
	}
	if gone, err := m.Forget("b"); err != nil || len(gone) != 2 {
		t.Errorf("%v %v", gone, err)
	}
	m = open(t, dir)
	if got := learn(snapshot(a, c)); got != "" {
		t.Errorf("after the node: %s", got)
	}
}

// TestMemoryFile: a memory that cannot be read is no reason to forget: the datapath's is adopted,
// and nothing is written before.
func TestMemoryFile(t *testing.T) {
	for name, text := range map[string]string{"missing": "", "empty": "\n",
		"half": `{"entries": [{"prefix": "10.77.2.0/`, "nonsense": `{"entries": 7}`} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, FileName)
			if text != "" {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m, err := Open(dir)
			if (err != nil) != (text != "") || !m.Fresh() {
				t.Fatalf("%v, fresh %v", err, m.Fresh())
			}
			b := node("b", "192.0.2.2", "10.77.2.0/24")
			if _, err := m.Learn(Input{Snapshot: snapshot(b)}); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); err == nil {
				t.Error("written before the datapath's memory was adopted")
			}
			m.Adopt([]Entry{{Prefix: netip.MustParsePrefix("10.77.2.0/24"), Kind: Range},
				{Prefix: netip.MustParsePrefix("10.77.3.0/24"), Kind: Range}})
			if v, err := m.Learn(Input{Snapshot: snapshot(b)}); err != nil ||
				told(v) != "-10.77.3.0/24=" {
				t.Errorf("%s, %v", told(v), err)
			}
			if again := open(t, dir); again.Fresh() || len(again.InUse()) != 2 {
				t.Errorf("in use after a restart: %v", again.InUse())
			}
		})
	}
}

// TestMemoryCannotBeWritten: the view is good, and the failure is told.
func TestMemoryCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	m := open(t, filepath.Join(dir, "state"))
	if err := os.WriteFile(filepath.Join(dir, "state"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := m.Learn(Input{Snapshot: snapshot(node("b", "192.0.2.2", "10.77.2.0/24"),
		endpoint("x", "b", "172.16.0.1"))})
	if err == nil || told(v) != "b+[172.16.0.1/32]" {
		t.Errorf("%v, %v", told(v), err)
	}
}

// TestManyAddresses: only addresses outside of ranges are remembered, those in a configured range
// while they are in use only, and never without a bound.
func TestManyAddresses(t *testing.T) {
	m := open(t, t.TempDir())
	clock := time.Unix(0, 0)
	m.now = func() time.Time { clock = clock.Add(time.Second); return clock }
	nodes := []v1alpha1.Object{node("a", "192.0.2.1", "10.1.0.0/16"),
		node("b", "192.0.2.2", "10.2.0.0/16")}
	all := slices.Clone(nodes)
	for i := range 10000 {
		all = append(all,
			endpoint(fmt.Sprint("in-", i), "b",
				netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}).String()))
	}
	all = append(all, endpoint("cluster", "b", "10.200.0.1"), endpoint("out", "b", "172.16.0.1"))
	in := Input{Self: "a", Snapshot: snapshot(all...),
		Cluster: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}}
	v, err := m.Learn(in)
	if err != nil || told(v) != "b+[10.200.0.1/32] 1 refused" {
		t.Errorf("%s, %v", told(v), err)
	}
	in.Snapshot = snapshot(nodes...)
	if v, err := m.Learn(in); err != nil || told(v) != "" {
		t.Errorf("all pods gone: %s, %v", told(v), err)
	}
	in.Cluster = nil
	for round := range 4 {
		all = slices.Clone(nodes)
		for i := range 6000 {
			all = append(all,
				endpoint(fmt.Sprint("out-", i), "b",
					netip.AddrFrom4([4]byte{172, byte(20 + round), byte(i >> 8),
						byte(i)}).String()))
		}
		in.Snapshot = snapshot(all...)
		if v, err = m.Learn(in); err != nil || len(v.Published["b"]) != 6000 {
			t.Errorf("round %d: %d published, %v", round, len(v.Published["b"]), err)
		}
	}
	if len(v.Lost) != maxLost || len(v.Refused) != 1 {
		t.Errorf("%d lost, refused %v", len(v.Lost), v.Refused)
	}
	longest := slices.IndexFunc(v.Lost,
		func(e Entry) bool { return !netip.MustParsePrefix("172.20.0.0/16").Contains(e.Prefix.Addr()) })
	if longest != maxLost-12000 {
		t.Errorf("of those gone longest %d are remembered: an address that is gone longer outlived one that has just gone", longest)
	}
}

// TestSealed: an address that asked to be sealed does so until somebody else has it.
func TestSealed(t *testing.T) {
	dir := t.TempDir()
	m := open(t, dir)
	x, y := netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("10.1.0.6")
	learn := func(asking, others []netip.Addr) []netip.Addr {
		v, err := m.Learn(Input{Snapshot: snapshot(), Asking: asking, Others: others})
		if err != nil {
			t.Fatal(err)
		}
		return v.Sealed
	}
	for i, tt := range []struct{ asking, others, want []netip.Addr }{
		{[]netip.Addr{x, y}, nil, nil},
		{[]netip.Addr{y}, nil, []netip.Addr{x}},
		{nil, nil, []netip.Addr{x, y}},
		{[]netip.Addr{x}, []netip.Addr{x}, []netip.Addr{y}},
		{nil, []netip.Addr{y}, []netip.Addr{x}},
		{nil, []netip.Addr{x}, nil},
	} {
		if got := learn(tt.asking, tt.others); !slices.Equal(got, tt.want) {
			t.Errorf("%d: %v, want %v", i, got, tt.want)
		}
		m = open(t, dir)
		if got := learn(tt.asking, tt.others); !slices.Equal(got, tt.want) {
			t.Errorf("%d, after a restart: %v, want %v", i, got, tt.want)
		}
	}
}

// TestDamagedMemory: each file that cannot be read is kept aside, and what a killed writer left
// goes.
func TestDamagedMemory(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	for i, text := range []string{"{", "[]"} {
		left := fmt.Sprintf("%s.%d.tmp", path, i)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600),
			os.WriteFile(left, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if m, err := Open(dir); err == nil || m == nil || !m.Fresh() {
			t.Errorf("a damaged file: %v, %v", m, err)
		}
		aside := statefile.Aside(path)
		if len(aside) != i+1 {
			t.Fatalf("set aside: %q", aside)
		}
		if kept, err := os.ReadFile(aside[i]); err != nil || string(kept) != text {
			t.Errorf("%s: %q, %v", aside[i], kept, err)
		}
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s stays", left)
		}
	}
}
