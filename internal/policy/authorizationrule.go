package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ruleReader reads one rule of an AuthorizationPolicy.
type ruleReader struct {
	*reader
	at string
	// requests are the fields that are about requests, which only a proxy sees.
	requests []string
}

// values are those of a field and of its opposite, and which attribute they are about.
type values struct {
	name    string
	about   attribute
	yes, no []string
}

// attributes are those of conditions in `when` that can be seen at layer 4.
var attributes = map[string]attribute{
	"source.ip": sourceIP, "source.namespace": sourceNamespace, "source.principal": sourcePrincipal,
	"source.serviceAccount": sourceAccount, "source.trustDomain": sourceTrustDomain,
	"destination.ip": destinationIP, "destination.port": destinationPort,
}

func (r *ruleReader) source(field string, s *authorizationSource) match {
	if s == nil {
		r.fail(field, "is missing: say who, or leave from away for all")
		return nil
	}
	accounts := len(s.ServiceAccounts)+len(s.NotServiceAccounts) > 0
	if accounts &&
		len(s.Principals)+len(s.NotPrincipals)+len(s.Namespaces)+len(s.NotNamespaces) > 0 {
		r.fail(field+".serviceAccounts",
			"goes with no principals or namespaces: make it two entries of from")
	}
	requests := r.beyond(field, map[string][]string{
		"requestPrincipals": s.RequestPrincipals, "notRequestPrincipals": s.NotRequestPrincipals,
		"remoteIpBlocks": s.RemoteIPBlocks, "notRemoteIpBlocks": s.NotRemoteIPBlocks,
	})
	return r.match(field, requests, []values{
		{"principals", sourcePrincipal, s.Principals, s.NotPrincipals},
		{"namespaces", sourceNamespace, s.Namespaces, s.NotNamespaces},
		{"serviceAccounts", sourceAccount, s.ServiceAccounts, s.NotServiceAccounts},
		{"trustDomains", sourceTrustDomain, s.TrustDomains, s.NotTrustDomains},
		{"ipBlocks", sourceIP, s.IPBlocks, s.NotIPBlocks},
	})
}

func (r *ruleReader) operation(field string, o *authorizationOperation) match {
	if o == nil {
		r.fail(field, "is missing: say what, or leave to away for all")
		return nil
	}
	requests := r.beyond(field, map[string][]string{
		"hosts": o.Hosts, "notHosts": o.NotHosts, "methods": o.Methods, "notMethods": o.NotMethods,
		"paths": o.Paths, "notPaths": o.NotPaths,
	})
	return r.match(field, requests, []values{{"ports", destinationPort, o.Ports, o.NotPorts}})
}

// beyond notes the fields that only a proxy can judge.
func (r *ruleReader) beyond(field string, lists map[string][]string) (any bool) {
	for _, name := range sortedKeys(lists) {
		if len(lists[name]) > 0 {
			r.requests, any = append(r.requests, strings.TrimPrefix(field+"."+name, r.at+".")), true
		}
	}
	return any
}

func (r *ruleReader) when(field string, c *authorizationCondition) match {
	about, known := attributes[c.Key]
	switch {
	case c.Key == "":
		r.fail(field+".key", "is missing: want an attribute such as source.namespace")
	case len(c.Values)+len(c.NotValues) == 0:
		r.fail(field, "has no values: give values or notValues")
	case !known:
		r.requests = append(r.requests, c.Key)
	default:
		return r.match(field, false, []values{{"values", about, c.Values, c.NotValues}})
	}
	return nil
}

// match reads the lists of one entry, of which all have to hold.
func (r *ruleReader) match(field string, requests bool, lists []values) (out match) {
	for _, l := range lists {
		if len(l.yes) > 0 {
			out = append(out, r.condition(field+"."+l.name, l.about, false, l.yes))
		}
		if len(l.no) > 0 {
			opposite := "not" + strings.ToUpper(l.name[:1]) + l.name[1:]
			out = append(out, r.condition(field+"."+opposite, l.about, true, l.no))
		}
	}
	inside := func(p Problem) bool { return strings.HasPrefix(p.Field, field+".") }
	if len(out) == 0 && !requests && !slices.ContainsFunc(r.policy.Problems, inside) {
		r.fail(field,
			"is empty, and nothing is like it: give one of its lists, or take the entry away")
	}
	return out
}

func (r *ruleReader) condition(field string, about attribute, not bool, list []string) condition {
	out := condition{about: about, not: not}
	for i, text := range list {
		at := field + "[" + strconv.Itoa(i) + "]"
		switch {
		case text == "":
			r.fail(at, "is empty: give a value, or take the entry away")
		case about == sourceIP || about == destinationIP:
			if p, ok := r.addresses(at, text); ok {
				out.blocks = append(out.blocks, newBlock(p))
			}
		case about == destinationPort:
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				r.fail(at, "%q is no port: want a number from 0 to %d", text, maxPort)
			}
			out.ports = append(out.ports, span{from: uint16(n), to: uint16(n)})
		case about == sourcePrincipal && strings.HasPrefix(text, "spiffe:"):
			r.fail(at,
				"%q: leave spiffe:// away, as Istio does: TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT", text)
		case about == sourceAccount:
			out.texts = append(out.texts, r.account(at, text))
		default:
			out.texts = append(out.texts, patternOf(text))
		}
	}
	if about == sourceIP {
		out.keyed()
	}
	return out
}

// addresses reads an address or a range.
func (r *ruleReader) addresses(field, text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	return r.prefix(field, text)
}

// account reads NAMESPACE/SERVICE-ACCOUNT, or a service account of the policy's own namespace.
func (r *ruleReader) account(field, text string) pattern {
	if strings.Contains(text, "*") || strings.Count(text, "/") > 1 {
		r.fail(field, "%q is no service account: want NAMESPACE/NAME or NAME, without *", text)
	}
	if !strings.Contains(text, "/") {
		text = r.policy.Namespace + "/" + text
	}
	return pattern{text: text}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
