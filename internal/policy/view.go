package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Names are what people call what policies know by number or key.
type Names struct {
	// Identity is a workload identity's name, "" where nobody knows it.
	Identity func(number uint32) string
	// Pod is the name of the pod of an endpoint, by its Key.
	Pod func(key string) string
}

// View is a Result with what it was compiled from, for questions. It does not change any more, and
// is safe for concurrent use.
type View struct {
	Result *Result
	input  Input
	table  *Table
	names  Names
}

// NewView makes the view of what a compiler has made of an input.
func NewView(r *Result, in Input, names Names) *View {
	return &View{Result: r, input: in, table: NewTable(r), names: names}
}

// PodPolicies is a pod and the policies about it, by kind and name. nil: none, which allows all.
type PodPolicies struct {
	Pod     string   `json:"pod"`
	Ingress []string `json:"ingress,omitempty"`
	Egress  []string `json:"egress,omitempty"`
	// HostNetwork pods are their node's: no policy is about them.
	HostNetwork bool `json:"hostNetwork,omitempty"`
}

// Pods are the pods that policies can be about, in the order of their names.
func (v *View) Pods() []PodPolicies {
	var out []PodPolicies
	for key, sets := range v.Result.Endpoints {
		p := PodPolicies{Pod: v.names.Pod(key)}
		if set := v.Result.Sets[sets[Ingress]]; set != nil {
			p.Ingress = set.Policies
		}
		if set := v.Result.Sets[sets[Egress]]; set != nil {
			p.Egress = set.Policies
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b PodPolicies) int { return cmp.Compare(a.Pod, b.Pod) })
	return out
}

// Idle are the policies that are about no pod, by kind and name.
func (v *View) Idle() []string {
	busy, out := map[string]bool{}, map[string]bool{}
	for _, set := range v.Result.Sets {
		for _, name := range set.Policies {
			busy[name] = true
		}
	}
	for _, names := range v.Result.Permissive {
		for _, name := range names {
			busy[name] = true
		}
	}
	for _, p := range v.input.Policies {
		if !busy[p.Object()] {
			out[p.Object()] = true
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// Summary is a policy and what it is about.
type Summary struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// File and Line are where it is declared, where that is known.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	// Directions are those in which it isolates pods: ingress, egress.
	Directions []string `json:"directions"`
	// Denies says that it allows nothing because of a mistake, or because it is declared in several
	// ways.
	Denies bool `json:"denies,omitempty"`
	// Pods are those that it selects.
	Pods     []string  `json:"pods"`
	Rules    []Rule    `json:"rules"`
	Problems []Problem `json:"problems,omitempty"`
}

// Object is kind and name.
func (s Summary) Object() string { return s.Kind + " " + s.Key() }

// Key is NAMESPACE/NAME, or NAME where the kind has no namespaces.
func (s Summary) Key() string {
	if s.Namespace == "" {
		return s.Name
	}
	return s.Namespace + "/" + s.Name
}

// Policies are all policies, in the order of their kinds and names.
func (v *View) Policies() []Summary {
	out := make([]Summary, 0, len(v.input.Policies))
	pods := v.podsOf()
	for _, p := range v.input.Policies {
		s := v.summary(p)
		s.Pods = append(s.Pods, pods[p.Object()]...)
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b Summary) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.File, b.File))
	})
	return out
}

// podsOf are the pods that each policy is about, by kind and name, in the order of their names.
func (v *View) podsOf() map[string][]string {
	out := map[string][]string{}
	for key, sets := range v.Result.Endpoints {
		name := v.names.Pod(key)
		for _, number := range sets {
			if set := v.Result.Sets[number]; set != nil {
				for _, object := range set.Policies {
					out[object] = append(out[object], name)
				}
			}
		}
	}
	for key, objects := range v.Result.Permissive {
		for _, object := range objects {
			out[object] = append(out[object], v.names.Pod(key))
		}
	}
	for object, list := range out {
		slices.Sort(list)
		out[object] = slices.Compact(list)
	}
	return out
}

func (v *View) summary(p *Policy) Summary {
	s := Summary{
		Kind: p.Type().Kind, Namespace: p.Namespace, Name: p.Name, File: p.file, Line: p.line,
		Directions: []string{}, Pods: []string{}, Rules: []Rule{}, Denies: p.IsClosed(),
	}
	for _, problem := range v.Result.Problems {
		if problem.about(p.Object()) && (problem.File == "" || problem.File == p.file) {
			s.Problems = append(s.Problems, problem)
			s.Denies = s.Denies || !problem.Warning && p.enforced()
		}
	}
	for _, d := range [2]Direction{Ingress, Egress} {
		if !p.Applies(d) {
			continue
		}
		s.Directions = append(s.Directions, d.String())
		for i := range p.rules[d] {
			s.Rules = append(s.Rules, p.rules[d][i].at)
		}
	}
	if p.authorization != nil {
		for i := range p.authorization.rules {
			s.Rules = append(s.Rules, p.authorization.rules[i].at)
		}
	}
	if p.peerAuth != nil {
		s.Rules = append(s.Rules, p.peerAuth.rules()...)
	}
	return s
}

// SetView is a compiled set in words.
type SetView struct {
	Number    uint32   `json:"number"`
	Direction string   `json:"direction"`
	Policies  []string `json:"policies"`
	// Pods are those that have it.
	Pods    []string    `json:"pods"`
	Entries []EntryView `json:"entries"`
}

// EntryView is an entry of a set in words.
type EntryView struct {
	// Peer is who the entry is about, in words; Identity or Class is the number in the map, both 0
	// for all.
	Peer     string `json:"peer"`
	Identity uint32 `json:"identity,omitempty"`
	Class    uint32 `json:"class,omitempty"`
	// Ranges are those of a class: the longest one that an address is in says its class.
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	// Ports are such as 80/tcp, 8080-8095/udp, tcp for all ports, or any.
	Ports      string  `json:"ports"`
	Verdict    Verdict `json:"verdict"`
	Precedence uint32  `json:"precedence"`
	Rule       *Rule   `json:"rule,omitempty"`
}

// SetsOf are the compiled sets that a policy is part of, by kind and name.
func (v *View) SetsOf(object string) []SetView {
	out := []SetView{}
	for _, number := range slices.Sorted(maps.Keys(v.Result.Sets)) {
		set := v.Result.Sets[number]
		if !slices.Contains(set.Policies, object) {
			continue
		}
		view := SetView{Number: number, Direction: set.Direction.String(), Policies: set.Policies,
			Pods: []string{}, Entries: []EntryView{}}
		for key, sets := range v.Result.Endpoints {
			if sets[set.Direction] == number {
				view.Pods = append(view.Pods, v.names.Pod(key))
			}
		}
		slices.Sort(view.Pods)
		for _, e := range set.Entries {
			view.Entries = append(view.Entries, v.entry(e))
		}
		out = append(out, view)
	}
	return out
}

func (v *View) entry(e Entry) EntryView {
	out := EntryView{
		Peer: "anybody", Ports: portsText(portPrefix{e.Protocol, e.Port, e.PortBits}),
		Verdict: e.Verdict, Precedence: e.Precedence, Rule: v.rule(e.Rule),
	}
	switch {
	case e.Peer == Unauthenticated && e.Precedence == 0:
		out.Peer = "who is not authenticated: nothing is asked"
	case e.Peer == Unauthenticated:
		out.Peer = "who is not authenticated"
	case e.Peer == Withheld:
		out.Class, out.Peer = e.Peer, "addresses whose class is about to change"
	case e.Peer > ClassBase:
		out.Class, out.Peer = e.Peer, "addresses"
		for _, c := range v.Result.Classes {
			if c.Class == e.Peer {
				out.Ranges = append(out.Ranges, c.Prefix)
			}
		}
	case e.Peer != AnyPeer:
		out.Identity, out.Peer = e.Peer, v.IdentityText(e.Peer)
	}
	return out
}

func (v *View) rule(number uint32) *Rule {
	if rule, known := v.Result.Rules[number]; known {
		return &rule
	}
	return nil
}
