package agent

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/store"
)

// TestIndexByDeltas: random changes, told one by one, make the same index as all objects do at
// once; and whoever does only the work that a change is said to need has told the datapath the
// same.
func TestIndexByDeltas(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		next, fresh := absenceAgent(t, nil), absenceAgent(t, nil)
		var told, toldWhole string
		for step := range 120 {
			a := next.Agent
			was := a.index.Load()
			d := randomDelta(r, was.snapshot)
			a.takeWork()
			a.seeDelta(d)
			now, todo := a.index.Load(), a.takeWork()
			fresh.see(now.snapshot)
			whole := fresh.index.Load()
			if seen, want := lookups(now), lookups(whole); seen != want {
				t.Fatalf("seed %d, step %d, after %+v:\n%s\nwant\n%s", seed, step, d, seen, want)
			}
			if todo.nodes {
				told = fmt.Sprint(a.datapathNodes(now))
			}
			if toldWhole = fmt.Sprint(fresh.datapathNodes(whole)); told != toldWhole && step > 0 {
				t.Fatalf("seed %d, step %d, after %+v: nodes\n%s\nwant\n%s", seed, step, d, told,
					toldWhole)
			}
			if plain := identity.Plain(now.snapshot, now.remembered()); !todo.plain &&
				!slices.Equal(plain, identity.Plain(was.snapshot, was.remembered())) {
				t.Fatalf("seed %d, step %d, after %+v: what may be plain changed unnoticed", seed,
					step, d)
			}
			before, _ := identity.OfNodes(was.snapshot, "t")
			after, _ := identity.OfNodes(now.snapshot, "t")
			if !todo.identities && !reflect.DeepEqual(before, after) {
				t.Fatalf("seed %d, step %d, after %+v: identities changed unnoticed", seed, step, d)
			}
			if !todo.epochs &&
				(!maps.Equal(was.snapshot.Epochs, now.snapshot.Epochs) ||
					!slices.Equal(was.snapshot.Errors, now.snapshot.Errors)) {
				t.Fatalf("seed %d, step %d, after %+v: epochs changed unnoticed, or what keeps them from being read", seed, step, d)
			}
		}
	}
}

// lookups is an index as its readers see it, without the times in it.
func lookups(ix *index) string {
	out := fmt.Sprintln(ix.byIP, ix.perNode, ix.byRange, ix.lengths, ix.numbers)
	if ix.view == nil {
		return out
	}
	for _, e := range ix.view.Lost {
		out += fmt.Sprintln(e.Prefix, e.Kind, e.Node, e.Why)
	}
	return out + fmt.Sprintln(ix.view.Published, ix.view.Refused, ix.view.Sealed)
}

// randomDelta changes one or two objects of few: endpoints that come, move, share addresses, ask
// for cleartext or not, are doubled or inside another's range; nodes, pods, policies, identities
// and epochs; and errors.
func randomDelta(r *rand.Rand, s *store.Snapshot) store.Delta {
	var d store.Delta
	seen := map[string]bool{}
	if r.IntN(10) == 0 {
		file := []string{"/objects/keys", "/objects/nodes.yaml"}[r.IntN(2)]
		d.Errors = map[string][]store.ObjectError{file: nil}
		if r.IntN(2) == 0 {
			d.Errors[file] = []store.ObjectError{{File: file, Msg: fmt.Sprint("fault ", r.IntN(3))}}
		}
		if r.IntN(2) == 0 {
			return d
		}
	}
	for range 1 + r.IntN(2) {
		c := randomChange(r)
		if c.Object != nil && r.IntN(4) == 0 {
			if r.IntN(2) == 0 {
				c.Unused = []v1alpha1.Object{c.Object}
			}
			c.Object = nil
		}
		if !seen[c.Kind+c.Key] {
			d.Changes = append(d.Changes, c)
		}
		seen[c.Kind+c.Key] = true
	}
	return d
}

func randomChange(r *rand.Rand) store.Change {
	meta := v1alpha1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("e", r.IntN(6))}
	if r.IntN(3) == 0 {
		meta.Annotations = map[string]string{v1alpha1.EncryptAnnotation: []string{"true",
			"false"}[r.IntN(2)]}
	}
	addr := netip.MustParseAddr(fmt.Sprintf("10.%d.0.%d", r.IntN(4), 1+r.IntN(4)))
	node := string('a' + rune(r.IntN(4)))
	var o v1alpha1.Object
	switch r.IntN(10) {
	case 0:
		i := 'a' + rune(r.IntN(4))
		o = nodeObject(string(i), fmt.Sprintf("192.0.2.%d", i-'a'+1),
			fmt.Sprintf("10.%d.0.0/24", i-'a'))
	case 1:
		o = &v1alpha1.Pod{Metadata: meta}
	case 2:
		o = &v1alpha1.EncryptionPolicy{Metadata: v1alpha1.ObjectMeta{Name: "p"},
			Spec: v1alpha1.EncryptionPolicySpec{CIDRs: prefixes("10.1.0.0/24")}}
	case 3:
		o = &v1alpha1.Identity{Metadata: v1alpha1.ObjectMeta{Name: "300"},
			Spec: v1alpha1.IdentitySpec{SPIFFEID: "spiffe://t/ns/shop/sa/x"}}
	case 4:
		number := 1 + r.Uint64N(3)
		o = &v1alpha1.Epoch{Metadata: v1alpha1.ObjectMeta{Name: fmt.Sprint("epoch-", number)},
			Spec: v1alpha1.EpochSpec{Number: number, Wrapped: []byte{byte(r.Uint32())}}}
	default:
		o = &v1alpha1.Endpoint{Metadata: meta,
			Spec: v1alpha1.EndpointSpec{NodeName: node, ServiceAccount: "x",
				Addresses: []netip.Addr{addr}},
			Status: v1alpha1.EndpointStatus{Identity: 300}}
	}
	o.SetDefaults()
	return store.Change{Kind: o.Type().Kind, Key: o.Meta().Key(), Object: o}
}
