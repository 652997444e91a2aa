package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
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
	// RootNamespace is the one whose AuthorizationPolicies are about all namespaces, "" for none.
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
	// before is the index of the run before, of which shares and finished are what can be used
	// again.
	before   *index
	shares   map[shareKey]*share
	finished map[uint32]*finished
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
	r := &run{
		compiler: c, index: newIndex(in), drafts: map[string]*draft{},
		shares: map[shareKey]*share{}, finished: map[uint32]*finished{},
		conjunctions: map[uint32]*conjunction{},
		result: &Result{Sets: map[uint32]*Set{}, Endpoints: map[string]Sets{},
			Rules: map[uint32]Rule{}},
	}
	r.sameIdentities, r.sameEndpoints = r.index.same(c.before)
	r.sameRanges = c.before != nil && slices.Equal(r.index.ranges, c.before.ranges)
	r.policies(in.Policies)
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
	r.makeSets(order)
	for round := 0; r.limitEntries(order, round); round++ {
		r.makeSets(order)
	}
	r.forget()
	c.before, c.shares, c.finished, c.conjunctions = r.index, r.shares, r.finished, r.conjunctions
	return r.result
}

// makeSets divides the addresses, and makes the sets of all drafts.
func (r *run) makeSets(order []string) {
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
	for _, key := range order {
		r.finish(r.drafts[key])
	}
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
	// What the run before can be asked for, and what the next one can.
	sameIdentities, sameEndpoints, sameRanges bool

	shares       map[shareKey]*share
	finished     map[uint32]*finished
	conjunctions map[uint32]*conjunction
	atoms        []*peerAtom // nil: not asked for yet
}

// policies sorts policies by namespace, and reports what is wrong with them.
func (r *run) policies(list []*Policy) {
	r.active, r.mute, r.everywhere = map[string][]*Policy{}, map[*Policy]bool{}, map[string][]*Policy{}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b *Policy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(b.Kind, a.Kind),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.content, b.content))
	})
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
	if slices.ContainsFunc(d.policies, (*Policy).apart) {
		if d.conjunction = r.conjoin(d); d.conjunction != nil {
			r.conjunctions[d.number] = d.conjunction
			d.blocks = d.conjunction.blocks
		}
		return
	}
	if d.direction == Ingress {
		d.shares = append(d.shares, r.node())
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

// cite calls for each rule of a policy in one direction.
func (p *Policy) cite(d Direction, rule func(Rule) uint32) {
	for i := range p.rules[d] {
		rule(p.rules[d][i].at)
	}
	if p.authorization != nil {
		for i := range p.authorization.rules {
			rule(p.authorization.rules[i].at)
		}
	}
	if p.cluster != nil && p.cluster.closed {
		rule(p.denial().at)
	}
}

// finished is a set, what it was made of, and what was wrong with it.
type finished struct {
	shares   []*share
	classes  []uint32
	set      *Set
	problems []Problem
}

// finish makes a draft's entries, or takes those of the run before, if all that they are made of is
// the same.
func (r *run) finish(d *draft) {
	if d.refused != nil {
		r.result.Sets[d.number] = r.closed(d)
		r.result.Problems = append(r.result.Problems, *d.refused)
		return
	}
	if d.conjunction != nil {
		done := r.enter(d)
		r.result.Sets[d.number] = done.set
		r.result.Problems = append(r.result.Problems, done.problems...)
		return
	}
	done := &finished{shares: d.shares, classes: r.classesOf(d)}
	before := r.compiler.finished[d.number]
	if before != nil && slices.Equal(before.shares, done.shares) &&
		slices.Equal(before.classes, done.classes) {
		done = before
	} else {
		r.entries(d, done)
	}
	r.finished[d.number] = done
	r.result.Sets[d.number] = done.set
	r.result.Problems = append(r.result.Problems, done.problems...)
}

// classesOf are the classes that a draft's blocks have, 0 after each block.
func (r *run) classesOf(d *draft) []uint32 {
	var out []uint32
	for _, one := range d.shares {
		for _, p := range one.parts {
			if p.block != nil {
				out = append(append(out, r.blocks.of(p.block)...), 0)
			}
		}
	}
	return out
}

func (r *run) entries(d *draft, done *finished) {
	set := &Set{Number: d.number, Direction: d.direction, Policies: objects(d.policies)}
	byPeer := map[uint32]map[portPrefix]Value{}
	for _, one := range d.shares {
		for _, p := range one.parts {
			for _, who := range r.peersOf(p) {
				p.into(byPeer, who)
			}
		}
	}
	for _, who := range slices.Sorted(maps.Keys(byPeer)) {
		key := Key{Set: d.number, Direction: d.direction, Peer: who}
		set.Entries = append(set.Entries, resolve(key, byPeer[who])...)
	}
	if limit := r.compiler.opts.MaxEntries; len(set.Entries) > limit {
		done.problems = exceeds(set, limit)
	}
	done.set = set
}

func (r *run) peersOf(p part) []uint32 {
	if p.block != nil {
		return r.blocks.of(p.block)
	}
	return []uint32{p.peer}
}

// closed is a set that denies all, but for what no policy can keep out.
func (r *run) closed(d *draft) *Set {
	set := &Set{Number: d.number, Direction: d.direction, Policies: objects(d.policies)}
	if d.direction == Ingress {
		node := r.node().parts[0]
		set.Entries = []Entry{{Key{Set: d.number, Direction: Ingress, Peer: node.peer}, node.value}}
	}
	return set
}

// exceeds has a set that is beyond its budget deny all, but for what no policy can keep out.
func exceeds(set *Set, limit int) []Problem {
	needed := len(set.Entries)
	set.Entries = slices.DeleteFunc(set.Entries,
		func(e Entry) bool { return e.Precedence != precedenceNode })
	return []Problem{{
		Object: strings.Join(set.Policies, ", "),
		Msg: fmt.Sprintf("%s would need %d entries for one pod, more than %d, so all of it is denied: "+
			"use fewer port ranges, wider ranges of addresses, or selectors that match fewer identities",
			set.Direction, needed, limit),
	}}
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
