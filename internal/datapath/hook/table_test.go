package hook

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

var update = flag.Bool("update", false, "write the tables of hooks in the pages")

// TestPrograms: each row has the objects of its kinds, with its function in them, and each hook
// that counts has a row.
func TestPrograms(t *testing.T) {
	for _, h := range Table {
		if len(h.kinds()) == 0 || len(h.At) == 0 || h.Does == "" {
			t.Errorf("%s: attached as %v at %v: it does %q", h.Name, h.kinds(), h.At, h.Does)
		}
		for _, k := range h.kinds() {
			spec, err := bpf.LoadSpec(object(h.Name, k))
			if err != nil {
				t.Errorf("%s, %s: %v: see BPF_BOTH in the Makefile", h.Name, k, err)
			} else if spec.Programs[Function(h.Name)] == nil {
				t.Errorf("%s, %s: the object has no %s", h.Name, k, Function(h.Name))
			}
		}
	}
	for _, name := range bpf.HookNames {
		if !slices.ContainsFunc(Table, func(h Hook) bool { return h.Name == name }) {
			t.Errorf("enum weft_hook has %s, the table has not", name)
		}
	}
}

// TestPages: the tables of hooks in the pages are this one.
func TestPages(t *testing.T) {
	for path, table := range map[string]string{"ARCHITECTURE.md": whatTheyDo(),
		"docs/modes.md": whereInWhichMode()} {
		path = "../../../" + path
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(table, "\n")
		before, rest, found := strings.Cut(string(page), head+"\n")
		if !found {
			t.Errorf("%s has no table that begins with %s", path, head)
			continue
		}
		_, after, _ := strings.Cut(rest, "\n\n")
		want := before + table + "\n" + after
		switch {
		case want == string(page):
		case !*update:
			t.Errorf("%s is not as the table of hooks: go test ./internal/datapath/hook -run Pages -update", path)
		default:
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Error(err)
			}
		}
	}
}

func whatTheyDo() string {
	var b strings.Builder
	b.WriteString("| hook | where | context | does |\n|---|---|---|---|\n")
	for _, h := range Table {
		context := "TC"
		switch {
		case h.netfilter != nil:
			context = "netfilter"
		case h.XDP == XDP:
			context = "XDP or TC"
		}
		fmt.Fprintf(&b, "| `%s` | %s%s | %s | %s |\n", h.Name, h.places(), h.side(), context,
			h.Does)
	}
	return b.String()
}

func (h Hook) places() string {
	list := make([]string, len(h.At))
	for i, place := range h.At {
		list[i] = string(place)
	}
	return strings.Join(list, ", ")
}

func (h Hook) side() string {
	switch {
	case h.netfilter != nil:
		return ""
	case slices.Contains(h.kinds(), TCEgress):
		return "; egress"
	}
	return "; ingress"
}

// whereInWhichMode tells how each hook of an interface is attached. Only an endpoint's datapath
// changes the way of its own interface.
func whereInWhichMode() string {
	modes := []struct {
		name string
		way  Way
		path bool
	}{{"`xdp`", ByXDP, false}, {"`xdp`, generic", ByGenericXDP, false},
		{"`tc`, `stack`, `auto`", ByTC, false},
		{"`auto`, on the XDP datapath", ByXDP, true}}
	names := map[Kind]string{XDP: "XDP, native", XDPGeneric: "XDP, generic",
		TCIngress: "TCX ingress", TCEgress: "TCX egress", "": "none"}
	var b strings.Builder
	b.WriteString("| hook | at |")
	for _, m := range modes {
		b.WriteString(" " + m.name + " |")
	}
	b.WriteString("\n|---|---|---|---|---|---|\n")
	for _, h := range Table {
		for _, place := range h.At {
			if place == Node {
				continue
			}
			fmt.Fprintf(&b, "| `%s` | %s |", h.Name, place)
			for _, m := range modes {
				fmt.Fprintf(&b, " %s |", names[h.kindAt(place, m.way, m.path)])
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// kindAt is how the hook is attached at one of its places: a second interface, and pod_out, are the
// XDP datapath's.
func (h Hook) kindAt(place Place, way Way, path bool) Kind {
	switch {
	case (place == Second || place == PodOwn) && !path:
		return ""
	case place == Second, place == Segmentation, place == Uplink && path:
		return h.TC
	}
	return h.kind(way)
}
