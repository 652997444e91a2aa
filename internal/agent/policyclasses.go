package agent

import (
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/datapath"
)

// withhold takes their class from the addresses whose class is about to change, while sets are
// given: until all is done they have one that no set knows, and are denied. Sets that only allow do
// not need it: to them no class says less than any. The classes of a previous run, and those that
// an error has left, are asked for: the sets of then may deny what is in them, and nothing else
// says that it is denied.
func (p *policies) withhold(wanted map[netip.Prefix]uint32) error {
	if !p.mayDeny() {
		return nil
	}
	if p.entered == nil {
		var err error
		if p.entered, err = p.dp.Classes(); err != nil {
			p.entered = nil
			return err
		}
	}
	interim := maps.Clone(wanted)
	for _, classes := range []map[netip.Prefix]uint32{p.entered, wanted} {
		for prefix := range classes {
			had, before := p.entered[prefix]
			if now, after := wanted[prefix]; before != after || had != now {
				interim[prefix] = datapath.ClassWithheld
			}
		}
	}
	if maps.Equal(interim, p.entered) {
		return nil
	}
	return p.setClasses(interim)
}

// mayDeny says whether a set that is or may still be in force has entries that deny.
func (p *policies) mayDeny() bool {
	if p.former || slices.ContainsFunc(p.stale, func(s installed) bool { return s.denies }) {
		return true
	}
	for _, set := range p.sets {
		if set.denies {
			return true
		}
	}
	for _, promised := range p.promised {
		if promised.denies {
			return true
		}
	}
	return false
}

// settle gives addresses their classes once every endpoint has sets that know these. Until then
// those stay withheld that a set of before would take for another's: a set that denies some ranges
// may allow what is in none of them.
func (p *policies) settle() error {
	p.unsettled = p.handed != p.result || p.mayDeny() && p.outdated()
	if p.unsettled {
		return nil
	}
	return p.setClasses(p.wanted())
}

// outdated says whether an endpoint is being attached with other sets than it is to have now.
func (p *policies) outdated() bool {
	for _, promised := range p.promised {
		if sets, err := p.numbers(promised.key); err != nil || sets != promised.sets {
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

// setClasses tells the datapath which class each address is of. After an error nobody knows which
// part of it has succeeded.
func (p *policies) setClasses(classes map[netip.Prefix]uint32) error {
	p.entered = nil
	if err := p.dp.SetClasses(classes); err != nil {
		return err
	}
	p.entered = classes
	return nil
}
