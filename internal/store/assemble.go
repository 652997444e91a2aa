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
func Assemble(objects []Declared, errs []ObjectError) *Snapshot {
	s := NewSnapshot()
	s.Errors = slices.Clone(errs)
	var nodes []Declared
	for _, d := range s.unique(objects) {
		switch o := d.Object.(type) {
		case *v1alpha1.Node:
			nodes = append(nodes, d)
		case *v1alpha1.Pod:
			// A pod whose annotation is not understood is used all the same: without it, the pod
			// could be plain where it asked, in whatever words, not to be.
			if msg := v1alpha1.CheckEncryptAnnotation(o.Metadata.Annotations); msg != "" {
				s.fail(d, "metadata.annotations["+v1alpha1.EncryptAnnotation+"]", "%s", msg)
			}
			s.Pods[o.Metadata.Key()] = o
		case *v1alpha1.Endpoint:
			s.Endpoints[o.Metadata.Key()] = o
		case *v1alpha1.Epoch:
			s.Epochs[o.Metadata.Key()] = o
		case *v1alpha1.Identity:
			s.Identities[o.Metadata.Key()] = o
		case *v1alpha1.EncryptionPolicy:
			s.EncryptionPolicies[o.Metadata.Key()] = o
		}
	}
	s.addNodes(nodes)
	sortErrors(s.Errors)
	return s
}

func (s *Snapshot) fail(d Declared, field, format string, args ...any) {
	line := d.Line
	if d.lineOf != nil {
		line = d.lineOf(field)
	}
	s.Errors = append(s.Errors, ObjectError{File: d.File, Line: line, Field: field, Msg: fmt.Sprintf(format, args...)})
}

// unique is the objects that are declared once, in their order, and one of each
// that is declared several times in the same words.
func (s *Snapshot) unique(objects []Declared) []Declared {
	type id struct{ kind, key string }
	places := map[id][]Declared{}
	order := make([]id, 0, len(objects))
	for _, d := range objects {
		i := id{d.Object.Type().Kind, d.Object.Meta().Key()}
		if len(places[i]) == 0 {
			order = append(order, i)
		}
		places[i] = append(places[i], d)
	}
	var out []Declared
	for _, i := range order {
		p := places[i]
		same := !slices.ContainsFunc(p[1:], func(d Declared) bool { return !reflect.DeepEqual(d.Object, p[0].Object) })
		if same {
			out = append(out, p[0])
		}
		for n := 0; n < len(p) && len(p) > 1; n++ {
			other := p[0]
			if n == 0 {
				other = p[1]
			}
			outcome := "and differs there, so neither is used"
			if same {
				outcome = "in the same words, so one is used"
			}
			s.fail(p[n], "metadata.name", "%s %q is also declared at %s:%d, %s: keep one",
				i.kind, i.key, other.File, other.Line, outcome)
		}
	}
	return out
}

func sortErrors(errs []ObjectError) {
	slices.SortStableFunc(errs, func(a, b ObjectError) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Field, b.Field))
	})
}
