package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/store/dir"
)

// TestLabelsOverRestart: namespaces and pods of a file that is broken when an agent starts have the
// labels that they had; those that somebody has taken out of a good file have none.
func TestLabelsOverRestart(t *testing.T) {
	objects, state := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(objects, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func() *Agent {
		t.Helper()
		d, err := dir.Open(objects)
		if err != nil {
			t.Fatal(err)
		}
		a := &Agent{cfg: config.Default(), store: d}
		a.cfg.Paths.State, a.cfg.Instance = state, ""
		if err := a.recallLabels(); err != nil {
			t.Fatal(err)
		}
		return a
	}
	const pod = "apiVersion: weft.dev/v1alpha1\nkind: Pod\n" +
		"metadata: {name: web, namespace: shop, labels: {app: web}}\nspec: {serviceAccount: front}\n"
	const ns = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: a}}\n"
	write("pods.yaml", pod)
	write("ns.yaml", ns)
	first := run()
	if _, err := first.store.Snapshot(); err != nil {
		t.Fatal(err)
	}
	if err := first.rememberLabels(); err != nil {
		t.Fatal(err)
	}
	write("pods.yaml", pod+"  [\n")
	write("ns.yaml", "{\n")
	second := run()
	s, err := second.store.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Pods["shop/web"]; p == nil || p.Metadata.Labels["app"] != "web" ||
		p.Spec.ServiceAccount != "front" {
		t.Errorf("the pod is %+v", p)
	}
	if n := s.Namespaces["shop"]; n == nil || n.Metadata.Labels["team"] != "a" {
		t.Errorf("the namespace is %+v", n)
	}
	if err := second.rememberLabels(); err != nil {
		t.Fatal(err)
	}
	write("pods.yaml", "# no pods\n")
	write("ns.yaml", ns)
	s, err = run().store.Snapshot()
	if err != nil || s.Pods["shop/web"] != nil || s.Namespaces["shop"] == nil {
		t.Errorf("%v %v %v", s.Pods, s.Namespaces, err)
	}
	if err := os.WriteFile(filepath.Join(state, "labels.json"), []byte("["), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := &Agent{cfg: second.cfg, store: second.store}
	if err := broken.recallLabels(); err == nil {
		t.Error("a memory that cannot be read was taken for none")
	}
	if _, err := recallObjects([]byte(`[{"kind": "` + v1alpha1.KindNode + `", "object": {}}]`)); err == nil {
		t.Error("an object of another kind was recalled")
	}
}

// watchedFile is a datapath that notes whether a file is there while endpoints get their sets.
type watchedFile struct {
	fakePolicies
	path  string
	early bool
}

func (w *watchedFile) AddPolicySet([]datapath.PolicyEntry) (uint32, error) {
	_, err := os.Stat(w.path)
	w.early = w.early || err == nil
	return 1, errors.New("full")
}

// TestLabelsAreWrittenLast: labels are in force before they are written down, which they are also
// where not all policies could be entered; those of pods that other nodes are said to run are not.
func TestLabelsAreWrittenLast(t *testing.T) {
	objects, state := t.TempDir(), t.TempDir()
	const pod = "apiVersion: weft.dev/v1alpha1\nkind: Pod\nmetadata: {name: %s, namespace: shop}\n" +
		"spec: {nodeName: '%s'}\n---\n"
	text := fmt.Sprintf(pod, "own", "a") + fmt.Sprintf(pod, "other", "b") +
		fmt.Sprintf(pod, "later", "") + webDenied
	if err := os.WriteFile(filepath.Join(objects, "o.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := dir.Open(objects)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := explaining(t)
	a.store, a.cfg.Paths.State = d, state
	a.problems, a.log = map[string]string{}, slog.New(slog.DiscardHandler)
	snapshot, err := d.Snapshot()
	if err != nil || len(snapshot.Pods) != 3 {
		t.Fatal(snapshot, err)
	}
	dp := &watchedFile{path: a.labelMemory()}
	if a.node.policies, err = newPolicies(dp, policy.Options{}, nil); err != nil {
		t.Fatal(err)
	}
	if a.syncPolicies(a.node, newIndex(snapshot)) == nil {
		t.Error("a set that finds no room is no problem")
	}
	data, err := os.ReadFile(a.labelMemory())
	if err != nil || dp.early {
		t.Fatalf("written before policies were applied: %v, after: %v", dp.early, err)
	}
	list, err := recallObjects(data)
	var names []string
	for _, o := range list {
		names = append(names, o.Object.Meta().Name)
	}
	if err != nil || !slices.Equal(names, []string{"later", "own"}) {
		t.Errorf("%v are written down, %v", names, err)
	}
}
