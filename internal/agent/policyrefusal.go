package agent

import (
	"net/netip"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/policy"
)

// refusal says which policy refused the packet of an event: the programs tell the rule, if one
// denies, and which pod's policies are meant is found by asking these again. nil where nothing
// refuses it any more, or its addresses are not those that were judged.
func (a *Agent) refusal(event datapath.FlowEvent) *flows.Refusal {
	running := a.running()
	if running == nil || event.Reason != reasonPolicy {
		return nil
	}
	view := running.policies.view.Load()
	if view == nil {
		return nil
	}
	src := a.refusedEnd(running, event, event.Src.Addr(), policy.Egress)
	dst := a.refusedEnd(running, event, event.Dst.Addr(), policy.Ingress)
	sender, errFrom := running.policies.end(src, view, event.Src.Addr().Unmap())
	receiver, errTo := running.policies.end(dst, view, event.Dst.Addr().Unmap())
	if errFrom != nil || errTo != nil {
		return nil
	}
	// Whether it came sealed the rule that has refused it tells, and else does not matter.
	known := view.Result.Rules[event.Rule].Kind != policy.KindPeerAuthentication
	sender.Authenticated, receiver.Authenticated = known, known
	begun := []policy.Answer{
		view.Judge(sender, receiver, event.Protocol, responderPort(event, event.Dst)),
		view.Judge(receiver, sender, event.Protocol, responderPort(event, event.Src)),
	}
	if isReply, sure := begins(event); sure && isReply {
		begun = begun[1:]
	} else if sure {
		begun = begun[:1]
	}
	for _, answer := range begun {
		for _, half := range []*policy.Half{answer.Egress, answer.Ingress} {
			if half != nil && half.Verdict == policy.Deny && half.Decision.Rule == event.Rule {
				return flows.RefusalOf(half)
			}
		}
	}
	return nil
}

// begins says whether TCP's flags tell who began: SYN does, and SYN with ACK answers.
func begins(event datapath.FlowEvent) (isReply, sure bool) {
	const tcp, syn, ack = policy.TCP, 0x02, 0x10
	if event.Protocol != tcp || event.TCPFlags&syn == 0 {
		return false, false
	}
	return event.TCPFlags&ack != 0, true
}

// responderPort is the port of who did not begin; for ICMP events tell other things there.
func responderPort(event datapath.FlowEvent, at netip.AddrPort) uint16 {
	if !policy.HasPorts(event.Protocol) {
		return 0
	}
	return at.Port()
}

// refusedEnd finds one end of an event's packet. This node's endpoint is known by its slot,
// whatever address it claims.
func (a *Agent) refusedEnd(n *node, event datapath.FlowEvent, addr netip.Addr,
	local policy.Direction) policyEnd {
	addr = addr.Unmap()
	if event.Slot != 0 && event.Direction == local.String() {
		if info, ok := n.manager.BySlot(event.Slot); ok {
			return localEnd(info, []netip.Addr{addr})
		}
	}
	return a.endAt(n, addr, event.Network)
}

// nameSteps puts names into what a trace says of policies.
func (b *backend) nameSteps(n *node, from endpoint.Info, to netip.Addr,
	steps []datapath.TraceStep) {
	view := n.policies.view.Load()
	if view == nil {
		return
	}
	for i, step := range steps {
		if step.Policy == nil {
			continue
		}
		d, pod, peer := policy.Egress, from, to
		if step.Policy.Direction == policy.Ingress.String() {
			receiver, ok := n.manager.ByIP(from.NetworkID, to)
			if !ok {
				continue
			}
			d, pod, peer = policy.Ingress, receiver, netip.Addr{}
		}
		said := policy.Decision{Rule: step.Policy.Rule}
		if step.Policy.Allowed {
			said.Verdict = policy.Allow
		}
		half := view.Said(policyKey(pod), d,
			policy.Peer{Identity: step.Policy.Identity, Address: peer}, said)
		steps[i].Detail = half.Verdict.String() + ": " + half.String()
	}
}
