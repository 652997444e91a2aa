package model

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/test/labtest"
)

// objects is the agents' directory and what was done to it.
type objects struct {
	lab *lab.Lab
	dir string
	// damaged are the files that are not as they should be.
	damaged map[string]damage
}

// damage is what a file was, nil if there was none, and what was made of it, nil if it was removed.
type damage struct{ good, bad []byte }

// newObjects gives each node a file of its own.
func newObjects(l *lab.Lab) (*objects, error) {
	o := &objects{lab: l, dir: l.ObjectsDir(), damaged: map[string]damage{}}
	nodes := filepath.Join(o.dir, "nodes.yaml")
	text, err := os.ReadFile(nodes)
	if err != nil {
		return nil, err
	}
	for i, part := range strings.Split(string(text), "---\n") {
		if err := replaceFile(o.path("node-"+nodeNames[i]+".yaml"), []byte(part)); err != nil {
			return nil, err
		}
	}
	return o, os.Remove(nodes) // what is there twice and says the same is one
}

func (o *objects) path(name string) string { return filepath.Join(o.dir, name) }

func (o *objects) whole() bool { return len(o.damaged) == 0 }

// replaceFile writes a file in one step, as the documents advise.
func replaceFile(path string, data []byte) error {
	if err := os.WriteFile(path+".tmp", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// files are the names, relative to the directory, of the files that may be damaged.
func (o *objects) files() (names []string) {
	for _, pattern := range []string{"node-*.yaml", "pods.yaml", "policy.yaml", "endpoints/*.yaml",
		"identities/*.yaml"} {
		found, _ := filepath.Glob(o.path(pattern))
		for _, f := range found {
			name, _ := filepath.Rel(o.dir, f)
			names = append(names, name)
		}
	}
	return names
}

// spoil writes what a file shall be, whole or in place, or removes it.
func (o *objects) spoil(name string, bad []byte, inPlace bool) error {
	path := o.path(name)
	d, before := o.damaged[name]
	if !before {
		data, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		d.good = data
	}
	d.bad = bad
	o.damaged[name] = d
	switch {
	case bad == nil:
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	case inPlace:
		return os.WriteFile(path, bad, 0o644)
	}
	return replaceFile(path, bad)
}

// restore makes a file what it was, unless its owner has done so already: the lab or an agent.
func (o *objects) restore(name string) error {
	d := o.damaged[name]
	delete(o.damaged, name)
	now, err := os.ReadFile(o.path(name))
	if err == nil && !bytes.Equal(now, d.bad) {
		return nil
	}
	if d.good == nil || o.orphan(name) {
		if err == nil {
			return os.Remove(o.path(name))
		}
		return nil
	}
	return replaceFile(o.path(name), d.good)
}

// orphan says whether a file is the published endpoint of a pod that is gone.
func (o *objects) orphan(name string) bool {
	return strings.HasPrefix(name, "endpoints/") &&
		!slices.ContainsFunc(o.lab.Pods(),
			func(p *lab.Pod) bool { return endpointFile(o.lab, p) == o.path(name) })
}

func (o *objects) restoreAll() error {
	var errs []error
	for name := range o.damaged {
		errs = append(errs, o.restore(name))
	}
	return errors.Join(errs...)
}

// mistakes are what becomes of a good file. One that returns its input has nothing to change in it.
var mistakes = []struct {
	name string
	make func(r *rand.Rand, good []byte) []byte
}{
	{"a typo in a key",
		swap("addresses:", "adresses:", "spiffeID:", "spiffeId:", "spec:", "spek:")},
	{"a typo in a value",
		swap("/24", "/33", "weft.dev/v1alpha1", "weft.dev/v1alpha", "nodeName: a", "nodeName: A_")},
	{"a broken address", swap("192.0.2.", "192.0.256.", "10.77.", "10.777.")},
	{"half of it", func(r *rand.Rand, good []byte) []byte { return good[:r.IntN(len(good)+1)] }},
	{"an empty file", func(*rand.Rand, []byte) []byte { return []byte{} }},
	{"no text", func(*rand.Rand, []byte) []byte { return []byte("\x00\xff{{{: -") }},
	{"removed", func(*rand.Rand, []byte) []byte { return nil }},
	{"the other node's name", swap("nodeName: a", "nodeName: b", "nodeName: b", "nodeName: a")},
	{"another node's name",
		swap("nodeName: a", "nodeName: c", "nodeName: b", "nodeName: c", "name: a", "name: c",
			"name: b", "name: c")},
	{"the other node's ranges",
		swap("10.77.1.0/24", "10.77.2.0/24", "10.77.2.0/24", "10.77.1.0/24")},
	{"other ranges",
		swap("10.77.1.0/24", "10.77.7.0/24", "10.77.2.0/24", "10.77.7.0/24", "fd77:1::",
			"fd77:7::")},
	{"smaller ranges", swap("10.77.1.0/24", "10.77.1.0/27", "10.77.2.0/24", "10.77.2.0/27")},
	{"another machine's address",
		swap("192.0.2.1", "192.0.2.9", "192.0.2.2", "192.0.2.9", "2001:db8::2", "2001:db8::9")},
	{"the other node's address", swap("192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.1")},
	{"another pod's address",
		swap("10.77.1.10", "10.77.2.100", "10.77.2.100", "10.77.1.100", "10.77.1.100",
			"10.77.1.10")},
	{"an address outside all ranges",
		swap("10.77.1.10", "10.99.1.10", "10.77.2.100", "10.99.2.100", "fd77:1::", "fd99:1::")},
	{"another workload",
		swap("/sa/default", "/sa/client", "/sa/client", "/sa/default", "ns/shop", "ns/open")},
	{"another identity",
		swap("identity: 1", "identity: 2", "identity: 2", "identity: 3", "identity: 3",
			"identity: 1")},
}

// swap makes a mistake that replaces one of its pairs, the first that fits from a random one on.
func swap(pairs ...string) func(*rand.Rand, []byte) []byte {
	return func(r *rand.Rand, good []byte) []byte {
		first := r.IntN(len(pairs) / 2)
		for i := range len(pairs) / 2 {
			at := (first + i) % (len(pairs) / 2) * 2
			if bytes.Contains(good, []byte(pairs[at])) {
				return bytes.ReplaceAll(good, []byte(pairs[at]), []byte(pairs[at+1]))
			}
		}
		return good
	}
}

// edit makes a mistake in a random file, or in a copy beside it.
func (w *world) edit() (string, error) {
	o := w.objects
	names := o.files()
	if len(names) == 0 {
		return "nothing is left to edit", nil
	}
	name := names[w.rand.IntN(len(names))]
	good, err := os.ReadFile(o.path(name))
	if err != nil {
		return "", err
	}
	mistake := mistakes[w.rand.IntN(len(mistakes))]
	bad := mistake.make(w.rand, good)
	if w.rand.IntN(4) == 0 && bad != nil {
		twin := filepath.Join(filepath.Dir(name), fmt.Sprintf("again-%d.yaml", w.rand.IntN(3)))
		return fmt.Sprintf("%s in a second version of %s, %s", mistake.name, name, twin),
			o.spoil(twin, bad, false)
	}
	if slices.Equal(good, bad) {
		return "nothing: " + mistake.name + " does not fit " + name, nil
	}
	return fmt.Sprintf("%s: %s", name, mistake.name), o.spoil(name, bad, w.rand.IntN(2) == 0)
}

// swapRanges gives each node the other's ranges.
func (w *world) swapRanges() (string, error) {
	swapped := strings.NewReplacer("10.77.1.0", "10.77.2.0", "10.77.2.0", "10.77.1.0", "fd77:1:",
		"fd77:2:", "fd77:2:", "fd77:1:")
	var errs []error
	for _, h := range w.hosts {
		name := "node-" + h.Name + ".yaml"
		if good, err := os.ReadFile(w.objects.path(name)); err == nil {
			errs = append(errs, w.objects.spoil(name, []byte(swapped.Replace(string(good))), false))
		}
	}
	return "the nodes' ranges swapped", errors.Join(errs...)
}

// halve removes about half of all files.
func (w *world) halve() error {
	var errs []error
	for _, name := range w.objects.files() {
		if w.rand.IntN(2) == 0 {
			errs = append(errs, w.objects.spoil(name, nil, false))
		}
	}
	return errors.Join(errs...)
}

// allow writes or removes the policy that lets pod web travel in cleartext.
func (w *world) allow() (string, error) {
	path := w.objects.path("policy.yaml")
	if exists(path) || w.rand.IntN(2) == 0 {
		err := w.objects.spoil("policy.yaml", nil, false)
		return "no policy", err
	}
	w.prober.with(func() { w.mayBePlain = true })
	return "web may be plain", w.objects.spoil("policy.yaml", []byte(labtest.OpenPolicy), false)
}
