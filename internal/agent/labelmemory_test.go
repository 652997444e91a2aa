package agent

import (
	"os"
	"path/filepath"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
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
