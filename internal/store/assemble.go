package store

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"weft.dev/weft/api/v1alpha1"
)

// Assemble makes a snapshot of the objects and errors that Decode returned for
// all files together, and refuses what does not fit with the rest:
//
//   - an object declared in several places: not used at all, as there is no telling
//     which one is meant, unless all are the same;
//   - a node whose addresses or podCIDRs collide with those of a node whose name
//     sorts before its own: not used.
//
// A reader that reads more than once uses History.Assemble.
func Assemble(objects []Declared, errs []ObjectError) *Snapshot {
	return new(History).Assemble(objects, errs)
}

// assembly is a snapshot in the making.
type assembly struct {
	history  *History
	snapshot *Snapshot
	used     []Declared
}

// add fills the snapshot and returns what is used.
func (a *assembly) add(objects []Declared) []Declared {
	s := a.snapshot
	var nodes []Declared
	for _, d := range a.unique(objects) {
		switch o := d.Object.(type) {
		case *v1alpha1.Node:
			nodes = append(nodes, d)
			continue
		case *v1alpha1.Pod:
			// A pod whose annotation is not understood is used all the same: without it, the pod
			// could be plain where it asked, in whatever words, not to be.
			if msg := v1alpha1.CheckEncryptAnnotation(o.Metadata.Annotations); msg != "" {
				s.fail(d, "metadata.annotations["+v1alpha1.EncryptAnnotation+"]", "%s", msg)
			}
			if msg := v1alpha1.CheckDatapathAnnotation(o.Metadata.Annotations); msg != "" {
				s.fail(d, "metadata.annotations["+v1alpha1.DatapathAnnotation+"]", "%s", msg)
			}
		}
		s.put(d.Object)
		a.used = append(a.used, d)
	}
	a.addNodes(nodes)
	sortErrors(s.Errors)
	return a.used
}

func (s *Snapshot) fail(d Declared, field, format string, args ...any) {
	line := d.Line
	if d.lineOf != nil {
		line = d.lineOf(field)
	}
	s.Errors = append(s.Errors, ObjectError{File: d.File, Line: line, Field: field, Msg: fmt.Sprintf(format, args...)})
}

// unique is the objects that are declared once, in their order, and one of each that is declared several times: the one
// that all are the same as, else the one that was in use before.
func (a *assembly) unique(objects []Declared) []Declared {
	places := map[ref][]Declared{}
	order := make([]ref, 0, len(objects))
	for _, d := range objects {
		r := refOf(d.Object)
		if len(places[r]) == 0 {
			order = append(order, r)
		}
		places[r] = append(places[r], d)
	}
	var out []Declared
	for _, r := range order {
		p := places[r]
		same := !slices.ContainsFunc(p[1:], func(d Declared) bool { return !reflect.DeepEqual(d.Object, p[0].Object) })
		outcome := "in the same words, so one is used"
		if same {
			out = append(out, p[0])
		} else if before, ok := a.history.last[r]; ok {
			out = append(out, before)
			outcome = "and differs there, so what was in use before stays in use"
		} else {
			outcome = "and differs there, so neither is used"
			for _, d := range p {
				a.snapshot.Unused = append(a.snapshot.Unused, d.Object)
			}
		}
		a.failDoubled(r, p, outcome)
	}
	return out
}

// failDoubled names every place of an object that has several.
func (a *assembly) failDoubled(r ref, places []Declared, outcome string) {
	if len(places) == 1 {
		return
	}
	for n, d := range places {
		other := places[0]
		if n == 0 {
			other = places[1]
		}
		a.snapshot.fail(d, "metadata.name", "%s %q is also declared at %s:%d, %s: keep one", r.kind, r.key, other.File, other.Line, outcome)
	}
}

func compareRefs(a, b ref) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.key, b.key)) }

func sortErrors(errs []ObjectError) {
	slices.SortStableFunc(errs, func(a, b ObjectError) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Msg, b.Msg))
	})
}
