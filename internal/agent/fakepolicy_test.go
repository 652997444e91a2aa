package agent

import (
	"net/netip"

	"weft.dev/weft/internal/datapath"
)

// fakePolicies is a datapath's maps of policies.
type fakePolicies struct{}

func (fakePolicies) PolicyRoom() (entries, ranges int)                   { return 0, 0 }
func (fakePolicies) AddPolicySet([]datapath.PolicyEntry) (uint32, error) { return 1, nil }
func (fakePolicies) RemovePolicySets(...uint32) ([]uint32, error)        { return nil, nil }
func (fakePolicies) SetEndpointPolicy(uint16, uint32, uint32) error      { return nil }
func (fakePolicies) AdoptEndpointPolicy(uint16, uint32, uint32) error    { return nil }
func (fakePolicies) EnteredSlots() ([]uint16, error)                     { return nil, nil }
func (fakePolicies) SetIdentities(map[netip.Addr]uint32) error           { return nil }
func (fakePolicies) SetClasses(map[netip.Prefix]uint32) error            { return nil }
func (fakePolicies) Classes() (map[netip.Prefix]uint32, error)           { return nil, nil }
func (fakePolicies) HighestClass() (uint32, error)                       { return 0, nil }
func (fakePolicies) AskPolicy(datapath.PolicyQuestion) (datapath.PolicyAnswer, error) {
	return datapath.PolicyAnswer{Allow: true}, nil
}
func (fakePolicies) Authenticated(_ uint32, peer, _ netip.Addr) (bool, error) {
	return peer.IsPrivate(), nil
}
func (fakePolicies) IdentityAt(uint32, netip.Addr) (uint32, error) { return 3, nil }
