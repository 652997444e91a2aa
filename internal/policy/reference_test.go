package policy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/api/v1alpha1"
)

// reference says what the specification says of a packet, from the objects as they are written and
// pod by pod, with nothing compiled, shared or numbered. It has no code in common with what it
// judges.
type reference struct {
	policies   []*networkingv1.NetworkPolicy
	pods       []Endpoint
	namespaces map[string]map[string]string
	// read are the policies as a compiler takes them: each is read once.
	read map[*networkingv1.NetworkPolicy]*Policy
}

// end is one end of a packet: a pod, or an address and who is known to be there.
type end struct {
	pod      *Endpoint
	address  netip.Addr
	identity uint32
}

func (w *reference) allows(d Direction, subject *Endpoint, other end, protocol uint8,
	port uint16) bool {
	if d == Ingress && other.identity == v1alpha1.IdentityHost {
		return true
	}
	isolated := false
	for _, p := range w.policies {
		if p.Namespace != subject.Namespace || !about(p, d) ||
			!labelled(&p.Spec.PodSelector, subject.Labels) {
			continue
		}
		isolated = true
		if d == Ingress {
			for _, rule := range p.Spec.Ingress {
				if w.from(p, rule.From, other) && through(rule.Ports, subject, protocol, port) {
					return true
				}
			}
			continue
		}
		for _, rule := range p.Spec.Egress {
			if w.from(p, rule.To, other) && through(rule.Ports, other.pod, protocol, port) {
				return true
			}
		}
	}
	return !isolated
}

func about(p *networkingv1.NetworkPolicy, d Direction) bool {
	if len(p.Spec.PolicyTypes) == 0 {
		return d == Ingress || len(p.Spec.Egress) > 0
	}
	want := networkingv1.PolicyTypeEgress
	if d == Ingress {
		want = networkingv1.PolicyTypeIngress
	}
	return slices.Contains(p.Spec.PolicyTypes, want)
}

func (w *reference) from(p *networkingv1.NetworkPolicy, peers []networkingv1.NetworkPolicyPeer,
	other end) bool {
	if len(peers) == 0 {
		return true
	}
	for _, peer := range peers {
		if peer.IPBlock != nil {
			out := func(text string) bool { return netip.MustParsePrefix(text).Contains(other.address) }
			if out(peer.IPBlock.CIDR) && !slices.ContainsFunc(peer.IPBlock.Except, out) {
				return true
			}
			continue
		}
		if other.pod == nil {
			continue
		}
		in := other.pod.Namespace == p.Namespace
		if peer.NamespaceSelector != nil {
			set := map[string]string{"kubernetes.io/metadata.name": other.pod.Namespace}
			for k, v := range w.namespaces[other.pod.Namespace] {
				set[k] = v
			}
			in = labelled(peer.NamespaceSelector, set)
		}
		if in && (peer.PodSelector == nil || labelled(peer.PodSelector, other.pod.Labels)) {
			return true
		}
	}
	return false
}

// through says whether a port is one of a rule's. A name is the destination's.
func through(ports []networkingv1.NetworkPolicyPort, destination *Endpoint, protocol uint8,
	port uint16) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		name := corev1.ProtocolTCP
		if p.Protocol != nil {
			name = *p.Protocol
		}
		if map[corev1.Protocol]uint8{"TCP": 6, "UDP": 17, "SCTP": 132}[name] != protocol {
			continue
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.StrVal != "":
			if destination == nil {
				continue
			}
			for _, own := range destination.Ports {
				if own.Name == p.Port.StrVal && own.Protocol == protocol && own.Number == port {
					return true
				}
			}
		case p.EndPort != nil:
			if int32(port) >= p.Port.IntVal && int32(port) <= *p.EndPort {
				return true
			}
		case int32(port) == p.Port.IntVal:
			return true
		}
	}
	return false
}

func labelled(s *metav1.LabelSelector, set map[string]string) bool {
	for k, v := range s.MatchLabels {
		if have, there := set[k]; !there || have != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		have, there := set[e.Key]
		in := there && slices.Contains(e.Values, have)
		if ok := map[metav1.LabelSelectorOperator]bool{"In": in, "NotIn": !in, "Exists": there,
			"DoesNotExist": !there}[e.Operator]; !ok {
			return false
		}
	}
	return true
}
