package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// remembered is a policy that outlives the process that read it.
type remembered struct {
	// Kind is "" for a NetworkPolicy, which was the only kind once.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// File is where it was declared: what is missing there while that file is broken is no less in
	// force.
	File string          `json:"file"`
	Spec json.RawMessage `json:"spec"`
	// Annotations are those that a policy goes by.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Closed policies had mistakes, or were declared in several ways. Which is forgotten, and that
	// they deny is not.
	Closed bool `json:"closed,omitempty"`
	// Wide: a mistake, which Spec may not have kept, made it a policy about all pods that it could
	// be about.
	Wide bool `json:"wide,omitempty"`
	// Created is when a PeerAuthentication was: the oldest counts.
	Created *metav1.Time `json:"created,omitempty"`
}

// Remember writes policies down, for Recall.
func Remember(list []*Policy) ([]byte, error) {
	list = slices.SortedFunc(slices.Values(list), func(a, b *Policy) int {
		return cmp.Or(cmp.Compare(b.Kind, a.Kind), cmp.Compare(a.Key(), b.Key()),
			cmp.Compare(a.file, b.file), cmp.Compare(a.content, b.content))
	})
	out := make([]remembered, 0, len(list))
	for _, p := range list {
		one, err := p.remembered()
		if err != nil {
			return nil, fmt.Errorf("write policies down: %s: %w", p.Object(), err)
		}
		out = append(out, one)
	}
	data, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("write policies down: %w", err)
	}
	return data, nil
}

// Recall reads what Remember wrote, and where each policy was declared.
func Recall(data []byte) (list []*Policy, files []string, err error) {
	var in []remembered
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, nil, fmt.Errorf("policies of a previous run: %w", err)
	}
	for _, r := range in {
		files = append(files, r.File)
		if p := r.recall(); p != nil {
			list = append(list, p)
		}
	}
	return list, files, nil
}

func (p *Policy) remembered() (remembered, error) {
	out := remembered{Kind: p.Kind, Namespace: p.Namespace, Name: p.Name, File: p.file,
		Closed: p.Broken() && p.enforced() || p.closed}
	if p.Kind == KindNetworkPolicy {
		out.Kind = ""
	}
	if dry, there := p.annotations[DryRunAnnotation]; there && p.authorization != nil {
		out.Annotations = map[string]string{DryRunAnnotation: dry}
	}
	if p.peerAuth != nil && !p.peerAuth.created.IsZero() {
		out.Created = &metav1.Time{Time: p.peerAuth.created}
	}
	out.Wide = p.Broken() && p.enforced() && p.subject != nil && p.subject.Empty() &&
		(p.cluster == nil || p.cluster.namespaces.Empty())
	var err error
	out.Spec, err = json.Marshal(p.spec)
	return out, err
}

// recall reads a policy again, nil for one of a kind that is not known. One that cannot be read
// denies.
func (r remembered) recall() *Policy {
	meta, from := metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name,
		Annotations: r.Annotations}, source{file: r.File}
	if r.Created != nil {
		meta.CreationTimestamp = *r.Created
	}
	kind, known := kinds[cmp.Or(r.Kind, KindNetworkPolicy)]
	if !known { // a later build has written it
		return nil
	}
	p, readable := kind.recall(r, meta, from)
	if r.Closed && !p.Broken() || !readable {
		p = p.Isolating()
	}
	if r.Wide {
		wide := *p
		wide.widen()
		wide.content = "wide " + p.content
		p = &wide
	}
	return p
}

// widen makes a policy, a copy, one about all pods that it could be about.
func (p *Policy) widen() {
	p.subject = labels.Everything()
	if p.cluster != nil {
		all := *p.cluster
		all.namespaces = labels.Everything()
		p.cluster = &all
	}
	if p.peerAuth != nil {
		all := *p.peerAuth
		all.selects = false
		p.peerAuth = &all
	}
}

// into decodes a specification, if there is one.
func (r remembered) into(spec any) bool {
	return len(r.Spec) > 0 && string(r.Spec) != "null" && json.Unmarshal(r.Spec, spec) == nil
}

// Isolating is the policy as one that denies all to all pods of its namespace, an
// AuthorizationPolicy what they would let in, a PeerAuthentication what of that is not
// authenticated: nobody knows any more what was wrong with it.
func (p *Policy) Isolating() *Policy {
	closed := p.Closed()
	closed.widen()
	switch {
	case closed.authorization != nil:
		closed.deny()
		return closed
	case closed.peerAuth != nil:
		return closed
	case closed.cluster != nil:
		closed.closeTo()
	}
	closed.applies = [2]bool{true, true}
	return closed
}
