package agent

import (
	"errors"
	"fmt"
	"slices"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/policy"
)

// deny is a set without entries, for both directions.
func (p *policies) deny() (policy.Sets, error) {
	if p.denies == 0 {
		var err error
		if p.denies, err = p.dp.AddPolicySet(nil); err != nil {
			return policy.Sets{}, fmt.Errorf("policy set that denies: %w", err)
		}
	}
	return policy.Sets{p.denies, p.denies}, nil
}

// install enters a set. Where that fails, what it is about is denied until it is tried again: what
// endpoints had before may allow more than they are allowed now.
func (p *policies) install(set *policy.Set) (installed, error) {
	number, err := p.dp.AddPolicySet(datapathEntries(set))
	if err == nil {
		denies := slices.ContainsFunc(set.Entries,
			func(e policy.Entry) bool { return e.Verdict == policy.Deny })
		return installed{set, number, denies}, nil
	}
	err = fmt.Errorf("%s of %v cannot be entered, and is denied until it can: %w", set.Direction,
		set.Policies, err)
	denying, errDeny := p.deny()
	return installed{number: denying[policy.Ingress]}, errors.Join(err, errDeny)
}

// datapathEntries are a set's, as the datapath takes them.
func datapathEntries(set *policy.Set) []datapath.PolicyEntry {
	out := make([]datapath.PolicyEntry, len(set.Entries))
	for i, e := range set.Entries {
		out[i] = datapath.PolicyEntry{
			Direction: datapath.PolicyEgress, Peer: e.Peer, Protocol: e.Protocol, Port: e.Port,
			PortBits: e.PortBits,
			Allow:    e.Verdict == policy.Allow, Precedence: e.Precedence, Rule: e.Rule,
		}
		if e.Direction == policy.Ingress {
			out[i].Direction = datapath.PolicyIngress
		}
	}
	return out
}
