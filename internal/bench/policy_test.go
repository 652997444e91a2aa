package bench

import (
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
