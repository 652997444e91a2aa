package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	netpol "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// KindClusterNetworkPolicy is the kind of Kubernetes' for administrators, of
// policy.networking.k8s.io/v1beta1 and of v1alpha2, which is the same.
const KindClusterNetworkPolicy = "ClusterNetworkPolicy"

const (
	groupCluster        = "policy.networking.k8s.io"
	versionCluster      = groupCluster + "/v1beta1"
	versionClusterOlder = groupCluster + "/v1alpha2"
	maxPriority         = 1000
)

// action is what a rule of a ClusterNetworkPolicy does. The zero value accepts, as all rules of
// NetworkPolicies do.
type action uint8

const (
	accept action = iota
	deny
	pass
)

var actions = map[netpol.ClusterNetworkPolicyRuleAction]action{
	netpol.ClusterNetworkPolicyRuleActionAccept: accept,
	netpol.ClusterNetworkPolicyRuleActionDeny:   deny,
	netpol.ClusterNetworkPolicyRuleActionPass:   pass,
}

// cluster is what a ClusterNetworkPolicy, or one of the kinds before it, has besides rules.
type cluster struct {
	// baseline: for what no NetworkPolicy is about, instead of before them.
	baseline bool
	priority int32
	// namespaces are those whose pods it is about.
	namespaces labels.Selector
	// closed: it denies all, as something is wrong with it.
	closed bool
}

// byPriority is the order in which ClusterNetworkPolicies are asked. Of two with one priority,
// which the specification leaves open, the one whose name sorts first comes first.
func byPriority(a, b *Policy) int {
	return cmp.Or(cmp.Compare(a.cluster.priority, b.cluster.priority), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Kind, b.Kind))
}

// readCluster checks a ClusterNetworkPolicy. One with errors denies all to the pods it selects, in
// both directions.
func readCluster(meta metav1.ObjectMeta, spec *netpol.ClusterNetworkPolicySpec,
	from source) *Policy {
	r := newReader(KindClusterNetworkPolicy, meta, spec, from)
	p := r.policy
	p.cluster = &cluster{baseline: spec.Tier == netpol.BaselineTier, priority: spec.Priority}
	r.clusterMeta(meta)
	if spec.Tier != netpol.AdminTier && spec.Tier != netpol.BaselineTier {
		r.fail("spec.tier", "is %q: want Admin or Baseline", spec.Tier)
	}
	r.priority(spec.Priority)
	subject := r.pods("spec.subject", spec.Subject.Namespaces, spec.Subject.Pods)
	p.cluster.namespaces, p.subject = subject.namespaces, subject.pods
	for i := range spec.Ingress {
		in := &spec.Ingress[i]
		field := fmt.Sprintf("spec.ingress[%d]", i)
		out := r.clusterRule(field, in.Action, in.Protocols)
		r.needPeers(field+".from", len(in.From))
		for n, from := range in.From {
			out.peers = append(out.peers,
				r.pods(fmt.Sprintf("%s.from[%d]", field, n), from.Namespaces, from.Pods))
		}
		p.rules[Ingress] = append(p.rules[Ingress], out)
	}
	for i := range spec.Egress {
		out := &spec.Egress[i]
		field := fmt.Sprintf("spec.egress[%d]", i)
		rule := r.clusterRule(field, out.Action, out.Protocols)
		r.needPeers(field+".to", len(out.To))
		for n := range out.To {
			rule.peers = append(rule.peers,
				r.destination(fmt.Sprintf("%s.to[%d]", field, n), &out.To[n])...)
		}
		p.rules[Egress] = append(p.rules[Egress], rule)
	}
	return r.clusterDone(len(spec.Ingress), len(spec.Egress))
}

func (r *reader) clusterMeta(meta metav1.ObjectMeta) {
	if meta.Namespace != "" {
		r.fail("metadata.namespace", "is %q, and the policy is the whole cluster's: take it away",
			meta.Namespace)
	}
}

func (r *reader) priority(is int32) {
	if is < 0 || is > maxPriority {
		r.fail("spec.priority", "is %d: want 0 to %d", is, maxPriority)
	}
}

// clusterDone ends the reading of a policy with so many rules.
func (r *reader) clusterDone(ingress, egress int) *Policy {
	p := r.policy
	p.applies = [2]bool{Ingress: ingress > 0, Egress: egress > 0}
	if p.Broken() {
		r.closeCluster()
	}
	p.content = contentOf(p)
	return p
}

// closeCluster leaves of a ClusterNetworkPolicy with errors whom it is about, if that can be read.
func (r *reader) closeCluster() {
	p := r.policy
	for _, problem := range p.errors() {
		key, inSpec := problem.specKey()
		known := slices.Contains([]string{"tier", "priority", "ingress", "egress"}, key)
		if !inSpec && !strings.HasPrefix(problem.Field, "metadata.") || inSpec && !known {
			p.subject, p.cluster.namespaces = labels.Everything(), labels.Everything()
		}
	}
	p.closeTo()
}

// closeTo has a ClusterNetworkPolicy deny all to the pods that it is about.
func (p *Policy) closeTo() {
	closed := *p.cluster
	closed.closed = true
	p.cluster, p.rules, p.applies = &closed, [2][]rule{}, [2]bool{true, true}
}

// ruleAt is a rule of whom nothing is known but where it is written.
func (r *reader) ruleAt(field string) rule {
	return rule{at: Rule{Kind: r.policy.Kind, Name: r.policy.Key(), Field: field, File: r.file,
		Line: r.lineOf(field)}}
}

func (r *reader) needPeers(field string, peers int) {
	if peers == 0 {
		r.fail(field, "is empty: say whom the rule is about")
	}
}

// clusterRule reads a rule but for its peers.
func (r *reader) clusterRule(field string, does netpol.ClusterNetworkPolicyRuleAction,
	protocols []netpol.ClusterNetworkPolicyProtocol) rule {
	out, known := r.ruleAt(field), false
	if out.action, known = actions[does]; !known {
		r.fail(field+".action", "is %q: want Accept, Deny or Pass", does)
	}
	for i := range protocols {
		out.ports = append(out.ports,
			r.protocol(fmt.Sprintf("%s.protocols[%d]", field, i), &protocols[i])...)
	}
	return out
}

// pods reads a subject or a peer that is pods.
func (r *reader) pods(field string, namespaces *metav1.LabelSelector,
	pods *netpol.NamespacedPod) peer {
	switch {
	case (namespaces == nil) == (pods == nil):
		r.fail(field, "has none or several of its kinds: give one of namespaces and pods")
	case namespaces != nil:
		return peer{namespaces: r.selector(field+".namespaces", namespaces),
			pods: labels.Everything()}
	default:
		return peer{
			namespaces: r.selector(field+".pods.namespaceSelector", &pods.NamespaceSelector),
			pods:       r.selector(field+".pods.podSelector", &pods.PodSelector),
		}
	}
	return peer{namespaces: labels.Nothing(), pods: labels.Nothing()}
}

func (r *reader) destination(field string, to *netpol.ClusterNetworkPolicyEgressPeer) (out []peer) {
	switch {
	case to.Nodes != nil:
		r.fail(field+".nodes", "is not known: name the nodes' addresses as networks")
	case len(to.DomainNames) > 0:
		r.fail(field+".domainNames", "are not known: name addresses as networks")
	case len(to.Networks) == 0:
		return []peer{r.pods(field, to.Namespaces, to.Pods)}
	case to.Namespaces != nil || to.Pods != nil:
		r.fail(field, "has networks and pods: make it two entries")
	}
	for i, text := range to.Networks {
		if p, ok := r.prefix(fmt.Sprintf("%s.networks[%d]", field, i), string(text)); ok {
			out = append(out, peer{block: newBlock(p)})
		}
	}
	return out
}

// anyNamed are the ports of a name, of whichever protocol.
func anyNamed(name string) (out []port) {
	for _, protocol := range []uint8{TCP, UDP, SCTP} {
		out = append(out, port{protocol: protocol, name: name})
	}
	return out
}

// protocol reads one entry of a rule's protocols.
func (r *reader) protocol(field string, p *netpol.ClusterNetworkPolicyProtocol) (out []port) {
	if p.DestinationNamedPort != "" {
		out = anyNamed(p.DestinationNamedPort)
	}
	add := func(name string, number uint8, at *netpol.Port) {
		one := port{protocol: number, to: maxPort}
		if at != nil {
			one.from, one.to = r.numbers(field+"."+name+".destinationPort", at)
		}
		out = append(out, one)
	}
	if p.TCP != nil {
		add("tcp", TCP, p.TCP.DestinationPort)
	}
	if p.UDP != nil {
		add("udp", UDP, p.UDP.DestinationPort)
	}
	if p.SCTP != nil {
		add("sctp", SCTP, p.SCTP.DestinationPort)
	}
	if len(out) == 0 {
		r.fail(field, "is empty: give tcp, udp, sctp or destinationNamedPort")
	}
	return out
}

func (r *reader) numbers(field string, p *netpol.Port) (from, to uint16) {
	first, last := p.Number, p.Number
	switch {
	case (p.Number == 0) == (p.Range == nil):
		r.fail(field, "has none or both of number and range: give one")
		return 0, 0
	case p.Range != nil:
		first, last = p.Range.Start, p.Range.End
	}
	from, to, _ = r.between(field, first, last)
	return from, to
}

// between reads a range of ports.
func (r *reader) between(field string, first, last int32) (from, to uint16, ok bool) {
	if first < 1 || last < first || last > maxPort {
		r.fail(field, "is %d to %d: want ports from 1 to %d", first, last, maxPort)
		return 0, 0, false
	}
	return uint16(first), uint16(last), true
}
