package store

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
)

// reference reads everything anew each time, comparing all with all, and is what a History is held
// to.
type reference struct{ last map[ref]Declared }

// read returns what is in use, by object, and what is not, given all files.
func (h *reference) read(files map[string]*Source) (used map[ref]Declared, unused map[string]int) {
	places, bad := map[ref][]Declared{}, map[string]bool{}
	for file, s := range files {
		bad[file] = len(s.Errors) > 0 || s.Empty
		for _, d := range s.Objects {
			places[refOf(d.Object)] = append(places[refOf(d.Object)], d)
		}
	}
	for r, d := range h.last {
		if dir := filepath.Dir(d.File); len(places[r]) == 0 &&
			(bad[d.File] || bad[dir] || bad[filepath.Dir(dir)]) {
			places[r] = []Declared{d}
		}
	}
	used, unused = map[ref]Declared{}, map[string]int{}
	var nodes []Declared
	for r, p := range places {
		slices.SortFunc(p, comparePlaces)
		d := p[0]
		if slices.ContainsFunc(p,
			func(o Declared) bool { return !reflect.DeepEqual(o.Object, d.Object) }) {
			var had bool
			if d, had = h.last[r]; !had {
				for _, d := range p {
					unused[text(d.Object)]++
				}
				continue
			}
		}
		if r.kind == v1alpha1.KindNode {
			nodes = append(nodes, d)
		} else {
			used[r] = d
		}
	}
	h.readNodes(nodes, used, unused)
	h.last = map[ref]Declared{}
	for r, d := range used {
		if slices.Contains(keptKinds, r.kind) {
			h.last[r] = d
		}
	}
	return used, unused
}

func (h *reference) readNodes(nodes []Declared, used map[ref]Declared, unused map[string]int) {
	newcomer := func(d Declared) int {
		if before, ok := h.last[refOf(d.Object)]; ok &&
			sameClaims(before.Object.(*v1alpha1.Node), d.Object.(*v1alpha1.Node)) {
			return 0
		}
		return 1
	}
	slices.SortFunc(nodes, func(a, b Declared) int {
		return cmp.Or(cmp.Compare(newcomer(a), newcomer(b)),
			cmp.Compare(a.Object.Meta().Name, b.Object.Meta().Name))
	})
	collides := func(d Declared) bool {
		for r, other := range used {
			if r.kind != v1alpha1.KindNode {
				continue
			}
			for _, c := range claimsOf(d.Object.(*v1alpha1.Node)) {
				for _, o := range claimsOf(other.Object.(*v1alpha1.Node)) {
					if c.prefix.Overlaps(o.prefix) {
						return true
					}
				}
			}
		}
		return false
	}
	for _, d := range nodes {
		r := refOf(d.Object)
		if collides(d) {
			unused[text(d.Object)]++
			before, ok := h.last[r]
			if !ok || collides(before) {
				continue
			}
			d = before
		}
		used[r] = d
	}
}

func text(o v1alpha1.Object) string { return fmt.Sprintf("%s %+v", refOf(o).kind, o) }

// TestDeltas: random edits, told one by one, lead to what a whole reading finds: the same objects
// in use and not, and errors in the same files, for a follower that was there all the time as for
// one that comes late.
func TestDeltas(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		var h History
		whole, files := &reference{}, map[string]*Source{}
		follower, followed := h.Follow().Keep(), NewSnapshot()
		for step := range 150 {
			changed := map[string]*Source{}
			for range 1 + r.IntN(2) {
				file, s := randomEdit(r, files)
				if changed[file] = s; s == nil {
					delete(files, file)
				} else {
					files[file] = s
				}
			}
			h.Update(changed)
			used, unused := whole.read(files)
			if r.IntN(3) > 0 {
				continue // several steps are told as one
			}
			followed.Apply(follower.Take())
			where := fmt.Sprintf("seed %d, step %d", seed, step)
			compareWith(t, where, followed, used, unused)
			if now := h.Snapshot(); !reflect.DeepEqual(now, followed) {
				t.Fatalf("%s: a late follower has\n%+v\nand the early one\n%+v", where, now,
					followed)
			}
			if r.IntN(4) == 0 { // and all that was told again, as after a lost event, changes nothing
				h.Update(maps.Clone(files))
				again := h.Snapshot()
				compareWith(t, where+", again", again, used, unused)
				if got, want := places(followed.Errors), places(again.Errors); !slices.Equal(got,
					want) {
					t.Errorf("%s: errors\n%v\nwant\n%v", where, got, want)
				}
			}
			if t.Failed() {
				return
			}
		}
	}
}

// places are errors without which claims of a newcomer collide with whose: it is a newcomer only
// once.
func places(errs []ObjectError) []string {
	var out []string
	for _, e := range errs {
		if strings.HasPrefix(e.Field, "spec.podCIDRs") {
			e = ObjectError{File: e.File, Msg: "collides"}
		}
		out = append(out, e.Error())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// randomEdit is a file of few and what is in it now: objects that double and collide with others,
// mistakes, nothing; or a directory that cannot be read.
func randomEdit(r *rand.Rand, files map[string]*Source) (string, *Source) {
	file := fmt.Sprintf("/o/%c/%d.yaml", 'a'+rune(r.IntN(2)), r.IntN(5))
	switch r.IntN(12) {
	case 0:
		return file, nil
	case 1:
		return file, &Source{Empty: true}
	case 2:
		return file, &Source{Errors: []ObjectError{{File: file, Msg: "is broken"}}}
	case 3:
		dir := []string{"/o", "/o/a", "/o/b"}[r.IntN(3)]
		if files[dir] != nil {
			return dir, nil
		}
		return dir, &Source{Errors: []ObjectError{{File: dir, Msg: "cannot be read"}},
			Directory: true}
	case 4: // another's, as it is: a rename that is half done, or a copy
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if s := files[name]; len(s.Objects) > 0 {
				objects := slices.Clone(s.Objects)
				for i := range objects {
					objects[i].File = file
				}
				return file, &Source{Objects: objects}
			}
		}
	}
	s := &Source{}
	for line := range 1 + r.IntN(3) {
		s.Objects = append(s.Objects, Declared{Object: randomObject(r), File: file, Line: line + 1})
	}
	if r.IntN(8) == 0 {
		s.Errors = []ObjectError{{File: file, Line: 9, Msg: "is odd"}}
	}
	return file, s
}

func randomObject(r *rand.Rand) v1alpha1.Object {
	meta := v1alpha1.ObjectMeta{Name: fmt.Sprint("n", r.IntN(6)),
		Labels: map[string]string{"v": fmt.Sprint(r.IntN(2))}}
	var o v1alpha1.Object
	switch r.IntN(5) {
	case 0:
		o = &v1alpha1.Pod{Metadata: meta}
	case 1:
		o = &v1alpha1.Endpoint{Metadata: meta}
	case 2:
		o = &v1alpha1.EncryptionPolicy{Metadata: meta}
	default:
		n := &v1alpha1.Node{Metadata: meta}
		for range 1 + r.IntN(2) {
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, randomPrefix(r))
		}
		o = n
	}
	o.SetDefaults()
	return o
}

func compareWith(t *testing.T, where string, s *Snapshot, used map[ref]Declared,
	unused map[string]int) {
	t.Helper()
	got := map[ref]v1alpha1.Object{}
	for _, kind := range []any{s.Nodes, s.Pods, s.Endpoints, s.EncryptionPolicies} {
		for it := reflect.ValueOf(kind).MapRange(); it.Next(); {
			o := it.Value().Interface().(v1alpha1.Object)
			got[refOf(o)] = o
		}
	}
	want := map[ref]v1alpha1.Object{}
	for r, d := range used {
		want[r] = d.Object
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: in use\n%v\nwant\n%v", where, slices.SortedFunc(maps.Keys(got), compareRefs),
			slices.SortedFunc(maps.Keys(want), compareRefs))
	}
	have := map[string]int{}
	for _, o := range s.Unused {
		have[text(o)]++
	}
	if !maps.Equal(have, unused) {
		t.Errorf("%s: unused %v, want %v", where, have, unused)
	}
}
