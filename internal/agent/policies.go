package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/store"
)

// policyDatapath is where policies are enforced.
type policyDatapath interface {
	PolicyRoom() (entries, ranges int)
	AddPolicySet([]datapath.PolicyEntry) (uint32, error)
	RemovePolicySets(sets ...uint32) (left []uint32, err error)
	SetEndpointPolicy(slot uint16, egress, ingress uint32) error
	AdoptEndpointPolicy(slot uint16, egress, ingress uint32) error
	EnteredSlots() ([]uint16, error)
	SetIdentities(map[netip.Addr]uint32) error
	SetClasses(map[netip.Prefix]uint32) error
	Classes() (map[netip.Prefix]uint32, error)
	HighestClass() (uint32, error)
	AskPolicy(datapath.PolicyQuestion) (datapath.PolicyAnswer, error)
	IdentityAt(network uint32, addr netip.Addr) (uint32, error)
	Authenticated(network uint32, peer, own netip.Addr) (bool, error)
}

// policies keeps the datapath's policy sets what the objects say. A set in the datapath never
// changes: where one is to say something else, endpoints are given another in its place.
type policies struct {
	dp     policyDatapath
	ranges []netip.Prefix

	mu       sync.Mutex
	compiler *policy.Compiler
	result   *policy.Result
	// view is what was compiled last, to be asked without mu.
	view atomic.Pointer[policyView]
	// sets are those in the datapath, by the compiler's number.
	sets map[uint32]installed
	// identities are those that addresses are to have, nil while no policy asks for any.
	identities map[netip.Addr]uint32
	// entered are the classes that the datapath has, nil if that is not known.
	entered map[netip.Prefix]uint32
	// stale are sets that an endpoint may still have.
	stale []installed
	// given are the sets that each attached endpoint has, by slot; promised those of endpoints that
	// are being attached.
	given    map[uint16]policy.Sets
	promised map[uint16]promise
	// restored are those whose records a previous run has left.
	restored []endpoint.Info
	// handed is what every attached endpoint has the sets of, unsettled says that addresses do not
	// have the classes of it yet.
	handed    *policy.Result
	unsettled bool
	// former says that endpoints may have sets of a previous run, of which nothing is known.
	former bool
	// denies is a set without entries, 0 until it is needed.
	denies uint32
}

// installed is a compiled set and its number in the datapath. One that could not be entered has
// set nil, and the number of the set that denies.
type installed struct {
	set    *policy.Set
	number uint32
	// denies says that some of its entries do.
	denies bool
}

// promise is the sets with which an endpoint is being attached.
type promise struct {
	key  string
	sets policy.Sets
	// denies says that some of their entries do.
	denies bool
}

// policyOptions are what the configuration says of policies.
func (a *Agent) policyOptions() policy.Options {
	return policy.Options{
		Relevant: a.labelFilter().Relevant, RootNamespace: a.cfg.Policy.Istio.RootNamespace,
		TrustDomain: a.cfg.Keys.TrustDomain,
	}
}

// labelFilter says which labels tell workloads apart.
func (a *Agent) labelFilter() identity.LabelFilter {
	labels := a.cfg.Identity.Labels
	return identity.LabelFilter{Include: labels.Include, Exclude: labels.Exclude}
}

// newPolicies compiles for a datapath. ranges are those of pods' addresses that no Node object
// names.
func newPolicies(dp policyDatapath, opts policy.Options, ranges []netip.Prefix) (*policies, error) {
	highest, err := dp.HighestClass()
	if err != nil {
		return nil, fmt.Errorf("classes of a previous run: %w", err)
	}
	opts.After = policy.Numbers{Class: highest}
	opts.Room.Entries, opts.Room.Ranges = dp.PolicyRoom()
	return &policies{
		dp: dp, ranges: ranges, sets: map[uint32]installed{}, given: map[uint16]policy.Sets{},
		promised: map[uint16]promise{}, former: true,
		compiler: policy.NewCompiler(opts),
	}, nil
}

// begin enters what endpoints' sets depend on, before the first endpoint, and gives those that are
// in the maps since a previous run the sets of this one. Classes come after: the sets of before
// know none of this run's.
func (p *policies) begin(ix *index, own []endpoint.Info, node string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restored = own
	return errors.Join(p.enter(ix, own, node), p.hand(own))
}

// adopt gives an endpoint that has not been attached in this run its sets, if a previous one has
// entered it.
func (p *policies) adopt(info endpoint.Info) error {
	sets, err := p.numbers(policyKey(info))
	if err == nil {
		err = p.dp.AdoptEndpointPolicy(info.Slot, sets[policy.Egress], sets[policy.Ingress])
	}
	if err != nil {
		return fmt.Errorf("policy of %s: %w", info.Key(), err)
	}
	return nil
}

// endpoints are this node's with their sets. One whose sets could not be entered is cut off until
// they can.
func (p *policies) endpoints(own []endpoint.Info) ([]datapath.Endpoint, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []datapath.Endpoint
	var failed error
	for _, info := range own {
		sets, err := p.numbers(policyKey(info))
		if err != nil {
			failed = errors.Join(failed, err)
			if sets, err = p.deny(); err != nil {
				return nil, errors.Join(failed, err)
			}
		}
		ep := info.Datapath()
		ep.EgressSet, ep.IngressSet = sets[policy.Egress], sets[policy.Ingress]
		out = append(out, ep)
	}
	return out, failed
}

// input is what policies depend on; nothing where there are none, and none were.
func (p *policies) input(ix *index, own []endpoint.Info, node string) policy.Input {
	if !ix.policed() && len(p.sets) == 0 {
		return policy.Input{}
	}
	in := policyInput(ix, own, node)
	in.Ranges = slices.Concat(p.ranges, ix.podRanges())
	return in
}

// enter compiles, and has the datapath know the sets. hand gives these to endpoints, and addresses
// their identities and classes.
func (p *policies) enter(ix *index, own []endpoint.Info, node string) error {
	in := p.input(ix, own, node)
	result, remote := p.compiler.Compile(in), remoteIdentities(in)
	var failed error
	p.identities = nil
	if len(in.Policies) > 0 {
		p.identities = remote
	}
	p.view.Store(&policyView{View: policy.NewView(result, in, policyNames(ix, own)),
		remote: remote})
	for number, set := range result.Sets {
		known, there := p.sets[number]
		if there && known.set != nil &&
			(known.set == set || slices.Equal(known.set.Entries, set.Entries)) {
			continue
		}
		now, err := p.install(set)
		failed = errors.Join(failed, err)
		if now.number == 0 {
			continue
		}
		if there && known.set != nil {
			p.stale = append(p.stale, known)
		}
		p.sets[number] = now
	}
	p.result = result
	return failed
}

// of are the sets with which an endpoint is to be attached; attached is to be called then. Others
// get what its coming changes for them when policies are next applied, or now where sets deny.
func (p *policies) of(ix *index, list func() []endpoint.Info, info endpoint.Info,
	node string) (egress, ingress uint32, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := slices.DeleteFunc(list(), func(i endpoint.Info) bool { return i.ID == info.ID })
	failed := p.enter(ix, append(own, info), node)
	if p.mayDeny() { // its sets may mean nothing before addresses have their classes
		failed = errors.Join(failed, p.hand(p.withRestored(own, info)))
		if p.entered == nil {
			return 0, 0, failed
		}
	} else {
		failed = errors.Join(failed, p.identify())
	}
	sets, err := p.numbers(policyKey(info))
	if err != nil {
		return 0, 0, errors.Join(err, failed)
	}
	p.promised[info.Slot] = promise{policyKey(info), sets, p.mayDeny()}
	return sets[policy.Egress], sets[policy.Ingress], nil
}

// attached is told how the attaching of an endpoint with the sets of `of` has ended. What policies
// have become meanwhile is given to it now.
func (p *policies) attached(info endpoint.Info, failed error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	promised, there := p.promised[info.Slot]
	delete(p.promised, info.Slot)
	if failed == nil && there {
		p.given[info.Slot] = promised.sets
		if failed = p.give(info); failed != nil {
			p.handed = nil
		}
	}
	if !p.unsettled {
		return failed
	}
	return errors.Join(failed, p.settle())
}

// give has an attached endpoint get its sets, if it has others.
func (p *policies) give(info endpoint.Info) error {
	sets, err := p.numbers(policyKey(info))
	if err == nil && p.given[info.Slot] != sets {
		err = p.dp.SetEndpointPolicy(info.Slot, sets[policy.Egress], sets[policy.Ingress])
	}
	if err != nil {
		return fmt.Errorf("policy of %s: %w", info.Key(), err)
	}
	p.given[info.Slot] = sets
	return nil
}

// numbers are the datapath's of an endpoint's sets.
func (p *policies) numbers(key string) (out policy.Sets, err error) {
	if p.result == nil {
		return out, errors.New("policies have not been compiled yet")
	}
	for d, compiled := range p.result.Endpoints[key] {
		if compiled == 0 {
			continue
		}
		set, there := p.sets[compiled]
		if !there {
			return out, fmt.Errorf("the policy set of %s is not in the datapath", key)
		}
		out[d] = set.number
	}
	return out, nil
}

// apply has every attached endpoint get what the objects say. One that is being attached gets it at
// the end of that.
func (p *policies) apply(ix *index, list func() []endpoint.Info, node string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := list()
	entered := p.enter(ix, own, node)
	if err := errors.Join(p.hand(own), p.forget(own)); err != nil || entered == nil {
		return errors.Join(entered, err)
	}
	// Where there was no room there may be some now.
	return errors.Join(p.enter(ix, own, node), p.hand(own), p.forget(own))
}

// identify has the datapath know whose addresses are. They mean nothing to the programs while no
// endpoint has a set, and are not kept then. An address without an identity is allowed less.
func (p *policies) identify() error {
	if p.identities == nil {
		return nil
	}
	return p.dp.SetIdentities(p.identities)
}

// hand gives endpoints their sets, and addresses their identities and classes. Who has an address
// now gets its identity once the class is withheld by which a set may know whoever had it before:
// else he would be let in as that one until there are other sets.
func (p *policies) hand(own []endpoint.Info) error {
	p.handed = nil
	if err := p.withhold(p.wanted()); err != nil {
		return err
	}
	unidentified := p.identify()
	var failed error
	if p.former {
		failed = p.denyUnknown(own)
	}
	for _, info := range own {
		if _, attached := p.given[info.Slot]; attached {
			failed = errors.Join(failed, p.give(info))
		} else if _, promised := p.promised[info.Slot]; !promised {
			failed = errors.Join(failed, p.adopt(info))
		}
	}
	if failed == nil {
		p.handed, p.former = p.result, false
	}
	return errors.Join(unidentified, failed, p.settle())
}

// problem is what is wrong with policies and not told of their files already.
func (p *policies) problem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.result == nil {
		return nil
	}
	var texts []string
	for _, problem := range p.result.Problems {
		if problem.File == "" || problem.Warning {
			texts = append(texts, problem.Error())
		}
	}
	return firstOf(texts)
}

// policyKinds are those that policies depend on.
var policyKinds = append(policy.Kinds(), v1alpha1.KindNode, v1alpha1.KindNamespace,
	v1alpha1.KindPod, v1alpha1.KindEndpoint, v1alpha1.KindIdentity)

// policing says whether there is anything for policies to do about a change.
func policing(d store.Delta, now *index) bool {
	return d.About(policy.Kinds()...) || now.policed() && d.About(policyKinds...)
}

// endpointPolicies are the policies of a node's endpoints as their manager needs them.
type endpointPolicies struct {
	agent *Agent
	node  *node
}

// Of implements endpoint.Policies.
func (e endpointPolicies) Of(info endpoint.Info) (egress, ingress uint32, err error) {
	ix := e.agent.index.Load()
	egress, ingress, err = e.node.policies.of(ix, e.node.manager.List, info, e.agent.cfg.Node)
	if ix.policed() {
		e.agent.owe(work{policies: true})
	}
	return egress, ingress, err
}

// Attached implements endpoint.Policies.
func (e endpointPolicies) Attached(info endpoint.Info, err error) error {
	return e.node.policies.attached(info, err)
}
