package kube

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// mirror is what the API server had of a resource at one resource version.
type mirror struct {
	*resource
	// asking is held from finding out whether the mirror still is true until a listing is taken
	// over, and while an event is: what a watch enters in between would look like a newer state
	// than the listing's. It is taken before Kube.mu.
	asking sync.Mutex
	// version is "" before the first listing. listed says that there was one, or that the resource
	// is not served and need not be.
	version string
	listed  bool
	// generation is another one each time the API server was found to have gone back.
	generation int
	// restores is Kube.restores when everything was listed last.
	restores int
	entries  map[string]*entry // by file
	// anchor is the entry that was written last: as long as the API server has it as it was at
	// version, its history is the one that the mirror is of.
	anchor string
	// gone is the entry that was deleted last, with the version at which that was known: it is not
	// there any more in the same history. nil for none.
	gone *entry
	// anew has its session begin again; with room for one.
	anew chan struct{}
	// checked is Kube.ended when nothing was last found to speak against the mirror's history.
	checked int
	// cluster is the UID of the namespace kube-system, which tells clusters apart.
	cluster string
}

// entry is one object.
type entry struct {
	namespace, name, version string
	uid                      types.UID
	data                     string // the document it was read from
	source                   *store.Source
	// identity is whom an identity's number was given to first: see identityOf.
	identity string
	// own is the object as it is written again should the API server have lost it.
	own  *object
	lost bool
}

// lookAnew has the sessions of some mirrors begin again, with mu held.
func (k *Kube) lookAnew(which func(*mirror) bool) {
	for _, m := range k.mirrors {
		if !which(m) {
			continue
		}
		select {
		case m.anew <- struct{}{}:
		default: // it will
		}
	}
}

// hasLost says, with mu held, whether there is something to be written again that could not be.
func (m *mirror) hasLost() bool {
	for _, x := range m.entries {
		if x.lost && x.own != nil {
			return true
		}
	}
	return false
}

// newer says whether a resource version is one after another. What is no number is.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order > 0
}

// put enters an object, with mu held. changed gets what that means for the history.
func (k *Kube) put(m *mirror, o *object, changed map[string]*store.Source) {
	file := m.file(o.GetNamespace(), o.GetName())
	known := m.entries[file]
	if known != nil && known.version == o.GetResourceVersion() && known.uid == o.GetUID() &&
		!known.lost {
		return
	}
	now := &entry{namespace: o.GetNamespace(), name: o.GetName(), version: o.GetResourceVersion(),
		uid: o.GetUID()}
	if known != nil {
		now.identity = known.identity
	}
	source, data := m.read(o)
	now.data = string(data)
	m.entries[file] = now
	if m.kind == v1alpha1.KindNamespace && (known == nil || known.lost) {
		k.lookAnew((*mirror).hasLost) // what was lost with the namespace can be written again
	}
	if anchor := m.entries[m.anchor]; anchor == nil || !newer(anchor.version, now.version) {
		m.anchor = file
	}
	if k.writesAgain(m.resource, source) {
		now.own = bare(o)
	}
	if known != nil && !known.lost && data != nil && known.data == now.data {
		now.source = known.source
		return
	}
	now.source = keptNumber(file, source, now)
	changed[file] = k.sourceOf(m, now)
	if m.resource == nodes && known == nil {
		k.nodesChanged = true
	}
}

// keptNumber refuses to let a number be another identity's than the first that it was given to.
func keptNumber(file string, source *store.Source, now *entry) *store.Source {
	given := identityOf(source)
	if given == "" {
		return source
	}
	if now.identity != "" && now.identity != given {
		return wrong(file, fmt.Sprintf("is now the number of %s, and was given to %s: a number is given once, so the first stays in use", given, now.identity))
	}
	now.identity = given
	return source
}

// identityOf is the key (v1alpha1.IdentitySpec.Key) of a source that is an identity, else "".
func identityOf(s *store.Source) string {
	if s == nil || len(s.Objects) != 1 {
		return ""
	}
	if i, ok := s.Objects[0].Object.(*v1alpha1.Identity); ok {
		return i.Spec.Key()
	}
	return ""
}

// remove takes an object away, with mu held. version is one at which the API server has not got it.
func (k *Kube) remove(m *mirror, file, version string, changed map[string]*store.Source) {
	known := m.entries[file]
	if known == nil {
		return
	}
	m.gone = &entry{namespace: known.namespace, name: known.name, uid: known.uid, version: version}
	delete(m.entries, file)
	changed[file] = nil
	if m.resource == nodes {
		k.nodesChanged = true
	}
	if file == m.anchor {
		m.anchor = m.newest()
	}
}

// newest is the entry that was written last, "" for none.
func (m *mirror) newest() string {
	found := ""
	for file, x := range m.entries {
		if !x.lost && (found == "" || newer(x.version, m.entries[found].version)) {
			found = file
		}
	}
	return found
}

// lose marks what the API server has no more, and nobody is known to have deleted: a mistake, so
// that the last good version stays in use.
func (k *Kube) lose(m *mirror, file, why string, changed map[string]*store.Source) {
	known := m.entries[file]
	known.lost, known.source = true, wrong(file, why)
	changed[file] = k.sourceOf(m, known)
}

// writesAgain says whether this node writes an object again, should the API server have lost it:
// its own endpoints, and what must not be given twice.
func (k *Kube) writesAgain(r *resource, s *store.Source) bool {
	if k.opt.Node == "" || len(s.Objects) != 1 {
		return false
	}
	switch o := s.Objects[0].Object.(type) {
	case *v1alpha1.Identity, *v1alpha1.Epoch:
		return true
	case *v1alpha1.Endpoint:
		return o.Spec.NodeName == k.opt.Node
	}
	return false
}

// bare is an object without what the API server gave it.
func bare(o *object) *object {
	out := &object{Object: map[string]any{}}
	for _, part := range []string{"apiVersion", "kind", "spec", "status"} {
		if value, there := o.Object[part]; there {
			out.Object[part] = value
		}
	}
	out.SetName(o.GetName())
	if ns := o.GetNamespace(); ns != "" {
		out.SetNamespace(ns)
	}
	out.SetLabels(o.GetLabels())
	out.SetAnnotations(o.GetAnnotations())
	return out
}
