package agent

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/policy"
)

// judging keeps what the datapath would, and asks after every change whether a watched address may
// begin towards the first pod.
type judging struct {
	recordedPolicies
	t       *testing.T
	last    uint32
	sets    map[uint32][]datapath.PolicyEntry
	ingress map[uint16]uint32
	classes map[netip.Prefix]uint32
	full    bool
	room    int // for entries, 0: for any number
	opened  int
	stuck   bool // the first pod keeps the set that it has
}

var watched = netip.MustParseAddr("192.0.2.1")

func (j *judging) AddPolicySet(entries []datapath.PolicyEntry) (uint32, error) {
	total := len(entries)
	for _, set := range j.sets {
		total += len(set)
	}
	if j.room > 0 && total > j.room {
		return 0, errors.New("full")
	}
	j.last++
	j.sets[j.last] = entries
	return j.last, nil
}

func (j *judging) RemovePolicySets(sets ...uint32) (left []uint32, err error) {
	for _, set := range sets {
		if slices.Contains(slices.Collect(maps.Values(j.ingress)), set) {
			left = append(left, set)
			continue
		}
		delete(j.sets, set)
	}
	return left, nil
}

func (j *judging) SetEndpointPolicy(slot uint16, _, ingress uint32) error {
	if j.stuck && slot == 1 {
		return errors.New("stuck")
	}
	j.ingress[slot] = ingress
	return j.look()
}

func (j *judging) AdoptEndpointPolicy(slot uint16, _, ingress uint32) error {
	if j.stuck && slot == 1 {
		return errors.New("stuck")
	}
	j.ingress[slot] = ingress
	return j.look()
}

func (j *judging) EnteredSlots() ([]uint16, error) {
	if j.stuck {
		return nil, errors.New("stuck")
	}
	return slices.Sorted(maps.Keys(j.ingress)), nil
}

func (j *judging) Classes() (map[netip.Prefix]uint32, error) { return maps.Clone(j.classes), nil }

func (j *judging) SetClasses(classes map[netip.Prefix]uint32) error {
	if j.full {
		return errors.New("full")
	}
	j.classes = classes
	return j.look()
}

// look judges by the entries about every protocol.
func (j *judging) look() error {
	set, attached := j.ingress[1]
	if !attached {
		return nil
	}
	longest, class := -1, uint32(0)
	for prefix, c := range j.classes {
		if prefix.Contains(watched) && prefix.Bits() > longest {
			longest, class = prefix.Bits(), c
		}
	}
	allow, best := set == 0, uint32(0)
	for _, e := range j.sets[set] {
		about := e.Peer == 0 || e.Peer == 3 || class != 0 && e.Peer == class
		if about && e.Protocol == 0 && (e.Precedence > best || e.Precedence == best && !e.Allow) {
			allow, best = e.Allow, e.Precedence
		}
	}
	if allow {
		j.opened++
	}
	return nil
}

const (
	nobodyToWeb = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n" +
		"metadata: {name: web, namespace: shop}\nspec: {selector: {matchLabels: {app: web}}}\n"
	notFromThere = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n" +
		"metadata: {name: web, namespace: shop}\n" +
		"spec: {selector: {matchLabels: {app: web}}, action: DENY, rules: [{from: [{source: {ipBlocks: [192.0.2.0/24]}}]}]}\n"
	otherBlock = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: shop}\n" +
		"spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/28}}]}]}\n"
)

// TestClassesChange: an address that every version of the policies denies is denied at every moment
// while they, and with them the classes of addresses, change: also of a pod that is added, at a
// start, and where the datapath has no room for the classes.
func TestClassesChange(t *testing.T) {
	web, db := policyPod(1, "web", map[string]string{"app": "web"}), policyPod(2, "db",
		map[string]string{"app": "db"})
	fresh := func() (*judging, *policies) {
		dp := &judging{t: t, sets: map[uint32][]datapath.PolicyEntry{},
			ingress: map[uint16]uint32{}, classes: map[netip.Prefix]uint32{}}
		p, err := newPolicies(dp, policy.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return dp, p
	}
	dp, p := fresh()
	own := []endpoint.Info{web, db}
	list := func() []endpoint.Info { return own }
	if err := p.begin(policyIndex(t, nobodyToWeb), own, "a"); err != nil {
		t.Fatal(err)
	}
	for i, objects := range []string{notFromThere, nobodyToWeb, notFromThere + otherBlock,
		notFromThere, nobodyToWeb + otherBlock, notFromThere} {
		if err := p.apply(policyIndex(t, objects), list, "a"); err != nil {
			t.Fatal(err)
		}
		if dp.opened > 0 {
			t.Fatalf("change %d: open %d times", i, dp.opened)
		}
	}
	dp.full = true
	if err := p.apply(policyIndex(t, notFromThere+otherBlock), list, "a"); err == nil ||
		dp.opened > 0 {
		t.Errorf("without room for classes: %v, open %d times", err, dp.opened)
	}

	dp, p = fresh()
	own = []endpoint.Info{db}
	if err := p.begin(policyIndex(t, notFromThere), own, "a"); err != nil {
		t.Fatal(err)
	}
	_, ingress, err := p.of(policyIndex(t, notFromThere), list, web, "a")
	if err != nil {
		t.Fatal(err)
	}
	dp.ingress[1] = ingress
	if _ = dp.look(); dp.opened > 0 {
		t.Error("a pod that is added is open until policies are applied")
	}
}

// TestClassesChangeWhileAttached: a pod that is being attached has sets that know nothing of the
// classes of a later version. They are not given to addresses before it has others.
func TestClassesChangeWhileAttached(t *testing.T) {
	dp := &judging{t: t, sets: map[uint32][]datapath.PolicyEntry{},
		ingress: map[uint16]uint32{}, classes: map[netip.Prefix]uint32{}}
	p, err := newPolicies(dp, policy.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	web, db := policyPod(1, "web", map[string]string{"app": "web"}),
		policyPod(2, "db", map[string]string{"app": "db"})
	own := []endpoint.Info{db}
	list := func() []endpoint.Info { return own }
	before, after := policyIndex(t, notFromThere), policyIndex(t, notFromThere+otherBlock)
	if err := p.begin(before, own, "a"); err != nil {
		t.Fatal(err)
	}
	_, ingress, err := p.of(before, list, web, "a")
	if err != nil {
		t.Fatal(err)
	}
	dp.ingress[1] = ingress // it is in the maps, and this agent has not been told so
	own = []endpoint.Info{db, web}
	for range 2 {
		if err := p.apply(after, list, "a"); err != nil {
			t.Fatal(err)
		}
	}
	if dp.classes[netip.MustParsePrefix("192.0.2.0/28")] != datapath.ClassWithheld {
		t.Errorf("classes %v while a pod has a set of before", dp.classes)
	}
	if err := p.attached(web, nil); err != nil {
		t.Fatal(err)
	}
	if class := dp.classes[netip.MustParsePrefix("192.0.2.0/28")]; class == 0 ||
		class == datapath.ClassWithheld {
		t.Errorf("in the end: classes %v", dp.classes)
	}
	if dp.opened > 0 {
		t.Errorf("open %d times", dp.opened)
	}
}

// TestClassesAfterFailure: while one pod cannot be given the sets that it is to have, no address
// gets a class of which its set of before says less.
func TestClassesAfterFailure(t *testing.T) {
	const nothingToWeb = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n" +
		"metadata: {name: web, namespace: shop}\n" +
		"spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}\n"
	web := policyPod(1, "web", map[string]string{"app": "web"})
	own := []endpoint.Info{web, policyPod(2, "db", map[string]string{"app": "db"})}
	list := func() []endpoint.Info { return own }
	for name, fails := range map[string]func(dp *judging, p *policies) error{
		"a change": func(_ *judging, p *policies) error {
			p.apply(policyIndex(t, nothingToWeb), list, "a") //nolint:errcheck // and again
			return p.apply(policyIndex(t, nothingToWeb), list, "a")
		},
		"the next run": func(dp *judging, _ *policies) error {
			next, err := newPolicies(dp, policy.Options{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = next.begin(policyIndex(t, nothingToWeb), own, "a")
			next.apply(policyIndex(t, nothingToWeb), list, "a") //nolint:errcheck // as before
			return err
		},
		"the next run, with ranges elsewhere": func(dp *judging, _ *policies) error {
			next, err := newPolicies(dp, policy.Options{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			elsewhere := policyIndex(t, nothingToWeb+
				strings.ReplaceAll(otherBlock, "192.0.2.0/28", "198.51.100.0/24"))
			err = next.begin(elsewhere, own, "a")
			next.apply(elsewhere, list, "a") //nolint:errcheck // as before
			return err
		},
		"the end of attaching": func(dp *judging, p *policies) error {
			_, ingress, err := p.of(policyIndex(t, notFromThere), list, web, "a")
			if err != nil {
				t.Fatal(err)
			}
			dp.ingress[1] = ingress
			if err := p.apply(policyIndex(t, nothingToWeb), list, "a"); err != nil {
				t.Fatal(err)
			}
			return p.attached(web, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dp := &judging{t: t, sets: map[uint32][]datapath.PolicyEntry{},
				ingress: map[uint16]uint32{}, classes: map[netip.Prefix]uint32{}}
			p, err := newPolicies(dp, policy.Options{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.begin(policyIndex(t, notFromThere), own, "a"); err != nil {
				t.Fatal(err)
			}
			dp.stuck = true
			if err := fails(dp, p); err == nil {
				t.Error("nobody was told that the pod has not got its set")
			}
			if dp.opened > 0 {
				t.Errorf("open %d times", dp.opened)
			}
		})
	}
}

// TestUnknownEndpointDenied: an endpoint that a previous run has entered, and whose record nobody
// can read, is denied before addresses get classes of which its set knows nothing, or none.
func TestUnknownEndpointDenied(t *testing.T) {
	const nothingElse = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n" +
		"metadata: {name: db, namespace: shop}\n" +
		"spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}\n"
	web, db := policyPod(1, "web", map[string]string{"app": "web"}),
		policyPod(2, "db", map[string]string{"app": "db"})
	dp := &judging{t: t, sets: map[uint32][]datapath.PolicyEntry{},
		ingress: map[uint16]uint32{}, classes: map[netip.Prefix]uint32{}}
	run := func() *policies {
		t.Helper()
		p, err := newPolicies(dp, policy.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	dp.ingress[1], dp.ingress[2] = 0, 0 // neither has a set before the first run begins
	if err := run().begin(policyIndex(t, notFromThere), []endpoint.Info{web, db}, "a"); err != nil {
		t.Fatal(err)
	}
	dp.opened, dp.stuck = 0, true
	second := run()
	own := []endpoint.Info{db}
	if err := second.begin(policyIndex(t, nothingElse), own, "a"); err == nil {
		t.Error("nobody was told that an unknown endpoint could not be denied")
	}
	if dp.look(); dp.opened > 0 { //nolint:errcheck // it never fails
		t.Fatal("open while it could not be denied")
	}
	dp.stuck = false
	list := func() []endpoint.Info { return own }
	if err := second.apply(policyIndex(t, nothingElse), list, "a"); err != nil {
		t.Fatal(err)
	}
	if dp.look(); dp.opened > 0 || len(dp.sets[dp.ingress[1]]) > 0 || dp.ingress[1] == 0 { //nolint:errcheck // as above
		t.Errorf("open %d times, set %d", dp.opened, dp.ingress[1])
	}
	own = append(own, web)
	_, ingress, err := second.of(policyIndex(t, notFromThere), list, web, "a")
	if err != nil || len(dp.sets[ingress]) == 0 {
		t.Errorf("made anew: set %d, %v", ingress, err)
	}
}

// owned is a datapath that notes which class one address has when it is told whose it is.
type owned struct {
	judging
	at    netip.Addr
	owner []uint32
	class []uint32
}

func (o *owned) SetIdentities(identities map[netip.Addr]uint32) error {
	o.owner = append(o.owner, identities[o.at])
	o.class = append(o.class, o.classes[netip.PrefixFrom(o.at, o.at.BitLen())])
	return nil
}

// TestAddressOfFormerOwner: an address that has passed from one pod to another is the other's only
// once no set takes it for that of the first, as one does that lets that one in from there.
func TestAddressOfFormerOwner(t *testing.T) {
	const own = "---\napiVersion: weft.dev/v1alpha1\nkind: Identity\nmetadata: {name: '%d'}\n" +
		"spec: {spiffeID: 'spiffe://weft.local/ns/shop/sa/%s'}\n"
	const node = "---\napiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata: {name: b}\n" +
		"spec: {addresses: [192.0.2.2], podCIDRs: [10.77.2.0/24]}\n"
	objects := func(identity int) *index {
		return policyIndex(t, "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n"+
			"metadata: {name: web, namespace: shop}\nspec: {selector: {matchLabels: {app: web}}, "+
			"rules: [{from: [{source: {serviceAccounts: [x], ipBlocks: [10.77.2.0/28]}}]}]}\n"+node+
			fmt.Sprintf(own, 301, "x")+fmt.Sprintf(own, 302, "y")+
			fmt.Sprintf("---\napiVersion: weft.dev/v1alpha1\nkind: Endpoint\n"+
				"metadata: {name: p, namespace: shop}\n"+
				"spec: {nodeName: b, addresses: [10.77.2.5]}\nstatus: {identity: %d}\n", identity))
	}
	dp := &owned{judging: judging{t: t, sets: map[uint32][]datapath.PolicyEntry{},
		ingress: map[uint16]uint32{}, classes: map[netip.Prefix]uint32{}},
		at: netip.MustParseAddr("10.77.2.5")}
	p, err := newPolicies(dp, policy.Options{TrustDomain: "weft.local"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pods := []endpoint.Info{policyPod(1, "web", map[string]string{"app": "web"})}
	list := func() []endpoint.Info { return pods }
	if ix := objects(301); len(ix.snapshot.Errors) > 0 {
		t.Fatal(ix.snapshot.Errors)
	}
	if err := p.begin(objects(301), pods, "a"); err != nil {
		t.Fatal(err)
	}
	knows := func(class uint32) bool {
		return slices.ContainsFunc(dp.sets[dp.ingress[1]], func(e datapath.PolicyEntry) bool {
			return e.Peer == class && e.Allow
		})
	}
	if !knows(dp.classes[netip.MustParsePrefix("10.77.2.5/32")]) {
		t.Fatalf("the set does not go by the address: %v", dp.classes)
	}
	if err := p.apply(objects(302), list, "a"); err != nil {
		t.Fatal(err)
	}
	last := len(dp.owner) - 1
	if dp.owner[last] != 302 || dp.class[last] != datapath.ClassWithheld {
		t.Errorf("owners %v with classes %v", dp.owner, dp.class)
	}
	if class, there := dp.classes[netip.MustParsePrefix("10.77.2.5/32")]; there {
		t.Errorf("in the end it has class %d", class)
	}
}
