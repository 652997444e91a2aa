package agent

import (
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/ranges"
)

// policies are those in force. Versions that contradict each other only deny.
func (ix *index) policies() []*policy.Policy {
	var out []*policy.Policy
	for _, kind := range ix.policyMaps() {
		out = slices.AppendSeq(out, maps.Values(kind))
	}
	for _, o := range ix.snapshot.Unused {
		if p, is := o.(*policy.Policy); is {
			out = append(out, p.Closed())
		}
	}
	return out
}

// policyMaps are the policies of each kind.
func (ix *index) policyMaps() []map[string]*policy.Policy {
	return []map[string]*policy.Policy{ix.snapshot.NetworkPolicies,
		ix.snapshot.ClusterNetworkPolicies, ix.snapshot.AdminNetworkPolicies,
		ix.snapshot.BaselineAdminNetworkPolicies, ix.snapshot.AuthorizationPolicies,
		ix.snapshot.PeerAuthentications}
}

// policed says whether policies has any.
func (ix *index) policed() bool {
	isPolicy := func(o v1alpha1.Object) bool { _, is := o.(*policy.Policy); return is }
	any := func(kind map[string]*policy.Policy) bool { return len(kind) > 0 }
	return slices.ContainsFunc(ix.policyMaps(), any) ||
		slices.ContainsFunc(ix.snapshot.Unused, isPolicy)
}

// policyKey tells an endpoint of this node from every other.
func policyKey(info endpoint.Info) string { return info.Namespace + "/" + info.ID }

// policyInput is what policies depend on: of this node's endpoints what their manager knows, of
// others' what they have published.
func policyInput(ix *index, own []endpoint.Info, node string) policy.Input {
	in := policy.Input{Policies: ix.policies(), Namespaces: map[string]map[string]string{}}
	for name, n := range ix.snapshot.Namespaces {
		in.Namespaces[name] = n.Metadata.Labels
	}
	for _, i := range ix.snapshot.Identities {
		id := policy.Identity{Number: i.Number(), Labels: i.Spec.Labels}
		id.TrustDomain, id.Namespace, id.ServiceAccount = i.Spec.Workload()
		in.Identities = append(in.Identities, id)
	}
	for _, info := range own {
		in.Endpoints = append(in.Endpoints, policy.Endpoint{
			Namespace: info.Namespace, Name: info.ID, Labels: info.Labels, Identity: info.Identity,
			Addresses: info.Addresses(), Ports: policy.PortsOf(info.Ports), Local: true,
		})
	}
	for _, ep := range ix.snapshot.Endpoints {
		if ep.Spec.NodeName != node && ix.inOwnRange(ep) {
			in.Endpoints = append(in.Endpoints, policy.Endpoint{
				Namespace: ep.Metadata.Namespace, Name: ep.Metadata.Name,
				Labels: ep.Metadata.Labels, Identity: ep.Status.Identity,
				Addresses: ep.Spec.Addresses, Ports: policy.PortsOf(ep.Spec.Ports),
			})
		}
	}
	return in
}

// podRanges are the ranges in which an address without an endpoint may be a pod's nevertheless.
func (ix *index) podRanges() []netip.Prefix {
	var out []netip.Prefix
	for _, n := range ix.snapshot.Nodes {
		out = append(out, n.Spec.PodCIDRs...)
	}
	if ix.view == nil {
		return out
	}
	for _, e := range ix.view.Lost {
		if e.Kind != ranges.Address {
			out = append(out, e.Prefix)
		}
	}
	return slices.Concat(append(slices.Collect(maps.Values(ix.view.Published)), out)...)
}

// remoteIdentities are those of other nodes' endpoints by address. An address that several claim is
// nobody's: then no entry about an identity allows it anything.
func remoteIdentities(in policy.Input) map[netip.Addr]uint32 {
	out, twice := map[netip.Addr]uint32{}, map[netip.Addr]bool{}
	for _, e := range in.Endpoints {
		if e.Local || e.Identity == v1alpha1.IdentityUnknown {
			continue
		}
		for _, a := range e.Addresses {
			had, there := out[a]
			twice[a] = twice[a] || there && had != e.Identity
			out[a] = e.Identity
		}
	}
	maps.DeleteFunc(out, func(a netip.Addr, _ uint32) bool { return twice[a] })
	return out
}
