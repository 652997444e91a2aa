package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Unauthenticated is the peer of entries for whoever nothing but an address tells: neither is an
// endpoint of this node, nor has another node sealed what it sends as somebody's. The datapath asks
// for it besides the others, of what begins towards an endpoint.
const Unauthenticated = ClassBase

// precedenceStrict is before all that policies say, and behind a pod's own node.
const precedenceStrict = precedenceNode - 1

// authentication is what PeerAuthentications together ask of what begins towards an endpoint.
type authentication struct {
	// all is the policy whose mode is that of all ports but some, nil for none: PERMISSIVE.
	all   *Policy
	ports map[uint16]mtlsPort
	// policies are those that decide.
	policies []*Policy
}

// everywhere says whether all that begins has to be authenticated, but for some ports.
func (a *authentication) everywhere() bool {
	return a.all != nil && a.all.peerAuth.mode == mtlsStrict
}

// strict says whether anything has to be.
func (a *authentication) strict() bool {
	for _, p := range a.ports {
		if p.mode == mtlsStrict {
			return true
		}
	}
	return a.everywhere()
}

// narrower is the order in which PeerAuthentications are asked: of several about one endpoint those
// with mistakes come first, then those about some pods, about a namespace, about the mesh; and the
// oldest first, or, where nobody says, the one whose name sorts first.
func (r *run) narrower(a, b *Policy) int {
	rank := func(p *Policy) int {
		switch {
		case p.peerAuth.closed:
			return 0
		case p.peerAuth.selects:
			return 1
		case !r.isRoot(p):
			return 2
		}
		return 3
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)),
		a.peerAuth.created.Compare(b.peerAuth.created), cmp.Compare(a.Key(), b.Key()))
}

// isRoot says whether a policy is of the root namespace.
func (r *run) isRoot(p *Policy) bool {
	return p.Namespace == r.compiler.opts.RootNamespace && p.Namespace != ""
}

// ignored says whether a PeerAuthentication is about no pod: in the root namespace Istio ignores
// those that select.
func (r *run) ignored(p *Policy) bool { return p.peerAuth.selects && r.isRoot(p) }

// authentication finds what some PeerAuthentications, those that might be about an endpoint, ask:
// of each scope one counts.
func (r *run) authentication(list []*Policy, set labels.Set) *authentication {
	var about []*Policy
	for _, p := range list {
		if p.peerAuth != nil && !r.ignored(p) && p.subject.Matches(set) {
			about = append(about, p)
		}
	}
	slices.SortStableFunc(about, r.narrower)
	out := &authentication{ports: map[uint16]mtlsPort{}}
	var before *Policy
	for _, p := range about {
		if before != nil && r.sameScope(before, p) {
			continue
		}
		before = p
		if len(p.peerAuth.ports) > 0 {
			maps.Copy(out.ports, p.peerAuth.ports)
			out.policies = append(out.policies, p)
		}
		if p.peerAuth.mode != mtlsUnset {
			out.all = p
			out.policies = append(out.policies, p)
			break
		}
	}
	out.policies = slices.Compact(out.policies)
	return out
}

func (r *run) sameScope(a, b *Policy) bool {
	return a.peerAuth.selects == b.peerAuth.selects && r.isRoot(a) == r.isRoot(b)
}

// outranked are the PeerAuthentications about a whole namespace, or the mesh, that say nothing
// because an older one does, and those that are ignored.
func (r *run) outranked() (out []Problem) {
	for _, namespace := range slices.Sorted(maps.Keys(r.active)) {
		var wide []*Policy
		for _, p := range r.active[namespace] {
			switch {
			case p.peerAuth == nil:
			case r.ignored(p):
				out = append(out, p.warning("spec.selector",
					"is ignored in the root namespace, as Istio does: put it into the namespace of the pods"))
			case !p.peerAuth.selects:
				wide = append(wide, p)
			}
		}
		slices.SortStableFunc(wide, r.narrower)
		for i := range wide[min(len(wide), 1):] {
			out = append(out, wide[i+1].warning("metadata.name", fmt.Sprintf(
				"says nothing, as %s is about the same pods and older, or comes first by name: keep one",
				wide[0].Object())))
		}
	}
	return out
}

func (p *Policy) warning(field, msg string) Problem {
	return Problem{File: p.file, Line: p.line, Object: p.Object(), Field: field, Msg: msg,
		Warning: true}
}

// values are what a set says of who is not authenticated. Where that is let in it says nothing, by
// an entry that any other goes before: of one peer's entries only the longest match counts.
func (r *run) values(a *authentication) []portValue {
	if a == nil {
		return nil
	}
	denies := func(at Rule) Value { return Value{Deny, precedenceStrict, r.rule(at)} }
	var out []portValue
	strict := a.everywhere()
	if strict {
		out = append(out, portValue{portPrefix{}, denies(a.all.peerAuth.at)})
	}
	for _, port := range slices.Sorted(maps.Keys(a.ports)) {
		one := a.ports[port]
		if (one.mode == mtlsStrict) == strict {
			continue
		}
		value := Value{}
		if one.mode == mtlsStrict {
			value = denies(one.at)
		}
		for _, protocol := range withPorts {
			out = append(out, portValue{portPrefix{protocol, port, 16}, value})
		}
	}
	return out
}

// signature is the same for what is asked in the same words.
func (a *authentication) signature() string {
	var s strings.Builder
	if a.all != nil {
		fmt.Fprintf(&s, " %s=%d", a.all.Key(), a.all.peerAuth.mode)
	}
	for _, port := range slices.Sorted(maps.Keys(a.ports)) {
		fmt.Fprintf(&s, " %d=%d", port, a.ports[port].mode)
	}
	return s.String()
}

// anybody is the share of sets that only PeerAuthentications are about: all may begin, but for what
// these deny.
func (r *run) anybody(d *draft) *share {
	text := "no rule of " + strings.Join(objects(d.policies), ", ") + " denies it"
	value := Value{Allow, precedencePolicy, r.rule(Rule{Field: text})}
	key := shareKey{ports: text}
	for _, known := range []map[shareKey]*share{r.shares, r.compiler.shares} {
		if one := known[key]; one != nil {
			r.shares[key] = one
			return one
		}
	}
	one := &share{parts: []part{{peers: []uint32{AnyPeer}, ports: []portPrefix{{}}, value: value}}}
	r.shares[key] = one
	return one
}
