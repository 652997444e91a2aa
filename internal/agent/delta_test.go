package agent

import (
	"reflect"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// deltaOf is what a store tells of a step between two snapshots.
func deltaOf(from, to *store.Snapshot) store.Delta {
	d := store.Delta{Errors: map[string][]store.ObjectError{}}
	d.Changes = append(d.Changes, changesIn(v1alpha1.KindNode, from.Nodes, to.Nodes)...)
	d.Changes = append(d.Changes, changesIn(v1alpha1.KindPod, from.Pods, to.Pods)...)
	d.Changes = append(d.Changes, changesIn(v1alpha1.KindEndpoint, from.Endpoints, to.Endpoints)...)
	d.Changes = append(d.Changes, changesIn(v1alpha1.KindEpoch, from.Epochs, to.Epochs)...)
	d.Changes = append(d.Changes,
		changesIn(v1alpha1.KindIdentity, from.Identities, to.Identities)...)
	d.Changes = append(d.Changes,
		changesIn(v1alpha1.KindEncryptionPolicy, from.EncryptionPolicies, to.EncryptionPolicies)...)
	d.Changes = append(d.Changes,
		changesIn(v1alpha1.KindNamespace, from.Namespaces, to.Namespaces)...)
	for _, e := range from.Errors {
		d.Errors[e.File] = nil
	}
	for _, e := range to.Errors {
		d.Errors[e.File] = append(d.Errors[e.File], e)
	}
	return d
}

func changesIn[T v1alpha1.Object](kind string, from, to map[string]T) []store.Change {
	var out []store.Change
	for key, o := range to {
		if before, there := from[key]; !there || !reflect.DeepEqual(before, o) {
			out = append(out, store.Change{Kind: kind, Key: key, Object: o})
		}
	}
	for key := range from {
		if _, there := to[key]; !there {
			out = append(out, store.Change{Kind: kind, Key: key})
		}
	}
	return out
}
