package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
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

// denyUnknown has the endpoints denied that are in the maps since a previous run and that nobody
// here knows, as their records are damaged, until they are made anew or removed: their policies are
// not known either, and classes of addresses are about to mean what their sets do not know.
func (p *policies) denyUnknown(own []endpoint.Info) error {
	slots, err := p.dp.EnteredSlots()
	if err != nil {
		return fmt.Errorf("policies of endpoints that are not known: %w", err)
	}
	var failed error
	for _, slot := range slots {
		_, promised := p.promised[slot]
		if promised || slices.ContainsFunc(own,
			func(i endpoint.Info) bool { return i.Slot == slot }) {
			continue
		}
		denied, err := p.deny()
		if err == nil {
			err = p.dp.AdoptEndpointPolicy(slot, denied[policy.Egress], denied[policy.Ingress])
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("policy of slot %d, which no record names: %w",
				slot, err))
		}
	}
	return failed
}

// withRestored adds an endpoint that is about to be attached, if it may have been in the maps since
// a previous run: it gets its sets at once, as others do. Who got the slot of one whose record is
// damaged gets nothing yet: what is in the slot until he is attached is still that one.
func (p *policies) withRestored(own []endpoint.Info, info endpoint.Info) []endpoint.Info {
	_, attached := p.given[info.Slot]
	if attached || !slices.ContainsFunc(p.restored,
		func(i endpoint.Info) bool { return i.ID == info.ID && i.Slot == info.Slot }) {
		return own
	}
	return append(slices.Clone(own), info)
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

// forget removes the sets that no endpoint has any more, those of a previous run with them. What
// cannot be removed is tried again.
func (p *policies) forget(own []endpoint.Info) error {
	for number, set := range p.sets {
		if p.result.Sets[number] != nil {
			continue
		}
		if set.set != nil {
			p.stale = append(p.stale, set)
		}
		delete(p.sets, number)
	}
	maps.DeleteFunc(p.given, func(slot uint16, _ policy.Sets) bool {
		return !slices.ContainsFunc(own, func(i endpoint.Info) bool { return i.Slot == slot })
	})
	var unused []uint32
	for _, set := range p.stale {
		if !p.isPromised(set.number) {
			unused = append(unused, set.number)
		}
	}
	left, err := p.dp.RemovePolicySets(unused...)
	p.stale = slices.DeleteFunc(p.stale, func(set installed) bool {
		return !p.isPromised(set.number) && !slices.Contains(left, set.number)
	})
	return err
}

// isPromised says whether a set is one of an endpoint that is about to be attached.
func (p *policies) isPromised(set uint32) bool {
	for _, promised := range p.promised {
		if slices.Contains(promised.sets[:], set) {
			return true
		}
	}
	return false
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
