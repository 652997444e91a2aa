package policy

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	older "sigs.k8s.io/network-policy-api/apis/v1alpha1"
	netpol "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// The kinds of Kubernetes' for administrators before ClusterNetworkPolicy, whose two tiers they
// are.
const (
	KindAdminNetworkPolicy         = "AdminNetworkPolicy"
	KindBaselineAdminNetworkPolicy = "BaselineAdminNetworkPolicy"

	versionAdmin = groupCluster + "/v1alpha1"
	// baselineName is the only name that a BaselineAdminNetworkPolicy may have.
	baselineName = "default"
)

var adminActions = map[string]action{
	string(older.AdminNetworkPolicyRuleActionAllow): accept,
	string(older.AdminNetworkPolicyRuleActionDeny):  deny,
	string(older.AdminNetworkPolicyRuleActionPass):  pass,
}

// clusterWide says whether objects of a kind have no namespace.
func clusterWide(kind string) bool {
	return kind == KindClusterNetworkPolicy || kind == KindAdminNetworkPolicy ||
		kind == KindBaselineAdminNetworkPolicy
}

// readAdmin checks an AdminNetworkPolicy: errors are as in ClusterNetworkPolicies.
func readAdmin(meta metav1.ObjectMeta, spec *older.AdminNetworkPolicySpec, from source) *Policy {
	r := newReader(KindAdminNetworkPolicy, meta, spec, from)
	r.policy.cluster = &cluster{priority: spec.Priority}
	r.priority(spec.Priority)
	return r.admin(meta, &spec.Subject, spec.Ingress, spec.Egress, pass)
}

// readBaseline checks a BaselineAdminNetworkPolicy. It is asked after ClusterNetworkPolicies of its
// tier.
func readBaseline(meta metav1.ObjectMeta, spec *older.BaselineAdminNetworkPolicySpec,
	from source) *Policy {
	r := newReader(KindBaselineAdminNetworkPolicy, meta, spec, from)
	r.policy.cluster = &cluster{baseline: true, priority: maxPriority + 1}
	if meta.Name != baselineName {
		r.fail("metadata.name", "is %q: there is one for the cluster, and its name is %s",
			meta.Name, baselineName)
	}
	ingress := make([]older.AdminNetworkPolicyIngressRule, len(spec.Ingress))
	for i, in := range spec.Ingress {
		ingress[i] = older.AdminNetworkPolicyIngressRule{From: in.From, Ports: in.Ports,
			Action: older.AdminNetworkPolicyRuleAction(in.Action)}
	}
	egress := make([]older.AdminNetworkPolicyEgressRule, len(spec.Egress))
	for i, out := range spec.Egress {
		egress[i] = older.AdminNetworkPolicyEgressRule{Ports: out.Ports,
			Action: older.AdminNetworkPolicyRuleAction(out.Action)}
		for _, to := range out.To {
			egress[i].To = append(egress[i].To, older.AdminNetworkPolicyEgressPeer{
				Namespaces: to.Namespaces, Pods: to.Pods, Nodes: to.Nodes, Networks: to.Networks})
		}
	}
	return r.admin(meta, &spec.Subject, ingress, egress, deny)
}

// admin reads what both kinds have. last is the last action that there is.
func (r *reader) admin(meta metav1.ObjectMeta, subject *older.AdminNetworkPolicySubject,
	ingress []older.AdminNetworkPolicyIngressRule, egress []older.AdminNetworkPolicyEgressRule,
	last action) *Policy {
	p := r.policy
	r.clusterMeta(meta)
	about := r.pods("spec.subject", subject.Namespaces, (*netpol.NamespacedPod)(subject.Pods))
	p.cluster.namespaces, p.subject = about.namespaces, about.pods
	for i := range ingress {
		in := &ingress[i]
		field := fmt.Sprintf("spec.ingress[%d]", i)
		rule := r.adminRule(field, string(in.Action), last, in.Ports)
		r.needPeers(field+".from", len(in.From))
		for n, from := range in.From {
			rule.peers = append(rule.peers, r.pods(fmt.Sprintf("%s.from[%d]", field, n),
				from.Namespaces, (*netpol.NamespacedPod)(from.Pods)))
		}
		p.rules[Ingress] = append(p.rules[Ingress], rule)
	}
	for i := range egress {
		out := &egress[i]
		field := fmt.Sprintf("spec.egress[%d]", i)
		rule := r.adminRule(field, string(out.Action), last, out.Ports)
		r.needPeers(field+".to", len(out.To))
		for n := range out.To {
			rule.peers = append(rule.peers, r.destination(fmt.Sprintf("%s.to[%d]", field, n),
				newerPeer(&out.To[n]))...)
		}
		p.rules[Egress] = append(p.rules[Egress], rule)
	}
	return r.clusterDone(len(ingress), len(egress))
}

// newerPeer is a peer in the words of ClusterNetworkPolicies, which are the same.
func newerPeer(to *older.AdminNetworkPolicyEgressPeer) *netpol.ClusterNetworkPolicyEgressPeer {
	out := &netpol.ClusterNetworkPolicyEgressPeer{Namespaces: to.Namespaces,
		Pods: (*netpol.NamespacedPod)(to.Pods), Nodes: to.Nodes}
	for _, network := range to.Networks {
		out.Networks = append(out.Networks, netpol.CIDR(network))
	}
	for _, name := range to.DomainNames {
		out.DomainNames = append(out.DomainNames, netpol.DomainName(name))
	}
	return out
}

// adminRule reads a rule but for its peers.
func (r *reader) adminRule(field, does string, last action,
	ports *[]older.AdminNetworkPolicyPort) rule {
	out, known := r.ruleAt(field), false
	if out.action, known = adminActions[does]; !known || out.action > last {
		want := "Allow or Deny"
		if last == pass {
			want = "Allow, Deny or Pass"
		}
		r.fail(field+".action", "is %q: want %s", does, want)
	}
	if ports == nil {
		return out
	}
	if len(*ports) == 0 {
		r.fail(field+".ports", "is empty: name ports, or take it away for all")
	}
	for i := range *ports {
		out.ports = append(out.ports,
			r.adminPort(fmt.Sprintf("%s.ports[%d]", field, i), &(*ports)[i])...)
	}
	return out
}

// adminPort reads one entry of a rule's ports. A name is one of any protocol.
func (r *reader) adminPort(field string, p *older.AdminNetworkPolicyPort) (out []port) {
	given := 0
	for _, there := range []bool{p.PortNumber != nil, p.NamedPort != nil, p.PortRange != nil} {
		if there {
			given++
		}
	}
	if given != 1 {
		r.fail(field, "has none or several of its kinds: give one of portNumber, portRange and namedPort")
		return nil
	}
	switch {
	case p.NamedPort != nil:
		return anyNamed(*p.NamedPort)
	case p.PortNumber != nil:
		return r.adminRange(field+".portNumber", string(p.PortNumber.Protocol), p.PortNumber.Port,
			p.PortNumber.Port)
	}
	return r.adminRange(field+".portRange", string(p.PortRange.Protocol), p.PortRange.Start,
		p.PortRange.End)
}

func (r *reader) adminRange(field, name string, first, last int32) []port {
	protocol, known := protocols[corev1.Protocol(cmp.Or(name, string(corev1.ProtocolTCP)))]
	if !known {
		r.fail(field+".protocol", "%q is no protocol of a policy: want TCP, UDP or SCTP", name)
		return nil
	}
	from, to, ok := r.between(field, first, last)
	if !ok {
		return nil
	}
	return []port{{protocol: protocol, from: from, to: to}}
}
