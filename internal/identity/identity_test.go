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

func id(ns, sa string) ID { return ID{"weft.local", ns, sa} }

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
	if next(v1alpha1.MaxIdentity) != v1alpha1.MinIdentity || distance(v1alpha1.MaxIdentity, v1alpha1.MinIdentity) != 1 || distance(300, 300) != 0 {
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
	other := object(s, id("shop", "db").SPIFFE())
	tests := []struct {
		name  string
		store *memory
		want  uint32
	}{
		{"free", newMemory(), s},
		{"there", newMemory(object(s, web.SPIFFE())), s},
		{"there, elsewhere", newMemory(object(s+9, web.SPIFFE())), s + 9},
		{"there twice", newMemory(object(s+9, web.SPIFFE()), object(s+2, web.SPIFFE()), other), s + 2},
		{"taken by another", newMemory(other), s + 1},
		{"taken by what cannot be read", &memory{objects: map[uint32]*v1alpha1.Identity{}, broken: map[uint32]bool{s: true}}, s + 1},
		{"there, not yet listed", &memory{objects: newMemory(object(s, web.SPIFFE())).objects, hidden: true}, s},
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
	same.before = func() { same.objects[s] = object(s, web.SPIFFE()) }
	if got, err := Allocate(same, web); got != s || err != nil {
		t.Errorf("the same identity was first: %d %v", got, err)
	}
	foreign := newMemory()
	foreign.before = func() { foreign.objects[s] = object(s, db.SPIFFE()) }
	if got, err := Allocate(foreign, web); got != s+1 || err != nil {
		t.Errorf("another identity was first: %d %v", got, err)
	}
	broken := newMemory()
	broken.err = errors.New("no space left")
	if got, err := Allocate(broken, web); got != 0 || err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("a store that cannot be written: %d %v", got, err)
	}
}

func TestNumbersIgnoresNonsense(t *testing.T) {
	bad := &v1alpha1.Identity{Metadata: v1alpha1.ObjectMeta{Name: "00300"}, Spec: v1alpha1.IdentitySpec{SPIFFEID: "x"}}
	if got := Numbers(slices.Values([]*v1alpha1.Identity{bad})); len(got) != 0 {
		t.Error(got)
	}
}

// TestManyAgents has agents allocate the same identities at once, all of which collide,
// through a real directory.
func TestManyAgents(t *testing.T) {
	path := t.TempDir()
	const agents, workloads = 6, 8
	results := make([][]uint32, agents)
	var wg sync.WaitGroup
	for a := range agents {
		d, err := dir.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for w := range workloads {
				// Every workload begins where the first does.
				n, err := Allocate(colliding{d}, id("shop", fmt.Sprint("sa-", (w+a)%workloads)))
				if err != nil {
					t.Error(err)
				}
				results[a] = append(results[a], n)
			}
		})
	}
	wg.Wait()
	d, _ := dir.Open(path)
	s, err := d.Snapshot()
	if err != nil || len(s.Errors) > 0 || len(s.Identities) != workloads {
		t.Fatalf("%d identities, %v, %v", len(s.Identities), err, s.Errors)
	}
	seen := map[string]bool{}
	for _, i := range s.Identities {
		seen[i.Spec.SPIFFEID] = true
	}
	if len(seen) != workloads {
		t.Errorf("%d names for %d workloads", len(seen), workloads)
	}
	for a := range agents {
		for w := range workloads {
			i, err := d.Identity(results[a][w])
			if want := id("shop", fmt.Sprint("sa-", (w+a)%workloads)).SPIFFE(); err != nil || i == nil || i.Spec.SPIFFEID != want {
				t.Errorf("agent %d: %d is %v, want %s, %v", a, results[a][w], i, want, err)
			}
		}
	}
}

// colliding makes every search begin at the same number: what others hold is what they find.
type colliding struct{ *dir.Dir }

func (c colliding) CreateIdentity(i *v1alpha1.Identity) error {
	first := object(v1alpha1.MinIdentity, i.Spec.SPIFFEID)
	for n := uint32(v1alpha1.MinIdentity); n < v1alpha1.MinIdentity+100; n++ {
		there, _ := c.Dir.Identity(n)
		if there == nil {
			first = object(n, i.Spec.SPIFFEID)
			break
		}
		if there.Spec.SPIFFEID == i.Spec.SPIFFEID {
			return store.ErrExists
		}
	}
	_ = first
	return c.Dir.CreateIdentity(i)
}

func TestOfNodes(t *testing.T) {
	s := store.NewSnapshot()
	s.Nodes["a"], s.Nodes["b"] = &v1alpha1.Node{}, &v1alpha1.Node{}
	add := func(name, node, sa string, number uint32) {
		s.Endpoints["shop/"+name] = &v1alpha1.Endpoint{
			Metadata: v1alpha1.ObjectMeta{Name: name, Namespace: "shop"},
			Spec:     v1alpha1.EndpointSpec{NodeName: node, ServiceAccount: sa}, Status: v1alpha1.EndpointStatus{Identity: number},
		}
	}
	s.Identities["300"], s.Identities["301"] = object(300, id("shop", "web").SPIFFE()), object(301, id("shop", "db").SPIFFE())
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
	if len(problems) != 2 || !strings.Contains(text, "endpoint shop/liar of node b claims identity 300, which is that of spiffe://weft.local/ns/shop/sa/web") ||
		!strings.Contains(text, "999, which has no Identity object") {
		t.Errorf("problems %s", text)
	}
}
