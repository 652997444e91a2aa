package agent

import (
	"net/netip"
	"strconv"
	"sync"

	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/policy"
)

// policyView is what the agent compiled last, with what it knows of other nodes' endpoints. It does
// not change any more.
type policyView struct {
	*policy.View
	// remote are the identities of other nodes' endpoints.
	remote map[netip.Addr]uint32
}

// policyNames are what identities and this node's pods are called. They are looked up when somebody
// asks.
func policyNames(ix *index, own []endpoint.Info) policy.Names {
	pods := sync.OnceValue(func() map[string]string {
		out := make(map[string]string, len(own))
		for _, info := range own {
			out[policyKey(info)] = podName(info)
		}
		return out
	})
	return policy.Names{
		Identity: ix.identityName,
		Pod: func(key string) string {
			if name := pods()[key]; name != "" {
				return name
			}
			return key
		},
	}
}

// identityName is the name of a workload identity, "" if no object says it.
func (ix *index) identityName(number uint32) string {
	o := ix.snapshot.Identities[strconv.FormatUint(uint64(number), 10)]
	if o == nil {
		return ""
	}
	_, namespace, account := o.Spec.Workload()
	return policy.IdentityName(namespace, account, o.Spec.Labels)
}

func podName(info endpoint.Info) string { return describe(info, nil).Name() }
