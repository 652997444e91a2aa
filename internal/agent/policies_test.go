package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/store"
)

// recordedPolicies is a datapath that notes what it is told, and has no room for some sets.
type recordedPolicies struct {
	fakePolicies
	calls []string
	sets  uint32
	full  bool
}

func (r *recordedPolicies) note(format string, args ...any) {
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

func (r *recordedPolicies) AddPolicySet(entries []datapath.PolicyEntry) (uint32, error) {
	if r.full && len(entries) > 0 {
		return 0, errors.New("full")
	}
	r.sets++
	r.note("add %d", r.sets)
	return r.sets, nil
}

func (r *recordedPolicies) RemovePolicySets(sets ...uint32) ([]uint32, error) {
	for _, set := range sets {
		r.note("remove %d", set)
	}
	return nil, nil
}

func (r *recordedPolicies) SetEndpointPolicy(slot uint16, egress, ingress uint32) error {
	r.note("slot %d: %d %d", slot, egress, ingress)
	return nil
}

func (r *recordedPolicies) AdoptEndpointPolicy(slot uint16, egress, ingress uint32) error {
	r.note("adopt %d: %d %d", slot, egress, ingress)
	return nil
}

func (r *recordedPolicies) SetClasses(classes map[netip.Prefix]uint32) error {
	r.note("%d classes", len(classes))
	return nil
}

func policyIndex(t *testing.T, files ...string) *index {
	t.Helper()
	var objects []store.Declared
	var errs []store.ObjectError
	for i, text := range files {
		o, e := store.Decode(fmt.Sprint("f", i), []byte(text))
		objects, errs = append(objects, o...), append(errs, e...)
	}
	return newIndex(store.Assemble(objects, errs))
}

func policyPod(slot uint16, name string, labels map[string]string) endpoint.Info {
	return endpoint.Info{
		ID: name, Namespace: "shop", Pod: name, Slot: slot, Labels: labels,
		Identity: 300 + uint32(slot),
		IPv4:     netip.AddrFrom4([4]byte{10, 77, 1, byte(slot)}),
	}
}

const webDenied = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
`

// TestPolicies: sets are there before an endpoint has them, classes come after, and what nobody has
// goes last.
func TestPolicies(t *testing.T) {
	own := []endpoint.Info{policyPod(1, "web", map[string]string{"app": "web"}),
		policyPod(2, "db", nil)}
	withBlock := strings.Replace(webDenied, "policyTypes: [Ingress]",
		"ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]", 1)
	dp := &recordedPolicies{}
	p, err := newPolicies(dp, policy.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what string, err error, want ...string) {
		t.Helper()
		if err != nil || !slices.Equal(dp.calls, want) {
			t.Errorf("%s: %q %v, want %q", what, dp.calls, err, want)
		}
		dp.calls = nil
	}
	list := func() []endpoint.Info { return slices.Clone(own) }
	expect("begin", p.begin(policyIndex(t, webDenied), own, "a"), "add 1", "adopt 1: 0 1",
		"adopt 2: 0 0", "0 classes")
	eps, err := p.endpoints(own)
	expect("endpoints", err)
	for _, info := range own {
		if _, _, err := p.of(policyIndex(t, webDenied), list, info, "a"); err != nil {
			t.Fatal(err)
		}
		expect("attached", p.attached(info, nil))
	}
	if len(eps) != 2 || eps[0].IngressSet != 1 || eps[0].EgressSet != 0 || eps[1].IngressSet != 0 {
		t.Errorf("begun with %+v", eps)
	}
	expect("nothing new", p.apply(policyIndex(t, webDenied), list, "a"), "0 classes")
	expect("another version", p.apply(policyIndex(t, withBlock), list, "a"), "add 2", "slot 1: 0 2",
		"1 classes", "remove 1")
	expect("withdrawn", p.apply(policyIndex(t), list, "a"), "slot 1: 0 0", "0 classes", "remove 2")

	dp.full = true
	late := policyPod(3, "late", map[string]string{"app": "web"})
	if err := p.apply(policyIndex(t, webDenied), list, "a"); err == nil ||
		!slices.Contains(dp.calls, "slot 1: 0 3") {
		t.Errorf("no room: %q %v", dp.calls, err)
	}
	if cut, err := p.endpoints(own); err != nil || len(cut) != 2 || cut[0].IngressSet != 3 ||
		cut[0].EgressSet != 0 || cut[1].IngressSet != 0 {
		t.Errorf("without its set web is entered as %+v, %v", cut, err)
	}
	_, ingress, err := p.of(policyIndex(t, webDenied), list, late, "a")
	if ingress != 3 || err != nil {
		t.Errorf("a pod that comes without room for its set has set %d, %v", ingress, err)
	}
	if err := p.attached(late, errors.New("not this time")); err == nil {
		t.Error("an endpoint that has not been attached was")
	}
	dp.full, dp.calls = false, nil
	egress, ingress, err := p.of(policyIndex(t, webDenied), list, late, "a")
	if egress != 0 || ingress != 4 {
		t.Errorf("late has %d %d", egress, ingress)
	}
	// Nothing of others' on its way, or its own pod would have to wait for theirs.
	expect("late", err, "add 4")
	own = append(own, late)
	expect("while it is attached", p.apply(policyIndex(t, webDenied), list, "a"), "slot 1: 0 4",
		"0 classes")
	expect("withdrawn meanwhile", p.apply(policyIndex(t), list, "a"), "slot 1: 0 0", "0 classes")
	expect("attached with what is no more", p.attached(late, nil), "slot 3: 0 0")
	expect("in the end", p.apply(policyIndex(t), list, "a"), "0 classes", "remove 4")
}

// TestPoliciesOfFailedAttach: what an endpoint was to be attached with is not what it has.
func TestPoliciesOfFailedAttach(t *testing.T) {
	dp := &recordedPolicies{}
	p, _ := newPolicies(dp, policy.Options{}, nil)
	web := policyPod(1, "web", map[string]string{"app": "web"})
	list := func() []endpoint.Info { return []endpoint.Info{web} }
	if _, _, err := p.of(policyIndex(t), list, web, "a"); err != nil ||
		p.attached(web, nil) != nil {
		t.Fatal(err)
	}
	if _, ingress, err := p.of(policyIndex(t, webDenied), list, web, "a"); ingress != 1 ||
		err != nil {
		t.Fatal(ingress, err)
	}
	failed := errors.New("no such namespace")
	if err := p.attached(web, failed); err != failed {
		t.Error(err)
	}
	dp.calls = nil
	if err := p.apply(policyIndex(t, webDenied), list, "a"); err != nil ||
		!slices.Contains(dp.calls, "slot 1: 0 1") {
		t.Errorf("%q, %v", dp.calls, err)
	}
}

// TestPoliciesDoubled: of a policy that two files declare in other words, both isolate and neither
// allows.
func TestPoliciesDoubled(t *testing.T) {
	open := strings.Replace(webDenied, "policyTypes: [Ingress]", "ingress: [{}]", 1)
	list := policyIndex(t, webDenied, open).policies()
	if len(list) != 2 {
		t.Fatalf("%d policies", len(list))
	}
	dp := &recordedPolicies{}
	p, _ := newPolicies(dp, policy.Options{}, nil)
	web := policyPod(1, "web", map[string]string{"app": "web"})
	none := func() []endpoint.Info { return nil }
	if _, ingress, err := p.of(policyIndex(t, webDenied, open), none, web, "a"); ingress != 1 ||
		err != nil {
		t.Errorf("set %d, %v", ingress, err)
	}
	for _, e := range p.result.Sets {
		for _, entry := range e.Entries {
			if entry.Peer == 0 || entry.Peer >= v1alpha1.MinIdentity {
				t.Errorf("an entry allows %+v", entry)
			}
		}
	}
}

// TestAuthorizationPolicies: they are compiled as NetworkPolicies are, with what the cluster's
// objects say of who is who.
func TestAuthorizationPolicies(t *testing.T) {
	objects := `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: istio-system}
spec: {action: DENY, selector: {matchLabels: {app: web}}, rules: [{from: [{source: {principals: [td.example/ns/ops/sa/prom]}}]}]}
---
apiVersion: weft.dev/v1alpha1
kind: Identity
metadata: {name: "400"}
spec: {spiffeID: spiffe://td.example/ns/ops/sa/prom}
---
apiVersion: weft.dev/v1alpha1
kind: Node
metadata: {name: b}
spec: {addresses: [192.0.2.2], podCIDRs: [10.77.2.0/24]}
`
	ix := policyIndex(t, objects)
	if len(ix.snapshot.Errors) > 0 || !ix.policed() {
		t.Fatal(ix.snapshot.Errors)
	}
	p, _ := newPolicies(&recordedPolicies{}, policy.Options{RootNamespace: "istio-system"},
		[]netip.Prefix{netip.MustParsePrefix("10.88.0.0/16")})
	web := policyPod(1, "web", map[string]string{"app": "web"})
	if _, ingress, err := p.of(ix, func() []endpoint.Info { return nil }, web, "a"); ingress == 0 ||
		err != nil {
		t.Fatal(ingress, err)
	}
	table := policy.NewTable(p.result)
	for peer, want := range map[policy.Peer]policy.Verdict{
		{Identity: 400,
			Address: netip.MustParseAddr("10.77.2.9")}: policy.Deny,
		{Identity: v1alpha1.IdentityWorld,
			Address: netip.MustParseAddr("8.8.8.8")}: policy.Allow,
		{Identity: v1alpha1.IdentityUnknown,
			Address: netip.MustParseAddr("10.77.2.8")}: policy.Deny,
		{Identity: v1alpha1.MinIdentity + 999,
			Address: netip.MustParseAddr("10.88.1.1")}: policy.Deny,
		{Identity: v1alpha1.IdentityRemoteHost,
			Address: netip.MustParseAddr("192.0.2.2")}: policy.Allow,
	} {
		if got := table.Decide("shop/web", policy.Ingress, peer, policy.TCP,
			80).Verdict; got != want {
			t.Errorf("%v: %v, want %v", peer, got, want)
		}
	}
}

// TestPoliciesDoubledOverRestart: they deny in the next run, too.
func TestPoliciesDoubledOverRestart(t *testing.T) {
	open := strings.Replace(webDenied, "policyTypes: [Ingress]", "ingress: [{}]", 1)
	data, err := policy.Remember(policyIndex(t, webDenied, open).policies())
	if err != nil {
		t.Fatal(err)
	}
	list, files, err := policy.Recall(data)
	if err != nil {
		t.Fatal(err)
	}
	var h store.History
	h.SeedPolicies(list, files)
	var objects []store.Declared
	for i, text := range []string{webDenied, open} {
		o, _ := store.Decode(fmt.Sprint("f", i), []byte(text))
		objects = append(objects, o...)
	}
	in := newIndex(h.Assemble(objects, nil)).policies()
	if len(in) != 2 || !in[0].IsClosed() || !in[1].IsClosed() {
		t.Errorf("%d policies in force: %+v", len(in), in)
	}
}

// TestRemoteIdentities: an address that several claim is nobody's.
func TestRemoteIdentities(t *testing.T) {
	claims := func(name string, number uint32) string {
		return fmt.Sprintf("---\napiVersion: weft.dev/v1alpha1\nkind: Endpoint\nmetadata: {name: %s, namespace: shop}\n"+
			"spec: {nodeName: b, addresses: [10.77.2.5, 10.77.2.%d]}\nstatus: {identity: %d}\n",
			name, number-290, number)
	}
	node := "apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata: {name: b}\nspec: {addresses: [192.0.2.2], podCIDRs: [10.77.2.0/24]}\n"
	ix := policyIndex(t, node+claims("p", 300)+claims("q", 301)+claims("r", 302))
	got := remoteIdentities(policyInput(ix, nil, "a"))
	if len(got) != 3 || got[netip.MustParseAddr("10.77.2.11")] != 301 {
		t.Errorf("%v", got)
	}
	strange := strings.ReplaceAll(claims("s", 303), "10.77.2.", "10.99.2.")
	if got := remoteIdentities(policyInput(policyIndex(t, node+strange), nil, "a")); len(got) != 0 {
		t.Errorf("addresses of no range of its node: %v", got)
	}
}

// TestPolicyWithoutRoom: a denial for which there is no room is enforced on a pod that runs, by one
// that denies more, until there is; what it had before makes that room.
func TestPolicyWithoutRoom(t *testing.T) {
	open := strings.Replace(webDenied, "policyTypes: [Ingress]",
		"ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}]", 1)
	dp := &judging{sets: map[uint32][]datapath.PolicyEntry{}, ingress: map[uint16]uint32{},
		classes: map[netip.Prefix]uint32{}, room: 2}
	p, err := newPolicies(dp, policy.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	web := policyPod(1, "web", map[string]string{"app": "web"})
	list := func() []endpoint.Info { return []endpoint.Info{web} }
	if err := p.begin(policyIndex(t, open), list(), "a"); err != nil || dp.opened == 0 {
		t.Fatalf("%v, open %d times", err, dp.opened)
	}
	narrow := strings.Replace(open, "0.0.0.0/0", "203.0.113.0/24", 1)
	dp.opened = 0
	if err := p.apply(policyIndex(t, narrow), list, "a"); err != nil {
		t.Errorf("the old set's room was not used: %v", err)
	}
	if n := len(dp.sets[dp.ingress[1]]); n != 2 {
		t.Errorf("%d entries in the end, want 2", n)
	}
	dp.room = 1
	wide := strings.Replace(open, "0.0.0.0/0", "198.51.100.0/24", 1)
	err = p.apply(policyIndex(t, wide), list, "a")
	if err == nil || !strings.Contains(err.Error(), "is denied until it can") {
		t.Errorf("said %v", err)
	}
	if n := len(dp.sets[dp.ingress[1]]); n != 0 || dp.ingress[1] == 0 {
		t.Errorf("set %d with %d entries, want one that denies", dp.ingress[1], n)
	}
}
