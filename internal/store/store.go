// Package store is where an agent finds the objects that others declared and
// publishes its own endpoints. Package dir implements it on a directory, package etcd on
// etcd, package kube on Kubernetes' API.
//
// # Watching
//
// Store.Watch hands over deltas, whatever is behind it:
//
//   - Order. Deltas come one at a time. Each is one step: whoever shows objects to others shows
//     all of a delta or nothing of it. The changes of one delta are about different objects and
//     have no order; of one object, a later delta holds.
//   - First listing. A watch begins with every object there is, in one delta or several; the last
//     of these is marked Listed. Until then it is not known what is missing. From then on, what
//     the listing did not have is not there.
//   - Resynchronisation. A watch that ends with an error has told nothing more: what was known
//     stays in use until the next watch is Listed, and then goes if that had none of it.
//   - Changes that follow each other may be told as one, and an object may be told again as it
//     was. A change is never left out.
//   - Mistakes. A broken object, or one that is declared in several places and differs, is no
//     change of it: its last good version stays, and so does a node in use that another comes to
//     collide with (see History). Only an object that is gone without any mistake is a change
//     to nil. Epochs and policies have no past: a broken one is gone.
//   - Errors are replaced file by file. A store that is away altogether says so in an error, and
//     all objects stay.
package store

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config/strictyaml"
	"weft.dev/weft/internal/policy"
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

// Change is what one object is now.
type Change struct {
	Kind, Key string
	// Object is the version in use, nil for none. It may be shared: read only.
	Object v1alpha1.Object
	// Unused are the versions of it that are good on their own and not used: see Snapshot.
	Unused []v1alpha1.Object
}

// Delta is one step from what was delivered before: the objects that have changed, and the errors.
type Delta struct {
	Changes []Change
	// Errors are the files with other errors than before, each with all that it has now.
	Errors map[string][]ObjectError
	// Listed says that the first listing is complete with this delta.
	Listed bool
}

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
	// NetworkPolicies and Namespaces are Kubernetes' own. A policy with mistakes is among them: it
	// denies.
	NetworkPolicies              map[string]*policy.Policy
	ClusterNetworkPolicies       map[string]*policy.Policy
	AdminNetworkPolicies         map[string]*policy.Policy
	BaselineAdminNetworkPolicies map[string]*policy.Policy
	// AuthorizationPolicies and PeerAuthentications are Istio's, likewise.
	AuthorizationPolicies map[string]*policy.Policy
	PeerAuthentications   map[string]*policy.Policy
	Namespaces            map[string]*v1alpha1.Namespace
	// Unused are objects that are good on their own and not used: nodes that collide with another,
	// and all versions of an object that is declared several times and differs. What they claim is
	// nobody else's for that.
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

		NetworkPolicies:              map[string]*policy.Policy{},
		ClusterNetworkPolicies:       map[string]*policy.Policy{},
		AdminNetworkPolicies:         map[string]*policy.Policy{},
		BaselineAdminNetworkPolicies: map[string]*policy.Policy{},
		AuthorizationPolicies:        map[string]*policy.Policy{},
		PeerAuthentications:          map[string]*policy.Policy{},
		Namespaces:                   map[string]*v1alpha1.Namespace{},
	}
}

// Apply takes a snapshot one step further, in its own maps. Unused and Errors are other slices
// afterwards: who holds the old ones keeps what was.
func (s *Snapshot) Apply(d Delta) {
	stale := make(map[ref]bool, len(d.Changes))
	var unused []v1alpha1.Object
	for _, c := range d.Changes {
		s.room(c.Kind).set(c.Key, c.Object)
		stale[ref{c.Kind, c.Key}] = true
		unused = append(unused, c.Unused...)
	}
	isStale := func(o v1alpha1.Object) bool { return stale[refOf(o)] }
	if len(unused) > 0 || slices.ContainsFunc(s.Unused, isStale) {
		s.Unused = slices.Concat(slices.DeleteFunc(slices.Clone(s.Unused), isStale), unused)
		slices.SortStableFunc(s.Unused,
			func(a, b v1alpha1.Object) int { return compareRefs(refOf(a), refOf(b)) })
	}
	if len(d.Errors) > 0 {
		rest := slices.DeleteFunc(slices.Clone(s.Errors), func(e ObjectError) bool {
			_, again := d.Errors[e.File]
			return again
		})
		s.Errors = slices.Concat(append(slices.Collect(maps.Values(d.Errors)), rest)...)
		sortErrors(s.Errors)
	}
}

// With is another snapshot, one step further: s stays as it is for those who read it. The two share
// the maps of kinds that the step is not about.
func (s *Snapshot) With(d Delta) *Snapshot {
	next := *s
	cloned := map[string]bool{}
	for _, c := range d.Changes {
		if !cloned[c.Kind] {
			next.room(c.Kind).clone()
			cloned[c.Kind] = true
		}
	}
	next.Apply(d)
	return &next
}

// Object is the one with this kind and key, nil for none.
func (s *Snapshot) Object(kind, key string) v1alpha1.Object { return s.room(kind).get(key) }

// Objects are all of a kind, by key.
func (s *Snapshot) Objects(kind string) []v1alpha1.Object { return s.room(kind).all() }

// About says whether an object of one of these kinds has changed.
func (d Delta) About(kinds ...string) bool {
	return slices.ContainsFunc(d.Changes,
		func(c Change) bool { return slices.Contains(kinds, c.Kind) })
}

// Kinds are those of all objects that a store has.
func Kinds() []string { return append(v1alpha1.Kinds(), policy.Kinds()...) }

// room is where a snapshot keeps the objects of a kind.
type room interface {
	// set enters an object under its key, or removes what is there.
	set(key string, o v1alpha1.Object)
	// get is the object under a key, nil for none.
	get(key string) v1alpha1.Object
	// all are the objects in the order of their keys.
	all() []v1alpha1.Object
	// clone makes the map one that no other snapshot shares.
	clone()
}

func (s *Snapshot) room(kind string) room {
	switch kind {
	case v1alpha1.KindNode:
		return roomOf[*v1alpha1.Node]{&s.Nodes}
	case v1alpha1.KindPod:
		return roomOf[*v1alpha1.Pod]{&s.Pods}
	case v1alpha1.KindEndpoint:
		return roomOf[*v1alpha1.Endpoint]{&s.Endpoints}
	case v1alpha1.KindEpoch:
		return roomOf[*v1alpha1.Epoch]{&s.Epochs}
	case v1alpha1.KindIdentity:
		return roomOf[*v1alpha1.Identity]{&s.Identities}
	case v1alpha1.KindEncryptionPolicy:
		return roomOf[*v1alpha1.EncryptionPolicy]{&s.EncryptionPolicies}
	case policy.KindNetworkPolicy:
		return roomOf[*policy.Policy]{&s.NetworkPolicies}
	case policy.KindClusterNetworkPolicy:
		return roomOf[*policy.Policy]{&s.ClusterNetworkPolicies}
	case policy.KindAdminNetworkPolicy:
		return roomOf[*policy.Policy]{&s.AdminNetworkPolicies}
	case policy.KindBaselineAdminNetworkPolicy:
		return roomOf[*policy.Policy]{&s.BaselineAdminNetworkPolicies}
	case policy.KindAuthorizationPolicy:
		return roomOf[*policy.Policy]{&s.AuthorizationPolicies}
	case policy.KindPeerAuthentication:
		return roomOf[*policy.Policy]{&s.PeerAuthentications}
	case v1alpha1.KindNamespace:
		return roomOf[*v1alpha1.Namespace]{&s.Namespaces}
	}
	panic(fmt.Sprintf("a snapshot has no room for a %s", kind))
}

type roomOf[T v1alpha1.Object] struct{ in *map[string]T }

func (r roomOf[T]) set(key string, o v1alpha1.Object) {
	if o == nil {
		delete(*r.in, key)
		return
	}
	(*r.in)[key] = o.(T)
}

func (r roomOf[T]) get(key string) v1alpha1.Object {
	if o, ok := (*r.in)[key]; ok {
		return o
	}
	return nil
}

func (r roomOf[T]) all() []v1alpha1.Object {
	out := []v1alpha1.Object{}
	for _, key := range slices.Sorted(maps.Keys(*r.in)) {
		out = append(out, (*r.in)[key])
	}
	return out
}

func (r roomOf[T]) clone() { *r.in = maps.Clone(*r.in) }

// Store is where objects live.
type Store interface {
	// Snapshot reads every object now. The error is for a store that cannot be
	// read at all; single bad objects are in Snapshot.Errors.
	Snapshot() (*Snapshot, error)
	// Watch calls changed with the first listing and with each change after it, and blocks until
	// ctx ends or it fails. The package's comment says what a watcher can rely on.
	Watch(ctx context.Context, changed func(Delta)) error
	// PutEndpoint publishes ep, in place of an earlier one with the same key.
	PutEndpoint(ep *v1alpha1.Endpoint) error
	// DeleteEndpoint withdraws the endpoint with this key; none is no error.
	DeleteEndpoint(key string) error
}
