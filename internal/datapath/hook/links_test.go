package hook

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPinnedLinks(t *testing.T) {
	dir := t.TempDir()
	want := []Pinned{}
	for _, l := range []Pinned{
		{Hook: "from_pod", Kind: XDP, Iface: "weft0123456789"},
		{Hook: "to_pod", Kind: TCEgress, Iface: "weft0123456789"},
		{Hook: "from_wire", Kind: TCIngress, Iface: "eth0.100"},
		{Hook: "to_wire", Kind: TCEgress, Iface: "br-0a1b2c"},
		{Hook: "from_wire", Kind: XDPGeneric, Iface: "a.b-c.d"},
	} {
		l.Path = Path(dir, l.Hook, l.Kind, l.Iface)
		if strings.Contains(filepath.Base(l.Path), ".") {
			t.Errorf("%s: bpffs refuses dots", l.Path)
		}
		touch(t, l.Path)
		want = append(want, l)
	}
	for _, other := range []string{"maps-weft_config-00-1", "link-half", "link-from_pod-xdp",
		"something"} {
		touch(t, filepath.Join(dir, other))
	}
	got, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	byPath := func(a, b Pinned) int { return strings.Compare(a.Path, b.Path) }
	slices.SortFunc(want, byPath)
	slices.SortFunc(got, byPath)
	if !slices.Equal(got, want) {
		t.Errorf("links:\n got %v\nwant %v", got, want)
	}
	if none, err := List(filepath.Join(dir, "missing")); err != nil || none != nil {
		t.Errorf("missing directory: %v, %v", none, err)
	}
}

func TestRenamePins(t *testing.T) {
	for what, there := range map[string][]string{
		"former alone": {"link-from_host-tcingress-weft_net"},
		"both":         {"link-from_host-tcingress-weft_net", "link-from_segment-tcingress-weft_net"},
		"current":      {"link-from_segment-tcingress-weft_net"},
	} {
		dir := t.TempDir()
		for _, name := range append(there, "link-from_pod-xdp-from_host") {
			touch(t, filepath.Join(dir, name))
		}
		inForce, err := os.Stat(filepath.Join(dir, there[0]))
		if err != nil {
			t.Fatal(err)
		}
		if err := RenamePins(dir); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		links, err := List(dir)
		if err != nil || len(links) != 2 || links[0].Hook != "from_pod" ||
			links[1].Hook != "from_segment" {
			t.Errorf("%s: left are %v, %v", what, links, err)
			continue
		}
		if stays, err := os.Stat(links[1].Path); err != nil || !os.SameFile(stays, inForce) {
			t.Errorf("%s: another link stays than the one in force, %v", what, err)
		}
	}
	if err := RenamePins(filepath.Join(t.TempDir(), "missing")); err != nil {
		t.Errorf("missing directory: %v", err)
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
