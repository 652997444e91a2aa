package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Half is what policy says at one end of a packet's way.
type Half struct {
	Verdict Verdict `json:"verdict"`
	// Pod is whose policies were asked, Peer who is at the other end of it.
	Pod  string `json:"pod"`
	Peer string `json:"peer"`
	// Policies are those about the pod in that direction, by kind and name: none allows all.
	Policies []string `json:"policies,omitempty"`
	// Rule is what decided, nil where nothing allows it, and Why says it in words.
	Rule *Rule  `json:"rule,omitempty"`
	Why  string `json:"why"`
	// Remedy is what would have to change to allow it.
	Remedy string `json:"remedy,omitempty"`
	// Direction is the pod's part, Decision the same as the numbers of the View's Result.
	Direction Direction `json:"-"`
	Decision  Decision  `json:"-"`
}

// String is the half as part of a sentence: whose policies say what of whom, and why.
func (h Half) String() string {
	with := "to"
	if h.Direction == Ingress {
		with = "from"
	}
	return fmt.Sprintf("%s of %s %s %s: %s", h.Direction, h.Pod, with, h.Peer, h.Why)
}

// Answer is what policy says of a packet.
type Answer struct {
	Verdict Verdict `json:"verdict"`
	// Egress is nil where the sender is no pod with policies of its own, Ingress likewise.
	Egress  *Half `json:"egress,omitempty"`
	Ingress *Half `json:"ingress,omitempty"`
}

// End is one end of a packet's way.
type End struct {
	Peer
	// Endpoint is the key of the endpoint whose policies are asked, "" for who has none here.
	Endpoint string
}

// Explain says what policy says of the first packet of a conversation, and what would have to
// change where that is denied. The port is 0 for protocols that have none.
func (v *View) Explain(from, to End, protocol uint8, port uint16) Answer {
	a := v.Judge(from, to, protocol, port)
	at := portPrefix{protocol, port, 16}
	if a.Egress != nil && a.Egress.Verdict == Deny {
		a.Egress.Remedy = v.remedy(a.Egress, to.Peer, at)
	}
	if a.Ingress != nil && a.Ingress.Verdict == Deny {
		a.Ingress.Remedy = v.remedy(a.Ingress, from.Peer, at)
	}
	return a
}

// Judge is Explain without remedies, at a cost that does not depend on how many entries there are:
// for every packet that is refused.
func (v *View) Judge(from, to End, protocol uint8, port uint16) Answer {
	a := Answer{Verdict: Allow}
	if from.Endpoint != "" && from.Endpoint == to.Endpoint {
		return a // a pod reaches itself: such packets leave its own stack for nobody's
	}
	a.Egress = v.half(from.Endpoint, Egress, to.Peer, protocol, port)
	a.Ingress = v.half(to.Endpoint, Ingress, from.Peer, protocol, port)
	for _, h := range []*Half{a.Egress, a.Ingress} {
		if h != nil && h.Verdict == Deny {
			a.Verdict = Deny
		}
	}
	return a
}

// half is what the policies of an endpoint say in one direction, nil for who is none here.
func (v *View) half(endpoint string, d Direction, other Peer, protocol uint8, port uint16) *Half {
	if endpoint == "" {
		return nil
	}
	return v.Said(endpoint, d, other, v.table.Decide(endpoint, d, other, protocol, port))
}

// Said puts names to what was decided about a packet of an endpoint, here or by the datapath.
func (v *View) Said(endpoint string, d Direction, other Peer, got Decision) *Half {
	h := &Half{
		Verdict: got.Verdict, Pod: v.names.Pod(endpoint), Peer: v.peerText(other),
		Rule: v.rule(got.Rule), Direction: d, Decision: got,
	}
	set := v.Result.Sets[v.Result.Endpoints[endpoint][d]]
	if set != nil {
		h.Policies = set.Policies
	}
	switch {
	case h.Rule != nil && h.Rule.Kind == KindPeerAuthentication:
		h.Why = fmt.Sprintf("%s %s demands STRICT, and this does not come sealed: %s", h.Rule.Kind,
			h.Rule.Name, h.Rule.place())
	case h.Rule != nil:
		h.Why = h.Rule.String()
	case set != nil:
		h.Why = fmt.Sprintf("isolated by %s: no rule of %s allows it",
			strings.Join(set.Policies, ", "), d)
	default:
		h.Why = fmt.Sprintf("no policy is about %s of %s", d, h.Pod)
	}
	return h
}

// remedy says what would have to change for a set to allow what it does not.
func (v *View) remedy(h *Half, other Peer, at portPrefix) string {
	if h.Rule != nil && h.Rule.Kind == KindPeerAuthentication {
		return "have it come sealed: encryption on for both nodes, and no EncryptionPolicy that names " +
			"either end; or make the mode of this port PERMISSIVE"
	}
	if h.Rule != nil && h.Rule.Kind != "" {
		return "change that rule: what denies goes before what allows"
	}
	set := v.Result.Sets[h.Decision.Set]
	if text := v.mistake(set); text != "" {
		return text
	}
	peers := []uint32{AnyPeer, other.Identity, v.table.Class(other.Address)}
	fits := func(e Entry) bool { return h.Rule == nil || v.isOf(e.Rule, h.Rule.listed()) }
	here := func(e Entry) bool { return fits(e) && slices.Contains(peers, e.Peer) }
	wanted := fmt.Sprintf("%s for %s", portsText(at), h.Peer)
	if rule, ports := v.nearest(set, here); rule != nil {
		return fmt.Sprintf("%s allows this peer %s: add %s there", rule, ports, portsText(at))
	}
	if rule, _ := v.nearest(set,
		func(e Entry) bool {
			return fits(e) && covers(portPrefix{e.Protocol, e.Port, e.PortBits},
				at)
		}); rule != nil {
		return fmt.Sprintf("%s allows %s to others: add %s there", rule, portsText(at), h.Peer)
	}
	adding := set.Policies[0]
	if h.Rule != nil { // that none of a list allows it
		adding = h.Rule.listed()[0]
	}
	return fmt.Sprintf("add to %s a rule of %s that allows %s", v.place(adding), set.Direction,
		wanted)
}

// isOf says whether a rule is one of some objects, by kind and name.
func (v *View) isOf(number uint32, list []string) bool {
	rule := v.rule(number)
	return rule != nil && slices.Contains(list, rule.Kind+" "+rule.Name)
}

// mistake is what is wrong with the policies of a set, the first of it.
func (v *View) mistake(set *Set) string {
	about := append([]string{strings.Join(set.Policies, ", ")}, set.Policies...)
	for _, problem := range v.Result.Problems {
		if !problem.Warning && slices.Contains(about, problem.Object) {
			return "correct what is wrong, since nothing is allowed by it until then: " +
				problem.Error()
		}
	}
	for _, p := range v.input.Policies {
		if p.IsClosed() && slices.Contains(set.Policies, p.Object()) {
			return fmt.Sprintf("%s only denies, as it is declared in several ways or had mistakes when it was last read: "+
				"correct it (`weft status` says where)", v.place(p.Object()))
		}
	}
	return ""
}

// nearest is the first rule with an entry that allows and fits, and the ports that it allows by
// such entries.
func (v *View) nearest(set *Set, fits func(Entry) bool) (rule *Rule, ports string) {
	var texts []string
	var found uint32
	for _, e := range set.Entries {
		r := v.rule(e.Rule)
		if e.Verdict != Allow || r == nil || r.Kind == "" || !fits(e) || found != 0 &&
			e.Rule != found {
			continue
		}
		found, rule = e.Rule, r
		if text := portsText(portPrefix{e.Protocol, e.Port, e.PortBits}); !slices.Contains(texts,
			text) {
			texts = append(texts, text)
		}
	}
	const enough = 5
	if len(texts) > enough {
		texts = append(texts[:enough], "…")
	}
	return rule, strings.Join(texts, ", ")
}

// place is a policy, and where it is declared.
func (v *View) place(object string) string {
	for _, p := range v.input.Policies {
		if p.Object() == object && p.file != "" && p.line > 0 {
			return fmt.Sprintf("%s (%s:%d)", object, p.file, p.line)
		}
	}
	return object
}

// noneAllows is the rule of Weft's own that none of some policies, by kind and name, allows it.
func noneAllows(list []string) Rule {
	return Rule{Field: noneOf + strings.Join(list, ", ") + allowsIt}
}

const noneOf, allowsIt = "no rule of ", " allows it"

// listed are the policies that noneAllows was made for.
func (r Rule) listed() []string {
	return strings.Split(strings.TrimSuffix(strings.TrimPrefix(r.Field, noneOf), allowsIt), ", ")
}

// String is kind, name and field, and where that is written.
func (r Rule) String() string {
	if r.Kind == "" {
		return r.Field
	}
	return fmt.Sprintf("%s %s, %s", r.Kind, r.Name, r.place())
}

// place is the field, and where that is written.
func (r Rule) place() string {
	if r.File == "" {
		return r.Field
	}
	return fmt.Sprintf("%s (%s:%d)", r.Field, r.File, r.Line)
}
