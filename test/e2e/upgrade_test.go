package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"

	"weft.dev/weft/internal/lab"
)

// TestUpgrade starts agents of a build whose BPF programs differ, under load: links stay, programs
// change, nothing is lost.
func TestUpgrade(t *testing.T) {
	changed := changedPrograms(t)
	l := useShared(t)
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			useBinary(t, l, changed)
			before := kernelLosses(t, l)
			load := startLoad(t, paths(l)...)
			was := pins(t, l)
			for _, n := range agents(l) {
				restartAs(t, n, "changed")
			}
			load.flowing(t, "after the upgrade")
			load.nothingLost(t)
			is := pins(t, l)
			for name, old := range was {
				switch now, ok := is[name]; {
				case !ok:
					t.Errorf("link %s is gone", name)
				case now.id != old.id:
					t.Errorf("link %s was made anew: id %d, before %d", name, now.id, old.id)
				case now.program == old.program:
					t.Errorf("link %s still has program %d", name, now.program)
				}
			}
			if len(is) != len(was) || len(was) == 0 {
				t.Errorf("%d links before, %d after", len(was), len(is))
			}
			connected(t, l)
			if t.Failed() {
				tellLosses(t, l, before)
			}
		})
	}
}

// TestUpgradeMapLayout starts agents of a build whose flow entries have one more field: they
// say so, and traffic goes on.
func TestUpgradeMapLayout(t *testing.T) {
	other := variant(t, "layout", func(tree string) {
		edit(t, filepath.Join(tree, "bpf/lib/flow_structs.h"), "	__u64 first_ns; /* CLOCK",
			"	__u64 extra;\n	__u64 first_ns; /* CLOCK")
	})
	l := useShared(t)
	useBinary(t, l, other)
	before := kernelLosses(t, l)
	load := startLoad(t, paths(l)...)
	for _, n := range agents(l) {
		mark := logSize(t, n)
		restart(t, n)
		if text := logSince(t, n, mark); !strings.Contains(text, "layout") ||
			!strings.Contains(text, "weft_flows4") {
			t.Errorf("node %s does not say that the layout of weft_flows4 has changed:\n%s", n.Name,
				text)
		}
		if old := oldFlowPins(n); len(old) != 1 {
			t.Errorf("node %s has flow tables pinned as %v: the old one must go", n.Name, old)
		}
	}
	load.flowing(t, "after the change of layout")
	load.nothingLost(t)
	connected(t, l)
	if t.Failed() {
		tellLosses(t, l, before)
	}
}

func oldFlowPins(n *lab.Node) []string {
	found, _ := filepath.Glob("/sys/fs/bpf/weft/" + n.Instance + "/maps-weft_flows4-*")
	return found
}

// useBinary has the lab run another weft until the test ends.
func useBinary(t *testing.T, l *lab.Lab, path string) {
	t.Helper()
	t.Cleanup(func() {
		if err := l.SetBinary(weftBinary); err != nil {
			t.Error(err)
		}
		for _, n := range agents(l) {
			ensureStarted(t, n, true)
		}
	})
	if err := l.SetBinary(path); err != nil {
		t.Fatal(err)
	}
}

// restartAs restarts an agent, which is to be of a version then.
func restartAs(t *testing.T, n *lab.Node, version string) {
	t.Helper()
	restart(t, n)
	if v := status(t, n).Version; v != version {
		t.Errorf("node %s runs version %s", n.Name, v)
	}
}

// changedPrograms is a build, of version "changed", whose BPF programs differ and whose maps do
// not.
func changedPrograms(t *testing.T) string {
	t.Helper()
	return variant(t, "changed", func(tree string) {
		edit(t, filepath.Join(tree, "bpf/lib/consts.h"), "#define TIMEOUT_FAST (25 ",
			"#define TIMEOUT_FAST (24 ")
	})
}

// variant builds weft with changed BPF sources: the tree stays as it is, go build takes the
// changed objects and generated types from a copy.
func variant(t *testing.T, name string, change func(tree string)) string {
	t.Helper()
	if path := filepath.Join(scratch, name); exists(path) {
		return path
	}
	if _, err := exec.LookPath("clang-19"); err != nil {
		t.Skip("needs clang-19 to compile BPF programs: run `make deps`")
	}
	tree := filepath.Join(scratch, name+"-tree")
	if err := os.CopyFS(filepath.Join(tree, "bpf"),
		os.DirFS(filepath.Join(root, "bpf"))); err != nil {
		t.Fatal(err)
	}
	makefile, err := filepath.Abs(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	change(tree)
	const objects = "internal/datapath/bpf/obj"
	inTree(t, tree, "make", "-f", makefile, "bpf", objects+"/abi.o")
	const types = "internal/datapath/bpf/types_gen.go"
	inTree(t, root, "go", "run", "./internal/gen", "-object", filepath.Join(tree, objects, "abi.o"),
		"-reasons", "bpf/lib/reasons.h",
		"-types", filepath.Join(tree, types), "-reasons-go", filepath.Join(tree, "reasons.go"),
		"-reasons-doc", filepath.Join(tree, "reasons.md"))
	replace := map[string]string{}
	files, _ := filepath.Glob(filepath.Join(tree, objects, "*.o"))
	for _, file := range append(files, filepath.Join(tree, types)) {
		inTree, _ := filepath.Rel(tree, file)
		target, err := filepath.Abs(filepath.Join(root, inTree))
		if err != nil {
			t.Fatal(err)
		}
		replace[target] = file
	}
	overlay := filepath.Join(tree, "overlay.json")
	text, _ := json.Marshal(map[string]any{"Replace": replace})
	if err := os.WriteFile(overlay, text, 0o644); err != nil {
		t.Fatal(err)
	}
	path, err := build("weft", name, overlay)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func inTree(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, text)
	}
}

// edit replaces a text that must be in the file once.
func edit(t *testing.T, path, from, to string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), from); n != 1 {
		t.Fatalf("%s has %q %d times, not once: mend the test", path, from, n)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), from, to, 1)),
		0o644); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// pin is a pinned link's identity.
type pin struct{ id, program uint32 }

// pins reads every pinned link of a lab's agents.
func pins(t *testing.T, l *lab.Lab) map[string]pin {
	t.Helper()
	out := map[string]pin{}
	for _, n := range agents(l) {
		found, _ := filepath.Glob("/sys/fs/bpf/weft/" + n.Instance + "/link-*")
		for _, path := range found {
			pinned, err := link.LoadPinnedLink(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			info, err := pinned.Info()
			pinned.Close()
			if err != nil {
				t.Fatal(err)
			}
			out[fmt.Sprintf("%s %s", n.Name, filepath.Base(path))] = pin{uint32(info.ID),
				uint32(info.Program)}
		}
	}
	return out
}

func logSize(t *testing.T, n *lab.Node) int64 {
	t.Helper()
	info, err := os.Stat(n.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func logSince(t *testing.T, n *lab.Node, mark int64) string {
	t.Helper()
	text, err := os.ReadFile(n.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(text[mark:])
}
