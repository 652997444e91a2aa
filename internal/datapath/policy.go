package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/flowtable"
	"weft.dev/weft/internal/datapath/policymap"
)

// The directions of an entry.
const (
	PolicyEgress  = policymap.Egress
	PolicyIngress = policymap.Ingress
)

// PolicyEntry is one line of a policy set, see package policymap.
type PolicyEntry = policymap.Entry

// policed says whether the endpoint has a policy set.
func (ep Endpoint) policed() bool { return ep.EgressSet != 0 || ep.IngressSet != 0 }

// AddPolicySet enters a set, to be given to endpoints by its number. A set never changes: what a
// policy means from now on is a new one, and the old one goes once no endpoint has it. On an error
// (policymap.ErrFull where there is no room) nothing is changed.
func (d *Datapath) AddPolicySet(entries []PolicyEntry) (uint32, error) { return d.policy.Add(entries) }

// PolicyRoom is how many entries all sets, and how many ranges their classes, may have: half of
// what the maps hold, as those of before a change stay until those of after it are in force.
func (d *Datapath) PolicyRoom() (entries, ranges int) {
	return int(d.maps.Policy.MaxEntries() / 2), int(d.maps.Classes.MaxEntries() / 2)
}

// RemovePolicySets takes sets away, and all of a previous run, and returns which of these stay as
// an endpoint has them; on an error all.
func (d *Datapath) RemovePolicySets(sets ...uint32) (left []uint32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.policy.Remove(sets...)
}

// eitherFor is for how long after an upgrade has emptied the flow table either end may have begun a
// TCP connection that it does not know. What sends meanwhile is known by then.
const eitherFor = 5 * time.Minute

// allowEither begins that time if this run has emptied the table, and lets it be no longer in any
// case. Callers hold d.mu, and write the configuration.
func (d *Datapath) allowEither() {
	until := uint32((time.Duration(flowtable.MonotonicNow()) + eitherFor) / time.Second)
	if d.maps.Emptied["weft_flows4"] || d.maps.Emptied["weft_flows6"] {
		d.config.EitherUntil = until
	}
	d.config.EitherUntil = min(d.config.EitherUntil, until)
}

// SetEndpointPolicy gives an attached endpoint other sets. From the next packet on they decide,
// about connections that there are already, too.
func (d *Datapath) SetEndpointPolicy(slot uint16, egress, ingress uint32) error {
	if err := d.guardFor(Endpoint{EgressSet: egress, IngressSet: ingress}); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	ep, known := d.eps[slot]
	if !known {
		return fmt.Errorf("policy of slot %d: no endpoint has it", slot)
	}
	ep.EgressSet, ep.IngressSet = egress, ingress
	if err := d.putSets(ep); err != nil {
		return err
	}
	d.eps[slot] = ep
	d.unpolice()
	return d.changed()
}

// AdoptEndpointPolicy gives other sets to an endpoint that is in the maps since a previous run,
// before it is attached; one that is not there gets its own when it is.
func (d *Datapath) AdoptEndpointPolicy(slot uint16, egress, ingress uint32) error {
	ep := Endpoint{Slot: slot, EgressSet: egress, IngressSet: ingress}
	if err := d.guardFor(ep); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var value bpf.EpSlot
	if err := d.maps.EpSlot.Lookup(uint32(slot), &value); err != nil {
		return fmt.Errorf("read slot %d: %w", slot, err)
	}
	if value == (bpf.EpSlot{}) || value.Sets == [2]uint32{egress, ingress} {
		return nil
	}
	if err := d.putSets(ep); err != nil {
		return err
	}
	return d.changed()
}

// EnteredSlots are those of endpoints that are in the maps, since a previous run too.
func (d *Datapath) EnteredSlots() (out []uint16, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.policy.EnteredSlots()
}

// putSets enters an endpoint's sets into its slot, which is in use. Callers hold d.mu and call
// changed.
func (d *Datapath) putSets(ep Endpoint) error {
	if err := d.police(ep); err != nil {
		return err
	}
	var value bpf.EpSlot
	if err := d.maps.EpSlot.Lookup(uint32(ep.Slot), &value); err != nil {
		return fmt.Errorf("read slot %d: %w", ep.Slot, err)
	}
	value.Sets = [2]uint32{ep.EgressSet, ep.IngressSet}
	if err := d.maps.EpSlot.Put(uint32(ep.Slot), &value); err != nil {
		return fmt.Errorf("enter slot %d: %w", ep.Slot, err)
	}
	return nil
}

// police has the programs look at policy sets before an endpoint has one. Callers hold d.mu.
func (d *Datapath) police(ep Endpoint) error {
	if !ep.policed() || d.config.Flags&bpf.ConfigPolicy != 0 {
		return nil
	}
	d.config.Flags |= bpf.ConfigPolicy
	return d.writeConfig()
}

// guardFor attaches the hooks that see what leaves by interfaces without hooks, and what this host
// gets, before an endpoint has a policy. Where packets are sealed they are there already; hooks of
// the agent before that are in force for now are not replaced here.
func (d *Datapath) guardFor(ep Endpoint) error {
	if !ep.policed() || d.opts.Encrypt != nil || d.hold.isOn() || d.guarded.Load() {
		return nil
	}
	if err := d.links().EnsureGuards(); err != nil {
		return err
	}
	d.guarded.Store(true)
	return nil
}

// unpolice has the programs look at none, once every endpoint is known and none has any, neither
// here nor in the maps: one that cannot be attached has what a previous run gave it. Callers hold
// d.mu and call changed.
func (d *Datapath) unpolice() {
	if used, err := d.policy.InUse(); err != nil || used || !d.settled {
		return
	}
	for _, ep := range d.eps {
		if ep.policed() {
			return
		}
	}
	d.config.Flags &^= bpf.ConfigPolicy
}

// SetIdentities makes these, and no others, the identities of other nodes' endpoints by their
// addresses: whom a policy's entries are about, and, for what comes sealed, the second witness to
// who has sent it. To be called before the first endpoint is entered: absence may mean that an
// entry that denies is not met.
func (d *Datapath) SetIdentities(identities map[netip.Addr]uint32) error {
	return d.voidIf(d.policy.SetIdentities(identities))
}

// ClassWithheld is the class of addresses that are denied for a moment, by every set.
const ClassWithheld = policymap.Withheld

// SetClasses makes these, and no others, the classes of addresses: which of the ranges that
// policies name each address is in. To be called before the first endpoint is entered, as
// SetIdentities. A set in force must know a class before an address has it, and for as long.
func (d *Datapath) SetClasses(classes map[netip.Prefix]uint32) error {
	if len(classes) > 0 {
		if _, err := d.lookForClasses(true); err != nil {
			return err
		}
	}
	changed, err := d.policy.SetClasses(classes)
	if err == nil && len(classes) == 0 {
		var spared bool
		spared, err = d.lookForClasses(false)
		changed = changed || spared
	}
	return d.voidIf(changed, err)
}

// lookForClasses has the programs look for the classes of addresses, or not.
func (d *Datapath) lookForClasses(look bool) (changed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if look == (d.config.Flags&bpf.ConfigNoClasses == 0) {
		return false, nil
	}
	d.config.Flags ^= bpf.ConfigNoClasses
	return true, d.writeConfig()
}

// Classes are those that addresses have.
func (d *Datapath) Classes() (map[netip.Prefix]uint32, error) { return d.policy.Classes() }

// voidIf makes cached decisions void after a change, and in doubt.
func (d *Datapath) voidIf(changed bool, err error) error {
	if !changed && err == nil {
		return nil
	}
	return errors.Join(err, d.void())
}

// HighestClass is the highest number of a class that is in use, 0 for none: a new one must be above
// it, since sets of a previous run give theirs a meaning.
func (d *Datapath) HighestClass() (uint32, error) { return d.policy.HighestClass() }

// What the maps say of a packet, see package policymap.
type (
	PolicyQuestion = policymap.Question
	PolicyAnswer   = policymap.Answer
)

// Authenticated says whether more than a peer's address tells who it is, see package policymap.
func (d *Datapath) Authenticated(network uint32, peer, own netip.Addr) (bool, error) {
	return d.policy.Authenticated(network, peer, own)
}

// AskPolicy reads in the maps what the programs would decide about a packet.
func (d *Datapath) AskPolicy(q PolicyQuestion) (PolicyAnswer, error) { return d.policy.Ask(q) }

// IdentityAt is who the maps say has an address of a network.
func (d *Datapath) IdentityAt(network uint32, addr netip.Addr) (uint32, error) {
	return d.policy.IdentityAt(network, addr)
}
