package admin

import (
	"context"
	"fmt"
	"net/http"

	"weft.dev/weft/internal/policy"
)

// PolicyBackend answers what is asked about policies.
type PolicyBackend interface {
	// Policies are those that this node enforces.
	Policies(ctx context.Context) (*Policies, error)
	// Policy is one of them as it was compiled.
	Policy(ctx context.Context, kind, key string) (*PolicyDetail, error)
	// ExplainPolicy says what the policies in force say of a packet.
	ExplainPolicy(ctx context.Context, request PolicyRequest) (*PolicyExplanation, error)
}

// Policies is the answer of /v1/policies.
type Policies struct {
	Node string `json:"node"`
	// Policies are all that the node knows. Their pods are those of this node.
	Policies []policy.Summary `json:"policies"`
	// Pods are those of this node, and the policies about them.
	Pods []PolicedPod `json:"pods"`
	// Problems are those of no single policy, such as a set that does not fit into the datapath.
	Problems []string `json:"problems,omitempty"`
}

// PolicedPod is a pod of this node.
type PolicedPod struct {
	policy.PodPolicies
	// Denied are the packets that policies refused where the pod's interface is, since it is
	// attached.
	Denied uint64 `json:"denied"`
}

// PolicyDetail is the answer of /v1/policies/get: a policy and what became of it.
type PolicyDetail struct {
	Node string `json:"node"`
	policy.Summary
	// Sets are those of this node's pods that it is part of, with what other policies add to them.
	Sets []PolicySet `json:"sets"`
}

// PolicySet is a set in force.
type PolicySet struct {
	policy.SetView
	// Kernel is its number in the policy map, 0 while it is not there.
	Kernel uint32 `json:"kernelSet,omitempty"`
}

// PolicyRequest asks what policies say of the first packet of a conversation.
type PolicyRequest struct {
	// From and To are pods, of any node, or addresses.
	From string `json:"from"`
	To   string `json:"to"`
	// Protocol is a name or number.
	Protocol string `json:"protocol"`
	// Port is a number, or the name of one of To's; "" for protocols that have none.
	Port string `json:"port,omitempty"`
}

// PolicyExplanation says what the policies in force say of a packet.
type PolicyExplanation struct {
	Node string `json:"node"`
	From string `json:"from"`
	To   string `json:"to"`
	// Answer is that of the compiled sets. Only pods of this node are asked.
	policy.Answer
	// Elsewhere are the ends that another node judges, in sentences: this node does not know what
	// that one enforces.
	Elsewhere []string `json:"elsewhere,omitempty"`
	// Kernel is what the maps of the datapath say, by direction, of the ends that this node judges.
	Kernel PolicyKernel `json:"kernel"`
	// Disagreements are differences between the two, in sentences. There should be none: each is a
	// bug, or something that `weft status` names as a problem.
	Disagreements []string `json:"disagreements,omitempty"`
}

// PolicyKernel is what the maps say.
type PolicyKernel struct {
	Egress  *PolicyMapAnswer `json:"egress,omitempty"`
	Ingress *PolicyMapAnswer `json:"ingress,omitempty"`
}

// PolicyMapAnswer is what the maps say in one direction.
type PolicyMapAnswer struct {
	// Set is the pod's, 0 for none. Identity and Class are what the maps know of the peer.
	Set      uint32         `json:"set"`
	Identity uint32         `json:"identity"`
	Class    uint32         `json:"class,omitempty"`
	Verdict  policy.Verdict `json:"verdict"`
	// Rule is the number that the entry has, 0 where none was found.
	Rule uint32 `json:"rule,omitempty"`
}

func (a *api) policy(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	if query.Get("name") == "" {
		return &StatusError{http.StatusBadRequest,
			"query parameter name is missing: give NAMESPACE/NAME"}
	}
	detail, err := a.backend.Policy(r.Context(), query.Get("kind"), query.Get("name"))
	if err != nil {
		return err
	}
	return writeJSON(w, detail)
}

func (a *api) explainPolicy(w http.ResponseWriter, r *http.Request) error {
	var request PolicyRequest
	if err := readJSON(r, &request); err != nil {
		return err
	}
	for _, field := range [][2]string{{"from", request.From}, {"to", request.To},
		{"protocol", request.Protocol}} {
		if field[1] == "" {
			return &StatusError{http.StatusBadRequest,
				fmt.Sprintf("bad request body: field %q is missing", field[0])}
		}
	}
	result, err := a.backend.ExplainPolicy(r.Context(), request)
	if err != nil {
		return err
	}
	return writeJSON(w, result)
}
