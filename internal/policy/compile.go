package policy

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
)

// DefaultMaxEntries is how many entries a policy set may have.
const DefaultMaxEntries = 1 << 16

// Options are what a Compiler goes by.
type Options struct {
	// MaxEntries is the budget of one set, DefaultMaxEntries if 0. A set above it denies all.
	MaxEntries int
	// MaxVerdicts bounds what finding the verdicts of a set with policies of several kinds may
	// take, DefaultMaxVerdicts if 0. A set above it denies all.
	MaxVerdicts int
	// Relevant says whether a label is part of identities. A policy that tells peers apart by one
	// that is not would be evaluated as if no peer had it: it is in error. nil: all are.
	Relevant func(key string) bool
	// RootNamespace is the one whose policies of Istio's are about all namespaces, "" for none.
	RootNamespace string
	// TrustDomain is the cluster's own, which Istio's policies may call cluster.local.
	TrustDomain string
	// Room is what all sets of the node may need together.
	Room Room
	// After are the highest numbers that are taken, by who was here before: a datapath that
	// outlives its agent has sets by number.
	After Numbers
}

// Numbers are what a Compiler gives out, each once: a number never comes to mean something else.
type Numbers struct{ Set, Class, Rule uint32 }

// Input is all that policies depend on. Maps and slices in it are compared with those of the run
// before: who changes one makes a new one.
type Input struct {
	Policies   []*Policy
	Identities []Identity
	// Endpoints are those of all nodes.
	Endpoints []Endpoint
	// Namespaces are the labels of each namespace. Every name has its own besides:
	// kubernetes.io/metadata.name.
	Namespaces map[string]map[string]string
	// Ranges are those that pods have their addresses from: who is there and has no identity may be
	// anybody.
	Ranges []netip.Prefix
}

// Set is what the endpoints with the same policies share in one direction.
type Set struct {
	Number    uint32
	Direction Direction
	// Policies are the objects, by kind and name.
	Policies []string
	// Entries are in the order of their keys. What none of them allows is denied.
	Entries []Entry
}

// Sets are an endpoint's, by direction: 0 for none, which allows all.
type Sets [2]uint32

// Result is what the datapath needs. It does not change any more.
type Result struct {
	Sets map[uint32]*Set
	// Endpoints are the local ones' sets, by key.
	Endpoints map[string]Sets
	// Classes are in the order of their prefixes, those around others first.
	Classes []Class
	Rules   map[uint32]Rule
	// Permissive are, by key, the PeerAuthentications about local endpoints of which none is STRICT
	// there, by kind and name: they are part of no set.
	Permissive map[string][]string
	// Problems are those of policies, and of sets beyond their budget.
	Problems []Problem
}

// Compiler compiles policies again and again, and gives what stays the same the same numbers. It is
// not safe for concurrent use.
type Compiler struct {
	opts    Options
	last    Numbers
	sets    map[string]uint32
	classes map[string]uint32
	rules   map[Rule]uint32
	// before is the index of the run before, list its policies and result what it has made; shares
	// and finished are what can be used again.
	before   *index
	list     []*Policy
	result   *Result
	shares   map[shareKey]*share
	finished map[uint32]*finished
	// subjects are the endpoints of the run before, by key.
	subjects map[string]*subject
	// conjunctions are those of the run before, by their sets.
	conjunctions map[uint32]*conjunction
}

// NewCompiler is a compiler that has compiled nothing yet.
func NewCompiler(opts Options) *Compiler {
	opts.MaxEntries = cmp.Or(opts.MaxEntries, DefaultMaxEntries)
	opts.MaxVerdicts = cmp.Or(opts.MaxVerdicts, DefaultMaxVerdicts)
	last := opts.After
	last.Class = max(last.Class, ClassBase)
	return &Compiler{opts: opts, last: last, sets: map[string]uint32{},
		classes: map[string]uint32{}, rules: map[Rule]uint32{}}
}

// Compile makes the sets of all local endpoints. The same input gives the same result, whatever
// its order, but for the numbers, which depend on what was compiled before.
func (c *Compiler) Compile(in Input) *Result {
	r := c.begin(in)
	list := sortedPolicies(in.Policies)
	if r.known && len(r.changed) == 0 && r.sameEndpoints && r.sameRanges &&
		slices.Equal(list, c.list) && r.index.identical(c.before) {
		return c.result
	}
	order := r.draftAll(list)
	for round, needed := 0, r.makeSets(order); r.limitEntries(order, needed, round); round++ {
		needed = r.makeSets(order)
	}
	r.forget()
	maps.DeleteFunc(r.index.found, func(_ string, s *matched) bool { return !s.used })
	c.before, c.list, c.result = r.index, list, r.result
	c.shares, c.finished, c.conjunctions = r.shares, r.finished, r.conjunctions
	c.subjects = r.subjects
	return r.result
}

// begin begins a compilation, with what the one before can be asked for.
func (c *Compiler) begin(in Input) *run {
	r := &run{
		compiler: c, index: newIndex(in), drafts: map[string]*draft{},
		shares: map[shareKey]*share{}, finished: map[uint32]*finished{},
		conjunctions: map[uint32]*conjunction{}, subjects: map[string]*subject{},
		result: &Result{Sets: map[uint32]*Set{}, Endpoints: map[string]Sets{},
			Rules: map[uint32]Rule{}, Permissive: map[string][]string{}},
	}
	r.changed, r.known = r.index.changes(c.before)
	r.sameEndpoints = r.index.sameEndpoints(c.before)
	r.sameRanges = c.before != nil && slices.Equal(r.index.ranges, c.before.ranges)
	return r
}

// draftAll finds which sets there are to be, and whom and what they are about. It returns the order
// of the drafts.
func (r *run) draftAll(list []*Policy) []string {
	if r.known {
		r.index.carry(r.compiler.before, r.changed)
	}
	r.policies(list)
	for _, e := range r.index.endpoints {
		if e.Local {
			r.endpoint(e)
		}
	}
	order := slices.Sorted(maps.Keys(r.drafts))
	for _, key := range order {
		r.gather(r.drafts[key])
	}
	r.limitRanges(order)
	return order
}

// makeSets divides the addresses, and makes the sets of all drafts, of those that there is room for
// to the last entry. It returns how many entries all need.
func (r *run) makeSets(order []string) (needed int) {
	c := r.compiler
	r.blocks, r.family = blocks{index: map[string]int{}}, nil
	r.result.Problems = r.result.Problems[:r.told]
	for _, key := range order {
		if d := r.drafts[key]; d.refused == nil {
			for _, b := range d.blocks {
				r.blocks.add(b)
			}
		}
	}
	r.result.Classes = r.blocks.classify(
		func(key string) uint32 { return number(c.classes, key, &c.last.Class) })
	room := cmp.Or(c.opts.Room.Entries, math.MaxInt)
	for _, key := range order {
		needed += r.finish(r.drafts[key], room-needed)
	}
	return needed
}

// number is the one that a thing has, or the next.
func number[K comparable](known map[K]uint32, key K, last *uint32) uint32 {
	n, ok := known[key]
	if !ok {
		*last++
		n = *last
		known[key] = n
	}
	return n
}

// run is one compilation.
type run struct {
	compiler *Compiler
	index    *index
	// active are the policies of each namespace, in the order of their names.
	active map[string][]*Policy
	// everywhere are those with the policies of the root namespace.
	everywhere map[string][]*Policy
	clusters   []*Policy
	// mute are policies that are in error here and not by themselves.
	mute   map[*Policy]bool
	blocks blocks
	// family is the one of each class, by the keys of families. nil: not asked for yet.
	family map[uint32]string
	drafts map[string]*draft
	result *Result
	// told is how many problems are the policies' own, and no set's.
	told int
	// What the run before can be asked for, and what the next one can. changed are the identities
	// that are others than then, if that is known.
	changed                          map[uint32]bool
	known, sameEndpoints, sameRanges bool

	shares       map[shareKey]*share
	finished     map[uint32]*finished
	conjunctions map[uint32]*conjunction
	subjects     map[string]*subject
	atoms        []*peerAtom // nil: not asked for yet
}

func sortedPolicies(list []*Policy) []*Policy {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b *Policy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(b.Kind, a.Kind),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.content, b.content),
			cmp.Compare(a.file, b.file))
	})
	return list
}

// policies sorts policies by namespace, and reports what is wrong with them.
func (r *run) policies(list []*Policy) {
	r.active, r.mute, r.everywhere = map[string][]*Policy{}, map[*Policy]bool{}, map[string][]*Policy{}
	for _, p := range list {
		if p.cluster != nil {
			r.clusters = append(r.clusters, p)
		} else {
			r.active[p.Namespace] = append(r.active[p.Namespace], p)
		}
		r.result.Problems = append(r.result.Problems, p.Problems...)
		if found := r.irrelevant(p); len(found) > 0 {
			r.mute[p] = true
			r.result.Problems = append(r.result.Problems, found...)
		}
	}
	r.result.Problems = append(r.result.Problems, r.outranked()...)
	r.told = len(r.result.Problems)
}

// irrelevant finds selectors of peers by labels that identities do not have.
func (r *run) irrelevant(p *Policy) []Problem {
	relevant := r.compiler.opts.Relevant
	if relevant == nil {
		return nil
	}
	var out []Problem
	outcome := "allows nothing"
	if p.cluster != nil {
		outcome = "denies all"
	}
	for _, d := range directions {
		for _, one := range p.rules[d] {
			for _, who := range one.peers {
				if who.block != nil {
					continue
				}
				for _, key := range keys(who.pods) {
					if !relevant(key) {
						out = append(out, Problem{
							File: one.at.File, Line: one.at.Line, Object: p.Object(),
							Field: one.at.Field,
							Msg: fmt.Sprintf("selects peers by the label %s, which is not part of identities, so the policy %s: "+
								"select by another label", key, outcome),
						})
					}
				}
			}
		}
	}
	return out
}

// gather finds whom the rules of a set are about.
func (r *run) gather(d *draft) {
	if d.direction == Ingress {
		d.shares = append(d.shares, r.node())
		d.unauthenticated = r.values(d.authentication)
	}
	if slices.ContainsFunc(d.policies, (*Policy).apart) {
		if d.conjunction = r.conjoin(d); d.conjunction != nil {
			r.conjunctions[d.number] = d.conjunction
			d.blocks = d.conjunction.blocks
		}
		return
	}
	others := func(p *Policy) bool { return p.peerAuth == nil }
	if !slices.ContainsFunc(d.policies, others) {
		d.shares = append(d.shares, r.anybody(d))
	}
	for _, p := range d.policies {
		if r.mute[p] {
			continue
		}
		for i := range p.rules[d.direction] {
			d.shares = append(d.shares, r.share(d, &p.rules[d.direction][i]))
		}
	}
	for _, one := range d.shares {
		for _, part := range one.parts {
			if part.block != nil {
				d.blocks = append(d.blocks, part.block)
			}
		}
	}
}

// rule gives a rule its number, which is the same wherever it is written.
func (r *run) rule(at Rule) uint32 {
	key := at
	key.File, key.Line = "", 0
	n := number(r.compiler.rules, key, &r.compiler.last.Rule)
	r.result.Rules[n] = at
	return n
}

// forget drops the numbers of what is no more. They are not given out again.
func (r *run) forget() {
	c := r.compiler
	maps.DeleteFunc(c.sets, func(key string, _ uint32) bool { return r.drafts[key] == nil })
	used := map[uint32]bool{}
	for _, class := range r.result.Classes {
		used[class.Class] = true
	}
	maps.DeleteFunc(c.classes, func(_ string, n uint32) bool { return !used[n] })
	maps.DeleteFunc(c.rules,
		func(_ Rule, n uint32) bool { _, used := r.result.Rules[n]; return !used })
}
