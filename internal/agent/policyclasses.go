package agent

import (
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/policy"
)

// withhold takes their class from the addresses whose class is about to change, while sets are
// given: until all is done they have one that no set knows, and are denied. Sets that only allow do
// not need it: to them no class says less than any.
func (p *policies) withhold() error {
	if !p.mayDeny() {
		return nil
	}
	wanted := p.wanted()
	interim := maps.Clone(wanted)
	for prefix, class := range p.entered {
		if now, stays := wanted[prefix]; !stays || now != class {
			interim[prefix] = datapath.ClassWithheld
		}
	}
	for prefix, class := range wanted {
		if had, there := p.entered[prefix]; !there || had != class {
			interim[prefix] = datapath.ClassWithheld
		}
	}
	if maps.Equal(interim, p.entered) {
		return nil
	}
	p.entered = nil // whatever part of it succeeds
	if err := p.dp.SetClasses(interim); err != nil {
		return err
	}
	p.entered = interim
	return nil
}

// mayDeny says whether a set that is or was in force has entries that deny.
func (p *policies) mayDeny() bool {
	for _, set := range p.sets {
		if slices.ContainsFunc(set.set.Entries, func(e policy.Entry) bool { return e.Value.Verdict == policy.Deny }) {
			return true
		}
	}
	return false
}

// wanted are the classes that addresses are to have.
func (p *policies) wanted() map[netip.Prefix]uint32 {
	classes := make(map[netip.Prefix]uint32, len(p.result.Classes))
	for _, c := range p.result.Classes {
		classes[c.Prefix] = c.Class
	}
	return classes
}

// classes tells the datapath which class each address is of.
func (p *policies) classes() error {
	if p.result == nil {
		return nil
	}
	wanted := p.wanted()
	if err := p.dp.SetClasses(wanted); err != nil {
		return err
	}
	p.entered = wanted
	return nil
}
