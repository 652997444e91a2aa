package cli

import (
	"context"
	"net/http"
	"net/netip"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/policy"
)

var (
	webRule = policy.Rule{Kind: policy.KindNetworkPolicy, Name: "shop/web",
		Field: "spec.ingress[0]", File: "web.yaml", Line: 8}
	webSeen = policy.Summary{
		Kind: policy.KindNetworkPolicy, Namespace: "shop", Name: "web", File: "web.yaml", Line: 2,
		Directions: []string{"ingress"},
		Pods:       []string{"shop/web"}, Rules: []policy.Rule{webRule},
	}
)

func (fake) Policies(context.Context) (*admin.Policies, error) {
	broken := policy.Summary{
		Kind: policy.KindNetworkPolicy, Namespace: "shop", Name: "db",
		Directions: []string{"ingress", "egress"}, Denies: true,
		Problems: []policy.Problem{{File: "db.yaml", Line: 4, Object: "NetworkPolicy shop/db",
			Field: "spec.x", Msg: "unknown key"}},
	}
	return &admin.Policies{
		Node: "a", Policies: []policy.Summary{broken, webSeen},
		Pods: []admin.PolicedPod{
			{PodPolicies: policy.PodPolicies{Pod: "shop/web", Ingress: []string{webSeen.Object()}},
				Denied: 7},
		},
	}, nil
}

func (fake) Policy(_ context.Context, kind, key string) (*admin.PolicyDetail, error) {
	if key != "shop/web" || kind != "" && kind != webSeen.Kind {
		return nil, &admin.StatusError{Code: http.StatusNotFound,
			Msg: "node a knows no policy " + key}
	}
	return &admin.PolicyDetail{Node: "a", Summary: webSeen,
		Sets: []admin.PolicySet{{Kernel: 12, SetView: policy.SetView{
			Number: 3, Direction: "ingress", Policies: []string{webSeen.Object()},
			Pods: []string{"shop/web"}, Entries: []policy.EntryView{
				{Peer: "front/default role=client", Identity: 301, Ports: "80/tcp",
					Verdict: policy.Allow, Precedence: 5, Rule: &webRule},
				{Peer: "addresses", Class: 4194305,
					Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Ports: "any",
					Rule: nil},
			},
		}}}}, nil
}

// ExplainPolicy allows port 80, denies others, and finds other maps for port 9. A pod of namespace
// far is elsewhere.
func (fake) ExplainPolicy(_ context.Context,
	r admin.PolicyRequest) (*admin.PolicyExplanation, error) {
	if r.To == "shop/gone" {
		return nil, &admin.StatusError{Code: http.StatusBadRequest,
			Msg: `to: node a knows no pod "shop/gone"`}
	}
	half := &policy.Half{Pod: r.To, Peer: "front/default", Policies: []string{webSeen.Object()}}
	out := &admin.PolicyExplanation{Node: "a", From: r.From, To: r.To,
		Answer: policy.Answer{Ingress: half}}
	if r.Port == "80" || r.Port == "9" {
		out.Verdict, half.Verdict, half.Rule, half.Why = policy.Allow, policy.Allow, &webRule, webRule.String()
	} else {
		half.Why, half.Remedy = "isolated by NetworkPolicy shop/web: no rule of ingress allows it", "add one"
	}
	if r.Port == "9" {
		out.Disagreements = []string{"ingress of shop/web: the verdict is allow as compiled, and deny in the maps"}
	}
	if r.From == "far/pod" {
		out.Elsewhere = []string{"egress of far/pod is judged by node b"}
	}
	out.Kernel.Ingress = &admin.PolicyMapAnswer{Set: 12, Verdict: half.Verdict}
	return out, nil
}
