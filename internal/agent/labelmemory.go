package agent

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/statefile"
	"weft.dev/weft/internal/store"
)

// labelMemory is the file of the namespaces and pods that were declared last: an agent that starts
// while a file of objects is broken goes by the labels that it had.
func (a *Agent) labelMemory() string { return filepath.Join(a.cfg.StateDir(), "labels.json") }

// labelled is an object that outlives the process that read it.
type labelled struct {
	Kind   string          `json:"kind"`
	File   string          `json:"file"`
	Object json.RawMessage `json:"object"`
}

// labelStore remembers where objects came from, and keeps those of a previous run.
type labelStore interface {
	SeedObjects([]store.Declared)
	InUse(kinds ...string) []store.Declared
}

// recallLabels tells the store which namespaces and pods there were, before it is first read.
func (a *Agent) recallLabels() error {
	seeded, ok := a.store.(labelStore)
	if !ok {
		return nil
	}
	return recall(a.labelMemory(), "labels", func(data []byte) error {
		list, err := recallObjects(data)
		if err == nil {
			seeded.SeedObjects(list)
		}
		return err
	})
}

func recallObjects(data []byte) ([]store.Declared, error) {
	var in []labelled
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("labels of a previous run: %w", err)
	}
	var out []store.Declared
	for i, one := range in {
		if !slices.Contains(labelKinds, one.Kind) {
			return nil, fmt.Errorf("labels of a previous run: object %d: kind %q", i, one.Kind)
		}
		o := v1alpha1.New(one.Kind)
		if err := json.Unmarshal(one.Object, o); err != nil {
			return nil, fmt.Errorf("labels of a previous run: object %d: %w", i, err)
		}
		out = append(out, store.Declared{Object: o, File: one.File})
	}
	return out, nil
}

// labelKinds are the kinds whose labels policies go by, and that are not agents' own to write.
var labelKinds = []string{v1alpha1.KindNamespace, v1alpha1.KindPod}

// rememberLabels writes namespaces and pods down, if they are others than last time. reconcile
// alone calls it.
//
// Pods of other nodes are left out: their own agents go by their labels, and what these have
// published is an Endpoint's. Those of this node and of none that is named are kept, also such as
// are not added yet: without labels a pod would be added that no policy selects. Namespaces are
// kept all, since any peer may be selected by theirs.
func (a *Agent) rememberLabels() error {
	seeded, ok := a.store.(labelStore)
	if !ok {
		return nil
	}
	list := slices.DeleteFunc(seeded.InUse(labelKinds...), a.elsewhere)
	if a.labelled != nil && slices.EqualFunc(list, a.labelled, sameDeclared) {
		return nil
	}
	data, err := writeObjects(list)
	if err != nil {
		return err
	}
	if err := statefile.Write(a.labelMemory(), data); err != nil {
		return err
	}
	a.labelled = append([]store.Declared{}, list...)
	return nil
}

// elsewhere says whether an object is a pod of another node.
func (a *Agent) elsewhere(d store.Declared) bool {
	pod, is := d.Object.(*v1alpha1.Pod)
	return is && pod.Spec.NodeName != "" && pod.Spec.NodeName != a.cfg.Node
}

func sameDeclared(x, y store.Declared) bool { return x.Object == y.Object && x.File == y.File }

func writeObjects(list []store.Declared) ([]byte, error) {
	out := make([]labelled, 0, len(list))
	for _, d := range list {
		data, err := json.Marshal(d.Object)
		if err != nil {
			return nil, fmt.Errorf("write labels down: %s %s: %w", d.Object.Type().Kind,
				d.Object.Meta().Key(), err)
		}
		out = append(out, labelled{d.Object.Type().Kind, d.File, data})
	}
	data, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("write labels down: %w", err)
	}
	return data, nil
}
