package policy

import (
	"maps"
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
	// authentication is what of its packets has to be authenticated, unauthenticated what it says
	// of the others.
	authentication  *authentication
	unauthenticated []portValue
	// unlisted are identities that its set has no entries for: see limitEntries.
	unlisted map[uint32]bool
	// refused is why it denies all, nil where it does not.
	refused *Problem
}

// subject is what the policies that are about an endpoint depend on, and which these are.
type subject struct {
	labels             map[string]string
	namespace          labels.Set
	policies, clusters []*Policy
	mine               [2][]*Policy
	authentication     *authentication
}

// subject finds the policies that are about an endpoint, or takes those of the run before.
func (r *run) subject(e *Endpoint) *subject {
	now := &subject{labels: e.Labels, namespace: r.index.namespace(e.Namespace),
		policies: r.about(e.Namespace), clusters: r.clusters}
	if was := r.compiler.subjects[e.Key()]; was != nil && maps.Equal(was.labels, now.labels) &&
		maps.Equal(was.namespace, now.namespace) && slices.Equal(was.policies, now.policies) &&
		slices.Equal(was.clusters, now.clusters) {
		return was
	}
	for _, d := range directions {
		for _, p := range now.policies {
			if p.peerAuth == nil && p.applies[d] && p.subject.Matches(labels.Set(e.Labels)) {
				now.mine[d] = append(now.mine[d], p)
			}
		}
		for _, p := range now.clusters {
			if p.applies[d] && p.subject.Matches(labels.Set(e.Labels)) &&
				p.cluster.namespaces.Matches(now.namespace) {
				now.mine[d] = append(now.mine[d], p)
			}
		}
	}
	now.authentication = r.authentication(now.policies, labels.Set(e.Labels))
	if now.authentication.strict() {
		now.mine[Ingress] = append(now.mine[Ingress], now.authentication.policies...)
	}
	return now
}

// endpoint finds the sets of one endpoint.
func (r *run) endpoint(e *Endpoint) {
	var sets Sets
	about := r.subject(e)
	r.subjects[e.Key()] = about
	for _, d := range directions {
		if mine := about.mine[d]; len(mine) > 0 {
			sets[d] = r.draft(d, mine, about.authentication, e).number
		}
	}
	if a := about.authentication; !a.strict() && len(a.policies) > 0 {
		r.result.Permissive[e.Key()] = objects(a.policies)
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
		if p.authorization != nil || p.peerAuth != nil {
			out = append(out, p)
		}
	}
	r.everywhere[namespace] = out
	return out
}

func (r *run) draft(d Direction, policies []*Policy, a *authentication, e *Endpoint) *draft {
	key := r.signature(d, policies, e)
	if d == Ingress && a.strict() {
		key += a.signature()
	} else {
		a = nil
	}
	known, ok := r.drafts[key]
	if !ok {
		known = &draft{
			key:       key,
			number:    number(r.compiler.sets, key, &r.compiler.last.Set),
			direction: d, policies: policies, sample: e, authentication: a,
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
