package store

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"weft.dev/weft/api/v1alpha1"
)

// decodeAll reads files as a store does.
func decodeAll(files map[string]string) (objects []Declared, errs []ObjectError) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		o, e := Decode(name, []byte(files[name]))
		objects, errs = append(objects, o...), append(errs, e...)
	}
	return objects, errs
}

// TestHistory: what was in use before a mistake stays in use, and what was taken away on purpose
// does not.
func TestHistory(t *testing.T) {
	a, b := node("a", "10.0.0.1", "10.1.1.0/24"), node("b", "10.0.0.2", "10.1.2.0/24")
	before := map[string]string{"a": a, "b": b, "p": pod("p")}
	with := func(name, text string) map[string]string {
		out := maps.Clone(before)
		out[name] = text
		return out
	}
	without := maps.Clone(before)
	delete(without, "b")
	const bRange = "10.1.2.0/24"
	all := []string{"Node a", "Node b", "Pod default/p"}
	tests := []struct {
		name   string
		files  map[string]string
		unread string // a file or directory that cannot be read
		good   []string
		bRange string // of the node b in use
		unused int
	}{
		{"nothing happened", before, "", all, bRange, 0},
		{"a typo in one field", with("b", node("b", "10.0.0.2", "10.1.2.0/33")), "", all, bRange,
			0},
		{"no YAML", with("b", "kind: ["), "", all, bRange, 0},
		{"another kind by mistake",
			with("b", "apiVersion: weft.dev/v1alpha1\nkind: Nod\nmetadata: {name: b}\n"), "", all,
			bRange, 0},
		{"half a document", with("b", b[:len(b)-len("10.1.2.0/24]\n")]), "", all, bRange, 0},
		{"a broken pod", with("p", pod("p")+"spec: 7\n"), "", all, bRange, 0},
		{"the file cannot be read", without, "b", all, bRange, 0},
		{"the directory cannot be read", map[string]string{}, ".", all, bRange, 0},
		{"doubled, the same", with("c", b), "", all, bRange, 0},
		{"doubled, different", with("c", node("b", "10.0.0.9", "10.1.9.0/24")), "", all, bRange, 0},
		{"changed into a collision", with("b", node("b", "10.0.0.2", "10.1.1.0/25")), "", all,
			bRange, 1},
		{"a newcomer collides whose name comes first",
			with("c", node("a0", "10.0.0.7", "10.1.2.0/25")), "", all, bRange, 1},
		{"changed", with("b", node("b", "10.0.0.2", "10.1.3.0/24")), "", all, "10.1.3.0/24", 0},
		{"deleted", without, "", []string{"Node a", "Pod default/p"}, "", 0},
		{"moved to another file", map[string]string{"a": a, "c": b, "p": pod("p"), "b": "kind: ["},
			"", all, bRange, 0},
		{"all deleted", map[string]string{}, "", nil, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h History
			h.Assemble(decodeAll(before))
			// Twice: what is kept must stay kept for as long as the mistake is there.
			for range 2 {
				objects, errs := decodeAll(tt.files)
				if tt.unread != "" {
					errs = append(errs, ObjectError{File: tt.unread, Msg: "cannot be read"})
				}
				s := h.Assemble(objects, errs)
				if got := names(s); !slices.Equal(got, tt.good) || len(s.Unused) != tt.unused {
					t.Errorf("in use %q and %d not, want %q and %d; errors %v", got, len(s.Unused),
						tt.good, tt.unused, s.Errors)
				}
				if n := s.Nodes["b"]; n != nil &&
					n.Spec.PodCIDRs[0] != netip.MustParsePrefix(tt.bRange) {
					t.Errorf("b has %v, want %s", n.Spec.PodCIDRs, tt.bRange)
				}
			}
			s := h.Assemble(decodeAll(before))
			if got := names(s); !slices.Equal(got, all) || len(s.Errors) > 0 {
				t.Errorf("corrected: in use %q, errors %v", got, s.Errors)
			}
		})
	}
}

// TestHistoryStartsLate: at the first reading nobody knows which of two versions is meant; of nodes
// that collide the one that an earlier run used stays.
func TestHistoryStartsLate(t *testing.T) {
	var h History
	s := h.Assemble(decodeAll(map[string]string{"1": node("b", "10.0.0.2", "10.1.2.0/24"),
		"2": node("b", "10.0.0.3", "10.1.3.0/24")}))
	if len(s.Nodes) != 0 || len(s.Unused) != 2 {
		t.Errorf("nodes %v, unused %v: what two versions of a node claim must be known, and neither used", s.Nodes, s.Unused)
	}
	objects, errs := decodeAll(map[string]string{"1": node("b", "10.0.0.2", "10.1.2.0/24"),
		"2": node("a", "10.0.0.1", "10.1.2.0/25")})
	h = History{}
	h.Seed([]*v1alpha1.Node{objects[0].Object.(*v1alpha1.Node)})
	s = h.Assemble(objects, errs)
	if s.Nodes["b"] == nil || s.Nodes["a"] != nil || len(s.Unused) != 1 {
		t.Errorf("nodes %v: b was there before the start", s.Nodes)
	}
}

// TestHistoryKeepsNoPolicy: a policy with a mistake is not used, so that more is sealed, not less.
func TestHistoryKeepsNoPolicy(t *testing.T) {
	const policy = "apiVersion: weft.dev/v1alpha1\nkind: EncryptionPolicy\nmetadata: {name: p}\nspec: {cidrs: [10.9.0.0/16]}\n"
	var h History
	if s := h.Assemble(decodeAll(map[string]string{"1": policy})); len(s.EncryptionPolicies) != 1 {
		t.Fatalf("%+v", s)
	}
	if s := h.Assemble(decodeAll(map[string]string{"1": policy +
		"more: x\n"})); len(s.EncryptionPolicies) != 0 {
		t.Error("a broken policy is in use")
	}
}

// TestNamespaceStays: without its labels a namespace would be selected by what excludes these.
func TestNamespaceStays(t *testing.T) {
	const text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: a}}\n"
	var h History
	for _, now := range []struct {
		text string
		want bool
	}{{text, true}, {text + "spec: {\n", true}, {"", false}} {
		files := map[string]string{"n": now.text}
		if now.text == "" {
			files = nil
		}
		s := h.Assemble(decodeAll(files))
		if n := s.Namespaces["shop"]; (n != nil && n.Metadata.Labels["team"] == "a") != now.want {
			t.Errorf("%q: %+v", now.text, n)
		}
	}
}
