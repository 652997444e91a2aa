package flows

import (
	"net/netip"
	"strings"

	"weft.dev/weft/internal/datapath"
)

// Resolver knows who is behind a slot or an address.
type Resolver interface {
	BySlot(slot uint16) (Identity, bool)
	// ByIP looks an address up in a network; 0 is the cluster's.
	ByIP(network uint32, addr netip.Addr) (Identity, bool)
}

// Enricher gives names to events.
type Enricher struct {
	Node     string
	Resolver Resolver
	// ReasonText is the sentence for a drop reason's label; it may be nil.
	ReasonText func(label string) string
	// Refusal is the policy that refused a packet, nil where it cannot be told; it may be nil. It
	// is called for what was dropped, and must not wait for anything.
	Refusal func(datapath.FlowEvent) *Refusal
}

// Flow is the record of one event.
func (e Enricher) Flow(event datapath.FlowEvent) Flow {
	flow := Flow{
		Time: event.Time, Type: event.Type, Verdict: Forwarded, Action: event.Verdict,
		NodeName: e.Node, Network: event.Network, Protocol: protocolOf(event),
		Direction: strings.ToUpper(event.Direction), Hook: event.Hook, Length: event.Length,
		Source:      e.peer(event, event.Src, "egress"),
		Destination: e.peer(event, event.Dst, "ingress"),
	}
	if event.Protocol == 6 {
		flow.TCPFlags = TCPFlags(event.TCPFlags)
	}
	if event.Type == datapath.EventDrop || event.Reason != "" {
		flow.Verdict, flow.DropReason = Dropped, event.Reason
		if e.ReasonText != nil && event.Reason != "" {
			flow.DropText = e.ReasonText(event.Reason)
		}
		if e.Refusal != nil {
			flow.Policy = e.Refusal(event)
		}
		return flow
	}
	reply := false
	flow.IsReply = &reply
	if event.Type == datapath.EventEnd {
		flow.Forward, flow.Reply = &event.Forward, &event.Reply
	}
	return flow
}

// peer names one end. The local end goes by its slot and not by its address: a pod
// that spoofs an address is named as what it is, not as whom it claims to be.
func (e Enricher) peer(event datapath.FlowEvent, addr netip.AddrPort, local string) Peer {
	peer := Peer{IP: addr.Addr().Unmap(), Port: addr.Port()}
	if event.Protocol == 1 || event.Protocol == 58 {
		peer.Port = 0 // an echo identifier or a type, not a port
	}
	if e.Resolver == nil {
		return peer
	}
	if event.Slot != 0 && strings.EqualFold(event.Direction, local) {
		if identity, ok := e.Resolver.BySlot(event.Slot); ok {
			peer.Identity = identity
			return peer
		}
	}
	if identity, ok := e.Resolver.ByIP(event.Network, peer.IP); ok {
		peer.Identity = identity
	}
	return peer
}
