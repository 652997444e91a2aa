package dir

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestAgentsDirectories: from where agents write, no other objects are read than those that they
// write there.
func TestAgentsDirectories(t *testing.T) {
	dir := t.TempDir()
	text := func(kind, name, spec string) string {
		return "apiVersion: weft.dev/v1alpha1\nkind: " + kind + "\nmetadata: {name: " + name +
			"}\nspec: {" + spec + "}\n"
	}
	objects := map[string]string{
		"EncryptionPolicy": text("EncryptionPolicy", "open", "cidrs: [10.0.0.0/8]"),
		"Pod":              text("Pod", "web", ""),
		"Node":             node("a", 1),
		"Endpoint":         text("Endpoint", "web", "nodeName: a, addresses: [10.1.1.7]"),
		"Identity": text("Identity", `"300"`,
			`spiffeID: "spiffe://weft.local/ns/shop/sa/web"`),
		"Epoch": text("Epoch", "epoch-1",
			`number: 1, created: "2026-01-01T00:00:00Z", expires: "2026-01-02T00:00:00Z", kek: "file:///kek", wrapped: d2VmdA==`),
	}
	all := strings.Join(slices.Sorted(maps.Values(objects)), "---\n")
	for _, tt := range []struct{ sub, kinds string }{
		{"endpoints", "Endpoint"}, {"identities", "Identity"}, {"keys", "Epoch"},
		{".", "EncryptionPolicy Endpoint Epoch Identity Node Pod"},
		{"team", "EncryptionPolicy Endpoint Epoch Identity Node Pod"},
	} {
		tree(t, dir, map[string]string{tt.sub + "/x.yaml": all})
		s := snapshot(t, open(t, dir))
		var got []string
		for kind, n := range map[string]int{
			"EncryptionPolicy": len(s.EncryptionPolicies), "Pod": len(s.Pods), "Node": len(s.Nodes),
			"Endpoint": len(s.Endpoints), "Identity": len(s.Identities), "Epoch": len(s.Epochs),
		} {
			if n > 0 {
				got = append(got, kind)
			}
		}
		slices.Sort(got)
		if kinds := strings.Join(got, " "); kinds != tt.kinds {
			t.Errorf("%s: read %s, want %s", tt.sub, kinds, tt.kinds)
		}
		if want := len(objects) - len(got); len(s.Errors) != want {
			t.Errorf("%s: errors %v, want %d", tt.sub, s.Errors, want)
		}
		for _, e := range s.Errors {
			if want := " and only objects of kind " + tt.kinds + " are read from " + tt.sub +
				"/"; e.Line == 0 || !strings.Contains(e.Error(), want) {
				t.Errorf("%s: error %q, want its line and %q", tt.sub, e.Error(), want)
			}
		}
		must(t, os.Remove(filepath.Join(dir, tt.sub, "x.yaml")))
	}
}

// TestAgentsDirectoryByAnotherName: a link that makes an agents' directory out of a listed one, or
// the reverse, lets no more be read from it.
func TestAgentsDirectoryByAnotherName(t *testing.T) {
	for _, tt := range []struct{ name, link, to string }{
		{"the agents' is a link", "endpoints", "eps"},
		{"another is a link to the agents'", "aaa", "endpoints"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tree(t, dir, map[string]string{tt.to + "/x.yaml": node("a", 1)})
			must(t, os.Symlink(tt.to, filepath.Join(dir, tt.link)))
			if s := snapshot(t, open(t, dir)); len(s.Nodes) != 0 || len(s.Errors) == 0 {
				t.Errorf("read %d nodes, errors %v; want none and an error", len(s.Nodes), s.Errors)
			}
		})
	}
}
