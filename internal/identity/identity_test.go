package identity

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
	"weft.dev/weft/internal/store/dir"
)

func id(ns,
	sa string) ID {
	return ID{TrustDomain: "weft.local", Namespace: ns, ServiceAccount: sa}
}

func TestSPIFFE(t *testing.T) {
	if got := id("shop", "web").SPIFFE(); got != "spiffe://weft.local/ns/shop/sa/web" {
		t.Error(got)
	}
	for n := range 2000 {
		s := Start(fmt.Sprint(n))
		if s < v1alpha1.MinIdentity || s > v1alpha1.MaxIdentity {
			t.Fatalf("start %d", s)
		}
	}
	if next(v1alpha1.MaxIdentity) != v1alpha1.MinIdentity ||
		distance(v1alpha1.MaxIdentity, v1alpha1.MinIdentity) != 1 || distance(300, 300) != 0 {
		t.Error("the search does not go round")
	}
}

// memory is a store of identities; before runs ahead of each creation, as another agent may.
type memory struct {
	objects map[uint32]*v1alpha1.Identity
	broken  map[uint32]bool
	hidden  bool // the list is an old one
	before  func()
	err     error
}

func (m *memory) Identities() ([]*v1alpha1.Identity, error) {
	var out []*v1alpha1.Identity
	for _, i := range m.objects {
		if !m.hidden {
			out = append(out, i)
		}
	}
	return out, nil
}

func (m *memory) Identity(n uint32) (*v1alpha1.Identity, error) {
	if m.broken[n] {
		return nil, errors.New("not YAML")
	}
	return m.objects[n], nil
}

func (m *memory) CreateIdentity(i *v1alpha1.Identity) error {
	if m.before != nil {
		before := m.before
		m.before = nil
		before()
	}
	if m.objects[i.Number()] != nil || m.broken[i.Number()] {
		return fmt.Errorf("create: %w", store.ErrExists)
	}
	if m.err != nil {
		return m.err
	}
	m.objects[i.Number()] = i
	return nil
}

func newMemory(objects ...*v1alpha1.Identity) *memory {
	m := &memory{objects: map[uint32]*v1alpha1.Identity{}, broken: map[uint32]bool{}}
	for _, i := range objects {
		m.objects[i.Number()] = i
	}
	return m
}

func TestAllocate(t *testing.T) {
	web := id("shop", "web")
	s := Start(web.SPIFFE())
	other := object(s, id("shop", "db").SPIFFE(), nil)
	tests := []struct {
		name  string
		store *memory
		want  uint32
	}{
		{"free", newMemory(), s},
		{"there", newMemory(object(s, web.SPIFFE(), nil)), s},
		{"there, elsewhere", newMemory(object(s+9, web.SPIFFE(), nil)), s + 9},
		{"there twice",
			newMemory(object(s+9, web.SPIFFE(), nil), object(s+2, web.SPIFFE(), nil), other),
			s + 2},
		{"taken by another", newMemory(other), s + 1},
		{"taken by what cannot be read",
			&memory{objects: map[uint32]*v1alpha1.Identity{}, broken: map[uint32]bool{s: true}},
			s + 1},
		{"there, not yet listed",
			&memory{objects: newMemory(object(s, web.SPIFFE(), nil)).objects, hidden: true}, s},
		{"taken, not yet listed", &memory{objects: newMemory(other).objects, hidden: true}, s + 1},
	}
	for _, tt := range tests {
		if got, err := Allocate(tt.store, web); got != tt.want || err != nil {
			t.Errorf("%s: %d, %v, want %d", tt.name, got, err, tt.want)
		}
	}
}

func TestAllocateLosesRaces(t *testing.T) {
	web, db := id("shop", "web"), id("shop", "db")
	s := Start(web.SPIFFE())
	same := newMemory()
	same.before = func() { same.objects[s] = object(s, web.SPIFFE(), nil) }
	if got, err := Allocate(same, web); got != s || err != nil {
		t.Errorf("the same identity was first: %d %v", got, err)
	}
	foreign := newMemory()
	foreign.before = func() { foreign.objects[s] = object(s, db.SPIFFE(), nil) }
	if got, err := Allocate(foreign, web); got != s+1 || err != nil {
		t.Errorf("another identity was first: %d %v", got, err)
	}
	broken := newMemory()
	broken.err = errors.New("no space left")
	if got, err := Allocate(broken, web); got != 0 || err == nil ||
		!strings.Contains(err.Error(), "no space left") {
		t.Errorf("a store that cannot be written: %d %v", got, err)
	}
}

func TestNumbersIgnoresNonsense(t *testing.T) {
	bad := &v1alpha1.Identity{Metadata: v1alpha1.ObjectMeta{Name: "00300"},
		Spec: v1alpha1.IdentitySpec{SPIFFEID: "x"}}
	if got := Numbers(slices.Values([]*v1alpha1.Identity{bad})); len(got) != 0 {
		t.Error(got)
	}
}

// colliding are service accounts, each of which begins its search where another does.
func colliding(pairs int) []string {
	first := map[uint32]string{}
	var out []string
	for n := 0; len(out) < 2*pairs; n++ {
		name := fmt.Sprint("sa-", n)
		start := Start(id("shop", name).SPIFFE())
		if other, taken := first[start]; taken {
			out = append(out, other, name)
		}
		first[start] = name
	}
	return out
}

// TestManyAgents has agents allocate the same identities at once, which collide in pairs, in
// different orders, through a real directory.
func TestManyAgents(t *testing.T) {
	path, names := t.TempDir(), colliding(4)
	const agents = 6
	results := make([]map[string]uint32, agents)
	var wg sync.WaitGroup
	for a := range agents {
		results[a] = map[string]uint32{}
		d, err := dir.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for w := range names {
				name := names[(w+a)%len(names)]
				n, err := Allocate(d, id("shop", name))
				if err != nil {
					t.Error(err)
				}
				results[a][name] = n
			}
		})
	}
	wg.Wait()
	d, err := dir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Snapshot()
	if err != nil || len(s.Errors) > 0 || len(s.Identities) != len(names) {
		t.Fatalf("%d identities of %d, %v, %v", len(s.Identities), len(names), err, s.Errors)
	}
	for a := range agents {
		for _, name := range names {
			n := results[a][name]
			i, err := d.Identity(n)
			if want := id("shop", name).SPIFFE(); err != nil || i == nil ||
				i.Spec.SPIFFEID != want {
				t.Errorf("agent %d: %s has %d, which is %v, %v", a, name, n, i, err)
			}
			if n != results[0][name] {
				t.Errorf("agents 0 and %d give %s the numbers %d and %d", a, name, results[0][name],
					n)
			}
		}
	}
}

func TestOfNodes(t *testing.T) {
	s := store.NewSnapshot()
	s.Nodes["a"], s.Nodes["b"] = &v1alpha1.Node{}, &v1alpha1.Node{}
	add := func(name, node, sa string, number uint32) {
		s.Endpoints["shop/"+name] = &v1alpha1.Endpoint{
			Metadata: v1alpha1.ObjectMeta{Name: name, Namespace: "shop"},
			Spec:     v1alpha1.EndpointSpec{NodeName: node, ServiceAccount: sa},
			Status:   v1alpha1.EndpointStatus{Identity: number},
		}
	}
	s.Identities["300"], s.Identities["301"] = object(300, id("shop", "web").SPIFFE(),
		nil), object(301, id("shop", "db").SPIFFE(), nil)
	add("w1", "a", "web", 300)
	add("w2", "a", "web", 300)
	add("d1", "a", "db", 301)
	add("old", "a", "db", 0)
	add("liar", "b", "db", 300)
	add("ghost", "b", "db", 999)
	add("lost", "nowhere", "db", 301)
	got, problems := OfNodes(s, "weft.local")
	if len(got) != 2 || !slices.Equal(got["a"], []uint32{300, 301}) || len(got["b"]) != 0 {
		t.Errorf("identities %v", got)
	}
	text := strings.Join(problems, "\n")
	if len(problems) != 2 ||
		!strings.Contains(text,
			"endpoint shop/liar of node b claims identity 300, which is that of spiffe://weft.local/ns/shop/sa/web") ||
		!strings.Contains(text, "999, which has no Identity object") {
		t.Errorf("problems %s", text)
	}
}
