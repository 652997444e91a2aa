package kube

import (
	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// An endpoint whose Node was deleted is not handed on: it leads nowhere, and nobody withdraws it,
// but a pod of its name on another node would not be used beside it. Its own node hands it on all
// the same, as that is the one to withdraw it. A Node that is lost in a restore, or that cannot be
// used, is not deleted.

// isOrphan says, with mu held, whether what a mirror has read is such an endpoint.
func (k *Kube) isOrphan(m *mirror, s *store.Source) bool {
	if m.resource != endpoints || s == nil || len(s.Objects) != 1 {
		return false
	}
	node := s.Objects[0].Object.(*v1alpha1.Endpoint).Spec.NodeName
	all := k.mirrorOf(nodes)
	return node != k.opt.Node && all.version != "" && all.entries[nodes.file("", node)] == nil
}

// sourceOf is what the history gets of an entry, with mu held: nil for an orphan.
func (k *Kube) sourceOf(m *mirror, x *entry) *store.Source {
	if k.isOrphan(m, x.source) {
		return nil
	}
	return x.source
}

// enter tells the history what has changed, with mu held. Once Nodes have come or gone, all
// endpoints are looked at again.
func (k *Kube) enter(changed map[string]*store.Source) {
	if k.nodesChanged {
		k.nodesChanged = false
		m := k.mirrorOf(endpoints)
		for file, x := range m.entries {
			changed[file] = k.sourceOf(m, x)
		}
	}
	k.history.Update(changed)
}
