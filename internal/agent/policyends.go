package agent

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/policy"
)

// policyEnd is one end of a packet that policies are asked about.
type policyEnd struct {
	name string
	// local is the endpoint of this node, nil for who is none.
	local *endpoint.Info
	// node is where a pod of another node is.
	node string
	// isPod says that policies may be about it: its identity is what objects say.
	isPod     bool
	network   uint32
	addresses []netip.Addr
	ports     []policy.ContainerPort
}

// policyEndOf finds who a name or an address stands for. An address is looked up in a network.
func (a *Agent) policyEndOf(n *node, text string, network uint32) (policyEnd, error) {
	if info, ok := n.manager.Get(text); ok {
		return localEnd(info, info.Addresses()), nil
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return a.endAt(n, addr.Unmap(), network), nil
	}
	if ep := a.index.Load().snapshot.Endpoints[text]; ep != nil && ep.Spec.NodeName != a.cfg.Node {
		return policyEnd{
			name: text, node: ep.Spec.NodeName, isPod: true, addresses: ep.Spec.Addresses,
			ports: policy.PortsOf(ep.Spec.Ports),
		}, nil
	}
	return policyEnd{}, fmt.Errorf("node %s knows no pod %q: give NAMESPACE/NAME of a pod that is attached on some node "+
		"(`weft endpoint list` shows this node's), or an address", a.cfg.Node, text)
}

// endAt is who has an address of a network.
func (a *Agent) endAt(n *node, addr netip.Addr, network uint32) policyEnd {
	if info, ok := n.manager.ByIP(network, addr); ok {
		return localEnd(info, []netip.Addr{addr})
	}
	end := policyEnd{name: addr.String(), network: network, addresses: []netip.Addr{addr}}
	if who, known := a.index.Load().who(addr); known && who.Pod != "" && network == 0 &&
		who.Node != a.cfg.Node {
		end.isPod, end.node, end.name = true, who.Node, who.Name()
	}
	return end
}

func localEnd(info endpoint.Info, addresses []netip.Addr) policyEnd {
	return policyEnd{
		name: podName(info), local: &info, isPod: true, network: info.NetworkID,
		addresses: addresses, ports: policy.PortsOf(info.Ports),
	}
}

// end is what the compiled policies are asked about. Who is no pod is who the maps say.
func (p *policies) end(e policyEnd, view *policyView, address netip.Addr) (policy.End, error) {
	out := policy.End{Peer: policy.Peer{Address: address}}
	switch {
	case e.local != nil:
		out.Endpoint, out.Identity = policyKey(*e.local), e.local.Identity
	case e.isPod:
		out.Identity = view.remote[address]
	default:
		var err error
		if out.Identity, err = p.dp.IdentityAt(e.network, address); err != nil {
			return out, err
		}
	}
	return out, nil
}

// policyQuestion is a packet that policies are asked about, with both of its ends found.
type policyQuestion struct {
	from, to policyEnd
	// Of several addresses of a pod those count with which the ends can talk.
	source, destination netip.Addr
	protocol            uint8
	port                uint16
}

func (a *Agent) policyQuestion(n *node, r admin.PolicyRequest,
	protocol uint8) (q policyQuestion, err error) {
	bad := func(field string, err error) (policyQuestion, error) {
		return q, &admin.StatusError{Code: http.StatusBadRequest, Msg: field + ": " + err.Error()}
	}
	if q.to, err = a.policyEndOf(n, r.To, 0); err != nil {
		return bad("to", err)
	}
	if q.from, err = a.policyEndOf(n, r.From, q.to.network); err != nil {
		return bad("from", err)
	}
	// An address is one of the network that the other end is in.
	if q.from.network != 0 && q.to.local == nil {
		if q.to, err = a.policyEndOf(n, r.To, q.from.network); err != nil {
			return bad("to", err)
		}
	}
	switch {
	case q.from.network != q.to.network:
		return bad("to",
			fmt.Errorf("%s is in network %d and %s in %d: nothing passes between networks", r.From,
				q.from.network, r.To, q.to.network))
	case q.from.local == nil && q.to.local == nil:
		return bad("from, to",
			fmt.Errorf("neither is a pod of node %s: %s", a.cfg.Node, askOf(q.from, q.to)))
	case policy.HasPorts(protocol) != (r.Port != ""):
		return bad("port", errors.New("tcp, udp, udplite and sctp have one, other protocols have none"))
	}
	var fits bool
	if q.source, q.destination, fits = fitting(q.from.addresses, q.to.addresses); !fits {
		return bad("to", fmt.Errorf("%s and %s have no addresses of the same family", r.From, r.To))
	}
	if q.port, err = policy.PortOf(r.To, q.to.ports, protocol, r.Port); err != nil {
		return bad("port", err)
	}
	q.protocol = icmpOf(protocol, q.destination)
	return q, nil
}

// askOf says who can be asked about ends that are not here.
func askOf(ends ...policyEnd) string {
	var nodes []string
	for _, e := range ends {
		if e.node != "" {
			nodes = append(nodes, fmt.Sprintf("%s is on node %s", e.name, e.node))
		}
	}
	if nodes == nil {
		return "no policy is about either"
	}
	return strings.Join(nodes, ", ") + ": ask there"
}

// fitting are the first addresses of one family.
func fitting(from, to []netip.Addr) (source, destination netip.Addr, ok bool) {
	for _, s := range from {
		for _, d := range to {
			if s.Is4() == d.Is4() {
				return s, d, true
			}
		}
	}
	return source, destination, false
}

// icmpOf is the protocol of ICMP for an address, or the protocol as it is.
func icmpOf(protocol uint8, a netip.Addr) uint8 {
	const icmp, icmpv6 = 1, 58
	if protocol != icmp && protocol != icmpv6 {
		return protocol
	}
	if a.Is4() {
		return icmp
	}
	return icmpv6
}
