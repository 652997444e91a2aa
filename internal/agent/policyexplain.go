package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/policy"
)

// What was compiled is in the maps a moment later, and never at all when it does not fit: explain
// asks again for explainTries times explainPause before it says that the two disagree.
const (
	explainTries = 20
	explainPause = 50 * time.Millisecond
)

// ExplainPolicy implements admin.Backend.
func (b *backend) ExplainPolicy(ctx context.Context,
	r admin.PolicyRequest) (*admin.PolicyExplanation, error) {
	running, err := b.up()
	if err != nil {
		return nil, err
	}
	protocol, err := flows.ParseProtocol(r.Protocol)
	if err != nil {
		return nil, &admin.StatusError{Code: http.StatusBadRequest, Msg: "protocol: " + err.Error()}
	}
	for try := 0; ; try++ {
		q, err := b.policyQuestion(running, r, protocol)
		if err != nil {
			return nil, err
		}
		out, err := running.policies.explain(q)
		if err != nil {
			return nil, fmt.Errorf("explain: %w", err)
		}
		if len(out.Disagreements) == 0 || try == explainTries {
			out.Node, out.From, out.To = b.cfg.Node, r.From, r.To
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(explainPause):
		}
	}
}

// explain asks what was compiled last, and the maps besides. Nothing is applied meanwhile.
func (p *policies) explain(q policyQuestion) (*admin.PolicyExplanation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	view := p.view.Load()
	if view == nil {
		return nil, errors.New("policies have not been compiled yet")
	}
	from, err := p.end(q.from, view, q.source)
	if err != nil {
		return nil, err
	}
	to, err := p.end(q.to, view, q.destination)
	if err != nil {
		return nil, err
	}
	if from.Authenticated, err = p.authenticated(q); err != nil {
		return nil, err
	}
	out := &admin.PolicyExplanation{
		Answer: view.Explain(from, to, q.protocol, q.port), Elsewhere: elsewhere(q.from, q.to),
	}
	var err1, err2 error
	if half := out.Egress; half != nil {
		out.Kernel.Egress, err1 = p.askMaps(q, half, q.from, from.Peer, to.Peer)
		out.Disagreements = append(out.Disagreements,
			p.compare(half, q.from, to.Peer, q.to.isPod, out.Kernel.Egress)...)
	}
	if half := out.Ingress; half != nil {
		out.Kernel.Ingress, err2 = p.askMaps(q, half, q.to, to.Peer, from.Peer)
		out.Disagreements = append(out.Disagreements,
			p.compare(half, q.to, from.Peer, q.from.isPod, out.Kernel.Ingress)...)
	}
	return out, errors.Join(err1, err2)
}

// askMaps asks the maps what half has been said about, which is of the pod at this end.
func (p *policies) askMaps(q policyQuestion, half *policy.Half, end policyEnd,
	own, peer policy.Peer) (*admin.PolicyMapAnswer, error) {
	question := datapath.PolicyQuestion{
		Slot: end.local.Slot, Direction: datapath.PolicyEgress, Network: end.network,
		Peer: peer.Address, Own: own.Address, Protocol: q.protocol, Port: q.port,
	}
	if half.Direction == policy.Ingress {
		question.Direction = datapath.PolicyIngress
	}
	got, err := p.dp.AskPolicy(question)
	out := &admin.PolicyMapAnswer{Set: got.Set, Identity: got.Identity, Class: got.Class,
		Rule: got.Rule}
	if got.Allow {
		out.Verdict = policy.Allow
	}
	return out, err
}

// authenticated says whether more than its address tells who begins. What is sealed is the maps'
// word: what comes otherwise than they say is dropped before policies are asked.
func (p *policies) authenticated(q policyQuestion) (bool, error) {
	if q.from.local != nil {
		return true, nil
	}
	return p.dp.Authenticated(q.from.network, q.source, q.destination)
}

// compare says how the maps differ from what was compiled. The identity of who is no pod is the
// maps' in any case.
func (p *policies) compare(said *policy.Half, end policyEnd, peer policy.Peer, isPod bool,
	got *admin.PolicyMapAnswer) []string {
	var out []string
	differ := func(what string, compiled, maps any) {
		out = append(out,
			fmt.Sprintf("%s of %s: %s is %v as compiled, and %v in the maps", said.Direction,
				said.Pod, what, compiled, maps))
	}
	if got.Verdict != said.Verdict {
		differ("the verdict", said.Verdict, got.Verdict)
	}
	sets, err := p.numbers(policyKey(*end.local))
	if err != nil {
		return append(out, fmt.Sprintf("%s of %s: %v", said.Direction, said.Pod, err))
	}
	if want := sets[said.Direction]; want != got.Set {
		differ("the set", want, got.Set)
	}
	// The rest is looked up only where it counts.
	if got.Set == 0 || said.Direction == policy.Ingress && got.Identity == v1alpha1.IdentityHost {
		return out
	}
	if got.Rule != said.Decision.Rule {
		differ("the rule's number", said.Decision.Rule, got.Rule)
	}
	if isPod && got.Identity != peer.Identity {
		differ("the identity of "+peer.Address.String(), peer.Identity, got.Identity)
	}
	return out
}

// elsewhere says which end this node does not judge.
func elsewhere(from, to policyEnd) []string {
	var out []string
	for _, e := range []struct {
		policyEnd
		direction policy.Direction
	}{{from, policy.Egress}, {to, policy.Ingress}} {
		if e.isPod && e.local == nil {
			out = append(out,
				fmt.Sprintf("%s of %s is judged by node %s, and only that one knows what it enforces: ask there", e.direction, e.name, e.node))
		}
	}
	return out
}
