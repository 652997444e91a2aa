package store

import (
	"maps"
	"path/filepath"
	"reflect"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
)

// ref is what an object is known by.
type ref struct{ kind, key string }

func refOf(o v1alpha1.Object) ref { return ref{o.Type().Kind, o.Meta().Key()} }

// keptKinds are those whose last good version stays in use while a mistake makes the object
// unusable. An EncryptionPolicy is not among them: without it more is sealed, not less. Nor is an
// epoch, whose file is its lock.
var keptKinds = append(policy.Kinds(), v1alpha1.KindNode, v1alpha1.KindPod, v1alpha1.KindEndpoint,
	v1alpha1.KindIdentity, v1alpha1.KindNamespace)

// Source is what one file holds, or what is wrong with a directory.
type Source struct {
	Objects []Declared
	Errors  []ObjectError
	// Empty is a file that holds nothing, as one that is being written does: an error if objects
	// in use came from it.
	Empty bool
	// Directory is what is wrong with a directory, which is about all that came from files in it.
	Directory bool
}

// errors are those of the source itself, given how many objects in use came from it.
func (s *Source) errors(file string, inUse int) []ObjectError {
	if s == nil {
		return nil
	}
	if s.Empty && inUse > 0 {
		return append(slices.Clone(s.Errors), ObjectError{File: file,
			Msg: "is empty, as a file that is being written is: remove it if its objects are to go"})
	}
	return s.Errors
}

// History is what one reader of a store reads, and what of it is in use. It lets no mistake undo
// what was in use before:
//
//   - an object that is not declared any more, while its file has errors or cannot be read: its last good version
//     stays in use, and so does that of one that is now declared twice and differs;
//   - of two nodes that collide, the one that was in use with these addresses and ranges stays.
//
// The work of an update is in proportion to the files that changed and the objects in them, with
// the nodes that collide with those. The zero value has read nothing yet. It is not safe for
// concurrent use.
type History struct {
	sources  map[string]*Source // by file
	places   map[ref][]Declared // where each object is declared, in order
	verdicts map[ref]verdict
	// inUse are the objects in use by the file that they came from, those of keptKinds only.
	inUse map[string]map[ref]bool
	// errs are those of objects, by file.
	errs map[string]map[ref][]ObjectError
	// claims are those of all nodes that are declared or in use, whether they collide or not.
	claims claims
	// claimed are these claims by node, to be removed again.
	claimed map[string][]claim
	// seeded are objects that were in use before the reader started, until its first update.
	seeded map[ref]bool
	// first are nodes that were in use before the reader started, by name.
	first     map[string]*v1alpha1.Node
	followers map[*Follower]bool
}

// Seed names nodes that were in use in an earlier life of the reader: another one that collides
// with them comes second.
func (h *History) Seed(nodes []*v1alpha1.Node) {
	h.first = map[string]*v1alpha1.Node{}
	for _, n := range nodes {
		h.first[n.Metadata.Name] = n
	}
}

// SeedPolicies names policies that were in use in an earlier life of the reader, and where each was
// declared: one that is missing there at the first update because of a mistake stays in use.
func (h *History) SeedPolicies(list []*policy.Policy, files []string) {
	for i, p := range list {
		if h.seeded[refOf(p)] { // declared in several ways: nobody knows which is meant
			p = p.Isolating()
		}
		h.SeedObjects([]Declared{{Object: p, File: files[i]}})
	}
}

// SeedObjects names objects of other kinds likewise.
func (h *History) SeedObjects(list []Declared) {
	h.init()
	if h.seeded == nil {
		h.seeded = map[ref]bool{}
	}
	for i := range list {
		r, d := refOf(list[i].Object), &list[i]
		h.verdicts[r] = verdict{used: d}
		h.moveUse(r, nil, d, newPending())
		h.seeded[r] = true
	}
}

// InUse are the objects of some kinds that are in use, with the files that they came from.
func (h *History) InUse(kinds ...string) []Declared {
	var out []Declared
	for _, refs := range h.inUse {
		for r := range refs {
			if slices.Contains(kinds, r.kind) {
				out = append(out, *h.verdicts[r].used)
			}
		}
	}
	slices.SortFunc(out, func(a, b Declared) int {
		return compareRefs(refOf(a.Object), refOf(b.Object))
	})
	return out
}

func (h *History) init() {
	if h.sources != nil {
		return
	}
	h.sources, h.places, h.verdicts = map[string]*Source{}, map[ref][]Declared{}, map[ref]verdict{}
	h.inUse, h.errs = map[string]map[ref]bool{}, map[string]map[ref][]ObjectError{}
	h.claimed, h.followers = map[string][]claim{}, map[*Follower]bool{}
}

// last is the version of an object that is in use, nil for none and for kinds without a past.
func (h *History) last(r ref) *Declared {
	if !slices.Contains(keptKinds, r.kind) {
		return nil
	}
	return h.verdicts[r].used
}

// Places are where an object is declared.
func (h *History) Places(kind,
	key string) []Declared {
	return slices.Clone(h.places[ref{kind, key}])
}

// Assemble takes in the objects and errors that Decode returned for all files together, and is what
// is in use then.
func (h *History) Assemble(objects []Declared, errs []ObjectError) *Snapshot {
	changed := map[string]*Source{}
	for file := range h.sources {
		changed[file] = nil
	}
	at := func(file string) *Source {
		if changed[file] == nil {
			changed[file] = &Source{}
		}
		return changed[file]
	}
	for _, d := range objects {
		at(d.File).Objects = append(at(d.File).Objects, d)
	}
	for _, e := range errs {
		at(e.File).Errors = append(at(e.File).Errors, e)
	}
	h.Update(changed)
	return h.Snapshot()
}

// Snapshot is what is in use.
func (h *History) Snapshot() *Snapshot {
	s := NewSnapshot()
	s.Apply(h.Follow().Take())
	return s
}

// Update takes in what files hold now, nil for one that is gone.
func (h *History) Update(changed map[string]*Source) {
	h.init()
	dirty, told := map[ref]bool{}, newPending()
	maps.Copy(dirty, h.seeded)
	h.seeded = nil
	for file, s := range changed {
		h.touch(file, s, dirty)
		if n := len(h.inUse[file]); !slices.Equal(h.sources[file].errors(file, n),
			s.errors(file, n)) {
			told.files[file] = true
		}
		h.replace(file, s)
	}
	nodes := map[string]bool{}
	for r := range dirty {
		if r.kind == v1alpha1.KindNode {
			nodes[r.key] = true
		} else {
			h.settle(r, h.judge(r), told)
		}
	}
	h.settleNodes(nodes, told)
	for f := range h.followers {
		f.pending.add(told)
	}
}

// touch finds the objects that a change of one file is about: those that it declares, did, or was
// the source of.
func (h *History) touch(file string, now *Source, dirty map[ref]bool) {
	before := h.sources[file]
	for _, s := range []*Source{before, now} {
		if s == nil {
			continue
		}
		for _, d := range s.Objects {
			dirty[refOf(d.Object)] = true
		}
		if s.Directory {
			for from, refs := range h.inUse {
				if dir := filepath.Dir(from); dir == file || filepath.Dir(dir) == file {
					maps.Copy(dirty, refs)
				}
			}
		}
	}
	maps.Copy(dirty, h.inUse[file])
}

// replace enters what a file declares in place of what it did.
func (h *History) replace(file string, now *Source) {
	if before := h.sources[file]; before != nil {
		for r := range refsOf(before.Objects) {
			rest := slices.DeleteFunc(slices.Clone(h.places[r]),
				func(d Declared) bool { return d.File == file })
			setOrDelete(h.places, r, rest)
		}
	}
	if now == nil {
		delete(h.sources, file)
		return
	}
	h.sources[file] = now
	for r, declared := range refsOf(now.Objects) {
		places := append(slices.Clip(h.places[r]), declared...)
		slices.SortStableFunc(places, comparePlaces)
		h.places[r] = places
	}
}

// refsOf are a file's objects by what they are known by: a file may declare one object thousands of
// times.
func refsOf(objects []Declared) map[ref][]Declared {
	out := make(map[ref][]Declared, len(objects))
	for _, d := range objects {
		out[refOf(d.Object)] = append(out[refOf(d.Object)], d)
	}
	return out
}

// settle makes a verdict the one that holds, and notes for the followers what is different.
func (h *History) settle(r ref, v verdict, told *pending) {
	before := h.verdicts[r]
	if v.used == nil && len(v.unused) == 0 && len(v.errs) == 0 {
		delete(h.verdicts, r)
	} else {
		h.verdicts[r] = v
	}
	if !sameObject(before.used, v.used) || !reflect.DeepEqual(before.unused, v.unused) {
		told.refs[r] = true
	}
	if slices.Contains(keptKinds, r.kind) {
		h.moveUse(r, before.used, v.used, told)
	}
	if slices.Equal(before.errs, v.errs) {
		return
	}
	for _, e := range before.errs {
		delete(h.errs[e.File], r)
		setOrDelete(h.errs, e.File, h.errs[e.File])
		told.files[e.File] = true
	}
	for _, e := range v.errs {
		if h.errs[e.File] == nil {
			h.errs[e.File] = map[ref][]ObjectError{}
		}
		h.errs[e.File][r] = append(h.errs[e.File][r], e)
		told.files[e.File] = true
	}
}

// moveUse notes which file an object in use comes from. An empty one is wrong only while any does.
func (h *History) moveUse(r ref, before, now *Declared, told *pending) {
	if before != nil {
		delete(h.inUse[before.File], r)
		setOrDelete(h.inUse, before.File, h.inUse[before.File])
		h.tellEmpty(before.File, told)
	}
	if now != nil {
		if h.inUse[now.File] == nil {
			h.inUse[now.File] = map[ref]bool{}
		}
		h.inUse[now.File][r] = true
		h.tellEmpty(now.File, told)
	}
}

func (h *History) tellEmpty(file string, told *pending) {
	if s := h.sources[file]; s != nil && s.Empty {
		told.files[file] = true
	}
}

func sameObject(a, b *Declared) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Object == b.Object || reflect.DeepEqual(a.Object, b.Object)
}

// setOrDelete enters a slice or a map, unless it is empty.
func setOrDelete[K comparable, V any](m map[K]V, key K, value V) {
	if reflect.ValueOf(value).Len() == 0 {
		delete(m, key)
		return
	}
	m[key] = value
}
