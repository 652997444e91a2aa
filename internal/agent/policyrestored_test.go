package agent

import (
	"net/netip"
	"testing"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/policy"
)

// TestRestoredEndpointKeepsItsPolicy: after a start that failed for somebody, a pod that is
// attached again has its sets in the maps meanwhile, neither none nor those of before. Who has got
// the slot of an endpoint that nobody knows gives it nothing.
func TestRestoredEndpointKeepsItsPolicy(t *testing.T) {
	restored, late := policyPod(1, "web", map[string]string{"app": "web"}),
		policyPod(3, "late", map[string]string{"app": "web"})
	own := []endpoint.Info{restored, policyPod(2, "db", map[string]string{"app": "db"})}
	list := func() []endpoint.Info { return append([]endpoint.Info{late}, own...) }
	objects := policyIndex(t, notFromThere)
	for _, who := range []endpoint.Info{restored, late} {
		t.Run(who.Pod, func(t *testing.T) {
			dp := &judging{t: t, sets: map[uint32][]datapath.PolicyEntry{}, stuck: true,
				ingress: map[uint16]uint32{1: 0, 2: 0, 3: 0}, classes: map[netip.Prefix]uint32{}}
			p, err := newPolicies(dp, policy.Options{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.begin(objects, own, "a"); err == nil {
				t.Fatal("the start has not failed")
			}
			dp.stuck = false
			_, ingress, err := p.of(objects, list, who, "a")
			if err != nil || len(dp.sets[ingress]) == 0 {
				t.Fatalf("attached with set %d, %v", ingress, err)
			}
			set := dp.ingress[who.Slot]
			if known := who.ID == restored.ID; known != (set == ingress) || set == 0 {
				t.Errorf("the maps have set %d with %d entries, and it is attached with %d", set,
					len(dp.sets[set]), ingress)
			}
			dp.opened = 0                 // it was without a set until now
			if dp.look(); dp.opened > 0 { //nolint:errcheck // it never fails
				t.Errorf("open %d times", dp.opened)
			}
		})
	}
}
