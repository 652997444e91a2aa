package policy

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// KindNetworkPolicy is the kind that is read, of networking.k8s.io/v1.
const KindNetworkPolicy = "NetworkPolicy"

// rule is one rule of a policy in one direction. Without peers it is for all, without ports for
// every protocol and port.
type rule struct {
	at      Rule
	peers   []peer
	ports   []port
	value   Value // its rule has no number yet
	anyPeer bool
	action  action
}

// peer is pods by selectors, or addresses.
type peer struct {
	// namespaces is nil for the policy's own.
	namespaces labels.Selector
	own        string
	pods       labels.Selector
	// block is nil for pods.
	block *block
}

// port is a range of numbers, or a name.
type port struct {
	protocol uint8
	from, to uint16
	name     string
}

// Read checks a policy that something else has decoded, such as Kubernetes' client. What is
// wrong with it is in the policy's Problems.
func Read(o *networkingv1.NetworkPolicy) *Policy {
	return read(o, source{})
}

func read(o *networkingv1.NetworkPolicy, from source) *Policy {
	r := newReader(KindNetworkPolicy, o.ObjectMeta, &o.Spec, from)
	p := r.policy
	p.subject = r.selector("spec.podSelector", &o.Spec.PodSelector)
	r.types(&o.Spec)
	for i, in := range o.Spec.Ingress {
		r.rule(Ingress, fmt.Sprintf("spec.ingress[%d]", i), "from", in.From, in.Ports)
	}
	for i, out := range o.Spec.Egress {
		r.rule(Egress, fmt.Sprintf("spec.egress[%d]", i), "to", out.To, out.Ports)
	}
	if p.Broken() {
		r.close()
	}
	p.content = contentOf(p)
	return p
}

// types says which directions a policy is about, as its field or else its rules do.
func (r *reader) types(spec *networkingv1.NetworkPolicySpec) {
	p := r.policy
	if len(spec.PolicyTypes) == 0 {
		p.applies = [2]bool{Ingress: true, Egress: len(spec.Egress) > 0}
		return
	}
	for i, t := range spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			p.applies[Ingress] = true
		case networkingv1.PolicyTypeEgress:
			p.applies[Egress] = true
		default:
			r.fail(fmt.Sprintf("spec.policyTypes[%d]", i),
				"%q is no type of policy: want Ingress or Egress", t)
			return
		}
	}
	if len(spec.Ingress) > 0 && !p.applies[Ingress] {
		r.warn("spec.ingress", "these rules are not in force: policyTypes does not have Ingress")
	}
	if len(spec.Egress) > 0 && !p.applies[Egress] {
		r.warn("spec.egress", "these rules are not in force: policyTypes does not have Egress")
	}
}

func (r *reader) rule(
	d Direction, field, name string, peers []networkingv1.NetworkPolicyPeer,
	ports []networkingv1.NetworkPolicyPort,
) {
	out := rule{
		at: Rule{Kind: KindNetworkPolicy, Name: r.policy.Key(), Field: field, File: r.file,
			Line: r.lineOf(field)},
		value:   Value{Verdict: Allow, Precedence: precedencePolicy},
		anyPeer: len(peers) == 0,
	}
	for i, p := range peers {
		if read, ok := r.peer(fmt.Sprintf("%s.%s[%d]", field, name, i), p); ok {
			out.peers = append(out.peers, read)
		}
	}
	for i, p := range ports {
		if read, ok := r.port(fmt.Sprintf("%s.ports[%d]", field, i), p); ok {
			out.ports = append(out.ports, read)
		}
	}
	r.policy.rules[d] = append(r.policy.rules[d], out)
}

func (r *reader) peer(field string, p networkingv1.NetworkPolicyPeer) (peer, bool) {
	selects := p.PodSelector != nil || p.NamespaceSelector != nil
	switch {
	case p.IPBlock != nil && selects:
		r.fail(field, "has an ipBlock and selectors: make it two entries")
		return peer{}, false
	case p.IPBlock != nil:
		b := r.block(field+".ipBlock", p.IPBlock)
		return peer{block: b}, b != nil
	case !selects:
		r.fail(field,
			"is empty: give podSelector, namespaceSelector or ipBlock, or take the list away for all peers")
		return peer{}, false
	}
	out := peer{own: r.policy.Namespace, pods: labels.Everything()}
	if p.NamespaceSelector != nil {
		out.namespaces = r.selector(field+".namespaceSelector", p.NamespaceSelector)
	}
	if p.PodSelector != nil {
		out.pods = r.selector(field+".podSelector", p.PodSelector)
	}
	return out, true
}

// selector reads a selector, and names each of its parts that is wrong. It then selects nothing.
func (r *reader) selector(field string, s *metav1.LabelSelector) labels.Selector {
	before := len(r.policy.Problems)
	out := r.requirements(field, s)
	if len(r.policy.Problems) > before || out == nil {
		return labels.Nothing()
	}
	return out
}

// close leaves of a policy with errors what it isolates.
func (r *reader) close() {
	p := r.policy
	p.rules = [2][]rule{}
	for _, problem := range p.errors() {
		field, inSpec := strings.CutPrefix(problem.Field, "spec.")
		name, _, _ := strings.Cut(field, ".")
		name, _, _ = strings.Cut(name, "[")
		// Which part of the policy an unknown key was meant to be nobody knows.
		named := inSpec && slices.Contains([]string{"podSelector", "ingress", "egress"}, name)
		if !named && !strings.HasPrefix(problem.Field, "metadata.") {
			p.applies = [2]bool{true, true}
		}
		if name == "podSelector" && inSpec || !inSpec &&
			!strings.HasPrefix(problem.Field, "metadata.") {
			p.subject = labels.Everything()
		}
	}
}

// protocols are those that a policy can name.
var protocols = map[corev1.Protocol]uint8{corev1.ProtocolTCP: TCP, corev1.ProtocolUDP: UDP,
	corev1.ProtocolSCTP: SCTP}
