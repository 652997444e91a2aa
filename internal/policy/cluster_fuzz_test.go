package policy

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	netpol "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// clusterPolicy draws a ClusterNetworkPolicy. Its priority is its name's, as what two of one
// priority do is open.
func (g *generator) clusterPolicy(name string) *netpol.ClusterNetworkPolicy {
	p := &netpol.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Tier, p.Spec.Priority = one(g, netpol.AdminTier, netpol.AdminTier,
		netpol.BaselineTier), int32(name[1]-'0')
	if g.IntN(2) > 0 {
		p.Spec.Subject.Namespaces = g.namespaceSelector()
	} else {
		p.Spec.Subject.Pods = &netpol.NamespacedPod{NamespaceSelector: *g.selector(),
			PodSelector: *g.selector()}
	}
	does := func() netpol.ClusterNetworkPolicyRuleAction {
		return one(g, netpol.ClusterNetworkPolicyRuleActionAccept,
			netpol.ClusterNetworkPolicyRuleActionDeny, netpol.ClusterNetworkPolicyRuleActionPass)
	}
	for range g.IntN(4) {
		in := netpol.ClusterNetworkPolicyIngressRule{Action: does(), Protocols: g.protocols()}
		for range 1 + g.IntN(2) {
			ns, pods := g.clusterPeer()
			in.From = append(in.From,
				netpol.ClusterNetworkPolicyIngressPeer{Namespaces: ns, Pods: pods})
		}
		p.Spec.Ingress = append(p.Spec.Ingress, in)
	}
	for range g.IntN(4) {
		out := netpol.ClusterNetworkPolicyEgressRule{Action: does(), Protocols: g.protocols()}
		for range 1 + g.IntN(2) {
			ns, pods := g.clusterPeer()
			to := netpol.ClusterNetworkPolicyEgressPeer{Namespaces: ns, Pods: pods}
			if g.IntN(2) > 0 {
				to = netpol.ClusterNetworkPolicyEgressPeer{Networks: one(g,
					[]netpol.CIDR{"0.0.0.0/0", "::/0"}, []netpol.CIDR{"10.1.0.0/24", "8.8.8.0/24"},
					[]netpol.CIDR{"fd00:1:1::/64"})}
			}
			out.To = append(out.To, to)
		}
		p.Spec.Egress = append(p.Spec.Egress, out)
	}
	return p
}

func (g *generator) clusterPeer() (*metav1.LabelSelector, *netpol.NamespacedPod) {
	if g.IntN(2) > 0 {
		return g.namespaceSelector(), nil
	}
	return nil, &netpol.NamespacedPod{NamespaceSelector: *g.selector(), PodSelector: *g.selector()}
}

func (g *generator) protocols() (out []netpol.ClusterNetworkPolicyProtocol) {
	for range g.IntN(3) {
		at := one(g, nil, &netpol.Port{Number: one(g, int32(80), 53)},
			&netpol.Port{Range: &netpol.PortRange{Start: 60, End: one(g, int32(80), 9000)}})
		out = append(out,
			one(g,
				netpol.ClusterNetworkPolicyProtocol{TCP: &netpol.ClusterNetworkPolicyProtocolTCP{DestinationPort: at}},
				netpol.ClusterNetworkPolicyProtocol{UDP: &netpol.ClusterNetworkPolicyProtocolUDP{DestinationPort: at}},
				netpol.ClusterNetworkPolicyProtocol{DestinationNamedPort: one(g, "web", "dns")}))
	}
	return out
}

// tiers says what the specification of ClusterNetworkPolicy says, with NetworkPolicies between its
// tiers.
func (w *reference) tiers(list []*netpol.ClusterNetworkPolicy, d Direction, subject *Endpoint,
	other end, protocol uint8, port uint16) bool {
	if does := w.tier(list, netpol.AdminTier, d, subject, other, protocol,
		port); does != netpol.ClusterNetworkPolicyRuleActionPass {
		return does == netpol.ClusterNetworkPolicyRuleActionAccept
	}
	isolates := func(p *networkingv1.NetworkPolicy) bool {
		return p.Namespace == subject.Namespace && about(p, d) &&
			labelled(&p.Spec.PodSelector, subject.Labels)
	}
	if slices.ContainsFunc(w.policies, isolates) {
		return w.allows(d, subject, other, protocol, port)
	}
	return w.tier(list, netpol.BaselineTier, d, subject, other, protocol,
		port) != netpol.ClusterNetworkPolicyRuleActionDeny
}

// tier is what the first rule of a tier says that is about a packet, Pass if none is.
func (w *reference) tier(
	list []*netpol.ClusterNetworkPolicy, tier netpol.Tier, d Direction, subject *Endpoint,
	other end, protocol uint8, port uint16,
) netpol.ClusterNetworkPolicyRuleAction {
	list = slices.Clone(list)
	slices.SortFunc(list,
		func(a,
			b *netpol.ClusterNetworkPolicy) int {
			return int(a.Spec.Priority - b.Spec.Priority)
		})
	for _, p := range list {
		if p.Spec.Tier != tier ||
			!w.isOne(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods, subject) {
			continue
		}
		if d == Ingress {
			for _, r := range p.Spec.Ingress {
				from := func(f netpol.ClusterNetworkPolicyIngressPeer) bool { return w.isOne(f.Namespaces, f.Pods, other.pod) }
				if slices.ContainsFunc(r.From, from) &&
					carries(r.Protocols, subject, protocol, port) {
					return r.Action
				}
			}
			continue
		}
		for _, r := range p.Spec.Egress {
			to := func(f netpol.ClusterNetworkPolicyEgressPeer) bool {
				within := func(c netpol.CIDR) bool { return netip.MustParsePrefix(string(c)).Contains(other.address) }
				return slices.ContainsFunc(f.Networks, within) || f.Networks == nil &&
					w.isOne(f.Namespaces, f.Pods, other.pod)
			}
			if slices.ContainsFunc(r.To, to) && carries(r.Protocols, other.pod, protocol, port) {
				return r.Action
			}
		}
	}
	return netpol.ClusterNetworkPolicyRuleActionPass
}

func (w *reference) isOne(namespaces *metav1.LabelSelector, pods *netpol.NamespacedPod,
	e *Endpoint) bool {
	if e == nil {
		return false
	}
	set := map[string]string{"kubernetes.io/metadata.name": e.Namespace}
	for k, v := range w.namespaces[e.Namespace] {
		set[k] = v
	}
	if pods != nil {
		return labelled(&pods.NamespaceSelector, set) && labelled(&pods.PodSelector, e.Labels)
	}
	return labelled(namespaces, set)
}

func carries(protocols []netpol.ClusterNetworkPolicyProtocol, destination *Endpoint, protocol uint8,
	port uint16) bool {
	at := func(p *netpol.Port) bool {
		return p == nil || p.Number != 0 && p.Number == int32(port) || p.Range != nil &&
			p.Range.Start <= int32(port) && int32(port) <= p.Range.End
	}
	is := func(p netpol.ClusterNetworkPolicyProtocol) bool {
		named := func(own ContainerPort) bool {
			return own.Name == p.DestinationNamedPort && own.Protocol == protocol &&
				own.Number == port
		}
		return p.TCP != nil && protocol == TCP && at(p.TCP.DestinationPort) || p.UDP != nil &&
			protocol == UDP && at(p.UDP.DestinationPort) ||
			destination != nil && slices.ContainsFunc(destination.Ports, named)
	}
	return len(protocols) == 0 || slices.ContainsFunc(protocols, is)
}
