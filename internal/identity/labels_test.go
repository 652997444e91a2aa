package identity

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

func TestLabelFilter(t *testing.T) {
	for _, tt := range []struct {
		filter   LabelFilter
		part, no []string
	}{
		{LabelFilter{}, []string{"app", "app.kubernetes.io/name", "security.istio.io/tlsMode"},
			[]string{"pod-template-hash", "controller-revision-hash",
				"statefulset.kubernetes.io/pod-name", "topology.kubernetes.io/zone",
				"io.kubernetes.pod.name"}},
		{LabelFilter{Exclude: []string{"app.kubernetes.io/*", "version"}},
			[]string{"app", "app.kubernetes"},
			[]string{"app.kubernetes.io/name", "version", "pod-template-hash"}},
		{LabelFilter{Include: []string{"app", "team.example.org/*"}},
			[]string{"app", "team.example.org/a"}, []string{"apps", "tier", "team.example.org"}},
		{LabelFilter{Include: []string{"*"}, Exclude: []string{"pod-template-hash"}},
			[]string{"controller-revision-hash", "app"}, []string{"pod-template-hash"}},
	} {
		for _, key := range tt.part {
			if !tt.filter.Relevant(key) {
				t.Errorf("%+v leaves out %s", tt.filter, key)
			}
		}
		for _, key := range tt.no {
			if tt.filter.Relevant(key) {
				t.Errorf("%+v takes %s", tt.filter, key)
			}
		}
	}
	got := LabelFilter{}.Of(map[string]string{"app": "web", "pod-template-hash": "1"})
	if !maps.Equal(got, map[string]string{"app": "web"}) ||
		(LabelFilter{}).Of(map[string]string{"pod-template-hash": "1"}) != nil {
		t.Errorf("labels %v", got)
	}
}

// TestLabelledIdentities: with other labels the same service account is somebody else, and an
// Identity of before, without labels, stays that of pods without.
func TestLabelledIdentities(t *testing.T) {
	plain := id("shop", "web")
	labelled := plain
	labelled.Labels = map[string]string{"app": "a", "tier": "b"}
	before := object(Start(plain.SPIFFE()), plain.SPIFFE(), nil)
	m := newMemory(before)
	first, err := Allocate(m, labelled)
	again, err2 := Allocate(m, labelled)
	old, err3 := Allocate(m, plain)
	if err != nil || err2 != nil || err3 != nil || first != again || first == old ||
		old != before.Number() {
		t.Fatalf("%d, %d and %d: %v %v %v", first, again, old, err, err2, err3)
	}
	o := m.objects[first]
	if o.Spec.SPIFFEID != plain.SPIFFE() || !maps.Equal(o.Spec.Labels, labelled.Labels) ||
		len(o.Validate()) > 0 {
		t.Errorf("object %+v: %v", o, o.Validate())
	}
	// Whoever loses the race for a number to the same name with other labels goes on to the next.
	lost := newMemory()
	lost.before = func() { lost.objects[Start(labelled.Key())] = object(Start(labelled.Key()), plain.SPIFFE(), nil) }
	if n, err := Allocate(lost, labelled); n != next(Start(labelled.Key())) || err != nil {
		t.Errorf("%d %v", n, err)
	}
}

func TestOfNodesLabels(t *testing.T) {
	s := store.NewSnapshot()
	s.Nodes["a"] = &v1alpha1.Node{}
	add := func(name string, labels map[string]string, number uint32) {
		s.Endpoints["shop/"+name] = &v1alpha1.Endpoint{
			Metadata: v1alpha1.ObjectMeta{Name: name, Namespace: "shop", Labels: labels},
			Spec:     v1alpha1.EndpointSpec{NodeName: "a", ServiceAccount: "web"},
			Status:   v1alpha1.EndpointStatus{Identity: number},
		}
	}
	spiffe := id("shop", "web").SPIFFE()
	s.Identities["300"], s.Identities["301"] = object(300, spiffe, nil), object(301, spiffe,
		map[string]string{"app": "admin"})
	s.Identities["302"] = object(302, spiffe, map[string]string{"app": "web"})
	add("before", map[string]string{"app": "web"}, 300)
	add("liar", map[string]string{"app": "web"}, 301)
	add("web", map[string]string{"app": "web", "pod-template-hash": "1"}, 302)
	got, problems := OfNodes(s, "weft.local")
	if !slices.Equal(got["a"], []uint32{300, 302}) || len(problems) != 1 ||
		!strings.Contains(problems[0],
			"shop/liar of node a claims identity 301, which has the label app=admin, which the endpoint has not") {
		t.Errorf("%v %v", got, problems)
	}
}
