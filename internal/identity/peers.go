package identity

import (
	"fmt"
	"maps"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// OfNodes lists, for every node, the identities of the endpoints that it has published:
// what packets from it may claim to be. An endpoint that publishes a number which is not
// that of its namespace, service account and labels lends its node nothing, and is named in
// problems.
func OfNodes(s *store.Snapshot,
	trustDomain string) (identities map[string][]uint32, problems []string) {
	identities = make(map[string][]uint32, len(s.Nodes))
	for name := range s.Nodes {
		identities[name] = nil
	}
	for key, ep := range s.Endpoints {
		list, known := identities[ep.Spec.NodeName]
		if !known || ep.Status.Identity == v1alpha1.IdentityUnknown {
			continue
		}
		if why := refuse(s, ep, trustDomain); why != "" {
			problems = append(problems,
				fmt.Sprintf("endpoint %s of node %s claims identity %d, %s: its packets are refused", key, ep.Spec.NodeName, ep.Status.Identity, why))
			continue
		}
		identities[ep.Spec.NodeName] = append(list, ep.Status.Identity)
	}
	for name, list := range identities {
		slices.Sort(list)
		identities[name] = slices.Compact(list)
	}
	slices.Sort(problems)
	return identities, problems
}

// refuse says why an endpoint may not have the number that it published, "" if it may.
func refuse(s *store.Snapshot, ep *v1alpha1.Endpoint, trustDomain string) string {
	number := ep.Status.Identity
	i := s.Identities[object(number, "", nil).Metadata.Name]
	if i == nil {
		return "which has no Identity object"
	}
	if want := Of(trustDomain, ep).SPIFFE(); i.Spec.SPIFFEID != want {
		return fmt.Sprintf("which is that of %s, but is %s", i.Spec.SPIFFEID, want)
	}
	for _, key := range slices.Sorted(maps.Keys(i.Spec.Labels)) {
		// An identity may have fewer labels than its endpoint, never others.
		if have, there := ep.Metadata.Labels[key]; !there || have != i.Spec.Labels[key] {
			return fmt.Sprintf("which has the label %s=%s, which the endpoint has not", key,
				i.Spec.Labels[key])
		}
	}
	return ""
}
