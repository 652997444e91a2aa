package bench

import (
	"net/netip"
	"slices"
	"testing"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/policy"
)

func TestPolicySuite(t *testing.T) {
	want := []string{"known64", "new64", "compile-1000", "change-1000", "compile-10000",
		"change-10000"}
	if got := policySuite().testNames(true); !slices.Equal(got, want) {
		t.Errorf("by default: %v", got)
	}
	for _, v := range PolicyVariants() {
		if policyView.Colours[v] == "" || policyView.Legends[v] == "" {
			t.Errorf("variant %s has no colour or legend", v)
		}
	}
	for _, p := range policyView.Panels {
		for _, b := range p.Bars {
			if !slices.Contains(want, b.Test) || report.FindMetric(b.Metric).Unit == "" {
				t.Errorf("panel %q shows %s/%s, which no test measures", p.Title, b.Test, b.Metric)
			}
		}
	}
}

// TestPolicyWorld: what is compiled has many sets, and each step of a change changes some of them
// and leaves the others as they are.
func TestPolicyWorld(t *testing.T) {
	in, err := policyWorld(1000)
	if err != nil {
		t.Fatal(err)
	}
	addresses := map[netip.Addr]bool{}
	for _, e := range in.Endpoints {
		at := slices.IndexFunc(in.Ranges,
			func(p netip.Prefix) bool { return p.Contains(e.Addresses[0]) })
		if at < 0 || (at == 0) != e.Local {
			t.Fatalf("%s with %v has range %d, local %v", e.Name, e.Addresses, at, e.Local)
		}
		addresses[e.Addresses[0]] = true
	}
	if len(in.Ranges) != 1000/podsPerNode || len(addresses) != 1000 {
		t.Errorf("%d nodes with %d addresses", len(in.Ranges), len(addresses))
	}
	compiler := policy.NewCompiler(policy.Options{})
	before := compiler.Compile(in)
	if len(before.Sets) < 50 || len(before.Problems) > 0 {
		t.Fatalf("%d sets, %v", len(before.Sets), before.Problems)
	}
	for turn := range 3 {
		in = moved(in, turn)
		after, same := compiler.Compile(in), 0
		for number, set := range after.Sets {
			if before.Sets[number] == set {
				same++
			}
		}
		if same == 0 || same == len(after.Sets) {
			t.Errorf("turn %d: %d of %d sets are as they were", turn, same, len(after.Sets))
		}
		before = after
	}
}
