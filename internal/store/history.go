package store

import (
	"net/netip"
	"path/filepath"
	"slices"

	"weft.dev/weft/api/v1alpha1"
)

// ref is what an object is known by.
type ref struct{ kind, key string }

func refOf(o v1alpha1.Object) ref { return ref{o.Type().Kind, o.Meta().Key()} }

// keptKinds are those whose last good version stays in use while a mistake makes the object unusable. A policy is not
// among them: without it more is sealed, not less. Nor is an epoch, whose file is its lock.
var keptKinds = []string{v1alpha1.KindNode, v1alpha1.KindPod, v1alpha1.KindEndpoint, v1alpha1.KindIdentity}

// History is what one reader of a store had in use when it read last. The zero value has read nothing yet. It is not
// safe for concurrent use.
type History struct {
	last  map[ref]Declared
	files map[string]int // how many objects in use came from each file
	// first are nodes that were in use before the reader started, by name.
	first map[string]*v1alpha1.Node
}

// Seed names nodes that were in use in an earlier life of the reader: another one that collides with them comes second.
func (h *History) Seed(nodes []*v1alpha1.Node) {
	h.first = map[string]*v1alpha1.Node{}
	for _, n := range nodes {
		h.first[n.Metadata.Name] = n
	}
}

// Had says whether objects in use came from this file.
func (h *History) Had(file string) bool { return h.files[file] > 0 }

// Assemble makes a snapshot of the objects and errors that Decode returned for all files together, as the function
// Assemble does, and lets no mistake undo what was in use before:
//
//   - an object that is not declared any more, while its file has errors or cannot be read: its last good version
//     stays in use, and so does that of one that is now declared twice and differs;
//   - of two nodes that collide, the one that was in use with these addresses and ranges stays.
func (h *History) Assemble(objects []Declared, errs []ObjectError) *Snapshot {
	kept, problems := h.keep(objects, errs)
	a := assembly{history: h, snapshot: NewSnapshot()}
	a.snapshot.Errors = slices.Concat(errs, problems)
	used := a.add(slices.Concat(objects, kept))
	h.last, h.files = map[ref]Declared{}, map[string]int{}
	for _, d := range used {
		if r := refOf(d.Object); slices.Contains(keptKinds, r.kind) {
			h.last[r] = d
			h.files[d.File]++
		}
	}
	return a.snapshot
}

// keep finds the objects that a mistake has taken away.
func (h *History) keep(objects []Declared, errs []ObjectError) (kept []Declared, problems []ObjectError) {
	declared := make(map[ref]bool, len(objects))
	for _, d := range objects {
		declared[refOf(d.Object)] = true
	}
	bad := map[string]bool{}
	for _, e := range errs {
		bad[e.File] = true
	}
	for r, d := range h.last {
		if declared[r] || !bad[d.File] && !bad[filepath.Dir(d.File)] && !bad[filepath.Dir(filepath.Dir(d.File))] {
			continue
		}
		kept = append(kept, d)
		problems = append(problems, ObjectError{File: d.File, Msg: r.kind + " " + r.key +
			" cannot be read any more, its last good version stays in use: correct the file, or remove it"})
	}
	slices.SortFunc(kept, func(a, b Declared) int { return compareRefs(refOf(a.Object), refOf(b.Object)) })
	return kept, problems
}

// wasNode says whether a node was in use with the same addresses and ranges.
func (h *History) wasNode(n *v1alpha1.Node) bool {
	if d, ok := h.last[refOf(n)]; ok {
		return sameClaims(d.Object.(*v1alpha1.Node), n)
	}
	before := h.first[n.Metadata.Name]
	return before != nil && sameClaims(before, n)
}

// sameClaims says whether two versions of a node have the same addresses and ranges, in whatever order.
func sameClaims(a, b *v1alpha1.Node) bool {
	return slices.Equal(sortedClaims(a), sortedClaims(b))
}

func sortedClaims(n *v1alpha1.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, c := range claimsOf(n) {
		out = append(out, c.prefix)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}
