package store

import (
	"cmp"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
)

// Assemble makes a snapshot of the objects and errors that Decode returned for
// all files together, and refuses what does not fit with the rest:
//
//   - an object declared in several places: not used at all, as there is no telling
//     which one is meant, unless all are the same;
//   - a node whose addresses or podCIDRs collide with those of a node whose name
//     sorts before its own: not used.
//
// A reader that reads more than once uses a History.
func Assemble(objects []Declared, errs []ObjectError) *Snapshot {
	return new(History).Assemble(objects, errs)
}

// verdict is what is made of the declarations of one object.
type verdict struct {
	// used is nil if no version is.
	used   *Declared
	unused []v1alpha1.Object
	errs   []ObjectError
}

func (v *verdict) fail(d Declared, field, format string, args ...any) {
	line := d.Line
	if d.lineOf != nil {
		line = d.lineOf(field)
	}
	v.errs = append(v.errs,
		ObjectError{File: d.File, Line: line, Field: field, Msg: fmt.Sprintf(format, args...)})
}

// judge chooses the version of an object to use, as far as that depends on its own declarations.
func (h *History) judge(r ref) verdict {
	var v verdict
	places := h.places[r]
	switch {
	case len(places) == 0:
		h.keep(r, &v)
	case len(places) == 1:
		v.used = &places[0]
	default:
		h.judgeDoubled(r, places, &v)
	}
	if v.used == nil {
		return v
	}
	if pod, ok := v.used.Object.(*v1alpha1.Pod); ok {
		// A pod whose annotation is not understood is used all the same: without it, the pod
		// could be plain where it asked, in whatever words, not to be.
		if msg := v1alpha1.CheckEncryptAnnotation(pod.Metadata.Annotations); msg != "" {
			v.fail(*v.used, "metadata.annotations["+v1alpha1.EncryptAnnotation+"]", "%s", msg)
		}
		if msg := v1alpha1.CheckDatapathAnnotation(pod.Metadata.Annotations); msg != "" {
			v.fail(*v.used, "metadata.annotations["+v1alpha1.DatapathAnnotation+"]", "%s", msg)
		}
	}
	return v
}

// keep leaves an object in use that a mistake has taken away.
func (h *History) keep(r ref, v *verdict) {
	before := h.last(r)
	if before == nil || !h.bad(before.File) {
		return
	}
	v.used = before
	v.errs = append(v.errs, ObjectError{File: before.File, Msg: r.kind + " " + r.key +
		" cannot be read any more, its last good version stays in use: correct the file, or remove it"})
}

// bad says whether what was declared in a file may be missing by mistake.
func (h *History) bad(file string) bool {
	dir := filepath.Dir(file)
	for _, name := range []string{file, dir, filepath.Dir(dir)} {
		if s := h.sources[name]; s != nil && (s.Empty || len(s.Errors) > 0) {
			return true
		}
	}
	return false
}

// judgeDoubled takes the version that all places have, else the one that was in use before.
func (h *History) judgeDoubled(r ref, places []Declared, v *verdict) {
	differs := func(d Declared) bool { return !sameWords(d.Object, places[0].Object) }
	outcome := "in the same words, so one is used"
	if !slices.ContainsFunc(places[1:], differs) {
		v.used = &places[0]
	} else if v.used = h.last(r); v.used != nil && !isClosed(v.used) {
		outcome = "and differs there, so what was in use before stays in use"
	} else {
		v.used = nil
		outcome = "and differs there, so neither is used"
		for _, d := range places {
			v.unused = append(v.unused, d.Object)
		}
	}
	for n, d := range places {
		other := places[0]
		if n == 0 {
			other = places[1]
		}
		v.fail(d, "metadata.name", "%s %q is also declared at %s:%d, %s: keep one", r.kind, r.key,
			other.File, other.Line, outcome)
	}
}

// isClosed says whether a version only denies what several in other words are about, as a reader
// before this one has found.
func isClosed(d *Declared) bool {
	p, isPolicy := d.Object.(*policy.Policy)
	return isPolicy && p.IsClosed()
}

// sameWords says whether two versions of an object say the same. A policy remembers where it is
// written, which is no part of that.
func sameWords(a, b v1alpha1.Object) bool {
	one, isPolicy := a.(*policy.Policy)
	other, _ := b.(*policy.Policy)
	if isPolicy && other != nil {
		return one.Same(other)
	}
	return reflect.DeepEqual(a, b)
}

func compareRefs(a,
	b ref) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.key, b.key))
}

// comparePlaces is the order in which a directory is read: its own files before those of its
// sub-directories.
func comparePlaces(a, b Declared) int {
	return cmp.Or(cmp.Compare(filepath.Dir(a.File), filepath.Dir(b.File)),
		cmp.Compare(filepath.Base(a.File), filepath.Base(b.File)), cmp.Compare(a.Line, b.Line))
}

func sortErrors(errs []ObjectError) {
	slices.SortStableFunc(errs, func(a, b ObjectError) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Field, b.Field), cmp.Compare(a.Msg, b.Msg))
	})
}
