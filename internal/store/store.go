// Package store is where an agent finds the objects that others declared and
// publishes its own endpoints. Package dir implements it on a directory.
package store

import (
	"context"
	"fmt"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config/strictyaml"
)

// ObjectError names what is wrong with one object, and where.
type ObjectError struct {
	// File is the path of the file, or the store's name for the object.
	File string `json:"file"`
	// Line is 1-based; 0 when it is not about a line.
	Line int `json:"line,omitempty"`
	// Field is the dotted path inside the object, such as spec.podCIDRs[1].
	Field string `json:"field,omitempty"`
	// Msg says what is wrong and what to do.
	Msg string `json:"msg"`
}

// Error is "file:line: field: msg", without the parts that are not known.
func (e ObjectError) Error() string { return strictyaml.Error(e).Error() }

// Snapshot is every good object at one moment, by its Key, and what was wrong
// with the others. The objects may be shared with other snapshots: read only.
type Snapshot struct {
	Nodes     map[string]*v1alpha1.Node
	Pods      map[string]*v1alpha1.Pod
	Endpoints map[string]*v1alpha1.Endpoint
	Epochs    map[string]*v1alpha1.Epoch
	// Identities are by their number's text, EncryptionPolicies by their key.
	Identities         map[string]*v1alpha1.Identity
	EncryptionPolicies map[string]*v1alpha1.EncryptionPolicy
	// Unused are objects that are good on their own and not used: nodes that collide with another, and all versions of
	// an object that is declared several times and differs. What they claim is nobody else's for that.
	Unused []v1alpha1.Object
	// Errors is ordered by file and line.
	Errors []ObjectError
}

// NewSnapshot is a snapshot without objects.
func NewSnapshot() *Snapshot {
	return &Snapshot{
		Nodes:     map[string]*v1alpha1.Node{},
		Pods:      map[string]*v1alpha1.Pod{},
		Endpoints: map[string]*v1alpha1.Endpoint{},
		Epochs:    map[string]*v1alpha1.Epoch{},

		Identities:         map[string]*v1alpha1.Identity{},
		EncryptionPolicies: map[string]*v1alpha1.EncryptionPolicy{},
	}
}

// put enters an object under its key.
func (s *Snapshot) put(o v1alpha1.Object) {
	key := o.Meta().Key()
	switch o := o.(type) {
	case *v1alpha1.Node:
		s.Nodes[key] = o
	case *v1alpha1.Pod:
		s.Pods[key] = o
	case *v1alpha1.Endpoint:
		s.Endpoints[key] = o
	case *v1alpha1.Epoch:
		s.Epochs[key] = o
	case *v1alpha1.Identity:
		s.Identities[key] = o
	case *v1alpha1.EncryptionPolicy:
		s.EncryptionPolicies[key] = o
	default:
		panic(fmt.Sprintf("a snapshot has no room for a %T", o))
	}
}

// Store is where objects live.
type Store interface {
	// Snapshot reads every object now. The error is for a store that cannot be
	// read at all; single bad objects are in Snapshot.Errors.
	Snapshot() (*Snapshot, error)
	// Watch calls changed at once and after each (debounced) change, one call at
	// a time, and blocks until ctx ends.
	Watch(ctx context.Context, changed func(*Snapshot)) error
	// PutEndpoint publishes ep, in place of an earlier one with the same key.
	PutEndpoint(ep *v1alpha1.Endpoint) error
	// DeleteEndpoint withdraws the endpoint with this key; none is no error.
	DeleteEndpoint(key string) error
}
