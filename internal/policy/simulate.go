package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/api/v1alpha1"
)

// LabelFilter says which labels of pods are part of their identities.
type LabelFilter interface {
	Relevant(key string) bool
	Of(labels map[string]string) map[string]string
}

// Simulation is what policies would do to pods, all of which are taken to be local.
type Simulation struct {
	Result *Result
	table  *Table
	input  Input
	// hosts are the pods of host networks, by key.
	hosts map[string]Pod
}

// Names are what a cluster calls its own, for Istio's policies.
type Names struct {
	TrustDomain string
	// RootNamespace is the one whose AuthorizationPolicies are about all namespaces.
	RootNamespace string
}

// Simulate compiles objects as agents would.
func Simulate(o *Objects, filter LabelFilter, names Names) *Simulation {
	s := &Simulation{input: Input{Policies: o.Policies, Namespaces: o.Namespaces}, hosts: map[string]Pod{}}
	numbers := map[string]uint32{}
	for _, p := range o.Pods {
		if p.HostNetwork {
			s.hosts[p.Key()] = p
			continue
		}
		part := filter.Of(p.Labels)
		who := fmt.Sprintf("%s/%s %v", p.Namespace, p.ServiceAccount, part)
		if numbers[who] == 0 {
			numbers[who] = v1alpha1.MinIdentity + uint32(len(numbers))
			s.input.Identities = append(s.input.Identities, Identity{
				Number: numbers[who], TrustDomain: names.TrustDomain, Namespace: p.Namespace, ServiceAccount: p.ServiceAccount, Labels: part,
			})
		}
		e := p.Endpoint
		e.Identity, e.Local = numbers[who], true
		s.input.Endpoints = append(s.input.Endpoints, e)
	}
	s.Result = NewCompiler(Options{
		Relevant: filter.Relevant, RootNamespace: names.RootNamespace, TrustDomain: names.TrustDomain,
	}).Compile(s.input)
	s.table = NewTable(s.Result)
	return s
}

// PodPolicies is a pod and the policies about it, by kind and name. nil: none, which allows all.
type PodPolicies struct {
	Pod     string   `json:"pod"`
	Ingress []string `json:"ingress,omitempty"`
	Egress  []string `json:"egress,omitempty"`
	// HostNetwork pods are their node's: no policy is about them.
	HostNetwork bool `json:"hostNetwork,omitempty"`
}

// Pods are all pods, in the order of their keys.
func (s *Simulation) Pods() []PodPolicies {
	var out []PodPolicies
	for key, sets := range s.Result.Endpoints {
		p := PodPolicies{Pod: key}
		if set := s.Result.Sets[sets[Ingress]]; set != nil {
			p.Ingress = set.Policies
		}
		if set := s.Result.Sets[sets[Egress]]; set != nil {
			p.Egress = set.Policies
		}
		out = append(out, p)
	}
	for key := range s.hosts {
		out = append(out, PodPolicies{Pod: key, HostNetwork: true})
	}
	slices.SortFunc(out, func(a, b PodPolicies) int { return cmp.Compare(a.Pod, b.Pod) })
	return out
}

// Idle are the policies that are about no pod, by kind and name.
func (s *Simulation) Idle() []string {
	busy := map[string]bool{}
	for _, set := range s.Result.Sets {
		for _, name := range set.Policies {
			busy[name] = true
		}
	}
	out := map[string]bool{}
	for _, p := range s.input.Policies {
		if !busy[p.Object()] {
			out[p.Object()] = true
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// Half is what policy says at one end of a packet's way.
type Half struct {
	Verdict Verdict `json:"verdict"`
	// Rule is what decided, and Why says it in words.
	Rule *Rule  `json:"rule,omitempty"`
	Why  string `json:"why"`
}

// Answer is what policy says of a packet.
type Answer struct {
	Verdict Verdict `json:"verdict"`
	// Egress is nil where the sender is no pod with policies of its own, Ingress likewise.
	Egress  *Half `json:"egress,omitempty"`
	Ingress *Half `json:"ingress,omitempty"`
}

// Ask says what policy says of a packet between two ends, each a pod's key or an address of
// somebody outside the cluster. The port is 0 for protocols that have none.
func (s *Simulation) Ask(from, to string, protocol uint8, port uint16) (Answer, error) {
	sender, errFrom := s.end(from, netip.Addr{})
	receiver, errTo := s.end(to, sender.Address)
	if errFrom != nil || errTo != nil {
		return Answer{}, cmp.Or(errFrom, errTo)
	}
	// Of several addresses of a pod the one counts that the other end can talk to.
	sender, _ = s.end(from, receiver.Address)
	a := Answer{Verdict: Allow}
	if from == to {
		return a, nil // a pod reaches itself: such packets leave its own stack for nobody's
	}
	a.Egress = s.half(from, Egress, receiver, protocol, port)
	a.Ingress = s.half(to, Ingress, sender, protocol, port)
	for _, h := range []*Half{a.Egress, a.Ingress} {
		if h != nil && h.Verdict == Deny {
			a.Verdict = Deny
		}
	}
	return a, nil
}

// end is who a name stands for. A pod answers with the address of the other's family, if it has one.
func (s *Simulation) end(name string, other netip.Addr) (Peer, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		at := slices.IndexFunc(s.input.Endpoints, func(e Endpoint) bool { return slices.Contains(e.Addresses, a) })
		if at >= 0 {
			return Peer{}, fmt.Errorf("%s is the address of pod %s: name the pod", a, s.input.Endpoints[at].Key())
		}
		return Peer{v1alpha1.IdentityWorld, a}, nil
	}
	if host, ok := s.hosts[name]; ok {
		// Which node runs the pods is not known here, and a remote one has no more rights than this.
		return Peer{v1alpha1.IdentityRemoteHost, fitting(host.Addresses, other)}, nil
	}
	at := slices.IndexFunc(s.input.Endpoints, func(e Endpoint) bool { return e.Key() == name })
	if at < 0 {
		return Peer{}, fmt.Errorf("no file has a pod %s: give NAMESPACE/NAME of a pod in the files, "+
			"or an address outside the cluster", name)
	}
	e := s.input.Endpoints[at]
	return Peer{e.Identity, fitting(e.Addresses, other)}, nil
}

func fitting(own []netip.Addr, other netip.Addr) netip.Addr {
	for _, a := range own {
		if !other.IsValid() || a.Is4() == other.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func (s *Simulation) half(key string, d Direction, other Peer, protocol uint8, port uint16) *Half {
	sets, ok := s.Result.Endpoints[key]
	if !ok {
		return nil
	}
	if sets[d] == 0 {
		return &Half{Verdict: Allow, Why: fmt.Sprintf("no policy is about %s of %s", d, key)}
	}
	got := s.table.Decide(key, d, other, protocol, port)
	h := &Half{Verdict: got.Verdict}
	if rule, known := s.Result.Rules[got.Rule]; known {
		h.Rule, h.Why = &rule, rule.String()
		return h
	}
	h.Why = fmt.Sprintf("no rule of %v allows it", s.Result.Sets[sets[d]].Policies)
	return h
}

// String is kind, name and field, and where that is written.
func (r Rule) String() string {
	if r.Kind == "" {
		return r.Field
	}
	text := fmt.Sprintf("%s %s, %s", r.Kind, r.Name, r.Field)
	if r.File != "" {
		text += fmt.Sprintf(" (%s:%d)", r.File, r.Line)
	}
	return text
}
