package istio

import (
	"net/netip"
	"slices"
	"strings"

	"istio.io/istio/pkg/workloadapi/security"

	"weft.dev/weft/internal/policy"
)

// connection is what ztunnel judges: TCP, with what the certificate of the other end says, if it
// had one.
type connection struct {
	source, destination netip.Addr
	port                uint16
	peer                *policy.Identity
}

// matched says whether a policy is about a connection. One of its groups has to be, of which all
// rules have to be, of each of which one match has to be. A match of which only requests' parts
// were said is empty: Istio's documentation has it denied.
func (c connection) matched(a *security.Authorization) bool {
	return slices.ContainsFunc(a.Groups, func(g *security.Group) bool {
		return !slices.ContainsFunc(g.Rules,
			func(r *security.Rules) bool { return !slices.ContainsFunc(r.Matches, c.is) })
	})
}

func (c connection) is(m *security.Match) bool {
	principal, namespace := "", ""
	if c.peer != nil {
		namespace = c.peer.Namespace
		principal = c.peer.TrustDomain + "/ns/" + namespace + "/sa/" + c.peer.ServiceAccount
	}
	return both(m.Principals, m.NotPrincipals, like(principal)) &&
		both(m.Namespaces, m.NotNamespaces, like(namespace)) &&
		both(m.ServiceAccounts, m.NotServiceAccounts, func(s *security.ServiceAccountMatch) bool {
			return c.peer != nil && s.Namespace == namespace &&
				s.ServiceAccount == c.peer.ServiceAccount
		}) &&
		both(m.SourceIps, m.NotSourceIps, contains(c.source)) &&
		both(m.DestinationIps, m.NotDestinationIps, contains(c.destination)) &&
		both(m.DestinationPorts, m.NotDestinationPorts,
			func(p uint32) bool { return p == uint32(c.port) })
}

// both says whether a value is one of some, if there are any, and none of others.
func both[T any](yes, no []T, is func(T) bool) bool {
	return (len(yes) == 0 || slices.ContainsFunc(yes, is)) && !slices.ContainsFunc(no, is)
}

func like(s string) func(*security.StringMatch) bool {
	return func(m *security.StringMatch) bool {
		switch m := m.MatchType.(type) {
		case *security.StringMatch_Exact:
			return s == m.Exact
		case *security.StringMatch_Prefix:
			return strings.HasPrefix(s, m.Prefix)
		case *security.StringMatch_Suffix:
			return strings.HasSuffix(s, m.Suffix)
		}
		return s != ""
	}
}

func contains(a netip.Addr) func(*security.Address) bool {
	return func(m *security.Address) bool {
		base, ok := netip.AddrFromSlice(m.Address)
		return ok && netip.PrefixFrom(base, int(m.Length)).Contains(a)
	}
}
