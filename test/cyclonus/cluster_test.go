package cyclonus

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/statefile"
	"weft.dev/weft/test/labtest"
)

// labName is this process's own: one that was interrupted stands in nobody's way.
var labName = fmt.Sprint("cyclonus-", os.Getpid())

// zc is the address of pod z/c, around which cyclonus makes blocks.
var zc = netip.MustParseAddr("10.77.1.19")

// cluster is a world on two nodes that seal to each other.
type cluster struct {
	lab  *lab.Lab
	pods map[string]*speaker // by key
	// wanted says of past rounds what was to arrive, settled which began with policies in force.
	wanted  map[uint16]map[probe]bool
	settled map[uint16]bool
	// stop ends the look at what passes between the nodes.
	stop func() encryptcheck.Report
}

// specOf is a pod in the lab, where names are unique. Pods of each namespace are on both nodes.
func specOf(p *pod, at netip.Addr) lab.PodSpec {
	node := "a"
	if at.As4()[2] == 2 {
		node = "b"
	}
	return lab.PodSpec{Name: p.namespace + "-" + p.name, Node: node, Namespace: p.namespace,
		Labels: p.labels, Addresses: []netip.Addr{at}}
}

// place gives the pods of a world their addresses in the lab.
func (w *world) place() {
	for i, p := range w.pods {
		p.address = netip.AddrFrom4([4]byte{10, 77, byte(1 + i%2), byte(11 + i)})
	}
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	spec, err := lab.Parse([]byte("name: set-later\n" + labtest.ABOut))
	if err != nil {
		t.Fatal(err)
	}
	spec.Name = labName
	w := newWorld()
	w.place()
	for _, p := range w.pods {
		spec.Pods = append(spec.Pods, specOf(p, p.address))
	}
	binary, err := labtest.Binary(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(t.Context(), spec,
		lab.Options{Binary: binary, ReadyTimeout: labtest.ReadyTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Errorf("take the lab down: %v", err)
		}
	})
	c := &cluster{lab: l, pods: map[string]*speaker{},
		wanted: map[uint16]map[probe]bool{}, settled: map[uint16]bool{}}
	t.Cleanup(func() {
		for _, p := range c.pods {
			p.close()
		}
	})
	c.watch(t)
	c.follow(t, w)
	return c
}

// watch begins to look at the cable of node a.
func (c *cluster) watch(t *testing.T) {
	t.Helper()
	var rules encryptcheck.Rules
	for _, n := range c.lab.Nodes() {
		rules.Pods, rules.Nodes = append(rules.Pods, n.PodCIDRs...), append(rules.Nodes,
			n.Addresses...)
	}
	capture, err := encryptcheck.Open(netns.Path("weft-"+labName+"-wire-w0"), "p0")
	if err != nil {
		t.Fatal(err)
	}
	detector := encryptcheck.NewDetector(rules)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- capture.Run(ctx, func(f encryptcheck.Frame) { detector.Frame(f) })
	}()
	c.stop = func() encryptcheck.Report {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if lost := capture.Lost(); lost > 0 {
			t.Errorf("the capture lost %d frames: what was in them nobody knows", lost)
		}
		capture.Close()
		return detector.Report()
	}
}

// follow makes the lab what a world is: its pods, their labels and ports, namespaces and policies.
func (c *cluster) follow(t *testing.T, w *world) {
	t.Helper()
	for key, s := range c.pods {
		if !slices.ContainsFunc(w.pods, func(p *pod) bool { return p.key() == key }) {
			s.close()
			delete(c.pods, key)
			if err := c.lab.DelPod(t.Context(), s.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, p := range w.pods {
		if c.pods[p.key()] == nil {
			c.pods[p.key()] = c.speaker(t, p, i)
		}
		p.address = c.pods[p.key()].IPv4
	}
	c.write(t, "namespaces.yaml", w.namespaceObjects())
	c.write(t, "pods.yaml", w.podObjects(c))
	c.write(t, "policies.yaml", w.policyObjects())
}

// speaker finds a pod in the lab, or adds it.
func (c *cluster) speaker(t *testing.T, p *pod, number int) *speaker {
	t.Helper()
	at := c.lab.Pod(p.namespace + "-" + p.name)
	if at == nil {
		var err error
		free := netip.AddrFrom4([4]byte{10, 77, byte(1 + number%2), byte(100 + number)})
		if at, err = c.lab.AddPod(t.Context(), specOf(p, free)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := newSpeaker(at)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// write replaces a file of objects in one step.
func (c *cluster) write(t *testing.T, name string, objects []any) {
	t.Helper()
	text := bytes.NewBufferString("# what a case has made\n") // an empty file says nothing at all
	for _, o := range objects {
		data, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(text, "---\n%s\n", data)
	}
	path := filepath.Join(c.lab.ObjectsDir(), name)
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, text.Bytes()) {
		return
	}
	if err := statefile.WriteMode(path, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (w *world) namespaceObjects() (out []any) {
	for name, labels := range w.namespaces {
		out = append(out, map[string]any{"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": name, "labels": labels}})
	}
	slices.SortFunc(out, func(a, b any) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	return out
}

func (w *world) podObjects(c *cluster) (out []any) {
	for _, p := range w.pods {
		at := c.pods[p.key()]
		o := &v1alpha1.Pod{TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion,
			Kind: v1alpha1.KindPod}}
		o.Metadata = v1alpha1.ObjectMeta{Name: at.Name, Namespace: p.namespace, Labels: p.labels}
		o.Spec = v1alpha1.PodSpec{NodeName: at.Node, Addresses: []netip.Addr{at.IPv4}}
		for _, s := range served {
			o.Spec.Ports = append(o.Spec.Ports, v1alpha1.NamedPort{Port: s.number,
				Name: portName(s.number, s.protocol), Protocol: string(s.protocol)})
		}
		out = append(out, o)
	}
	return out
}

func (w *world) policyObjects() (out []any) {
	for _, p := range w.policies {
		o := p.DeepCopy()
		o.SetGroupVersionKind(networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"))
		out = append(out, o)
	}
	return out
}
