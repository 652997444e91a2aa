package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
)

func node(name, addr, cidr string) string {
	return fmt.Sprintf("apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata:\n  name: %s\nspec:\n  addresses: [%s]\n  podCIDRs: [%s]\n", name, addr, cidr)
}

func pod(name string) string {
	return "apiVersion: weft.dev/v1alpha1\nkind: Pod\nmetadata:\n  name: " + name + "\n"
}

func TestDecode(t *testing.T) {
	endpoint := "apiVersion: weft.dev/v1alpha1\nkind: Endpoint\nmetadata: {name: web, namespace: shop}\nspec: {nodeName: n, addresses: [10.1.0.7]}\n"
	kinds := v1alpha1.Kinds()
	anyKind := strings.Join(kinds[:len(kinds)-1], ", ") + " or " + kinds[len(kinds)-1]
	tests := []struct {
		name, yaml string
		good, bad  []string
	}{
		{"nothing", "", nil, nil},
		{"empty documents", "---\n# none\n---\n\n---\n", nil, nil},
		{"one", node("a", "10.0.0.1", "10.1.0.0/24"), []string{"Node a"}, nil},
		{"three", node("a", "10.0.0.1", "10.1.0.0/24") + "---\n" + pod("p") + "---\n" + endpoint,
			[]string{"Node a", "Pod default/p", "Endpoint shop/web"}, nil},
		{"good ones around bad ones",
			pod("p") + "---\nkind: [\n---\n" + node("a", "10.0.0.1", "10.1.0.0") + "---\n" +
				pod("q"),
			[]string{"Pod default/p", "Pod default/q"},
			[]string{"f:6: not valid YAML: did not find expected node content",
				`f:14: spec.podCIDRs[0]: "10.1.0.0" is not an address range`}},
		{"windows line ends and a mark",
			"\ufeff" + strings.ReplaceAll(pod("p")+"---\n"+pod("q"), "\n", "\r\n"),
			[]string{"Pod default/p", "Pod default/q"}, nil},
		{"json", `{"apiVersion": "weft.dev/v1alpha1", "kind": "Pod", "metadata": {"name": "p"}}`,
			[]string{"Pod default/p"}, nil},
		{"no version", "kind: Node\n", nil,
			[]string{"f:1: apiVersion: is missing: want weft.dev/v1alpha1"}},
		{"foreign", "apiVersion: v1\nkind: Pod\n", nil,
			[]string{`f:1: apiVersion: is "v1": want weft.dev/v1alpha1`}},
		{"no kind", "# x\napiVersion: weft.dev/v1alpha1\n", nil,
			[]string{"f:2: kind: is missing: want " + anyKind}},
		{"kind", "apiVersion: weft.dev/v1alpha1\nkind: node\n", nil,
			[]string{`f:2: kind: is "node": want ` + anyKind + ` (did you mean "Node"?)`}},
		{"a list", "- a\n", nil, []string{"f:1: apiVersion: is missing"}},
		{"unknown keys",
			strings.Replace(node("a", "10.0.0.1", "10.1.0.0/24"), "podCIDRs", "podCIDR", 1) +
				"status: {}\n", nil, []string{
				`f:7: spec.podCIDR: unknown key: did you mean "podCIDRs"?`,
				"f:8: status: unknown key: known here are apiVersion, kind, metadata, spec"}},
		{"node without all", "apiVersion: weft.dev/v1alpha1\nkind: Node\n", nil,
			[]string{"f:1: metadata.name: is missing", "f:1: spec.addresses: is missing"}},
		{"node",
			"apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata:\n  name: a\n  namespace: b\nspec:\n  addresses: [10.0.0.1, 10.0.0.2, \"::ffff:1.2.3.4\", fe80::1%eth0, 127.0.0.1]\n  podCIDRs: [10.1.0.0/24, 10.1.0.128/25, 10.1.2.3/24, 0.0.0.0/0, 169.254.0.0/24]\n", nil, []string{
				"f:5: metadata.namespace: a Node has no namespace",
				"f:7: spec.addresses[1]: 10.0.0.2 is a second address of IPv4, after 10.0.0.1",
				"f:7: spec.addresses[2]: ::ffff:1.2.3.4 is an IPv4 address written as IPv6: write 1.2.3.4",
				"f:7: spec.addresses[3]: fe80::1 has a zone",
				"f:7: spec.addresses[4]: 127.0.0.1 is not the address of one machine",
				"f:8: spec.podCIDRs[1]: 10.1.0.128/25 overlaps spec.podCIDRs[0] 10.1.0.0/24",
				"f:8: spec.podCIDRs[2]: 10.1.2.3/24 has bits set after its first 24: write 10.1.2.0/24",
				"f:8: spec.podCIDRs[3]: 0.0.0.0/0 is every address there is",
				"f:8: spec.podCIDRs[4]: 169.254.0.0/24 overlaps 169.254.0.0/16"}},
		{"pod",
			"apiVersion: weft.dev/v1alpha1\nkind: Pod\nmetadata:\n  name: p.\n  namespace: a.b\n  labels:\n    app: -x\n    /y: z\n    n: 1\n  annotations:\n    example.org/: free text\nspec: {nodeName: A, serviceAccount: _, addresses: [ff02::1]}\n", nil, []string{
				`f:4: metadata.name: "p." is not a name`,
				`f:5: metadata.namespace: "a.b" is not a name`,
				`f:7: metadata.labels[app]: "-x" is not a label value`,
				"f:8: metadata.labels[/y]: the key's part before '/'",
				`f:9: metadata.labels[n]: is the number "1": want a text; in quotes it is one: "1"`,
				"f:11: metadata.annotations[example.org/]: the key is not a label name",
				"f:12: spec.addresses[0]: ff02::1 is not the address",
				`f:12: spec.nodeName: "A" is not a name`,
				`f:12: spec.serviceAccount: "_" is not a name`}},
		{"endpoint",
			"apiVersion: weft.dev/v1alpha1\nkind: Endpoint\nmetadata: {name: p}\nspec: {mac: \"01:00:00:00:00:01\"}\nstatus: {phase: \"not one\"}\n", nil, []string{
				"f:4: spec.addresses: is missing",
				"f:4: spec.mac: 01:00:00:00:00:01 is a multicast MAC address",
				"f:4: spec.nodeName: is missing", `f:5: status.phase: "not one" is not a phase`}},
		{"namespace",
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: a}}\n",
			[]string{"Namespace shop"}, nil},
		{"namespace of ours",
			"apiVersion: weft.dev/v1alpha1\nkind: Namespace\nmetadata: {name: shop}\n", nil,
			[]string{`f:1: apiVersion: is "weft.dev/v1alpha1": want v1`}},
		{"namespace's name",
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: a.b, namespace: c}\n", nil,
			[]string{`f:3: metadata.name: "a.b" is not a name`,
				"f:3: metadata.namespace: a Namespace has no namespace"}},
		{"named ports",
			pod("p") +
				"spec: {ports: [{name: http, port: 80}, {name: http, port: 80, protocol: UDP}]}\n",
			[]string{"Pod default/p"}, nil},
		{"bad ports",
			pod("p") +
				"spec:\n  ports:\n  - {name: '80', port: 0}\n  - {name: a--b, port: 65536}\n  - {name: a, port: 1, protocol: tcp}\n  - {name: web, port: 1}\n  - {name: web, port: 2}\n", nil, []string{
				`f:7: spec.ports[0].name: "80" is not the name of a port`,
				"f:7: spec.ports[0].port: is missing", `f:8: spec.ports[1].name: "a--b"`,
				`f:8: spec.ports[1].port: "65536" is out of range`,
				`f:9: spec.ports[2].protocol: "tcp" is not a protocol`,
				`f:11: spec.ports[4].name: "web" names spec.ports[3], too`}},
		{"identity's labels",
			"apiVersion: weft.dev/v1alpha1\nkind: Identity\nmetadata: {name: '300'}\nspec: {spiffeID: spiffe://t/ns/a/sa/b, labels: {app: -x}}\n", nil, []string{`f:4: spec.labels[app]: "-x" is not a label value`}},
		{"same key twice", pod("p") + "kind: Pod\n", nil,
			[]string{"f:5: kind: is given twice, first on line 2"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objects, errs := Decode("f", []byte(tt.yaml))
			var good []string
			for _, o := range objects {
				good = append(good, o.Object.Type().Kind+" "+o.Object.Meta().Key())
			}
			if !slices.Equal(good, tt.good) {
				t.Errorf("objects %q, want %q", good, tt.good)
			}
			compareErrors(t, errs, tt.bad)
		})
	}
}

// TestDecodeIsBounded reads large files that would cost much if every
// entry were compared with every other, or every error kept.
func TestDecodeIsBounded(t *testing.T) {
	head := "apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata: {name: a}\nspec:\n "
	for name, text := range map[string]string{
		"ranges":    head + "podCIDRs: [" + strings.Repeat("1.0.0.0/8,", 20000) + "]\n",
		"addresses": head + "addresses: [" + strings.Repeat("1.0.0.1,", 20000) + "]\n",
		"not any":   head + "addresses: [" + strings.Repeat("x,", 50000) + "]\n",
		"documents": strings.Repeat("---\n[\n", 3000),
		"empty":     strings.Repeat("---\n", 30000),
	} {
		objects, errs := Decode("f", []byte(text))
		if len(objects) > 0 || len(errs) == 0 || len(errs) > maxErrors+1 {
			t.Errorf("%s: %d objects, %d errors", name, len(objects), len(errs))
		}
	}
}

// compareErrors wants errors that begin with what is wanted.
func compareErrors(t *testing.T, errs []ObjectError, want []string) {
	t.Helper()
	var got []string
	for _, e := range errs {
		got = append(got, e.Error())
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("errors\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestAssemble(t *testing.T) {
	otherA := node("a", "10.0.0.9", "10.9.0.0/24")
	tests := []struct {
		name  string
		files map[string]string
		good  []string
		bad   []string
	}{
		{"no conflict",
			map[string]string{"1": node("b", "10.0.0.2", "10.1.1.0/24"),
				"2": node("a", "10.0.0.1", "10.1.0.0/24") + "---\n" + pod("a")},
			[]string{"Node a", "Node b", "Pod default/a"}, nil},
		{"declared twice, different",
			map[string]string{"1": node("a", "10.0.0.1", "10.1.0.0/24"),
				"2": otherA + "---\n" + node("b", "10.0.0.2", "10.1.1.0/24")},
			[]string{"Node b"}, []string{
				`1:4: metadata.name: Node "a" is also declared at 2:1, and differs there, so neither is used: keep one`,
				`2:4: metadata.name: Node "a" is also declared at 1:1, and differs there, so neither is used: keep one`}},
		{"declared twice, the same", map[string]string{"1": pod("p"), "2": pod("p")},
			[]string{"Pod default/p"}, []string{
				`1:4: metadata.name: Pod "default/p" is also declared at 2:1, in the same words, so one is used: keep one`,
				`2:4: metadata.name: Pod "default/p" is also declared at 1:1, in the same words`}},
		{"a datapath by its former name: the pod is used all the same",
			map[string]string{"1": pod("p") +
				"  annotations: {ebpf.xdp/road: xdp}\n"}, // glossary: format
			[]string{"Pod default/p"}, []string{
				`1:5: metadata.annotations[ebpf.xdp/datapath]: is missing: it was ebpf.xdp/road once, which asks for nothing any more: write it by its name of now`}}, // glossary: format
		{"a datapath that there is none of: the pod is used all the same",
			map[string]string{"1": pod("p") + "  annotations: {ebpf.xdp/datapath: tcx}\n",
				"2": pod("q") + "  annotations: {ebpf.xdp/datapath: xdp}\n"},
			[]string{"Pod default/p", "Pod default/q"}, []string{
				`1:5: metadata.annotations[ebpf.xdp/datapath]: is "tcx": want "xdp", or no such annotation for an ordinary interface, which the pod has until then`}},
		{"overlapping ranges: the first name wins", map[string]string{
			"1": node("c", "10.0.0.3", "10.1.0.0/16"), "2": node("b", "10.0.0.2", "10.1.1.0/24"),
			"3": node("d", "10.0.0.4", "10.1.2.0/24")},
			[]string{"Node b", "Node d"}, []string{
				`1:7: spec.podCIDRs[0]: 10.1.0.0/16 overlaps 10.1.1.0/24 of node "b", whose name comes first, so node "c" is not used: correct one of them`}},
		{"same address",
			map[string]string{"1": node("a", "fd00::1", ""), "2": node("b", "fd00::1", "")},
			[]string{"Node a"},
			[]string{`2:6: spec.addresses[0]: fd00::1 is also the address of node "a"`}},
		{"address in another's range",
			map[string]string{"1": node("a", "10.0.0.1", "10.1.0.0/24"),
				"2": node("b", "10.1.0.5", "")},
			[]string{"Node a"},
			[]string{`2:6: spec.addresses[0]: 10.1.0.5 is inside 10.1.0.0/24, a range of node "a"`}},
		{"range with another's address",
			map[string]string{"1": node("a", "10.1.0.5", ""),
				"2": node("b", "10.0.0.1", "10.1.0.0/24")},
			[]string{"Node a"},
			[]string{`2:7: spec.podCIDRs[0]: 10.1.0.0/24 contains 10.1.0.5, the address of node "a"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var objects []Declared
			for _, name := range slices.Sorted(maps.Keys(tt.files)) {
				o, errs := Decode(name, []byte(tt.files[name]))
				if errs != nil {
					t.Fatal(errs)
				}
				objects = append(objects, o...)
			}
			s := Assemble(objects, nil)
			if got := names(s); !slices.Equal(got, tt.good) {
				t.Errorf("objects %q, want %q", got, tt.good)
			}
			compareErrors(t, s.Errors, tt.bad)
		})
	}
}

// TestClaims holds the search for overlaps to comparing all with all.
func TestClaims(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var cs claims
		var all []netip.Prefix
		for range r.IntN(12) {
			p := randomPrefix(r)
			got, ok := cs.overlapping(p)
			if want := slices.ContainsFunc(all, p.Overlaps); ok != want || ok &&
				!got.prefix.Overlaps(p) {
				t.Fatalf("%s among %v: %v %v", p, all, got, ok)
			}
			if !ok {
				cs.add(claim{prefix: p})
				all = append(all, p)
			}
		}
	}
}

// randomPrefix is one of few, of either family, so that they meet.
func randomPrefix(r *rand.Rand) netip.Prefix {
	if r.IntN(2) == 0 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(r.IntN(3)), 0, byte(r.IntN(4))}),
			8+r.IntN(25)).Masked()
	}
	a := [16]byte{0: 0xfd, 3: byte(r.IntN(3)), 15: byte(r.IntN(4))}
	return netip.PrefixFrom(netip.AddrFrom16(a), 8+r.IntN(121)).Masked()
}

func names(s *Snapshot) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(s.Nodes)) {
		out = append(out, "Node "+k)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Pods)) {
		out = append(out, "Pod "+k)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Endpoints)) {
		out = append(out, "Endpoint "+k)
	}
	return out
}

// TestDocs holds docs/objects.md to its word: its examples are good objects, one
// of each kind at least.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/objects.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	var objects []Declared
	for i, part := range strings.Split(string(doc), "```yaml\n")[1:] {
		example, _, _ := strings.Cut(part, "```")
		o, errs := Decode(fmt.Sprintf("example %d", i+1), []byte(example))
		if len(o) == 0 || len(errs) > 0 {
			t.Errorf("example %d: %d objects, errors %v", i+1, len(o), errs)
		}
		objects = append(objects, o...)
		for _, d := range o {
			kinds[d.Object.Type().Kind] = true
		}
	}
	for _, k := range v1alpha1.Kinds() {
		if !kinds[k] {
			t.Errorf("no example of a %s", k)
		}
	}
	if s := Assemble(objects, nil); len(s.Errors) > 0 {
		t.Errorf("the examples do not fit together: %v", s.Errors)
	}
}

// TestRoomForEveryKind: a kind that a snapshot has no map for panics there, at the first object of
// a user's.
func TestRoomForEveryKind(t *testing.T) {
	for _, kind := range v1alpha1.Kinds() {
		NewSnapshot().room(kind).set("x", v1alpha1.New(kind))
	}
	for _, kind := range policy.Kinds() {
		NewSnapshot().room(kind).set("x", &policy.Policy{Kind: kind})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(node("a", "10.0.0.1", "10.1.0.0/24") + "---\n" + pod("p")))
	f.Add([]byte("apiVersion: weft.dev/v1alpha1\nkind: Endpoint\nmetadata: {name: web, namespace: shop, labels: {a: b}, annotations: {c: d}}\nspec: {nodeName: n, serviceAccount: s, addresses: [10.1.0.7, fd00::7], mac: 02:00:00:00:00:01}\nstatus: {phase: Ready}\n"))
	f.Add([]byte("kind: &k Node\napiVersion: *k\nmetadata: &m {labels: *m}\n"))
	f.Add([]byte("{a: [b, {c: d}]}\n...\n---\n? |\n  x\n: >\n y\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, errs := Decode("f", data)
		for _, e := range errs {
			if e.File != "f" || e.Msg == "" || strings.Contains(e.Error(), "\n") || e.Line < 0 {
				t.Fatalf("bad error %#v", e)
			}
		}
		for _, o := range objects {
			if p := o.Object.Validate(); len(p) > 0 {
				t.Fatalf("taken but not valid: %v", p)
			}
			again, err := yaml.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			if back, errs := Decode("again", again); len(back) != 1 || errs != nil {
				t.Fatalf("%s\ncannot be read back: %v", again, errs)
			}
		}
		Assemble(objects, errs)
	})
}
