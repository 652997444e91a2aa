package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
)

func compiled(t *testing.T, in Input, opts Options, texts ...string) *Result {
	t.Helper()
	for i, text := range texts {
		in.Policies = append(in.Policies,
			policiesOf(t,
				strings.Replace(header, "name: np", fmt.Sprint("name: np", i), 1)+text)...)
	}
	return NewCompiler(opts).Compile(in)
}

// TestSharing: endpoints have one set where the policies about them are the same, and so are the
// ports of theirs that these name.
func TestSharing(t *testing.T) {
	r := compiled(t, shop(), Options{},
		"  podSelector: {}\n  policyTypes: [Ingress, Egress]\n  egress: [{ports: [{port: http}]}]\n",
		"  podSelector: {matchLabels: {app: web}}\n  ingress: [{ports: [{port: http}]}]\n")
	web, web2, db, plain := r.Endpoints["shop/web"], r.Endpoints["shop/web-2"], r.Endpoints["shop/db"], r.Endpoints["shop/plain"]
	if db != plain || web[Egress] != db[Egress] || web[Ingress] == web2[Ingress] ||
		web[Ingress] == db[Ingress] || r.Endpoints["ops/prom"] != (Sets{}) {
		t.Errorf("sets: %v", r.Endpoints)
	}
	if len(r.Sets) != 4 {
		t.Errorf("%d sets, want one for egress and three for ingress", len(r.Sets))
	}
}

// TestDeterministic: the order of the input does not matter, and compiling again changes nothing.
func TestDeterministic(t *testing.T) {
	in := shop()
	in.Policies = append(policiesOf(t,
		header+
			"  podSelector: {}\n  policyTypes: [Ingress, Egress]\n  egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/31]}}, {namespaceSelector: {}}], ports: [{port: http}]}]\n"),
		policiesOf(t,
			strings.Replace(header, "np", "other", 1)+
				"  ingress: [{from: [{ipBlock: {cidr: 10.1.0.0/16}}, {podSelector: {}}]}]\n")...)
	compiler := NewCompiler(Options{})
	first := compiler.Compile(in)
	if again := compiler.Compile(in); !reflect.DeepEqual(first, again) {
		t.Errorf("compiled again:\n%+v\n%+v", first, again)
	}
	for seed := range uint64(20) {
		g := rand.New(rand.NewPCG(seed, 1))
		other := in
		other.Policies, other.Identities, other.Endpoints = slices.Clone(in.Policies), slices.Clone(in.Identities), slices.Clone(in.Endpoints)
		g.Shuffle(len(other.Policies), reflect.Swapper(other.Policies))
		g.Shuffle(len(other.Identities), reflect.Swapper(other.Identities))
		g.Shuffle(len(other.Endpoints), reflect.Swapper(other.Endpoints))
		if again := NewCompiler(Options{}).Compile(other); !reflect.DeepEqual(first, again) {
			t.Fatalf("shuffled:\n%+v\n%+v", first, again)
		}
	}
}

// TestNumbers: a number never comes to mean something else. A policy that changes gives its
// endpoints another set, so that they can be switched at once; one that comes back does not get the
// old one.
func TestNumbers(t *testing.T) {
	compiler := NewCompiler(Options{After: Numbers{Set: 70, Class: ClassBase + 9, Rule: 5}})
	in := shop()
	in.Policies = policiesOf(t, header+"  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]\n")
	first := compiler.Compile(in)
	set := first.Endpoints["shop/web"][Ingress]
	if set != 71 || first.Classes[0].Class != ClassBase+10 ||
		slices.Min(slices.Collect(maps.Keys(first.Rules))) != 6 {
		t.Errorf("numbers that others have: set %d, classes %v, rules %v", set, first.Classes,
			first.Rules)
	}
	in.Policies = policiesOf(t, header+"  ingress: [{from: [{ipBlock: {cidr: 11.0.0.0/8}}]}]\n")
	second := compiler.Compile(in)
	if next := second.Endpoints["shop/web"][Ingress]; next == set || second.Sets[set] != nil ||
		second.Classes[0].Class == first.Classes[0].Class {
		t.Errorf("the changed policy has set %d and classes %v, as before", next, second.Classes)
	}
	in.Identities = append(in.Identities,
		Identity{Number: 400, Namespace: "shop", Labels: map[string]string{"app": "new"}})
	third := compiler.Compile(in)
	if !reflect.DeepEqual(third.Endpoints, second.Endpoints) {
		t.Errorf("an identity more, and other sets: %v %v", second.Endpoints, third.Endpoints)
	}
	in.Policies = policiesOf(t, header+"  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]\n")
	if last := compiler.Compile(in).Endpoints["shop/web"][Ingress]; last <= second.Endpoints["shop/web"][Ingress] {
		t.Errorf("set %d was given out again", last)
	}
}

// TestBudget: a set beyond it denies all, its node excepted, and the error has the object's name.
func TestBudget(t *testing.T) {
	const ranges = "  ingress: [{ports: [{port: 1, endPort: 65534}]}]\n" // 30 prefixes
	for limit, want := range map[int]Verdict{30: Deny, 31: Allow} {
		in := shop()
		r := compiled(t, in, Options{MaxEntries: limit}, "  podSelector: {}\n"+ranges)
		table := NewTable(r)
		if probe(t, table, in, "8.8.8.8 shop/web 80/TCP") != want ||
			probe(t, table, in, "host shop/web 80/TCP") != Allow {
			t.Errorf("%d entries: not %v, or closed to the node", limit, want)
		}
		if text := said(r.Problems); (want == Deny) != strings.Contains(text,
			"NetworkPolicy shop/np0: ingress would need 31 entries for one pod, more than 30") {
			t.Errorf("%d entries: said %q", limit, text)
		}
	}
}

// TestIrrelevantLabels: identities do not have every label. Evaluated all the same, NotIn and
// DoesNotExist would match every pod.
func TestIrrelevantLabels(t *testing.T) {
	in := shop()
	relevant := func(key string) bool { return key != "hash" }
	r := compiled(t, in, Options{Relevant: relevant},
		"  podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{podSelector: {matchExpressions: [{key: hash, operator: DoesNotExist}]}}]}]\n")
	if probe(t, NewTable(r), in, "shop/db shop/web 80/TCP") != Deny ||
		!strings.Contains(said(r.Problems),
			"f.yaml:6: NetworkPolicy shop/np0: spec.ingress[0]: selects peers by the label hash") {
		t.Errorf("allowed, or nothing said: %q", said(r.Problems))
	}
	// Whom a policy is about is decided where the pod is, by all of its labels.
	in.Endpoints[0].Labels["hash"] = "1"
	r = compiled(t, in, Options{Relevant: relevant}, "  podSelector: {matchLabels: {hash: '1'}}\n")
	if len(r.Problems) > 0 || r.Endpoints["shop/web"][Ingress] == 0 {
		t.Errorf("%v %v", r.Problems, r.Endpoints)
	}
}

// TestUnknownPeers: who has no identity, or an identity that is not a pod's, is no selector's.
func TestUnknownPeers(t *testing.T) {
	in := shop()
	// No such Identity can be; as a number, theirs would be everybody's, or some addresses'.
	in.Identities = append(in.Identities, Identity{Number: AnyPeer, Namespace: "shop"},
		Identity{Number: ClassBase + 1, Namespace: "shop"})
	r := compiled(t, in, Options{},
		"  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {}}]}]\n")
	for number := range uint32(v1alpha1.MinIdentity) { // 0 among them: who is not known
		got := NewTable(r).Decide("shop/web", Ingress,
			Peer{Identity: number, Address: netip.MustParseAddr("10.1.0.3")}, TCP, 80).Verdict
		if want := number == v1alpha1.IdentityHost; (got == Allow) != want {
			t.Errorf("identity %d: %v", number, got)
		}
	}
}

func TestSplit(t *testing.T) {
	for _, r := range [][2]uint16{{0, 65535}, {1, 65535}, {1, 65534}, {80, 80}, {0, 0},
		{65535, 65535}, {1000, 2049}, {32768, 32769}, {5, 6}} {
		parts := split(TCP, r[0], r[1])
		covered := map[uint32]int{}
		for _, p := range parts {
			for n := range uint32(1) << (16 - p.bits) {
				covered[uint32(p.port)+n]++
			}
		}
		for n := range uint32(65536) {
			if want := n >= uint32(r[0]) && n <= uint32(r[1]); (covered[n] == 1) != want ||
				covered[n] > 1 {
				t.Fatalf("%v: port %d is in %d prefixes", r, n, covered[n])
			}
		}
		if len(covered) > 65536 || len(parts) > 30 {
			t.Errorf("%v: %d prefixes", r, len(parts))
		}
	}
}

// TestResolve has precedences that NetworkPolicy has not, as kinds with priorities will.
func TestResolve(t *testing.T) {
	any, tcp, p80, p80s := portPrefix{}, portPrefix{TCP, 0, 0}, portPrefix{TCP, 80,
		16}, portPrefix{TCP, 80, 12}
	v := func(verdict Verdict, precedence uint32) Value { return Value{verdict, precedence, 0} }
	tests := []struct {
		name string
		in   map[portPrefix]Value
		want map[portPrefix]Value
	}{
		{"the wider one wins", map[portPrefix]Value{any: v(Deny, 9), p80: v(Allow, 5)},
			map[portPrefix]Value{any: v(Deny, 9)}},
		{"the narrower one wins", map[portPrefix]Value{any: v(Deny, 5), p80: v(Allow, 9)},
			map[portPrefix]Value{any: v(Deny, 5), p80: v(Allow, 9)}},
		{"at equal precedence deny wins", map[portPrefix]Value{tcp: v(Deny, 5), p80: v(Allow, 5)},
			map[portPrefix]Value{tcp: v(Deny, 5)}},
		{"and inside, too", map[portPrefix]Value{tcp: v(Allow, 5), p80: v(Deny, 5)},
			map[portPrefix]Value{tcp: v(Allow, 5), p80: v(Deny, 5)}},
		{"three deep",
			map[portPrefix]Value{any: v(Allow, 1), tcp: v(Deny, 7), p80s: v(Allow, 5),
				p80: v(Allow, 9)},
			map[portPrefix]Value{any: v(Allow, 1), tcp: v(Deny, 7), p80: v(Allow, 9)}},
		{"the same twice", map[portPrefix]Value{p80s: v(Allow, 5), p80: v(Allow, 5)},
			map[portPrefix]Value{p80s: v(Allow, 5)}},
		{"the same with another precedence counts among peers",
			map[portPrefix]Value{p80s: v(Allow, 5), p80: v(Allow, 6)},
			map[portPrefix]Value{p80s: v(Allow, 5), p80: v(Allow, 6)}},
	}
	for _, tt := range tests {
		got := map[portPrefix]Value{}
		for _, v := range resolve(tt.in) {
			got[v.at] = v.value
		}
		if !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestDecide has what only several peers' entries together decide.
func TestDecide(t *testing.T) {
	r := &Result{
		Endpoints: map[string]Sets{"a": {1, 0}},
		Classes: []Class{{netip.MustParsePrefix("10.0.0.0/8"), ClassBase + 1},
			{netip.MustParsePrefix("10.1.0.0/16"), 0}},
		Sets: map[uint32]*Set{1: {Entries: []Entry{
			{Key{Set: 1, Peer: AnyPeer}, Value{Allow, 5, 1}},
			{Key{Set: 1, Peer: 300}, Value{Deny, 7, 2}},
			{Key{Set: 1, Peer: 301}, Value{Deny, 4, 5}},
			{Key{Set: 1, Peer: 300, Protocol: TCP, Port: 80, PortBits: 16}, Value{Allow, 5, 3}},
			{Key{Set: 1, Peer: ClassBase + 1, Protocol: TCP}, Value{Deny, 5, 4}},
		}}},
	}
	table := NewTable(r)
	for _, tt := range []struct {
		identity uint32
		address  string
		protocol uint8
		port     uint16
		want     Decision
	}{
		{299, "11.0.0.1", TCP, 80, Decision{Allow, 1, 1}},
		{300, "11.0.0.1", TCP, 81, Decision{Deny, 1, 2}},
		{301, "11.0.0.1", TCP, 81, Decision{Allow, 1, 1}},
		{299, "10.0.0.1", TCP, 80, Decision{Deny, 1, 4}},
		{299, "10.0.0.1", UDP, 80, Decision{Allow, 1, 1}},
		{299, "10.1.0.1", TCP, 80, Decision{Allow, 1, 1}},
	} {
		if got := table.Decide("a", Egress, Peer{Identity: tt.identity, Address: netip.MustParseAddr(tt.address)},
			tt.protocol, tt.port); got != tt.want {
			t.Errorf("%+v: %+v", tt, got)
		}
	}
	if got := table.Decide("a", Ingress, Peer{}, TCP, 80); got != (Decision{Verdict: Allow}) {
		t.Errorf("no set: %+v", got)
	}
}

// TestAgain has what changes beside a policy, under a set that stays: it must follow.
func TestAgain(t *testing.T) {
	egress := header +
		"  podSelector: {matchLabels: {app: db}}\n  policyTypes: [Egress]\n  egress: [{ports: [{port: http}]}]\n"
	ingress := strings.Replace(header, "np", "in", 1) +
		"  podSelector: {matchLabels: {app: db}}\n  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]\n"
	other := strings.Replace(header, "np", "other", 1) +
		"  podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{ipBlock: {cidr: 10.2.0.0/16}}]}]\n"
	tests := []struct {
		name          string
		change        func(t *testing.T, in *Input)
		allowed, deny string
	}{
		{"a peer's named port",
			func(_ *testing.T,
				in *Input) {
				in.Endpoints[1].Ports = []ContainerPort{{"http", TCP, 7070}}
			},
			"shop/db shop/web-2 7070/TCP", "shop/db shop/web-2 9090/TCP"},
		{"a peer's address", func(_ *testing.T, in *Input) {
			in.Endpoints[1].Addresses = []netip.Addr{netip.MustParseAddr("10.1.0.77")}
		},
			"shop/db shop/web-2 9090/TCP", "shop/db shop/web-2 8080/TCP"},
		{"another policy's block inside",
			func(t *testing.T,
				in *Input) {
				in.Policies = append(in.Policies, policiesOf(t, other)...)
			},
			"10.2.0.1 shop/db 80/TCP", "11.2.0.1 shop/db 80/TCP"},
	}
	for _, tt := range tests {
		compiler, in := NewCompiler(Options{}), shop()
		in.Policies = append(policiesOf(t, egress), policiesOf(t, ingress)...)
		compiler.Compile(in)
		tt.change(t, &in)
		table := NewTable(compiler.Compile(in))
		if probe(t, table, in, tt.allowed) != Allow || probe(t, table, in, tt.deny) != Deny {
			t.Errorf("%s: %s is %v, %s is %v", tt.name, tt.allowed, probe(t, table, in, tt.allowed),
				tt.deny, probe(t, table, in, tt.deny))
		}
	}
}
