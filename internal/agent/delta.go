package agent

import (
	"net/netip"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/store"
)

// work is what reconcile still has to do. What failed, or may have been missed, is all of it.
type work struct {
	// nodes are the datapath's and masquerading's, and the peers to share keys with.
	nodes bool
	// identities are those of peers' endpoints, plain is what may travel in cleartext.
	identities, plain bool
	epochs            bool
	policies          bool
}

var allWork = work{nodes: true, identities: true, plain: true, epochs: true, policies: true}

func (w work) with(more work) work {
	return work{
		nodes: w.nodes || more.nodes, identities: w.identities || more.identities, plain: w.plain ||
			more.plain,
		epochs: w.epochs || more.epochs, policies: w.policies || more.policies,
	}
}

// oweLater adds to what reconcile has to do when it looks next.
func (a *Agent) oweLater(more work) {
	a.stateLock.Lock()
	defer a.stateLock.Unlock()
	a.owed = a.owed.with(more)
}

// owe adds to what reconcile has to do, and wakes it.
func (a *Agent) owe(more work) {
	a.oweLater(more)
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// takeWork is what there is to do, for the caller to do or to owe again.
func (a *Agent) takeWork() work {
	a.stateLock.Lock()
	defer a.stateLock.Unlock()
	todo := a.owed
	a.owed = work{}
	return todo
}

// workOf is what follows from a delta between two indexes. In doubt it is done.
func workOf(d store.Delta, was, now *index) work {
	w := work{nodes: d.About(v1alpha1.KindNode) || was.view != now.view,
		epochs: d.About(v1alpha1.KindEpoch) || len(d.Errors) > 0}
	w.policies = w.nodes || policing(d, now)
	w.identities = w.nodes || d.About(v1alpha1.KindEndpoint, v1alpha1.KindIdentity)
	w.plain = w.nodes || d.About(v1alpha1.KindPod, v1alpha1.KindEncryptionPolicy) ||
		len(was.snapshot.EncryptionPolicies) > 0 ||
		slices.ContainsFunc(d.Changes, func(c store.Change) bool { return wishes(c, was, now) })
	return w
}

// wishes says whether a change of an endpoint is about what may travel in cleartext: a version of
// it is doubled, asks for something itself or by its pod, or has an address that another one may
// have asked for.
func wishes(c store.Change, was, now *index) bool {
	if c.Kind != v1alpha1.KindEndpoint {
		return false
	}
	if len(c.Unused) > 0 || len(was.snapshot.Unused) > 0 || now.snapshot.Pods[c.Key] != nil {
		return true
	}
	for _, ep := range []*v1alpha1.Endpoint{was.snapshot.Endpoints[c.Key],
		now.snapshot.Endpoints[c.Key]} {
		if ep == nil {
			continue
		}
		if _, asks := ep.Metadata.Annotations[v1alpha1.EncryptAnnotation]; asks {
			return true
		}
		for _, addr := range ep.Spec.Addresses {
			if slices.Contains(was.remembered(), addr) || len(was.byIP[addr]) > 1 ||
				len(now.byIP[addr]) > 1 {
				return true
			}
		}
	}
	return false
}

// teaches says whether the memory of the cluster's ranges could learn from a delta: not if all that
// changed is what it does not read, and other nodes' endpoints that are inside the ranges of their
// nodes and ask for nothing.
func (a *Agent) teaches(d store.Delta, was, now *index) bool {
	for _, c := range d.Changes {
		switch c.Kind {
		case v1alpha1.KindIdentity, v1alpha1.KindEpoch, v1alpha1.KindEncryptionPolicy,
			policy.KindNetworkPolicy, policy.KindClusterNetworkPolicy,
			policy.KindAdminNetworkPolicy, policy.KindBaselineAdminNetworkPolicy,
			policy.KindAuthorizationPolicy, policy.KindPeerAuthentication,
			v1alpha1.KindNamespace:
			continue
		case v1alpha1.KindEndpoint:
		default:
			return true
		}
		if wishes(c, was, now) {
			return true
		}
		for _, ep := range []*v1alpha1.Endpoint{was.snapshot.Endpoints[c.Key],
			now.snapshot.Endpoints[c.Key]} {
			if ep != nil &&
				(ep.Spec.NodeName == a.cfg.Node || !now.inOwnRange(ep) ||
					inRanges(ep, a.cfg.IPAM.Ranges)) {
				return true
			}
		}
	}
	return false
}

// inRanges says whether an address of an endpoint is in one of some ranges.
func inRanges(ep *v1alpha1.Endpoint, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges,
		func(p netip.Prefix) bool { return slices.ContainsFunc(ep.Spec.Addresses, p.Contains) })
}

// inOwnRange says whether all addresses of an endpoint are in ranges of its node.
func (ix *index) inOwnRange(ep *v1alpha1.Endpoint) bool {
	node := ix.snapshot.Nodes[ep.Spec.NodeName]
	if node == nil {
		return false
	}
	for _, addr := range ep.Spec.Addresses {
		if !slices.ContainsFunc(node.Spec.PodCIDRs,
			func(p netip.Prefix) bool { return p.Contains(addr) }) ||
			slices.Contains(node.Spec.Addresses, addr) {
			return false
		}
	}
	return true
}
