package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/api/v1alpha1"
)

// tenants is two tenants' pods, and a policy in each that lets these ranges in.
func tenants(big, small []string) Input {
	in := Input{}
	for i, tenant := range []struct {
		name  string
		cidrs []string
	}{{"big", big}, {"small", small}} {
		number := v1alpha1.MinIdentity + uint32(i)
		in.Identities = append(in.Identities, Identity{Number: number, Namespace: tenant.name})
		in.Endpoints = append(in.Endpoints, Endpoint{Namespace: tenant.name, Name: "pod",
			Identity: number, Local: true,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})}})
		p := &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: tenant.name}}
		var from []networkingv1.NetworkPolicyPeer
		for _, cidr := range tenant.cidrs {
			from = append(from,
				networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}})
		}
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: from}}
		in.Policies = append(in.Policies, Read(p))
	}
	return in
}

func addresses(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("198.51.%d.%d/32", i/256, i%256))
	}
	return out
}

// TestRoom: what one namespace needs too much is denied to that one, by a problem that its policy
// has in the list, and the other's set is as it would be alone: also where the ranges of the one
// divide those of the other.
func TestRoom(t *testing.T) {
	for name, c := range map[string]struct {
		in         Input
		room       Room
		big, small Verdict
	}{
		"room for both":      {tenants(addresses(40), []string{"203.0.113.0/24"}), Room{Entries: 44}, Allow, Allow},
		"one has too much":   {tenants(addresses(60), []string{"203.0.113.0/24"}), Room{Entries: 50}, Deny, Allow},
		"one divides":        {tenants(addresses(30), []string{"0.0.0.0/0"}), Room{Entries: 40}, Deny, Allow},
		"too many ranges":    {tenants(addresses(60), []string{"203.0.113.0/24"}), Room{Ranges: 50}, Deny, Allow},
		"room for all range": {tenants(addresses(60), []string{"203.0.113.0/24"}), Room{Ranges: 61}, Allow, Allow},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewCompiler(Options{Room: c.room}).Compile(c.in)
			table := NewTable(r)
			ask := func(pod, peer string) Verdict {
				return table.Decide(pod, Ingress,
					Peer{Identity: v1alpha1.IdentityWorld, Address: netip.MustParseAddr(peer)}, TCP, 80).Verdict
			}
			if got := ask("big/pod", "198.51.0.1"); got != c.big {
				t.Errorf("big: %v, want %v", got, c.big)
			}
			if got := ask("small/pod", "203.0.113.7"); got != c.small {
				t.Errorf("small: %v, want %v", got, c.small)
			}
			total := 0
			for _, set := range r.Sets {
				total += len(set.Entries)
			}
			if c.room.Entries > 0 && total > c.room.Entries {
				t.Errorf("%d entries in room for %d", total, c.room.Entries)
			}
			host := Peer{Identity: v1alpha1.IdentityHost, Address: netip.MustParseAddr("10.9.9.9")}
			if table.Decide("big/pod", Ingress, host, TCP, 80).Verdict != Allow {
				t.Error("closed to its own node")
			}
			view := NewView(r, c.in, Names{Identity: func(uint32) string { return "" },
				Pod: func(key string) string { return key }})
			for _, s := range view.Policies() {
				denied := s.Namespace == "big" && c.big == Deny
				if s.Denies != denied || denied != strings.Contains(said(s.Problems), "share") {
					t.Errorf("%s: denies %v, %v", s.Object(), s.Denies, s.Problems)
				}
			}
		})
	}
}

// TestRoomOverChanges: a compiler that had to refuse a set makes it once there is room.
func TestRoomOverChanges(t *testing.T) {
	compiler := NewCompiler(Options{Room: Room{Entries: 50}})
	peer := Peer{Identity: v1alpha1.IdentityWorld, Address: netip.MustParseAddr("198.51.0.1")}
	for i, c := range []struct {
		ranges int
		want   Verdict
	}{{60, Deny}, {60, Deny}, {30, Allow}, {60, Deny}} {
		in := tenants(addresses(c.ranges), []string{"0.0.0.0/0"})
		table := NewTable(compiler.Compile(in))
		if c.ranges == 30 { // both fit, as the other's is divided no more than there is room for
			in = tenants(addresses(c.ranges/2), []string{"0.0.0.0/0"})
			table = NewTable(compiler.Compile(in))
		}
		if got := table.Decide("big/pod", Ingress, peer, TCP, 80).Verdict; got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
		other := Peer{Identity: v1alpha1.IdentityWorld, Address: netip.MustParseAddr("192.0.2.1")}
		if table.Decide("small/pod", Ingress, other, TCP, 80).Verdict != Allow {
			t.Errorf("%d: the other tenant is closed", i)
		}
	}
}

// TestOthersRanges: a set of policies of several kinds has entries for the ranges that its own
// rules name, and none for those of others.
func TestOthersRanges(t *testing.T) {
	for _, text := range []string{
		"  action: DENY\n  rules: [{from: [{source: {ipBlocks: [203.0.113.0/24]}}]}]\n",
		"  action: DENY\n  rules: [{from: [{source: {principals: ['*/sa/db']}}]}]\n",
		"  rules: [{to: [{operation: {ports: ['80']}}]}]\n",
		"  rules: [{from: [{source: {namespaces: [big]}}]}]\n",
	} {
		var sizes []int
		for _, n := range []int{1, 500} {
			in := tenants(addresses(n), []string{"203.0.113.0/25"})
			in.Ranges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
			header := strings.Replace(authorizationHeader, "namespace: shop", "namespace: small", 1)
			header = strings.Replace(header, "  selector: {matchLabels: {app: web}}\n", "", 1)
			in.Policies = append(in.Policies, policiesOf(t, header+text)...)
			r := NewCompiler(istioOptions).Compile(in)
			sizes = append(sizes, len(r.Sets[r.Endpoints["small/pod"][Ingress]].Entries))
		}
		if sizes[0] != sizes[1] {
			t.Errorf("%s: %d entries, and %d beside 500 ranges of another tenant", text, sizes[0],
				sizes[1])
		}
	}
}

// TestTooManyVerdicts: a set for which too many verdicts would have to be found denies all, and its
// policies have the problem.
func TestTooManyVerdicts(t *testing.T) {
	for limit, want := range map[int]Verdict{100: Deny, 0: Allow} {
		in := tenants(addresses(30), []string{"0.0.0.0/0"})
		in.Policies = append(in.Policies, policiesOf(t, strings.NewReplacer(
			"np", "all", "NetworkPolicy", "ClusterNetworkPolicy", "networking.k8s.io/v1",
			"policy.networking.k8s.io/v1beta1", ", namespace: shop", "").Replace(header)+
			"  tier: Baseline\n  priority: 1\n  subject: {namespaces: {}}\n"+
			"  ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}]\n")...)
		r := NewCompiler(Options{MaxVerdicts: limit}).Compile(in)
		peer := Peer{Identity: v1alpha1.IdentityWorld, Address: netip.MustParseAddr("198.51.0.1")}
		if got := NewTable(r).Decide("big/pod", Ingress, peer, TCP, 80).Verdict; got != want {
			t.Errorf("limit %d: %v, want %v: %v", limit, got, want, said(r.Problems))
		}
		if got := NewTable(r).Decide("small/pod", Ingress, peer, TCP, 80).Verdict; got != Allow {
			t.Errorf("limit %d: the other tenant is denied: %v", limit, said(r.Problems))
		}
		if told := strings.Contains(said(r.Problems), "verdicts by"); told != (want == Deny) {
			t.Errorf("limit %d: said %q", limit, said(r.Problems))
		}
	}
}

// TestIdentitiesWithoutEndpoints: an identity is in sets for as long as some endpoint has it, and
// is denied before and after: also by a DENY rule that names it, at an address that no range has.
func TestIdentitiesWithoutEndpoints(t *testing.T) {
	in := shop()
	in.Policies = append(policiesOf(t, header+
		"  podSelector: {matchLabels: {app: db}}\n  ingress: [{from: [{namespaceSelector: {}}]}]\n"),
		policiesOf(t, authorizationHeader+"  selector: {matchLabels: {app: web}}\n  action: DENY\n"+
			"  rules: [{from: [{source: {principals: ['*/sa/late']}}]}]\n")...)
	compiler := NewCompiler(istioOptions)
	sizes := func(in Input) (out []int) {
		r := compiler.Compile(in)
		for _, pod := range []string{"shop/db", "shop/web"} {
			out = append(out, len(r.Sets[r.Endpoints[pod][Ingress]].Entries))
		}
		return out
	}
	alone := sizes(in)
	late := Peer{Identity: v1alpha1.MinIdentity + 700, Address: netip.MustParseAddr("203.0.113.9")}
	many := in
	for i := range uint32(500) {
		many.Identities = append(many.Identities, Identity{Number: late.Identity + i,
			TrustDomain: "weft.local", Namespace: "big", ServiceAccount: "late"})
	}
	if got := sizes(many); !slices.Equal(got, alone) {
		t.Errorf("%v entries with 500 identities that no endpoint has, %v without", got, alone)
	}
	there := many
	there.Endpoints = append(slices.Clone(in.Endpoints), Endpoint{Namespace: "big", Name: "late",
		Identity: late.Identity, Addresses: []netip.Addr{late.Address}, Local: true})
	newcomer := Peer{Identity: late.Identity + 1, Address: late.Address} // the same pod, with labels of another moment
	for i, step := range []struct {
		in     Input
		peer   Peer
		db     Verdict
		denied bool
	}{{many, late, Deny, false}, {there, late, Allow, true}, {there, newcomer, Deny, true}} {
		table := NewTable(compiler.Compile(step.in))
		if got := table.Decide("shop/db", Ingress, step.peer, TCP, 80).Verdict; got != step.db {
			t.Errorf("step %d: db %v, want %v", i, got, step.db)
		}
		got := table.Decide("shop/web", Ingress, step.peer, TCP, 80).Verdict
		if step.denied && got != Deny {
			t.Errorf("step %d: web %v", i, got)
		}
	}
}

// peopled is two tenants of which the small one lets all namespaces in at two ports, and the big
// one has so many identities, beside a third with one.
func peopled(identities int) Input {
	in := tenants([]string{"192.0.2.0/24"}, []string{"203.0.113.0/24"})
	add := func(ns string, number uint32) {
		name := fmt.Sprint(ns, number)
		in.Identities = append(in.Identities, Identity{Number: number, TrustDomain: "weft.local",
			Namespace: ns, ServiceAccount: name})
		in.Endpoints = append(in.Endpoints, Endpoint{Namespace: ns, Name: name, Identity: number,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 2, byte(number >> 8), byte(number)})}})
	}
	for i := range uint32(identities) {
		add("big", v1alpha1.MinIdentity+100+i)
	}
	add("third", v1alpha1.MinIdentity+9000)
	return in
}

var everybody = strings.Replace(header, "namespace: shop", "namespace: small", 1) +
	"  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {}}], ports: [{port: 80}, {port: 90}]}]\n"

// TestOthersIdentities: who makes many identities fills nobody else's sets. Of what the own entries
// of a set, or of all sets of a namespace, leave, each other namespace has an equal part; who has
// no entry is denied, and the policies of the set say so and stay in force.
func TestOthersIdentities(t *testing.T) {
	denyThird := strings.Replace(authorizationHeader, "namespace: shop", "namespace: small", 1) +
		"  action: DENY\n  rules: [{from: [{source: {serviceAccounts: [third/third9256]}}]}]\n"
	denyThird = strings.Replace(denyThird, "  selector: {matchLabels: {app: web}}\n", "", 1)
	for name, c := range map[string]struct {
		text    string
		opts    Options
		newest  Verdict
		third   Verdict
		said    string
		entries int
	}{
		"room for all":           {everybody, Options{}, Allow, Allow, "", 1000},
		"more than one set has":  {everybody, Options{MaxEntries: 60}, Deny, Allow, "namespace big", 60},
		"more than a share":      {everybody, Options{Room: Room{Entries: 100}}, Deny, Allow, "namespace big", 100},
		"of another kind, one":   {everybody + "---\n" + denyThird, Options{MaxEntries: 60}, Deny, Deny, "namespace big", 60},
		"of another kind, share": {everybody + "---\n" + denyThird, Options{Room: Room{Entries: 100}}, Deny, Deny, "namespace big", 100},
	} {
		t.Run(name, func(t *testing.T) {
			in := peopled(200)
			in.Policies = append(in.Policies, policiesOf(t, c.text)...)
			c.opts.TrustDomain = "weft.local"
			compiler := NewCompiler(c.opts)
			for range 2 { // the second from what the first has left
				in.Endpoints = slices.Clone(in.Endpoints)
				in.Endpoints[len(in.Endpoints)-1].Labels = map[string]string{"turn": "x"}
				r := compiler.Compile(in)
				table := NewTable(r)
				for _, peer := range []struct {
					index int
					want  Verdict
				}{{1, Allow}, {2, Allow}, {len(in.Endpoints) - 2, c.newest}, {len(in.Endpoints) - 1, c.third}} {
					e := in.Endpoints[peer.index]
					got := table.Decide("small/pod", Ingress, Peer{Identity: e.Identity, Address: e.Addresses[0]}, TCP, 80)
					if got.Verdict != peer.want {
						t.Errorf("%s: %v, want %v", e.Key(), got.Verdict, peer.want)
					}
				}
				total := 0
				for _, set := range r.Sets {
					total += len(set.Entries)
				}
				if total > c.entries+8 {
					t.Errorf("%d entries", total)
				}
				if got := said(r.Problems); !strings.Contains(got, c.said) || (got == "") != (c.said == "") {
					t.Errorf("said %q", got)
				}
				if got := table.Decide("big/pod", Ingress,
					Peer{Identity: v1alpha1.IdentityWorld, Address: netip.MustParseAddr("192.0.2.1")}, TCP, 80).Verdict; got != Allow {
					t.Errorf("the other's own set: %v", got)
				}
			}
		})
	}
}

// TestOthersKinds: identities that a namespace makes of ever new kinds do not make the verdicts of
// another's set too many: those of the most kinds are taken for unknown.
func TestOthersKinds(t *testing.T) {
	text := strings.Replace(authorizationHeader, "namespace: shop", "namespace: small", 1)
	text = strings.Replace(text, "  selector: {matchLabels: {app: web}}\n", "", 1) + "  action: DENY\n  rules:\n"
	for i := range 9 {
		text += fmt.Sprintf("  - from: [{source: {principals: ['*%d']}}]\n"+
			"    to: [{operation: {ports: ['%d']}}]\n", i, 100+i)
	}
	in := peopled(200)
	in.Policies = policiesOf(t, text)
	for limit, big := range map[int]Verdict{0: Allow, 900: Deny} {
		r := NewCompiler(Options{TrustDomain: "weft.local", MaxVerdicts: limit}).Compile(in)
		table := NewTable(r)
		third, last := in.Endpoints[len(in.Endpoints)-1], in.Endpoints[len(in.Endpoints)-3]
		for _, c := range []struct {
			e    Endpoint
			port uint16
			want Verdict
		}{{third, 106, Deny}, {third, 105, Allow}, {last, 104, Deny}, {last, 105, big}} {
			got := table.Decide("small/pod", Ingress, Peer{Identity: c.e.Identity, Address: c.e.Addresses[0]}, TCP, c.port)
			if got.Verdict != c.want {
				t.Errorf("limit %d: %s port %d: %v, want %v: %s", limit, c.e.Key(), c.port,
					got.Verdict, c.want, said(r.Problems))
			}
		}
		if told := strings.Contains(said(r.Problems), "namespace big"); told != (limit > 0) {
			t.Errorf("limit %d: said %q", limit, said(r.Problems))
		}
	}
}

// TestCountedFirst: of sets that need more than there is room for no more are made than fit.
func TestCountedFirst(t *testing.T) {
	in := peopled(200)
	in.Policies = policiesOf(t, everybody+"---\n"+strings.ReplaceAll(everybody, "small", "big"))
	c := NewCompiler(Options{Room: Room{Entries: 450}})
	r := c.begin(in)
	needed, made := r.makeSets(r.draftAll(sortedPolicies(in.Policies))), 0
	for _, set := range r.result.Sets {
		made += len(set.Entries)
	}
	if needed < 800 || made > 450 {
		t.Errorf("%d entries needed, %d made", needed, made)
	}
}
