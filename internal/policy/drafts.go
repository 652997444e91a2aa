package policy

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// draft is a set before its classes have numbers.
type draft struct {
	key       string
	number    uint32
	direction Direction
	policies  []*Policy
	// sample is one of the endpoints that have it: of all, the named ports are the same.
	sample *Endpoint
	shares []*share
	// conjunction is for sets with AuthorizationPolicies, which have no shares.
	conjunction *conjunction
	// blocks are the ranges of addresses that its entries are about.
	blocks []*block
	// shared: endpoints of several namespaces have it.
	shared bool
	// refused is why it denies all, nil where it does not.
	refused *Problem
}

// endpoint finds the sets of one endpoint.
func (r *run) endpoint(e *Endpoint) {
	var sets Sets
	for _, d := range directions {
		var mine []*Policy
		for _, p := range r.about(e.Namespace) {
			if p.applies[d] && p.subject.Matches(labels.Set(e.Labels)) {
				mine = append(mine, p)
			}
		}
		for _, p := range r.clusters {
			if p.applies[d] && p.subject.Matches(labels.Set(e.Labels)) &&
				p.cluster.namespaces.Matches(r.index.namespace(e.Namespace)) {
				mine = append(mine, p)
			}
		}
		if len(mine) > 0 {
			sets[d] = r.draft(d, mine, e).number
		}
	}
	r.result.Endpoints[e.Key()] = sets
}

// about are the policies of a namespace, and those of the root namespace that are about all.
func (r *run) about(namespace string) []*Policy {
	root := r.compiler.opts.RootNamespace
	if root == "" || root == namespace {
		return r.active[namespace]
	}
	if known, there := r.everywhere[namespace]; there {
		return known
	}
	out := slices.Clone(r.active[namespace])
	for _, p := range r.active[root] {
		if p.authorization != nil {
			out = append(out, p)
		}
	}
	r.everywhere[namespace] = out
	return out
}

func (r *run) draft(d Direction, policies []*Policy, e *Endpoint) *draft {
	key := r.signature(d, policies, e)
	known, ok := r.drafts[key]
	if !ok {
		known = &draft{
			key:       key,
			number:    number(r.compiler.sets, key, &r.compiler.last.Set),
			direction: d, policies: policies, sample: e,
		}
		r.drafts[key] = known
	}
	known.shared = known.shared || known.sample.Namespace != e.Namespace
	return known
}

// signature is the same for endpoints that can share a set: the policies are, and so are their
// own ports that these name.
func (r *run) signature(d Direction, policies []*Policy, e *Endpoint) string {
	var s strings.Builder
	s.WriteString(d.String())
	for _, p := range policies {
		s.WriteString(p.content)
		if r.mute[p] {
			s.WriteByte('!')
			continue
		}
		if p.authorization != nil {
			s.WriteString(p.ownSignature(e))
		}
		for i := range p.rules[d] {
			if d == Ingress {
				s.WriteString(namedPorts(&p.rules[d][i], e))
			}
		}
	}
	return s.String()
}
