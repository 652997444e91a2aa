package agent

import (
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/policy"
)

// policies are those in force. Versions that contradict each other only deny.
func (ix *index) policies() []*policy.Policy {
	out := slices.Collect(maps.Values(ix.snapshot.NetworkPolicies))
	for _, o := range ix.snapshot.Unused {
		if p, is := o.(*policy.Policy); is {
			out = append(out, p.Closed())
		}
	}
	return out
}

// policed says whether policies has any.
func (ix *index) policed() bool {
	isPolicy := func(o v1alpha1.Object) bool { _, is := o.(*policy.Policy); return is }
	return len(ix.snapshot.NetworkPolicies) > 0 || slices.ContainsFunc(ix.snapshot.Unused, isPolicy)
}

// policyKey tells an endpoint of this node from every other.
func policyKey(info endpoint.Info) string { return info.Namespace + "/" + info.ID }

// policyInput is what policies depend on: of this node's endpoints what their manager knows, of others' what they have
// published.
func policyInput(ix *index, own []endpoint.Info, node string) policy.Input {
	in := policy.Input{Policies: ix.policies(), Namespaces: map[string]map[string]string{}}
	for name, n := range ix.snapshot.Namespaces {
		in.Namespaces[name] = n.Metadata.Labels
	}
	for _, i := range ix.snapshot.Identities {
		in.Identities = append(in.Identities, policy.Identity{Number: i.Number(), Namespace: i.Spec.Namespace(), Labels: i.Spec.Labels})
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
				Namespace: ep.Metadata.Namespace, Name: ep.Metadata.Name, Labels: ep.Metadata.Labels, Identity: ep.Status.Identity,
				Addresses: ep.Spec.Addresses, Ports: policy.PortsOf(ep.Spec.Ports),
			})
		}
	}
	return in
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
